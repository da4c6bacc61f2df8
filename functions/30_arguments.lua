-- Checks that the user may run a command that writes, and that the server has it.
local function rehearse(command, ...)
    local is_known, is_allowed = pcall(acl_check, command, ...)
    if not is_known then
        fail(format('ERR command %s is not available on this server', command))
    elseif not is_allowed then
        fail(format('NOPERM this user has no permissions to run the command %s on this key', command))
    end
    return 1
end

-- Arguments -----------------------------------------------------------------------------------------------------------

-- The units of time. Appending `zeros` to a number in the unit gives nanoseconds. `most` is the largest number of the
-- unit in 292 years, and `last` is the last whole millisecond of 64-bit nanoseconds.
local UNITS = {
    S = { name = 'S', nanoseconds = 1e9, zeros = '000000000', most = '9223372036', last = '9223372036' },
    MS = { name = 'MS', nanoseconds = 1e6, zeros = '000000', most = '9223372036854', last = '9223372036854' },
    US = { name = 'US', nanoseconds = 1e3, zeros = '000', most = '9223372036854775', last = '9223372036854000' },
}

local SECONDS, MICROSECONDS = UNITS.S, UNITS.US

-- Checks an argument, and returns it as it is written. `least` is at most 1, and `most` is a string.
local function checked(text, name, least, most)
    if #text < #most and find(text, '^[1-9]%d*$') then
        return text -- the most frequent case
    elseif is_integer(text) then
        local value = text + 0
        if value >= least and (value < 0 or not is_above(text, most)) then
            return text
        end
    end
    out_of_range(name, least, most)
end

-- Checks an argument that is a length of time in a unit, and returns it in nanoseconds.
local function checked_time(text, name, least, unit)
    text = checked(text, name, least, unit.most)
    return is_plain and within_plain(text * unit.nanoseconds) or int(text .. unit.zeros)
end

-- Checks a quantity, at most the number in the text `most`, and returns it.
local function quantity_in(text, most)
    return is_plain and NUMBERS[text] or int(checked(text, 'quantity', 0, most))
end

-- Checks a quantity of CL.MSETTLE, and returns it.
local function checked_difference(text)
    local magnitude = text:match('^%-([1-9]%d*)$') or text
    if not is_natural(magnitude) then
        out_of_range('quantity', '-9223372036854775807', LAST)
    end
    return int(text)
end

-- Returns the unit at the end of a call, after all other arguments.
local function last_unit(args, i)
    if not args[i] then
        return UNITS.S
    end
    return not args[i + 1] and UNITS[upper(args[i])] or syntax_error()
end

-- The arguments that may follow a command's quantity: words without a value, words with a number in a range, and words
-- that exclude, or are excluded by, other arguments. All commands accept the units.
local ALONE, EXCLUDED = 'alone', 'excluded'
local NONE = {}
local SATURATE = { SATURATE = ALONE }
local BOOKING = { PREPAY = ALONE, MAXWAIT = { 0, LAST } }

-- Reads `[quantity] [options in any order]` from index i on. Returns the quantity, which is at most `most`, a string;
-- the unit; and the other options by name.
local function options(args, i, known, most)
    local word = args[i]
    if not word then
        return one, UNITS.S, NONE
    end
    local quantity = one
    word = upper(word)
    if not UNITS[word] and not known[word] then
        quantity = quantity_in(word, most or LAST)
        i = i + 1
        if not args[i] then
            return quantity, UNITS.S, NONE
        end
    end
    local unit, given = nil, {}
    while args[i] do
        word = upper(args[i])
        local option = known[word]
        if UNITS[word] then
            unit = not unit and UNITS[word] or syntax_error()
        elseif not option or option == EXCLUDED then
            syntax_error()
        else
            local value = true
            if option ~= ALONE then
                i = i + 1
                value = checked(args[i] or syntax_error(), word, option[1], option[2])
            end
            given[word] = not given[word] and value or syntax_error()
        end
        i = i + 1
    end
    return quantity, unit or UNITS.S, given
end

-- Limits that have been read. Calls repeat them, and reading takes longer than looking up. They are in tables by unit,
-- by the word for the kind and by each argument, and contain their `kind`. When there are too many, all are removed.
local MOST_REMEMBERED = 1000
local remembered, count_remembered = {}, 0

