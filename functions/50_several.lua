-- CL.MTAKE, CL.MPEEK and CL.MSETTLE: core/src/several.rs and src/several.rs -------------------------------------------
--
-- The arguments are a limiter for each key, and options. All limiters are decided before anything is written. With ONCE,
-- the last key is the one under which the reply is stored.

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

local OPTIONS_OF_FIXED = { UTC = true, FROM = true }

-- The number of words of a fixed window: `limit window [UTC minutes] [FROM day] quantity`. Nil if some are missing.
local function words_of_fixed(args, i)
    if not args[i + 1] then
        return nil
    end
    local words = upper(args[i + 1]) == 'UNTIL' and 4 or 3
    while true do
        local at = i + words - 1
        if not args[at] then
            return nil
        elseif not OPTIONS_OF_FIXED[upper(args[at])] or not args[at + 1] then
            return words
        end
        words = words + 2
    end
end

-- The limiter at an index, and the index behind it. Nil if there is none, or not a complete one.
local function limiter_at(args, i)
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
        return { kind = kind, first = i + 1, final = i + words, shadow = shadow, reset = reset }, i + words + 1
    end
end

-- The options behind the limiters, `[AGO age] [ONCE period] [unit]` in any order, of which calls have those that are
-- known: their values as they are written, and the unit. Nil if something is wrong.
local ALL_OPTIONS = { AGO = true, ONCE = true }
local OPTIONS = { [TAKE] = { ONCE = true }, [PEEK] = {}, [SETTLE] = ALL_OPTIONS }

local function scan_options(args, i, known)
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

-- Reads `limit window [UTC minutes] [FROM day]`, the words before the quantity.
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

-- Reads the arguments of a limiter: its limit, and its quantity.
local function read_limiter(limiter, args, verb, unit)
    local kind, first, final = limiter.kind, limiter.first, limiter.final
    if kind == Lease then
        local lease = checked_time(args[first + 1], 'lease', verb == SETTLE and 0 or 1, unit)
        return Lease.limit(args[first], lease ~= zero and lease or nil, args[final], unit), one
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
    return limit, int(checked(args[final], 'quantity', 0, kind == Log and Log.most_entries or LAST))
end

local function read_several(keys, args, verb)
    local limiters, i = {}, 1
    for k = 1, #keys do
        local limiter, behind = limiter_at(args, i)
        if not limiter then
            break
        end
        limiters[k], i = limiter, behind
    end
    -- The unit stands behind the limiters. If something is wrong there, their errors come first nevertheless. The last key
    -- is that of ONCE.
    local read = scan_options(args, i, ALL_OPTIONS)
    local is_complete = read and #limiters > 0 and #limiters == #keys - (read.ONCE and 1 or 0)
    local unit = is_complete and read.unit or UNITS.S
    for k = 1, #limiters do
        local limiter = limiters[k]
        if limiter.shadow and verb ~= TAKE or limiter.reset and verb ~= SETTLE then
            syntax_error()
        end
        limiter.reset_after = limiter.reset and checked_time(limiter.reset, 'RESET', 0, unit)
        limiter.limit, limiter.quantity = read_limiter(limiter, args, verb, unit)
    end
    read = scan_options(args, i, OPTIONS[verb]) or syntax_error()
    if not is_complete then
        syntax_error()
    end
    read.age = read.AGO and checked_time(read.AGO, 'AGO', 0, unit)
    read.period = read.ONCE and checked_time(read.ONCE, 'ONCE', 1, unit)
    for k = 1, #limiters do
        if limiters[k].reset and not read.age then
            syntax_error()
        end
    end
    local named = {}
    for k = 1, #keys do
        if named[keys[k]] then
            fail('ERR the same key is named twice')
        end
        named[keys[k]] = true
    end
    return limiters, read
end

-- The row that stands for all rows: limited if one of them is, with the numbers of the tightest and the longest times.
-- Those in SHADOW are left out, so that there may be none.
local function combined(rows, with_shadow)
    local all
    for i = 1, #rows do
        local row = rows[i]
        if row.shadow and not with_shadow then
            -- left out
        elseif not all then
            all = { wait = row.wait, most = row.most, remaining = row.remaining, reset_after = row.reset_after }
        else
            if row.remaining < all.remaining then
                all.most, all.remaining = row.most, row.remaining
            end
            if all.wait ~= FOREVER and row.wait then
                all.wait = all.wait and row.wait ~= FOREVER and larger(all.wait, row.wait) or row.wait
            end
            all.reset_after = larger(all.reset_after, row.reset_after)
        end
    end
    return all
end

local REPLY = 'a reply of as many limiters, stored by ONCE'

