-- CL.MTAKE, CL.MPEEK and CL.MSETTLE: core/src/several.rs and src/calls/many.rs ---------------------------------------
--
-- The arguments are one limiter for each key, and options. All limiters are decided before anything is written. With
-- ONCE, the last key is the one under which the reply is stored.

local TAKE, PEEK, SETTLE = 'take', 'peek', 'settle'
local several

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
    return length == 3 and upper(word) == 'UTC' or length == 4 and upper(word) == 'FROM'
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
-- The next call uses the tables again, unless there are very many, because new ones take longer to fill. So limiters of
-- earlier calls may stand behind those of a call.
local MOST_ROWS = 100
local rows = {}

local function row_at(k)
    local row = rows[k]
    if not row then
        row = { lease = {} }
        rows[k] = row
    end
    return row
end

-- Reads the limiter at an index into a row, and returns the index after it, or nil if there is no complete limiter.
local function limiter_at(args, i, row)
    local shadow, reset = false, nil
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
        row.first, row.final = i + 1, i + words
        return i + words + 1
    end
end

-- Reads the options after the limiters, `[AGO age] [ONCE period] [unit]` in any order, if the call knows them. Returns
-- their values as they are written, and the unit, or nil after an error.
local ALL_OPTIONS = { AGO = true, ONCE = true }
local OPTIONS = { [TAKE] = { ONCE = true }, [PEEK] = {}, [SETTLE] = ALL_OPTIONS }
local NO_OPTIONS = { unit = UNITS.S }

local function scan_options(args, i, known)
    if not args[i] then
        return NO_OPTIONS
    end
    local read = {}
    while args[i] do
        local word = upper(args[i])
        local name, value = word, UNITS[word]
        if value then
            name = 'unit'
        elseif known[word] then
            i = i + 1
            value = args[i]
        end
        if not value or read[name] then
            return nil
        end
        read[name] = value
        i = i + 1
    end
    read.unit = read.unit or UNITS.S
    return read
end

-- Reads `limit window [UTC minutes] [FROM day]`, the arguments before the quantity.
local function read_fixed(args, i, final, unit)
    local given, ends = {}, nil
    local window = upper(args[i + 1])
    local at = i + 2
    if window == 'UNTIL' then
        ends, at = args[at], at + 1
    end
    local known = Fixed.options_of_calendar[window] or Fixed.options_of_period
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
    return Fixed.limit(args[i], args[i + 1], unit, given, ends)
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

-- Reads the limiters of any call, its unit and its options: the `age` of AGO and the `period` of ONCE. Returns the
-- number of limiters and the others.
local function read_several(keys, args, verb)
    local count, i = 0, 1
    while count < #keys do
        local behind = limiter_at(args, i, row_at(count + 1))
        if not behind then
            break
        end
        count, i = count + 1, behind
    end
    -- The unit follows the limiters. If it is wrong, errors in the limiters still come first. The last key belongs to
    -- ONCE.
    local read = scan_options(args, i, ALL_OPTIONS)
    local is_complete = read and count > 0 and count == #keys - (read.ONCE and 1 or 0)
    local unit = is_complete and read.unit or UNITS.S
    for k = 1, count do
        local limiter = rows[k]
        if limiter.shadow and verb ~= TAKE or limiter.reset and verb ~= SETTLE then
            syntax_error()
        end
        limiter.reset = limiter.reset and checked_time(limiter.reset, 'RESET', 0, unit)
        limiter.limit, limiter.quantity = read_limiter(limiter, args, verb, unit)
    end
    read = scan_options(args, i, OPTIONS[verb]) or syntax_error()
    if not is_complete then
        syntax_error()
    end
    local age = read.AGO and checked_time(read.AGO, 'AGO', 0, unit)
    local period = read.ONCE and checked_time(read.ONCE, 'ONCE', 1, unit)
    for k = 1, count do
        if rows[k].reset and not age then
            syntax_error()
        end
    end
    if has_twins(keys) then
        fail('ERR the same key is named twice')
    end
    return count, unit, age, period
end

