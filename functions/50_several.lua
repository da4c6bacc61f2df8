-- CL.MTAKE, CL.MPEEK and CL.MSETTLE: core/src/several.rs and src/calls/many.rs ---------------------------------------
--
-- The arguments are one limiter for each key, and options. ELSE and SPILL before a limiter join it to the one before it,
-- as a chain of pools. All limiters are decided before anything is written. With ONCE, the last key is the one under
-- which the reply is stored.

local TAKE, PEEK, SETTLE = 'take', 'peek', 'settle'
local several, forget

do
local KINDS = {
    THROTTLE = Throttle,
    FUNNEL = Funnel,
    BUCKET = Bucket,
    FIXED = Fixed,
    WINDOW = Window,
    LOG = Log,
    LEASE = Lease,
}

-- Returns whether a word is an option of a fixed window. The length of most words shows that they are quantities.
local function is_option_of_fixed(word)
    local length = #word
    if length == 3 then
        return upper(word) == 'UTC'
    end
    return length == 4 and find(word, '^%a') and (upper(word) == 'FROM' or upper(word) == 'IDLE')
end

-- Counts the arguments of a fixed window: `limit window [UTC minutes] [FROM day] quantity`. Nil if some are missing.
local function words_of_fixed(args, i)
    if not args[i + 1] then
        return nil
    end
    local window = args[i + 1]
    local words = #window == 5 and upper(window) == 'UNTIL' and 4 or 3
    while true do
        local at = i + words - 1
        if not args[at] then
            return nil
        elseif not is_option_of_fixed(args[at]) or not args[at + 1] then
            return words
        end
        words = words + 2
    end
end

-- The limiters of a call: their limits, quantities and states, and the decisions, which become the rows of the reply.
-- The next call uses the tables again, unless there are very many, because new ones take longer to fill.
local MOST_ROWS = 100
local rows = {}

-- The words between the limiters of a chain, and whether the call has one.
local JOINS = { ELSE = 'ELSE', SPILL = 'SPILL' }
local has_chains

local function row_at(k)
    local row = rows[k]
    if not row then
        row = { lease = {} }
        rows[k] = row
    end
    return row
end

