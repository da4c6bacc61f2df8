-- CL.LOG: core/src/log.rs ---------------------------------------------------------------------------------------------
--
-- Each unit has an entry, which counts for a period. Its name is `<score>-<k>`, where k counts equal scores.

local Log = { name = 'LOG', words = 2, delete = 'UNLINK', most_entries = '10000' }

do
local LOG_STATE = 'a sorted set whose scores are past instants in microseconds since the epoch'
local MISSES = 1000 -- the largest number of names that may already exist
local BATCH = 1000 -- members in one call to the server

function Log.read(args, i, unit)
    local most = tonumber(checked(args[i], 'limit', 1, '1000000'))
    return { most = int(most), units = most, period = checked_time(args[i + 1], 'period', 1, unit), unit = unit }
end

function Log.load(key, limit)
    local scores = load_scores(key, LOG_STATE)
    if not scores then
        return { key = key, count = 0 }
    end
    -- Entries with other names can be the log of another program, if none is in the future or years old.
    local is_past = not (now < scores.last) and (is_plain or are_near(scores.first, now, YEARS))
    if not is_past and not is_entry_of_log(scores.name, scores.micros) then
        foreign(LOG_STATE)
    end
    heed_expiry(scores, tick, limit.period)
    return scores
end

-- Returns when an entry no longer counts.
local function leaves_at(limit, entry)
    local ends = entry + limit.period
    if last < ends then
        out_of_range('period', 1, quotient(last - entry, int(limit.unit.nanoseconds)))
    end
    return ends
end

-- Returns a log at the instant of a call: the entries that count, the others, and when the last one stops counting.
local function view(limit, scores)
    if not is_plain then
        check_tick()
    end
    local alive = scores.count
    if is_plain or not (now < limit.period) then
        alive = later_than(scores, now - limit.period)
    end
    local empties = scores.last and leaves_at(limit, scores.last) or now
    return alive, scores.count - alive, empties
end

local function log_answer(limit, wait, alive, empties, store)
    return wait, int(max(limit.units - alive, 0)), difference(empties, now), store
end

-- Returns the entries of a call that takes `quantity` units, regardless of the limit.
local function entries(limit, scores, quantity, expired, empties)
    local there = 0
    if scores.above or scores.last and now - tick < scores.last then
        there = later_than(scores, now - tick) - later_than(scores, now)
    end
    empties = larger(empties, leaves_at(limit, now))
    local count_pruned = pruned(expired, quantity)
    return {
        scores = scores,
        key = scores.key,
        there = there,
        count = quantity,
        pruned = count_pruned,
        empties = empties,
        score = nil, -- room for the arguments of ZADD
        name = nil,
    }
end

function Log.take(limit, scores, units)
    local quantity = approximate(units)
    local alive, expired, empties = view(limit, scores)
    local too_many = alive + quantity - limit.units
    if quantity > limit.units and too_many > 0 then
        return log_answer(limit, FOREVER, alive, empties)
    elseif too_many > 0 then
        local last_to_go = at_rank(scores, expired + too_many - 1)
        local ends = last_to_go and leaves_at(limit, last_to_go) or now
        return log_answer(limit, difference(ends, now), alive, empties)
    elseif quantity == 0 then
        return log_answer(limit, nil, alive, empties)
    end
    local store = entries(limit, scores, quantity, expired, empties)
    return log_answer(limit, nil, alive + quantity, store.empties, store)
end

function Log.room(limit, scores)
    local alive = view(limit, scores)
    return int(max(min(limit.units - alive, tonumber(Log.most_entries)), 0))
end

