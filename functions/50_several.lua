-- CL.MTAKE, CL.MPEEK and CL.MSETTLE: core/src/several.rs and src/several.rs -------------------------------------------
--
-- The arguments are a limiter for each key, and options. All limiters are decided before anything is written.

local TAKE, PEEK, SETTLE = 'take', 'peek', 'settle'
local several

do
local KINDS = {
    THROTTLE = { words = 4, kind = Throttle },
    FUNNEL = { words = 4, kind = Funnel },
    BUCKET = { words = 4, kind = Bucket },
    FIXED = { kind = Fixed },
    WINDOW = { words = 3, kind = Window },
    LOG = { words = 3, kind = Log },
    LEASE = { words = 3, kind = Lease },
}

local function is_option(word)
    word = word:upper()
    return word == 'UTC' or word == 'FROM'
end

-- The number of words of a fixed window: `limit window [UTC minutes] [FROM day] quantity`. Nil if some are missing.
local function words_of_fixed(args, i)
    if not args[i + 1] then
        return nil
    end
    local words = args[i + 1]:upper() == 'UNTIL' and 4 or 3
    while true do
        local at = i + words - 1
        if not args[at] then
            return nil
        elseif not is_option(args[at]) or not args[at + 1] then
            return words
        end
        words = words + 2
    end
end

-- The limiter at an index, and the index behind it. Nil if there is none, or not a complete one.
local function find(args, i)
    local found = {}
    local word = args[i] and args[i]:upper()
    if word == 'SHADOW' then
        found.shadow, i = true, i + 1
    elseif word == 'RESET' then
        found.reset, i = args[i + 1], i + 2
    end
    word = args[i] and args[i]:upper()
    local grammar = word and KINDS[word]
    if not grammar then
        return nil
    end
    local words = grammar.words or words_of_fixed(args, i + 1)
    if not words or #args < i + words then
        return nil
    end
    found.kind, found.first, found.final = grammar.kind, i + 1, i + words
    return found, i + words + 1
end

-- Reads `[AGO age] [unit]`, in any order; AGO is known to settlements alone.
local function several_options(args, i, verb)
    local unit, age
    while args[i] do
        local word = args[i]:upper()
        if verb == SETTLE and word == 'AGO' then
            if age or not args[i + 1] then
                syntax_error()
            end
            age, i = args[i + 1], i + 1
        elseif unit or not UNITS[word] then
            syntax_error()
        else
            unit = UNITS[word]
        end
        i = i + 1
    end
    unit = unit or UNITS.S
    return { unit = unit, age = age and checked_time(age, 'AGO', 0, unit) }
end

-- Reads `limit window [UTC minutes] [FROM day]`, the words before the quantity.
local function read_fixed(args, i, final, unit)
    local call, ends = { unit = unit }, nil
    local window = args[i + 1]:upper()
    local at = i + 2
    if window == 'UNTIL' then
        ends, at = args[at], at + 1
    end
    local known = Fixed.options_of_calendar[window] or Fixed.options_of_period
    while at < final do
        local word = args[at]:upper()
        local range = known[word]
        if type(range) ~= 'table' or not args[at + 1] then
            syntax_error()
        end
        local value = checked(args[at + 1], word, range[1], range[2])
        if call[word] then
            syntax_error()
        end
        call[word], at = value, at + 2
    end
    return Fixed.limit(args[i], args[i + 1], call, ends)
end

-- Reads the arguments of a limiter that was found.
local function read_limiter(found, args, verb, unit)
    local kind, first, final = found.kind, found.first, found.final
    if kind == Lease then
        local lease = checked_time(args[first + 1], 'lease', verb == SETTLE and 0 or 1, unit)
        if lease == zero then
            lease = nil
        end
        found.limit, found.quantity = Lease.limit(args[first], lease, args[final], unit), one
        return
    end
    found.limit = kind == Fixed and read_fixed(args, first, final, unit) or kind.read(args, first, unit)
    if verb == SETTLE then
        found.quantity = checked_difference(args[final])
    else
        found.quantity = int(checked(args[final], 'quantity', 0, kind == Log and Log.most_entries or LAST))
    end
end

local function read_several(keys, args, verb)
    local limiters, i = {}, 1
    for k = 1, #keys do
        local found, behind = find(args, i)
        if not found then
            break
        end
        limiters[k], i = found, behind
    end
    -- The unit stands behind the limiters. If something is wrong there, their errors come first nevertheless.
    local is_read, read = pcall(several_options, args, i, SETTLE)
    if read == INEXACT then
        error(INEXACT)
    end
    for k = 1, #limiters do
        local limiter, unit = limiters[k], is_read and read.unit or UNITS.S
        if limiter.shadow and verb ~= TAKE or limiter.reset and verb ~= SETTLE then
            syntax_error()
        end
        limiter.reset_after = limiter.reset and checked_time(limiter.reset, 'RESET', 0, unit)
        read_limiter(limiter, args, verb, unit)
    end
    read = several_options(args, i, verb)
    if #limiters < #keys then
        syntax_error()
    end
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
local function combined(rows, counts)
    local all
    for i = 1, #rows do
        local row = rows[i]
        if not counts(row) then
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

function several(keys, args, verb)
    local limiters, read = read_several(keys, args, verb)
    read_clock()
    local rows, is_refused = {}, false
    for i = 1, #limiters do
        local limiter = limiters[i]
        local kind, limit, quantity = limiter.kind, limiter.limit, limiter.quantity
        local state = kind.load(keys[i], limit)
        local row = { most = limit.most, shadow = limiter.shadow, state = state }
        if verb == SETTLE then
            local taken
            if read.age then
                taken = { age = read.age, reset_after = limiter.reset_after, unit = int(read.unit.nanoseconds) }
            end
            row.wait, row.remaining, row.reset_after, row.store = kind.settle(limit, state, quantity, taken)
        elseif verb == PEEK then
            row.wait, row.remaining, row.reset_after = peek(kind, limit, state, quantity)
        else
            row.wait, row.remaining, row.reset_after, row.store = kind.take(limit, state, quantity)
        end
        is_refused = is_refused or verb == TAKE and row.wait and not row.shadow
        rows[i] = row
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

    local all = combined(rows, function(row)
        return not row.shadow
    end)
    if not all then
        all = combined(rows, function()
            return true
        end)
        all.wait = nil
    end
    local reply = { five(all.most, read.unit, all.wait, all.remaining, all.reset_after) }
    for i = 1, #rows do
        local row = rows[i]
        reply[i + 1] = five(row.most, read.unit, row.wait, row.remaining, row.reset_after)
    end
    for i = 1, #rows do
        prepare(limiters[i].kind, rows[i].store)
    end
    for i = 1, #rows do
        write(limiters[i].kind, keys[i], limiters[i].limit, rows[i].store)
    end
    return reply
end
end