local function read_and_remember(kind, args, i, unit)
    local limit = kind.read(args, i, unit)
    if count_remembered == MOST_REMEMBERED then
        remembered, count_remembered = {}, 0
    end
    local path = { unit, kind.name, unpack(args, i, i + kind.words - 1) }
    local at = remembered
    for step = 1, #path - 1 do
        local word = path[step]
        at[word] = at[word] or {}
        at = at[word]
    end
    limit.kind = kind
    at[path[#path]], count_remembered = limit, count_remembered + 1
    return limit
end

-- Returns the limit of a kind in the arguments from index i on. There must be enough arguments.
local function limit_of(kind, args, i, unit)
    local known = is_plain and remembered[unit]
    known = known and known[kind.name]
    known = known and known[args[i]]
    known = known and known[args[i + 1]]
    if kind.words == 3 then
        known = known and known[args[i + 2]]
    end
    if known then
        return known
    end
    return is_plain and read_and_remember(kind, args, i, unit) or kind.read(args, i, unit)
end

-- Decisions and replies -----------------------------------------------------------------------------------------------
--
-- A decision is four values:
--
--   wait         nil if the call is admitted; else the time until the same call would be, or FOREVER
--   remaining    the quantity that could be admitted after the call
--   reset_after  the time until the limiter is fully replenished, or FOREVER
--   store        the new state; nil if it stays as it is, DELETED if the key is to be deleted
--
-- A kind of limiter is a table with these fields and functions. `limit` is the result of `read`, and `state` the result
-- of `load`, nil for no state:
--
--   name, words                          the word for the kind in CL.MTAKE, and the number of arguments of a limit
--   read(args, i, unit)                  the limit in the arguments from an index on; its `most` is the `limit` of
--                                        replies
--   load(key, limit)                     the state under a key. If the kind has `reads_clock`, the clock need not
--                                        have been read before
--   take(limit, state, quantity)         the decision to take `quantity` units, all or nothing
--   room(limit, state)                   the units that fit, for SATURATE
--   settle(limit, state, difference, taken)  the decision of CL.MSETTLE. `taken` tells when the units to give back
--                                        were taken, if the call does: their `age`, their `reset_after` if it is known,
--                                        and the `unit` to which both are rounded up
--   prepare(store, is_only)              reads all that `save` needs, so that `save` cannot fail after a write. Some
--                                        kinds have no such function. `is_only` tells that the call writes nothing else
--   save(key, limit, store)              writes a new state. `writes_once` tells that it runs one command
--   delete                               the command that deletes the key

local FOREVER = {}
local DELETED = {}

-- The commands with one key: functions of the key and the other arguments.
local commands = {}

local NAMES = { 'limited', 'limit', 'remaining', 'retry_after', 'reset_after', 'the quantity taken' }

-- Checks a reply of big numbers, before anything is written. The server makes integers from doubles, so a number from
-- 2^53 on could change.
local function replied(numbers)
    for i = 1, #numbers do
        local number = approximate(numbers[i])
        if number >= EXACT then
            fail(format('ERR %s is above 9007199254740991, the largest integer that a function can reply', NAMES[i]))
        end
        numbers[i] = number
    end
    return numbers
end

-- Returns the five integers of a decision, and the quantity taken if it is given.
local function five(most, unit, wait, remaining, reset_after, taken)
    local nanoseconds = unit.nanoseconds
    local is_endless = reset_after == FOREVER
    if is_plain and not wait and not is_endless then
        return { 0, most, remaining, -1, (reset_after + -reset_after % nanoseconds) / nanoseconds, taken }
    end
    local retry_after = -1
    if wait and wait ~= FOREVER then
        retry_after = rounded_up(wait, nanoseconds)
    end
    reset_after = is_endless and -1 or rounded_up(reset_after, nanoseconds)
    local reply = { wait and 1 or 0, most, remaining, retry_after, reset_after, taken }
    return is_plain and reply or replied(reply)
end

-- Returns the decision to take as many units of a quantity as fit, and the quantity taken.
local function saturate(kind, limit, state, quantity)
    local room = kind.room(limit, state)
    -- With no room at all, a single unit is refused, and the reply contains its wait.
    local wait, remaining, reset_after, store = kind.take(limit, state, smaller(quantity, larger(room, one)))
    if quantity == zero then
        wait = nil
    end
    return wait, remaining, reset_after, store, wait and zero or smaller(quantity, larger(room, zero))
end

-- Returns the decision to take, with the other numbers of the present state.
local function peek(kind, limit, state, quantity)
    local wait, remaining, reset_after, store = kind.take(limit, state, quantity)
    if store then
        wait, remaining, reset_after = kind.take(limit, state, zero)
    end
    return wait, remaining, reset_after
end

-- Returns how much of a take has not leaked away yet, if the units to give back take `time` to serve. The take was
-- served at the end of its `reset_after`, which was rounded up by at most one unit.
local function still_owed(taken, time)
    local owed = taken.reset_after and difference(taken.reset_after, taken.unit) or time
    return difference(owed, taken.age)
end

-- Carries out a decision for which the kind is prepared. If that takes several commands, they are rehearsed, so that a
-- call writes nothing if the server would reject one of them.
local function carry_out(kind, key, limit, store)
    if store == DELETED then
        call(kind.delete, key)
    elseif store then
        if not kind.writes_once then
            write = rehearse
            kind.save(key, limit, store)
        end
        write = call
        kind.save(key, limit, store)
    end
end

-- Returns the function that takes a quantity, all or nothing or as SATURATE allows, and replies.
local function taker(kind)
    local load, decide, prepare, reads_clock = kind.load, kind.take, kind.prepare, kind.reads_clock
    return function(key, limit, quantity, unit, saturates)
        if not reads_clock then
            read_clock()
        end
        local state = load(key, limit)
        local wait, remaining, reset_after, store, taken
        if saturates then
            wait, remaining, reset_after, store, taken = saturate(kind, limit, state, quantity)
        else
            wait, remaining, reset_after, store = decide(limit, state, quantity)
        end
        local reply = five(limit.most, unit, wait, remaining, reset_after, taken)
        if store then
            if prepare then
                prepare(store, true)
            end
            carry_out(kind, key, limit, store)
        end
        return reply
    end
end

-- Returns the function of a command `limit [quantity] [SATURATE] [unit]`.
local function taking(kind)
    local take, words = taker(kind), kind.words
    return function(key, args)
        if not args[words + 1] then
            return take(key, limit_of(kind, args, 1, SECONDS), one, SECONDS)
        end
        local quantity, unit, given = options(args, words + 1, SATURATE)
        return take(key, limit_of(kind, args, 1, unit), quantity, unit, given.SATURATE)
    end
end