-- Returns the answer to a settlement that has added `added` entries at `place`, or removed some if it is below 0.
local function log_standing(limit, scores, place, added, alive, expired, empties, store)
    local beyond = alive - limit.units
    local wait
    if beyond > 0 then
        -- One more unit is admitted when the entry with this rank no longer counts. That entry is before `place`, was
        -- added there, or is after it with a changed rank.
        local rank = expired + beyond
        local last_to_go = now
        if rank < place then
            last_to_go = at_rank(scores, rank)
        elseif rank >= place + added then
            last_to_go = at_rank(scores, rank - added)
        end
        wait = difference(last_to_go and leaves_at(limit, last_to_go) or now, now)
    end
    return log_answer(limit, wait, alive, empties, store)
end

function Log.settle(limit, scores, units, taken)
    local quantity = approximate(units)
    if quantity > tonumber(Log.most_entries) then
        out_of_range('quantity', '-9223372036854775807', Log.most_entries)
    end
    local alive, expired, empties = view(limit, scores)
    if quantity > 0 then
        local store = entries(limit, scores, quantity, expired, empties)
        local place = scores.count - later_than(scores, now)
        return log_standing(limit, scores, place, quantity, alive + quantity, expired, store.empties, store)
    end
    -- Entries that are younger than the units to give back stay.
    local newer = 0
    if taken then
        -- No entry is older than the epoch.
        newer = (is_plain or not (now < taken.age)) and later_than(scores, now - taken.age) or alive
        newer = min(newer, alive)
    end
    local count = min(-quantity, alive - newer)
    local place = scores.count - newer - count
    if count == 0 then
        return log_standing(limit, scores, place, 0, alive, expired, empties)
    elseif count == alive then
        return log_answer(limit, nil, 0, now, DELETED)
    end
    if newer == 0 then
        local latest = at_rank(scores, place - 1)
        empties = latest and leaves_at(limit, latest) or now
    end
    local store = { scores = scores, removed = count, newer = newer, empties = empties }
    return log_standing(limit, scores, place, -count, alive - count, expired, empties, store)
end

-- Chooses the names of new entries, and builds the arguments of ZADD: each name after its score. A name exists already
-- if entries with this score were removed or added by hand; the next free names are then used.
function Log.prepare(store, is_only)
    if store == DELETED or store.removed then
        return
    end
    local score, words = format(WHOLE, micros_of(now)), {}
    if is_only and store.count == 1 then
        -- ZADD tells whether the name exists, before anything has been written.
        store.score, store.name = score, score .. '-' .. (TEXTS[store.there] or store.there)
        return
    end
    local missing, k, ends = store.count, store.there, store.there + store.count + MISSES
    while missing > 0 do
        local names = {}
        for i = k, min(k + min(missing, BATCH), ends) - 1 do
            names[#names + 1] = score .. '-' .. (TEXTS[i] or i)
        end
        if #names == 0 then
            foreign(LOG_STATE)
        end
        k = k + #names
        local found = call('ZMSCORE', store.key, unpack(names))
        for i = 1, #names do
            if not found[i] then
                words[#words + 1], words[#words + 2] = score, names[i]
                missing = missing - 1
            end
        end
    end
    store.words = words
end

function Log.save(key, _, store)
    if store.removed then
        move_back(store.scores)
        write('ZREMRANGEBYRANK', key, -store.newer - store.removed, -1 - store.newer)
    else
        if store.name and write('ZADD', key, 'NX', store.score, store.name) == 0 then
            Log.prepare(store)
        end
        local words = store.words or NONE
        for first = 1, #words, 2 * BATCH do
            write('ZADD', key, 'NX', unpack(words, first, min(first + 2 * BATCH - 1, #words)))
        end
        if store.scores.above then
            move_back(store.scores)
        end
        prune(key, store.pruned)
    end
    write('PEXPIREAT', key, expiry_at(store.empties))
end

local take = taker(Log)

function commands.log(key, args)
    -- With SATURATE, any quantity is allowed.
    local most = Log.most_entries
    for i = 3, #args do
        if upper(args[i]) == 'SATURATE' then
            most = LAST
        end
    end
    local quantity, unit, given = options(args, 3, SATURATE, most)
    return take(key, limit_of(Log, args, 1, unit), quantity, unit, given.SATURATE)
end
end

