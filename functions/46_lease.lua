-- CL.ACQUIRE, CL.RENEW and CL.RELEASE: core/src/lease.rs --------------------------------------------------------------
--
-- One entry for each holder, whose score is the end of its lease.

local Lease = { name = 'LEASE', words = 2, delete = 'UNLINK' }

do
local LEASE_STATE = 'a sorted set of holders and the ends of their leases in microseconds since the epoch'

-- `limit.places` is plain: a number above 2^53 is more than the places that can be taken.
function Lease.limit(most, lease, id, unit)
    checked(most, 'limit', 1, LAST)
    return { most = int(most), places = tonumber(most), lease = lease, id = id, unit = unit }
end

-- Reads `limit lease`, the arguments before the holder's id.
function Lease.read(args, i, unit)
    local lease = checked_time(args[i + 1], 'lease', 1, unit)
    return Lease.limit(args[i], lease, nil, unit)
end

-- Returns the limit of a call by a holder. Writes it into a table.
function Lease.of_holder(limit, id, result)
    if result.shared ~= limit then
        result.most, result.places, result.lease, result.unit = limit.most, limit.places, limit.lease, limit.unit
        result.shared = limit
    end
    result.id = id
    return result
end

-- Returns whether a big instant can be the end of a lease: within years of now, or later but not after the key expires.
local function may_end(key, ends)
    if are_near(ends, now, YEARS) then
        return true
    end
    local expires = now < ends and expiry(key)
    return expires and not (expires < ends)
end

-- Returns the leases, and the end of the holder's own lease.
function Lease.load(key, limit)
    local scores = load_scores(key, LEASE_STATE)
    if not scores then
        return { key = key, count = 0 }
    end
    local is_log = is_entry_of_log(scores.name, scores.micros)
    if is_log or not (is_plain or may_end(key, scores.first) and may_end(key, scores.last)) then
        foreign(LEASE_STATE)
    end
    heed_expiry(scores, (limit.lease or int(DAY .. '000000000')) + tick, zero)
    if scores.name == limit.id then
        scores.own = scores.last
    else
        local own = call('ZSCORE', key, limit.id)
        scores.own = own and (instant_in(scores, own) or foreign(LEASE_STATE))
    end
    return scores
end

local function lease_end(limit)
    local ends = now + limit.lease
    if not is_plain and last_tick() < ends then
        out_of_range('lease', 1, quotient(last_tick() - now, int(limit.unit.nanoseconds)))
    end
    return ends
end

local function holds(scores)
    return scores.own and now < scores.own
end

Lease.holds = holds

local function lease_answer(limit, wait, alive, ends, store)
    local taken = is_plain and alive or int(alive)
    return wait, difference(limit.most, taken), ends and difference(ends, now) or zero, store
end

-- Returns the time until a client without a place could acquire one.
local function next_place(limit, scores, alive)
    if alive < limit.places then
        return zero
    end
    -- The leases sorted by their ends: when this one ends, one place is free.
    local ends = at_rank(scores, scores.count - limit.places)
    return ends and difference(ends, now) or zero
end

-- Returns when the last lease of the other holders ends.
local function last_other(scores)
    if not scores.own or scores.own ~= scores.last then
        return scores.last
    end
    -- The holder's lease is the last one, or one of several that end last.
    return scores.count > 1 and at_rank(scores, scores.count - 2) or nil
end

-- Returns the change that gives the holder's lease another end, and removes `count` other leases.
local function held(limit, scores, ends, count)
    local other = last_other(scores)
    return { scores = scores, id = limit.id, ends = ends, pruned = count, until_ = other and larger(other, ends) or ends }
end

-- The quantity is 1, or 0 to read the state.
function Lease.take(limit, scores, quantity)
    if not is_plain then
        check_tick()
    end
    local ends = lease_end(limit)
    local alive, renews = later_than(scores, now), holds(scores)
    if not renews and alive >= limit.places then
        return lease_answer(limit, next_place(limit, scores, alive), alive, scores.last)
    elseif quantity == zero then
        return lease_answer(limit, nil, alive, scores.last)
    end
    -- If the holder's own lease has ended, it is not removed but gets a new end.
    local ended = scores.count - alive - (scores.own and not renews and 1 or 0)
    local store = held(limit, scores, ends, pruned(max(ended, 0), 1))
    return lease_answer(limit, nil, renews and alive or alive + 1, store.until_, store)
end

local function renew_lease(limit, scores)
    check_tick()
    local ends = lease_end(limit)
    return holds(scores) and held(limit, scores, ends, 0) or nil
end

local function release_lease(limit, scores)
    check_tick()
    if not holds(scores) then
        return nil
    end
    local other = last_other(scores)
    return other and now < other and { scores = scores, id = limit.id, until_ = other } or DELETED
end

-- Renews the lease, or gives the place back if `lease` is 0. The age of the place does not matter.
function Lease.settle(limit, scores)
    local store = (limit.lease and renew_lease or release_lease)(limit, scores)
    local alive = later_than(scores, now)
    if store == DELETED then
        return lease_answer(limit, nil, 0, nil, store)
    elseif not store then
        local wait
        if limit.lease then
            wait = next_place(limit, scores, alive)
        end
        return lease_answer(limit, wait, alive, scores.last)
    end
    return lease_answer(limit, nil, store.ends and alive or alive - 1, store.until_, store)
end

function Lease.save(key, _, store)
    if store.scores.above then
        move_back(store.scores)
    end
    if store.ends then
        local micros = micros_of(store.ends)
        -- A lease never looks like an entry of a log.
        if is_entry_of_log(store.id, micros) then
            micros = micros - 1
        end
        write('ZADD', key, converts and format(WHOLE, micros) or micros, store.id)
        prune(key, store.pruned)
    else
        write('ZREM', key, store.id)
    end
    write('PEXPIREAT', key, expiry_at(store.until_))
end

function commands.acquire(key, args)
    local unit = last_unit(args, 4)
    checked(args[1], 'limit', 1, LAST)
    local limit = Lease.limit(args[1], checked_time(args[2], 'lease', 1, unit), args[3], unit)
    read_clock()
    local wait, remaining, reset_after, store = Lease.take(limit, Lease.load(key, limit), one)
    local reply = five(limit.most, unit, wait, remaining, reset_after)
    carry_out(Lease, key, limit, store)
    return reply
end

function commands.renew(key, args)
    local unit = last_unit(args, 3)
    local limit = { lease = checked_time(args[1], 'lease', 1, unit), id = args[2], unit = unit }
    read_clock()
    local store = renew_lease(limit, Lease.load(key, limit))
    carry_out(Lease, key, limit, store)
    return store and 1 or 0
end

function commands.release(key, args)
    if args[2] then
        syntax_error()
    end
    local limit = { id = args[1] }
    read_clock()
    local store = release_lease(limit, Lease.load(key, limit))
    carry_out(Lease, key, limit, store)
    return store and 1 or 0
end
end