-- Returns the combined row: limited if one of the rows is, with the tightest numbers and the longest times. Rows in
-- SHADOW are excluded, so there may be no row.
local function combined(count, with_shadow)
    local most, wait, remaining, reset_after
    for i = 1, count do
        local row = rows[i]
        local row_wait, row_remaining, row_reset_after = row.wait, row.remaining, row.reset_after
        if row.shadow and not with_shadow then
            -- In SHADOW: excluded.
        elseif not most then
            most, wait, remaining, reset_after = row.limit.most, row_wait, row_remaining, row_reset_after
        else
            if row_remaining < remaining then
                most, remaining = row.limit.most, row_remaining
            end
            if row_wait and wait ~= FOREVER then
                wait = wait and row_wait ~= FOREVER and larger(wait, row_wait) or row_wait
            end
            if reset_after < row_reset_after then
                reset_after = row_reset_after
            end
        end
    end
    return most, wait, remaining, reset_after
end

local REPLY = 'a reply of as many limiters, stored by ONCE'

-- Returns whether a text can be the integer at this position of a row.
local function can_be(text, place)
    if place == 1 then
        return text == '0' or text == '1'
    elseif place == 4 and text == '-1' then
        return true
    end
    return is_natural(text) and not (place == 2 and text == '0')
end

-- Returns the reply to a call for `limiters` limiters that is stored under the key of ONCE: its rows of five integers.
-- Nil if there is none.
local function stored_reply(key, limiters)
    local text = call('GET', key)
    if not text then
        return nil
    end
    local stored, row = {}, {}
    for integer in string.gmatch(text .. ' ', '([^ ]*) ') do
        local place = #row + 1
        if not can_be(integer, place) or #stored > limiters then
            foreign(REPLY)
        end
        row[place] = integer + 0
        if place == 5 then
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
    local words = {}
    for i = 1, #reply do
        for place = 1, 5 do
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

function several(keys, args, verb)
    if rows[MOST_ROWS] then
        rows = {}
    end
    local count, unit = read_usual(keys, args)
    local age, period
    if not count then
        count, unit, age, period = read_several(keys, args, verb)
    end
    if not age and not period and Fixed.load_from_now(rows, count, keys) then
        now = 0
    else
        read_clock()
    end
    local once, kept_until = period and keys[#keys], nil
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
    for i = 1, count do
        local row = rows[i]
        local kind, limit, quantity = row.kind, row.limit, row.quantity
        local state = row.state
        if not state then
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
            if age then
                taken = { age = age, reset_after = row.reset, unit = int(unit.nanoseconds) }
            end
            local store
            row.wait, row.remaining, row.reset_after, store = kind.settle(limit, state, quantity, taken)
            row.store = store
            local creates = not state or kind == Log and store and store.count
            grows = grows or creates and store and store ~= DELETED
        end
    end
    if is_refused then
        -- Nothing is written, and each row describes the present state.
        for i = 1, count do
            local row = rows[i]
            if row.store then
                row.wait, row.remaining, row.reset_after = peek(row.kind, row.limit, row.state, row.quantity)
                row.store = nil
            end
        end
    end

    local most, wait, remaining, reset_after = combined(count, false)
    if not most then
        most, wait, remaining, reset_after = combined(count, true)
        wait = nil
    end
    local reply = { five(most, unit, wait, remaining, reset_after), nil, nil, nil, nil } -- with room for a few rows
    for i = 1, count do
        local row = rows[i]
        local prepare, store = row.kind.prepare, row.store
        reply[i + 1] = five(row.limit.most, unit, row.wait, row.remaining, row.reset_after)
        if prepare and store then
            prepare(store)
        end
    end
    -- The server runs CL.MSETTLE even without memory, so that it can give units back.
    if grows and is_out_of_memory() then
        fail("OOM command not allowed when used memory > 'maxmemory'.")
    end
    -- From here on, nothing fails.
    for i = 1, count do
        local row = rows[i]
        local store = row.store
        if store == DELETED then
            call(row.kind.delete, keys[i])
        elseif store then
            row.kind.save(keys[i], row.limit, store)
        end
        row.store = nil
    end
    if once and not is_refused then
        call('SET', once, text_of(reply), 'PXAT', expiry_at(kept_until))
    end
    return reply
end
end