-- Whether a text can be the integer at this place of a row.
local function can_be(text, place)
    if place == 1 then
        return text == '0' or text == '1'
    elseif place == 4 and text == '-1' then
        return true
    end
    return is_natural(text) and not (place == 2 and text == '0')
end

-- The reply to a call for so many limiters that is stored under the key of ONCE: its rows, of five integers each. Nil if
-- there is none.
local function stored_reply(key, limiters)
    local text = call('GET', key)
    if not text then
        return nil
    end
    local rows, row = {}, {}
    for integer in string.gmatch(text .. ' ', '([^ ]*) ') do
        local place = #row + 1
        if not can_be(integer, place) or #rows > limiters then
            foreign(REPLY)
        end
        row[place] = integer + 0
        if place == 5 then
            rows[#rows + 1], row = row, {}
        end
    end
    if #rows <= limiters or #row > 0 then
        foreign(REPLY)
    end
    for i = 1, #rows do
        replied(rows[i])
    end
    return rows
end

-- A reply as one text: its integers, row by row.
local function text_of(rows)
    local words = {}
    for i = 1, #rows do
        for place = 1, 5 do
            words[#words + 1] = format(WHOLE, rows[i][place])
        end
    end
    return concat(words, ' ')
end

-- The value of a field of INFO.
local function field(info, name)
    local _, colon = find(info, '\n' .. name .. ':', 1, true)
    return colon and match(info, '^%w*', colon + 1)
end

-- Whether the server has reached `maxmemory`, and does not make room by evicting keys. For a user without the permission
-- to run INFO it has not.
local function is_out_of_memory()
    local memory = redis.pcall('INFO', 'memory')
    if type(memory) ~= 'string' or field(memory, 'maxmemory_policy') ~= 'noeviction' then
        return false
    end
    local most = field(memory, 'maxmemory') + 0
    return most > 0 and field(memory, 'used_memory') - (field(memory, 'mem_not_counted_for_evict') or 0) > most
end

function several(keys, args, verb)
    local limiters, read = read_several(keys, args, verb)
    read_clock()
    local once, kept_until = read.period and keys[#keys], nil
    if once then
        kept_until = now + read.period
        if last < kept_until then
            out_of_range('ONCE', 1, quotient(last - now, int(read.unit.nanoseconds)))
        end
        local reply = stored_reply(once, #limiters)
        if reply then
            return reply
        end
    end
    local rows, is_refused, grows = {}, false, once and verb == SETTLE
    for i = 1, #limiters do
        local limiter = limiters[i]
        local kind, limit, quantity = limiter.kind, limiter.limit, limiter.quantity
        local state = kind.load(keys[i], limit)
        local wait, remaining, reset_after, store
        if verb == TAKE then
            wait, remaining, reset_after, store = kind.take(limit, state, quantity)
            is_refused = is_refused or wait and not limiter.shadow
        elseif verb == PEEK then
            wait, remaining, reset_after = peek(kind, limit, state, quantity)
        else
            local taken
            if read.age then
                taken = { age = read.age, reset_after = limiter.reset_after, unit = int(read.unit.nanoseconds) }
            end
            wait, remaining, reset_after, store = kind.settle(limit, state, quantity, taken)
            local creates = not state or kind == Log and store and store.count
            grows = grows or creates and store and store ~= DELETED
        end
        rows[i] = {
            most = limit.most,
            wait = wait,
            remaining = remaining,
            reset_after = reset_after,
            store = store,
            state = state,
            shadow = limiter.shadow,
        }
    end
    if is_refused then
        -- Nothing is written, and each row speaks of the state as it is.
        for i = 1, #rows do
            local row, limiter = rows[i], limiters[i]
            if row.store then
                row.wait, row.remaining, row.reset_after =
                    peek(limiter.kind, limiter.limit, row.state, limiter.quantity)
                row.store = nil
            end
        end
    end

    local all = combined(rows, false)
    if not all then
        all = combined(rows, true)
        all.wait = nil
    end
    local unit = read.unit
    local reply = { five(all.most, unit, all.wait, all.remaining, all.reset_after) }
    for i = 1, #rows do
        local row = rows[i]
        reply[i + 1] = five(row.most, unit, row.wait, row.remaining, row.reset_after)
        local prepare, store = limiters[i].kind.prepare, row.store
        if prepare and store then
            prepare(store)
        end
    end
    -- The server lets CL.MSETTLE run without memory, so that it gives back.
    if grows and is_out_of_memory() then
        fail("OOM command not allowed when used memory > 'maxmemory'.")
    end
    -- Nothing fails from here on.
    for i = 1, #rows do
        local limiter, store = limiters[i], rows[i].store
        if store then
            write(limiter.kind, keys[i], limiter.limit, store)
        end
    end
    if once and not is_refused then
        call('SET', once, text_of(reply), 'PXAT', expiry_at(kept_until))
    end
    return reply
end
end

