-- Arguments -----------------------------------------------------------------------------------------------------------

-- The units of time: `zeros` makes nanoseconds of a number that is written in the unit, `most` is the largest number
-- of it that 292 years hold, and `last` the last whole millisecond of 64-bit nanoseconds.
local UNITS = {
    S = { name = 'S', nanoseconds = 1e9, zeros = '000000000', most = '9223372036', last = '9223372036' },
    MS = { name = 'MS', nanoseconds = 1e6, zeros = '000000', most = '9223372036854', last = '9223372036854' },
    US = { name = 'US', nanoseconds = 1e3, zeros = '000', most = '9223372036854775', last = '9223372036854000' },
}

-- Checks an argument, and returns it as it is written. `least` is at most 1, and `most` is a text.
local function checked(text, name, least, most)
    if #text < #most and find(text, '^[1-9]%d*$') then
        return text -- as most are
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

-- Checks a quantity of CL.MSETTLE, and returns it.
local function checked_difference(text)
    local magnitude = text:match('^%-([1-9]%d*)$') or text
    if not is_natural(magnitude) then
        out_of_range('quantity', '-9223372036854775807', LAST)
    end
    return int(text)
end

-- The unit that a call ends with, behind all of its other arguments.
local function last_unit(args, i)
    if not args[i] then
        return UNITS.S
    end
    return not args[i + 1] and UNITS[upper(args[i])] or syntax_error()
end

-- What a command can have behind its quantity: words alone, words with a number in a range, and words that it knows but
-- that the other arguments exclude. All commands have the units.
local ALONE, EXCLUDED = 'alone', 'excluded'
local NONE = {}
local SATURATE = { SATURATE = ALONE }
local BOOKING = { PREPAY = ALONE, MAXWAIT = { 0, LAST } }

-- Reads `[quantity] [options in any order]` from an index on: the quantity, which is at most `most`, a text; the unit; and
-- the other options by their names.
local function options(args, i, known, most)
    local word = args[i]
    if not word then
        return one, UNITS.S, NONE
    end
    local quantity = one
    word = upper(word)
    if not UNITS[word] and not known[word] then
        quantity = int(checked(args[i], 'quantity', 0, most or LAST))
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

-- Limits that have been read, because calls repeat them, and reading takes longer than looking up: tables by the kind, the
-- unit and each of the words. When there are too many, all are forgotten.
local MOST_REMEMBERED = 1000
local remembered, count_remembered = {}, 0