-- Drops what a call with `count` keys has left in the rows, which may be long: the names of holders, and arguments.
function forget(count)
    for k = 1, min(count, #rows) do
        local row = rows[k]
        row.limit, row.reset, row.state, row.store, row.lease.id, row.hold = nil, nil, nil, nil, nil, nil
    end
end

-- Reads the limiter at an index into a row, and returns the index after it, or nil if there is no complete limiter.
local function limiter_at(args, i, row, is_first)
    local shadow, reset = false, nil
    local join = not is_first and args[i] and JOINS[upper(args[i])]
    if join then
        i = i + 1
    end
    local kind = KINDS[args[i]]
    if not kind then
        local word = args[i] and upper(args[i])
        if word == 'SHADOW' then
            shadow, i = true, i + 1
        elseif word == 'RESET' then
            reset, i = args[i + 1], i + 2
        end
        kind = args[i] and KINDS[upper(args[i])]
        if not kind then
            return nil
        end
    end
    local words = kind.words + 1
    if kind == Fixed then
        words = words_of_fixed(args, i + 1)
    end
    if words and i + words <= #args then
        row.kind, row.shadow, row.reset, row.state = kind, shadow, reset, nil
        row.first, row.final, row.join = i + 1, i + words, join
        return i + words + 1
    end
end

-- Reads the options after the limiters, `[AGO age] [ONCE period] [unit]` in any order, if the call knows them. Returns
-- their values as they are written, and the unit, or nil after an error.
local ALL_OPTIONS = { AGO = true, ONCE = true, HOLD = true }
local OPTIONS = { [TAKE] = { ONCE = true, HOLD = true }, [PEEK] = { HOLD = true }, [SETTLE] = ALL_OPTIONS }
local NO_OPTIONS = { unit = UNITS.S, keys = 0 }

-- Reads `HOLD [period id]`, or `HOLD id` of a settlement, whose key is among the keys. Returns its words and the index
-- of its last one, or nil if some are missing.
local function scan_hold(args, i, verb)
    if verb == SETTLE then
        return args[i + 1] and { id = args[i + 1] }, i + 1
    elseif not args[i + 1] or not find(args[i + 1], '^[%d.+-]') then
        return {}, i
    end
    return args[i + 2] and { period = args[i + 1], id = args[i + 2] }, i + 2
end

local function scan_options(args, i, known, verb)
    if not args[i] then
        return NO_OPTIONS
    end
    local read = { keys = 0 }
    while args[i] do
        local word = upper(args[i])
        local name, value = word, UNITS[word]
        if value then
            name = 'unit'
        elseif word == 'HOLD' and known.HOLD then
            value, i = scan_hold(args, i, verb)
        elseif known[word] then
            i = i + 1
            value = args[i]
        end
        if not value or read[name] then
            return nil
        end
        read[name] = value
        if name == 'ONCE' or name == 'HOLD' then
            -- Their keys follow those of the limiters, as they stand.
            read.keys = read.keys + 1
            read[name .. ' key'] = read.keys
        end
        i = i + 1
    end
    read.unit = read.unit or UNITS.S
    return read
end

-- Reads `limit window [UTC minutes] [FROM day]`, the arguments before the quantity.
local function read_fixed(args, i, final, unit)
    local given = {}
    local ends, idle, at = Fixed.window_end(args, i + 1)
    local known = Fixed.options_of_calendar[upper(args[i + 1])] or Fixed.options_of_period
    while at < final do
        local word = upper(args[at])
        local range = known[word]
        if type(range) ~= 'table' or not args[at + 1] then
            syntax_error()
        end
        local value = checked(args[at + 1], word, range[1], range[2])
        if given[word] then
            syntax_error()
        end
        given[word], at = value, at + 2
    end
    return Fixed.limit(args[i], args[i + 1], unit, given, ends, idle)
end

-- Reads the arguments of a limiter: its limit and its quantity.
local function read_limiter(limiter, args, verb, unit)
    local kind, first, final = limiter.kind, limiter.first, limiter.final
    if kind == Lease and verb == SETTLE then
        local lease = checked_time(args[first + 1], 'lease', 0, unit)
        return Lease.limit(args[first], lease ~= zero and lease or nil, args[final], unit), one
    elseif kind == Lease then
        return Lease.of_holder(limit_of(Lease, args, first, unit), args[final], {}), one
    end
    local limit
    if kind == Fixed and final - first > kind.words then
        limit = read_fixed(args, first, final, unit)
    else
        limit = limit_of(kind, args, first, unit)
    end
    if verb == SETTLE then
        return limit, checked_difference(args[final])
    end
    return limit, quantity_in(args[final], kind == Log and Log.most_entries or LAST)
end

-- Returns whether a key is named twice. For few keys, a table takes longer than to compare all with each other.
local function has_twins(keys)
    local are_few, named = #keys <= 8, nil
    for k = 2, #keys do
        local key = keys[k]
        if are_few then
            for other = 1, k - 1 do
                if keys[other] == key then
                    return true
                end
            end
        else
            named = named or { [keys[1]] = true }
            if named[key] then
                return true
            end
            named[key] = true
        end
    end
    return false
end

-- Reads a call as most calls are: words in capitals, limits that are remembered, plain quantities, and nothing behind
-- the limiters but a unit. Returns the number of limiters and the unit, or nil for any other call.
local function read_usual(keys, args)
    local unit, behind = UNITS[args[#args]], #args
    if not unit then
        unit, behind = UNITS.S, behind + 1
    end
    local known, i = is_plain and remembered[unit], 1
    if not known then
        return nil
    end
    for k = 1, #keys do
        local limit, final = known[args[i]], i + 3
        limit = limit and limit[args[i + 1]]
        limit = limit and limit[args[i + 2]]
        if limit and not limit.kind then
            limit, final = limit[args[final]], final + 1
        end
        if not limit or final >= behind then
            return nil
        end
        local row, kind, word = rows[k] or row_at(k), limit.kind, args[final]
        local quantity = NUMBERS[word]
        if kind == Lease then
            limit, quantity = Lease.of_holder(limit, word, row.lease), 1
        elseif not quantity then
            quantity = #word < (kind == Log and 5 or 16) and find(word, '^[1-9]%d*$') and word + 0
            if not quantity then
                return nil
            end
        end
        row.kind, row.limit, row.quantity, row.state, row.shadow = kind, limit, quantity, nil, false
        i = final + 1
    end
    if i == behind and not has_twins(keys) then
        return #keys, unit
    end
end

-- Checks a limiter that is joined to the one before it.
local function join_to(before, limiter)
    if before.shadow or limiter.shadow or before.reset or limiter.reset then
        syntax_error()
    elseif limiter.join == 'SPILL' and (before.kind == Lease or limiter.kind == Lease) then
        fail('ERR a LEASE cannot stand beside SPILL')
    elseif limiter.join == 'SPILL' and before.quantity ~= limiter.quantity then
        fail('ERR quantity must be the same for all limiters that SPILL joins')
    end
    has_chains = true
end

-- Reads the limiters of any call, its unit and its options: the `age` of AGO and the `period` of ONCE. Returns the
-- number of limiters and the others.
local function read_several(keys, args, verb)
    local count, i = 0, 1
    while count < #keys do
        local behind = limiter_at(args, i, row_at(count + 1), count == 0)
        if not behind then
            break
        end
        count, i = count + 1, behind
    end
    -- In the command, ONCE is a key if a complete limiter follows it, whose kind would be the key of ONCE. The errors of
    -- that limiter are the command's.
    local behind
    if args[i] and upper(args[i]) == 'ONCE' and KINDS[upper(keys[#keys])] then
        args[i] = keys[#keys]
        behind = limiter_at(args, i, row_at(count + 1), count == 0)
        if behind then
            count, i = count + 1, behind
        else
            args[i] = 'ONCE'
        end
    end
    -- The unit follows the limiters. If it is wrong, errors in the limiters still come first. The last key belongs to
    -- ONCE.
    local read = scan_options(args, i, ALL_OPTIONS, verb)
    local is_complete = read and count > 0 and count == #keys - read.keys
    local unit = is_complete and read.unit or UNITS.S
    for k = 1, count do
        local limiter = rows[k]
        if limiter.shadow and verb ~= TAKE or limiter.reset and verb ~= SETTLE then
            syntax_error()
        end
        local reset = limiter.reset
        if reset and reset ~= '-1' then
            limiter.reset = checked_time(reset, 'RESET', 0, unit)
        end
        limiter.limit, limiter.quantity = read_limiter(limiter, args, verb, unit)
        if reset == '-1' and not limiter.limit.is_total then
            checked_time(reset, 'RESET', 0, unit)
        end
        if limiter.join then
            join_to(rows[k - 1], limiter)
        end
    end
    read = scan_options(args, i, OPTIONS[verb], verb)
    if not read or not is_complete or behind then
        syntax_error()
    end
    local age = read.AGO and checked_time(read.AGO, 'AGO', 0, unit)
    local period = read.ONCE and checked_time(read.ONCE, 'ONCE', 1, unit)
    local hold = read.HOLD
    if hold then
        hold.key = keys[count + read['HOLD key']]
        hold.period = hold.period and checked_time(hold.period, 'HOLD', 1, unit)
    end
    for k = 1, count do
        if rows[k].reset and not age then
            syntax_error()
        end
    end
    if has_chains and verb == SETTLE and not hold or hold and verb == SETTLE and age then
        syntax_error()
    end
    if has_twins(keys) then
        fail('ERR the same key is named twice')
    end
    for k = 1, hold and verb == SETTLE and count or 0 do
        local limiter = rows[k]
        if limiter.kind ~= Lease then
            quantity_in(args[limiter.final], limiter.kind == Log and '1000000' or LAST)
        end
    end
    return count, unit, age, period, period and keys[count + read['ONCE key']], hold
end

-- Returns the combined row: limited if one of the rows is, with the tightest numbers and the longest times. Rows in
-- SHADOW are excluded, so there may be no row. A chain counts as one row.
local function combined(count, with_shadow)
    local most, wait, remaining, reset_after
    local i = 1
    while i <= count do
        local row = rows[i]
        local row_most, row_wait, row_remaining, row_reset_after
        if has_chains and row.is_pool then
            row_most, row_wait, row_remaining, row_reset_after = Chain.numbers(rows, i)
            i = row.final
        else
            row_most, row_wait, row_remaining, row_reset_after = row.limit.most, row.wait, row.remaining, row.reset_after
        end
        if row.shadow and not with_shadow then
            -- In SHADOW: excluded.
        elseif not most then
            most, wait, remaining, reset_after = row_most, row_wait, row_remaining, row_reset_after
        else
            if row_remaining < remaining then
                most, remaining = row_most, row_remaining
            end
            if row_wait and wait ~= FOREVER then
                wait = wait and row_wait ~= FOREVER and larger(wait, row_wait) or row_wait
            end
            if reset_after == FOREVER or row_reset_after == FOREVER then
                reset_after = FOREVER
            elseif reset_after < row_reset_after then
                reset_after = row_reset_after
            end
        end
        i = i + 1
    end
    return most, wait, remaining, reset_after
end

local REPLY = 'a reply of as many limiters, stored by ONCE'

-- Returns whether a text can be the integer at this position of a row.
local function can_be(text, place)
    if place == 1 then
        return text == '0' or text == '1'
    elseif (place == 4 or place == 5) and text == '-1' then
        return true
    end
    return is_natural(text) and not (place == 2 and text == '0')
end

-- Returns the reply to a call for `limiters` limiters that is stored under the key of ONCE: its rows of five integers, or
-- of six, with their number before them, for a call with chains. Nil if there is none.
local function stored_reply(key, limiters)
    local text = call('GET', key)
    if not text then
        return nil
    end
    local columns = has_chains and 6 or 5
    if has_chains then
        text = match(text, '^6 (.*)$') or foreign(REPLY)
    end
    local stored, row = {}, {}
    for integer in string.gmatch(text .. ' ', '([^ ]*) ') do
        local place = #row + 1
        if not can_be(integer, place) or #stored > limiters then
            foreign(REPLY)
        end
        row[place] = integer + 0
        if place == columns then
            stored[#stored + 1], row = row, {}
        end
    end
    if #stored <= limiters or #row > 0 then
        foreign(REPLY)
    end
    for i = 1, #stored do
        replied(stored[i])
    end
    return stored
end

-- Returns a reply as one text: its integers, row by row.
local function text_of(reply)
    local words = { has_chains and '6' or nil }
    for i = 1, #reply do
        for place = 1, #reply[i] do
            words[#words + 1] = format(WHOLE, reply[i][place])
        end
    end
    return concat(words, ' ')
end

-- Returns the value of a field of INFO.
local function field(info, name)
    local _, colon = find(info, '\n' .. name .. ':', 1, true)
    return colon and match(info, '^%w*', colon + 1)
end

-- Returns whether the server has reached `maxmemory` and does not evict keys. For a user who may not run INFO, returns
-- false.
local function is_out_of_memory()
    local memory = redis.pcall('INFO', 'memory')
    if type(memory) ~= 'string' or field(memory, 'maxmemory_policy') ~= 'noeviction' then
        return false
    end
    local most = field(memory, 'maxmemory') + 0
    return most > 0 and field(memory, 'used_memory') - (field(memory, 'mem_not_counted_for_evict') or 0) > most
end

-- Writes what a call has decided: the states of its limiters, and the reply for ONCE if there is one.
local function write_all(keys, count, hold, once, text, kept_until)
    for i = 1, count do
        local row = rows[i]
        local store = row.store
        if store == DELETED then
            write(row.kind.delete, keys[i])
        elseif store then
            row.kind.save(keys[i], row.limit, store)
        end
    end
    if hold then
        Hold.save(hold)
    end
    if once then
        write('SET', once, text, 'PXAT', expiry_at(kept_until))
    end
end

-- The verdict on a call that renews what its owner holds, whatever its limiters say.
local RENEWED = {}

-- Returns whether a call with HOLD is refused, and the verdict on it if it is not that of its limiters: RENEWED, or the
-- wait of a new owner for whose parts there is no room.
local function rule(hold, keys, count, is_refused, taken)
    if Hold.renews(hold, rows, count) then
        for k = 1, count do
            if rows[k].kind == Lease and rows[k].wait and not rows[k].shadow and not rows[k].is_pool then
                return true
            end
        end
        return false, RENEWED
    end
    local wait = Hold.is_full(hold, rows, count, taken)
    return is_refused or wait ~= nil, wait
end

-- Lets the decisions write what has run out, and collects what changes in the key of HOLD. If that is full, what has run
-- out makes room for later calls.
local function complete_holds(hold, keys, count, verb, is_refused, taken, is_full)
    if is_refused and not (Hold.has_run_out(hold, rows) or is_full and Hold.removes(hold) > 0) then
        return
    end
    for k = 1, count do
        if not is_refused and verb ~= SETTLE then
            Hold.prolong(hold, k, rows[k])
        end
    end
    Hold.plan(hold, rows, keys, count, not is_refused and verb, not is_refused and taken)
    for k = 1, count do
        Hold.complete(rows[k])
    end
    Hold.plan_expiry(hold)
end

-- Settles the limiters of a call with chains. Returns whether keys or entries are created.
local function settle_chains(hold, keys, count)
    local grows, first = false, 1
    while first <= count do
        local final = first
        while final < count and rows[final + 1].join do
            final = final + 1
        end
        if first < final then
            Hold.settle_chain(hold, rows, keys, first, final)
        else
            Hold.load(hold, first, rows[first], keys[first])
        end
        for k = first, final do
            local row, own = rows[k], hold.own[k]
            local kind, used, taken = row.kind, row.quantity, nil
            if first == final then
                row.taken = (kind == Fixed or own and own.at) and used or nil
            else
                used = row.taken
            end
            local units = zero
            if kind == Fixed then
                units = used and Hold.window_difference(own, row.state, used) or zero
            elseif kind ~= Lease and first < final and used and not own then
                units = used
            elseif kind ~= Lease then
                units, taken = Hold.rate_difference(own, kind, used or zero)
            end
            row.wait, row.remaining, row.reset_after, row.store = kind.settle(row.limit, row.state, units, taken)
            row.is_pool, row.final = first < final, final
            local creates = not row.state or kind == Log and row.store and row.store.count
            grows = grows or creates and row.store and row.store ~= DELETED
        end
        -- A chain is over its limit if all its limiters are.
        local wait = rows[first].wait
        for k = first + 1, final do
            local other = rows[k].wait
            wait = wait and other and (wait == FOREVER and other or other == FOREVER and wait or smaller(wait, other))
        end
        rows[first].chain_wait = wait
        first = final + 1
    end
    return grows
end

function several(keys, args, verb)
    if rows[MOST_ROWS] then
        rows = {}
    end
    has_chains = false
    local count, unit = read_usual(keys, args)
    local age, period, once, hold
    if not count then
        count, unit, age, period, once, hold = read_several(keys, args, verb)
    end
    if not has_chains and not age and not period and not hold and Fixed.load_from_now(rows, count, keys) then
        now = 0
    else
        read_clock()
    end
    local kept_until
    if once then
        kept_until = now + period
        if last < kept_until then
            out_of_range('ONCE', 1, quotient(last - now, int(unit.nanoseconds)))
        end
        local stored = stored_reply(once, count)
        if stored then
            return stored
        end
    end
    local is_refused, grows = false, once and verb == SETTLE
    for k = 1, count do
        rows[k].hold, rows[k].load_held = hold, hold and Hold.load
    end
    if hold then
        Hold.look(hold, rows, keys, count, unit)
    end
    for i = 1, has_chains and 0 or count do
        local row = rows[i]
        local kind, limit, quantity = row.kind, row.limit, row.quantity
        local state = row.state
        if hold then
            state = Hold.load(hold, i, row, keys[i])
        elseif not state then
            state = kind.load(keys[i], limit)
            row.state = state
        end
        if verb == TAKE then
            local wait, remaining, reset_after, store = kind.take(limit, state, quantity)
            row.wait, row.remaining, row.reset_after, row.store = wait, remaining, reset_after, store
            if wait and not row.shadow then
                is_refused = true
            end
        elseif verb == PEEK then
            row.wait, row.remaining, row.reset_after = peek(kind, limit, state, quantity)
            row.store = nil
        else
            local taken
            if hold and kind == Fixed then
                quantity = Hold.window_difference(hold.own[i], state, quantity)
            elseif hold and kind ~= Lease then
                quantity, taken = Hold.rate_difference(hold.own[i], kind, quantity)
            elseif age then
                taken = { age = age, reset_after = row.reset, unit = int(unit.nanoseconds) }
            end
            local store
            row.wait, row.remaining, row.reset_after, store = kind.settle(limit, state, quantity, taken)
            row.store = store
            local creates = not state or kind == Log and store and store.count
            grows = grows or creates and store and store ~= DELETED
        end
    end
    if has_chains and verb == SETTLE then
        grows = settle_chains(hold, keys, count) or grows
    elseif has_chains then
        is_refused = Chain.decide(rows, keys, count, verb == TAKE)
    end
    -- What a limiter gives to the call.
    local function taken(k)
        local row = rows[k]
        if has_chains then
            return row.taken or zero
        end
        return row.wait and zero or row.quantity
    end
    local ruled
    if hold and verb ~= SETTLE then
        is_refused, ruled = rule(hold, keys, count, is_refused, taken)
    end
    if is_refused and has_chains then
        Chain.refuse(rows, count, verb == TAKE)
    elseif is_refused then
        -- Nothing is written, and each row describes the present state.
        for i = 1, count do
            local row = rows[i]
            if row.store then
                row.wait, row.remaining, row.reset_after = peek(row.kind, row.limit, row.state, row.quantity)
                row.store = nil
            end
        end
    end
    if hold and verb ~= PEEK then
        complete_holds(hold, keys, count, verb, is_refused, taken, ruled ~= nil)
    end

    local most, wait, remaining, reset_after = combined(count, false)
    if not most then
        most, wait, remaining, reset_after = combined(count, true)
        wait = nil
    end
    if ruled == RENEWED then
        wait = nil
    elseif ruled then
        wait = wait and (wait == FOREVER and wait or larger(wait, ruled)) or ruled
    end
    local reply = { five(most, unit, wait, remaining, reset_after, has_chains and zero or nil), nil, nil, nil, nil } -- with room for a few rows
    once = not is_refused and once
    local writes = once and 1 or 0
    for i = 1, count do
        local row = rows[i]
        local kind, store = row.kind, row.store
        local prepare = kind.prepare
        if store then
            writes = writes + (kind.writes_once and 1 or 2)
        end
        local taken = has_chains and (row.taken or zero) or nil
        reply[i + 1] = five(row.limit.most, unit, row.wait, row.remaining, row.reset_after, taken)
        if prepare and store then
            prepare(store)
        end
    end
    -- The server runs CL.MSETTLE even without memory, so that it can give units back.
    if grows and is_out_of_memory() then
        fail("OOM command not allowed when used memory > 'maxmemory'.")
    end
    local text = once and text_of(reply)
    local saved = hold and hold.changes and hold or nil
    if writes > 1 or saved then
        write = rehearse
        write_all(keys, count, saved, once, text, kept_until)
    end
    -- From here on, nothing fails.
    write = call
    write_all(keys, count, saved, once, text, kept_until)
    return reply
end
end

