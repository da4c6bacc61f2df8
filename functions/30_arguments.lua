-- Arguments -----------------------------------------------------------------------------------------------------------

-- The units of time: `zeros` makes nanoseconds of a number that is written in the unit, `most` is the largest number
-- of it that 292 years hold, and `last` the last whole millisecond of 64-bit nanoseconds.
local UNITS = {
    S = { nanoseconds = 1e9, zeros = '000000000', most = '9223372036', last = '9223372036' },
    MS = { nanoseconds = 1e6, zeros = '000000', most = '9223372036854', last = '9223372036854' },
    US = { nanoseconds = 1e3, zeros = '000', most = '9223372036854775', last = '9223372036854000' },
}

-- Whether a text is an integer as the server's own commands read one: no blanks, no plus sign, no leading zeros.
local function is_integer(text)
    return text:find('^%-?[1-9]%d*$') ~= nil or text == '0'
end

-- Whether one text of digits is a larger number than another. As text, because it may have more than 53 bits.
local function is_above(text, most)
    return #text > #most or #text == #most and text > most
end

-- Whether a text is an integer from 0 to 2^63 - 1.
local function is_natural(text)
    return is_integer(text) and text:sub(1, 1) ~= '-' and not is_above(text, LAST)
end

-- Checks an argument, and returns it as it is written. `most` is a text.
local function checked(text, name, least, most)
    if is_integer(text) then
        local value = tonumber(text)
        if value >= least and (value < 0 or not is_above(text, most)) then
            return text
        end
    end
    out_of_range(name, least, most)
end

-- Checks an argument that is a length of time in a unit, and returns it in nanoseconds.
local function checked_time(text, name, least, unit)
    return int(checked(text, name, least, unit.most) .. unit.zeros)
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
    return not args[i + 1] and UNITS[args[i]:upper()] or syntax_error()
end

-- What a command can have behind its quantity: words alone, words with a number in a range, and words that it knows but
-- that the other arguments exclude. All commands have the units.
local ALONE, EXCLUDED = 'alone', 'excluded'
local NONE = {}
local SATURATE = { SATURATE = ALONE }
local BOOKING = { PREPAY = ALONE, MAXWAIT = { 0, LAST } }

-- Reads `[quantity] [options in any order]` from an index on. The quantity is a text, at most `most`.
local function options(args, i, known, most)
    local read = { quantity = '1', unit = UNITS.S }
    local word = args[i]
    if not word then
        return read
    end
    word = word:upper()
    if not UNITS[word] and not known[word] then
        read.quantity = checked(args[i], 'quantity', 0, most or LAST)
        i = i + 1
    end
    local given = {}
    local function once(name, value)
        if given[name] then
            syntax_error()
        end
        given[name], read[name] = true, value
    end
    while args[i] do
        word = args[i]:upper()
        local option = known[word]
        if UNITS[word] then
            once('unit', UNITS[word])
        elseif not option or option == EXCLUDED then
            syntax_error()
        elseif option == ALONE then
            once(word, true)
        else
            i = i + 1
            if not args[i] then
                syntax_error()
            end
            once(word, checked(args[i], word, option[1], option[2]))
        end
        i = i + 1
    end
    return read
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
-- A kind of limiter is a table with these functions, in which `limit` is what `read` has returned, and `state` what
-- `load` has, nil for no state:
--
--   read(args, i, unit)                  the limit that the arguments from an index on are; its `most` is the `limit`
--                                        of replies
--   load(key, limit)                     the state under a key
--   take(limit, state, quantity)         the decision to take so many units, all or none
--   room(limit, state)                   the units that fit, for SATURATE
--   settle(limit, state, difference, taken)  the decision of CL.MSETTLE. `taken` says when the units were taken that are
--                                        given back, if the call does: their `age`, their `reset_after` if it is known,
--                                        and the `unit` of both, which are rounded up to it
--   prepare(store)                       finds out, where needed, what `save` needs to know
--   save(key, limit, store)              writes a new state
--   delete                               the command that deletes the key

local FOREVER = {}
local DELETED = {}

-- The commands that have one key: functions of the key and of the other arguments.
local commands = {}

local NAMES = { 'limited', 'limit', 'remaining', 'retry_after', 'reset_after', 'the quantity taken' }

-- A number of a reply. The server makes integers of doubles, so that one from 2^53 on would be another number. Checked
-- before anything is written.
local function replied(number, i)
    number = approximate(number)
    if number >= EXACT then
        fail(string.format('ERR %s is above 9007199254740991, the largest integer that a function can reply', NAMES[i]))
    end
    return number
end

-- The five integers of a decision.
local function five(most, unit, wait, remaining, reset_after)
    local retry_after = -1
    if wait and wait ~= FOREVER then
        retry_after = replied(rounded_up(wait, unit), 4)
    end
    return {
        wait and 1 or 0,
        replied(most, 2),
        replied(remaining, 3),
        retry_after,
        replied(rounded_up(reset_after, unit), 5),
    }
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

-- Finds out what a decision needs to know to be carried out, after which this cannot fail.
local function prepare(kind, store)
    if store and store ~= DELETED and kind.prepare then
        kind.prepare(store)
    end
end

-- How much of a take has not leaked away, if the units that are given back take so long to serve. The take was served
-- at the end of its `reset_after`, which is at most one unit shorter than it says.
local function still_owed(taken, time)
    local owed = taken.reset_after and difference(taken.reset_after, taken.unit) or time
    return difference(owed, taken.age)
end

-- Carries out a decision that is prepared: the one way to write.
local function write(kind, key, limit, store)
    if store == DELETED then
        server(kind.delete, key)
    elseif store then
        kind.save(key, limit, store)
    end
end

-- Takes the quantity of a call, all or none or as SATURATE says, and replies.
local function take(kind, call, limit, key)
    local quantity = int(call.quantity)
    read_clock()
    local state = kind.load(key, limit)
    local wait, remaining, reset_after, store, taken
    if call.SATURATE then
        wait, remaining, reset_after, store, taken = saturate(kind, limit, state, quantity)
    else
        wait, remaining, reset_after, store = kind.take(limit, state, quantity)
    end
    local reply = five(limit.most, call.unit, wait, remaining, reset_after)
    reply[6] = taken and replied(taken, 6)
    prepare(kind, store)
    write(kind, key, limit, store)
    return reply
end

-- The function of a command `limit [quantity] [SATURATE] [unit]`, whose limit is so many words.
local function taking(kind, words)
    return function(key, args)
        local call = options(args, words + 1, SATURATE)
        return take(kind, call, kind.read(args, 1, call.unit), key)
    end
end