local function read_and_remember(kind, args, i, unit)
    local limit = kind.read(args, i, unit)
    if count_remembered == MOST_REMEMBERED then
        remembered, count_remembered = {}, 0
    end
    local path = { kind, unit, unpack(args, i, i + kind.words - 1) }
    local at = remembered
    for step = 1, #path - 1 do
        local word = path[step]
        at[word] = at[word] or {}
        at = at[word]
    end
    at[path[#path]], count_remembered = limit, count_remembered + 1
    return limit
end

-- The limit of a kind that the arguments from an index on are. There must be enough of them.
local function limit_of(kind, args, i, unit)
    if not is_plain then
        return kind.read(args, i, unit)
    end
    local known = remembered[kind]
    known = known and known[unit]
    for word = i, i + kind.words - 1 do
        known = known and known[args[word]]
    end
    return known or read_and_remember(kind, args, i, unit)
end

-- Decisions and replies -----------------------------------------------------------------------------------------------
--
-- A decision is four values:
--
--   wait         nil if the call is admitted; else the time until the same call would be, or FOREVER
--   remaining    what could be admitted after the call
--   reset_after  the time until the limiter is fully replenished
--   store        the new state; nil if it stays as it is, DELETED if the key is to be deleted
--
-- A kind of limiter is a table with these fields and functions, in which `limit` is what `read` has returned, and `state`
-- what `load` has, nil for no state:
--
--   name, words                          the word for the kind in CL.MTAKE, and the number of words of a limit
--   read(args, i, unit)                  the limit that the arguments from an index on are; its `most` is the `limit`
--                                        of replies
--   load(key, limit)                     the state under a key. If the kind has `reads_clock`, the clock need not
--                                        have been read before
--   take(limit, state, quantity)         the decision to take so many units, all or none
--   room(limit, state)                   the units that fit, for SATURATE
--   settle(limit, state, difference, taken)  the decision of CL.MSETTLE. `taken` says when the units were taken that are
--                                        given back, if the call does: their `age`, their `reset_after` if it is known,
--                                        and the `unit` of both, which are rounded up to it
--   prepare(store)                       finds out what `save` needs to know, after which that cannot fail. Some kinds
--                                        have no such function
--   save(key, limit, store)              writes a new state
--   delete                               the command that deletes the key

local FOREVER = {}
local DELETED = {}

-- The commands that have one key: functions of the key and of the other arguments.
local commands = {}

local NAMES = { 'limited', 'limit', 'remaining', 'retry_after', 'reset_after', 'the quantity taken' }

-- A reply of big numbers. The server makes integers of doubles, so that one from 2^53 on would be another number. Checked
-- before anything is written.
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

-- The five integers of a decision, and the quantity taken if it is given.
local function five(most, unit, wait, remaining, reset_after, taken)
    local retry_after = -1
    if wait and wait ~= FOREVER then
        retry_after = rounded_up(wait, unit)
    end
    local reply = { wait and 1 or 0, most, remaining, retry_after, rounded_up(reset_after, unit), taken }
    return is_plain and reply or replied(reply)
end

-- The decision to take as many of a quantity as fit, and the quantity taken.
local function saturate(kind, limit, state, quantity)
    local room = kind.room(limit, state)
    -- With no room at all a single unit is refused, and its wait is the one to reply.
    local wait, remaining, reset_after, store = kind.take(limit, state, smaller(quantity, larger(room, one)))
    if quantity == zero then
        wait = nil
    end
    return wait, remaining, reset_after, store, wait and zero or smaller(quantity, larger(room, zero))
end

-- The decision to look: that to take, with the numbers of the state as it is.
local function peek(kind, limit, state, quantity)
    local wait, remaining, reset_after, store = kind.take(limit, state, quantity)
    if store then
        wait, remaining, reset_after = kind.take(limit, state, zero)
    end
    return wait, remaining, reset_after
end

-- How much of a take has not leaked away, if the units that are given back take so long to serve. The take was served
-- at the end of its `reset_after`, which is at most one unit shorter than it says.
local function still_owed(taken, time)
    local owed = taken.reset_after and difference(taken.reset_after, taken.unit) or time
    return difference(owed, taken.age)
end

-- Carries out a decision, for which the kind is prepared: the one way to write.
local function write(kind, key, limit, store)
    if store == DELETED then
        call(kind.delete, key)
    elseif store then
        kind.save(key, limit, store)
    end
end

-- Takes a quantity, all or none or as SATURATE says, and replies.
local function take(kind, key, limit, quantity, unit, saturates)
    if not kind.reads_clock then
        read_clock()
    end
    local state = kind.load(key, limit)
    local wait, remaining, reset_after, store, taken
    if saturates then
        wait, remaining, reset_after, store, taken = saturate(kind, limit, state, quantity)
    else
        wait, remaining, reset_after, store = kind.take(limit, state, quantity)
    end
    local reply = five(limit.most, unit, wait, remaining, reset_after, taken)
    if store then
        if kind.prepare then
            kind.prepare(store)
        end
        write(kind, key, limit, store)
    end
    return reply
end

-- The function of a command `limit [quantity] [SATURATE] [unit]`.
local function taking(kind)
    return function(key, args)
        local quantity, unit, given = options(args, kind.words + 1, SATURATE)
        return take(kind, key, limit_of(kind, args, 1, unit), quantity, unit, given.SATURATE)
    end
end
