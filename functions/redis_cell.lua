#!lua name=redis_cell

-- CL.THROTTLE, CL.PEEK, CL.REFUND, CL.CHARGE and CL.FIXED for servers that cannot load the module.
--
--     redis-cli -x FUNCTION LOAD REPLACE < redis_cell.lua
--     FCALL cl_throttle 1 user123 15 30 60
--
-- Arguments, replies, errors, stored states and expiries are those of the module's commands, so a key can be used by
-- both. docs/functions.md lists the differences; the tests in tests/functions hold this file to the module.
--
-- A number in Lua is a double, exact up to 2^53. That is 104 days in nanoseconds, and an instant needs 61 bits.
-- So there are three representations, and no number is ever rounded:
--
--   instants       two numbers, the seconds since the Unix epoch and the nanoseconds of that second
--   plain numbers  for a call whose products and sums all stay below 2^53, which is nearly every call
--   big numbers    for all other calls: the same decisions, with the operators of the metatable Big
--
-- In the code, `int` is the constructor of the numbers of a call: `tonumber`, or `big`.

-- While a library is loaded, the server hides all of Lua's own functions from it. So none of them is called, or kept in
-- a local variable, outside of functions.

local EXACT = 2 ^ 53 -- numbers below this are exact, and so are quotients of two of them, rounded down
local HALF = EXACT / 2 - 2e9 -- the sum of two of these, and of a second on top to round up, is exact
local SECOND = 1e9 -- in nanoseconds, as all lengths of time here
local MILLISECOND = 1e6
local YEAR = 365 * 86400 -- in seconds
local DAY = 86400

-- The end of 64-bit nanoseconds, in the year 2262. No state lies beyond it.
local LAST = '9223372036854775807'
local LAST_SECOND, LAST_NANOSECOND = 9223372036, 854775807

-- Errors --------------------------------------------------------------------------------------------------------------

-- Ends the call with an error reply. `serve` catches it, because the server would append the line of this file.
local function fail(text)
    error(text, 0)
end

local function out_of_range(name, least, most)
    fail(string.format('ERR %s must be an integer from %s to %s', name, tostring(least), tostring(most)))
end

local function beyond_time()
    fail('ERR quantity is out of range: the state would reach past the year 2262, the end of 64-bit nanoseconds')
end

-- Runs a command of the server. Its errors, such as WRONGTYPE, are passed on.
local function server(...)
    local reply = redis.pcall(...)
    if type(reply) == 'table' and reply.err then
        fail(reply.err)
    end
    return reply
end

-- Big numbers ---------------------------------------------------------------------------------------------------------

-- Integers from 0, as digits to the base 10^7, the lowest first, without leading zeros. The product of two digits is
-- below 10^14, so that a double has room for the sum of all of a column. Subtraction is for results from 0 only.
local Big = {}

local function trim(digits)
    while #digits > 1 and digits[#digits] == 0 do
        digits[#digits] = nil
    end
    return setmetatable(digits, Big)
end

-- The big number of a decimal text, or of a number without a fraction.
local function big(number)
    local text = type(number) == 'number' and string.format('%.0f', number) or number
    local digits = {}
    for last = #text, 1, -7 do
        digits[#digits + 1] = tonumber(text:sub(math.max(last - 6, 1), last))
    end
    return trim(digits)
end

-- Makes digits of sums that may be negative or above 10^7.
local function carry(sums)
    local over = 0
    for i = 1, #sums do
        local sum = sums[i] + over
        sums[i] = sum % 1e7
        over = math.floor(sum / 1e7)
    end
    if over > 0 then
        sums[#sums + 1] = over
    end
    return trim(sums)
end

function Big.__add(a, b)
    local sums = {}
    for i = 1, math.max(#a, #b) do
        sums[i] = (a[i] or 0) + (b[i] or 0)
    end
    return carry(sums)
end

function Big.__sub(a, b)
    local sums = {}
    for i = 1, #a do
        sums[i] = a[i] - (b[i] or 0)
    end
    return carry(sums)
end

function Big.__mul(a, b)
    local sums = {}
    for i = 1, #a + #b do
        sums[i] = 0
    end
    for i = 1, #a do
        for j = 1, #b do
            sums[i + j - 1] = sums[i + j - 1] + a[i] * b[j]
        end
    end
    return carry(sums)
end

-- Below 0, 0 or above 0, as a is below, equal to or above b.
local function compare(a, b)
    if #a ~= #b then
        return #a - #b
    end
    for i = #a, 1, -1 do
        if a[i] ~= b[i] then
            return a[i] - b[i]
        end
    end
    return 0
end

function Big.__lt(a, b)
    return compare(a, b) < 0
end

function Big.__eq(a, b)
    return compare(a, b) == 0
end

function Big.__tostring(a)
    local parts = { string.format('%d', a[#a]) }
    for i = #a - 1, 1, -1 do
        parts[#parts + 1] = string.format('%07d', a[i])
    end
    return table.concat(parts)
end

-- The double next to a number: exact below 2^53, and else off by a few parts in 2^53.
local function approximate(number)
    if type(number) == 'number' then
        return number
    end
    local value = 0
    for i = #number, 1, -1 do
        value = value * 1e7 + number[i]
    end
    return value
end

-- a / b, rounded down. For big numbers the quotient is put together from guesses by doubles, each of them a little too
-- small rather than too large. A guess leaves about a part in 2^45, so that a few suffice.
local function quotient(a, b)
    if type(a) == 'number' then
        local exact = a / b
        return exact - exact % 1
    end
    local result = big(0)
    while not (a < b) do
        local guess = math.floor(approximate(a) / approximate(b) * (1 - 2 ^ -45))
        guess = big(math.max(guess, 1))
        result = result + guess
        a = a - guess * b
    end
    return result
end

-- `math.min` does not know big numbers.
local function smaller(a, b)
    return a < b and a or b
end

-- a - b, or `zero` if b is larger.
local function difference(a, b, zero)
    return b < a and a - b or zero
end

local function greatest_common_divisor(a, b)
    while b > 0 do
        a, b = b, a % b
    end
    return a
end

-- Instants ------------------------------------------------------------------------------------------------------------

-- The server's clock, which has microseconds.
local function clock()
    local time = server('TIME')
    return tonumber(time[1]), tonumber(time[2]) * 1000
end

-- The seconds and nanoseconds of an instant, or of a length of time, that is written as decimal nanoseconds.
local function split(text)
    return tonumber(text:sub(1, -10)) or 0, tonumber(text:sub(-9))
end

-- The time from an earlier instant to a later one in seconds and nanoseconds; 0 if it is the other way round.
local function since(seconds, nanoseconds, earlier_seconds, earlier_nanoseconds)
    seconds, nanoseconds = seconds - earlier_seconds, nanoseconds - earlier_nanoseconds
    if nanoseconds < 0 then
        seconds, nanoseconds = seconds - 1, nanoseconds + SECOND
    end
    if seconds < 0 then
        return 0, 0
    end
    return seconds, nanoseconds
end

-- Whether two instants are at most this many seconds apart.
local function near(a_seconds, a_nanoseconds, b_seconds, b_nanoseconds, most)
    local seconds, nanoseconds = a_seconds - b_seconds, a_nanoseconds - b_nanoseconds
    if seconds < 0 then
        seconds, nanoseconds = -seconds, -nanoseconds
    end
    return seconds < most or seconds == most and nanoseconds <= 0
end

-- The instant at which a key expires, nil for never. Later ones than the last instant count as that.
local function expiry(key)
    local milliseconds = server('PEXPIRETIME', key)
    if milliseconds < 0 then
        return nil
    end
    local seconds = math.floor(milliseconds / 1000)
    if seconds > LAST_SECOND then
        return LAST_SECOND, LAST_NANOSECOND
    end
    return seconds, math.min(milliseconds % 1000 * MILLISECOND, seconds == LAST_SECOND and LAST_NANOSECOND or SECOND)
end

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
    return text == '0' or text:find('^%-?[1-9]%d*$') ~= nil
end

-- Whether one text of digits is a larger number than another. As text, because it may have more than 53 bits.
local function is_above(digits, most)
    return #digits > #most or #digits == #most and digits > most
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

-- What a command can have behind its quantity: words alone, words with a number in a range, and words that it knows but
-- that the other arguments exclude. All commands have the units.
local ALONE, EXCLUDED = 'alone', 'excluded'
local UTC = { -840, '840' }
local NONE = {}
local SATURATE = { SATURATE = ALONE }
local WITH_PERIOD = { SATURATE = ALONE, UTC = EXCLUDED, FROM = EXCLUDED }
local CALENDARS = {
    HOUR = { SATURATE = ALONE, UTC = UTC, FROM = EXCLUDED },
    DAY = { SATURATE = ALONE, UTC = UTC, FROM = EXCLUDED },
    WEEK = { SATURATE = ALONE, UTC = UTC, FROM = { 1, '7' } },
    MONTH = { SATURATE = ALONE, UTC = UTC, FROM = { 1, '31' } },
    YEAR = { SATURATE = ALONE, UTC = UTC, FROM = EXCLUDED },
}

-- Reads `[quantity] [options in any order]` from an index on.
local function options(args, i, known)
    local read = { quantity = '1', unit = UNITS.S }
    local word = args[i]
    if not word then
        return read
    end
    word = word:upper()
    if not UNITS[word] and not known[word] then
        read.quantity = checked(args[i], 'quantity', 0, LAST)
        i = i + 1
    end
    local given = {}
    local function once(name, value)
        if given[name] then
            fail('ERR syntax error')
        end
        given[name], read[name] = true, value
    end
    while args[i] do
        word = args[i]:upper()
        local option = known[word]
        if UNITS[word] then
            once('unit', UNITS[word])
        elseif not option or option == EXCLUDED then
            fail('ERR syntax error')
        elseif option == ALONE then
            once(word, true)
        else
            i = i + 1
            if not args[i] then
                fail('ERR syntax error')
            end
            once(word, checked(args[i], word, option[1], option[2]))
        end
        i = i + 1
    end
    return read
end

-- Replies -------------------------------------------------------------------------------------------------------------

-- A wait without an end: the quantity is above the limit.
local FOREVER = {}

local NAMES = { 'limited', 'limit', 'remaining', 'retry_after', 'reset_after', 'the quantity taken' }

-- The reply of a call. The server makes integers of doubles, so that an element from 2^53 on would be another number.
-- Checked before anything is written.
local function integers(...)
    local reply = { ... }
    for i = 1, #reply do
        reply[i] = approximate(reply[i])
        if reply[i] >= EXACT then
            local text = 'ERR %s is above 9007199254740991, the largest integer that a function can reply'
            fail(string.format(text, NAMES[i]))
        end
    end
    return reply
end

-- The generic cell rate algorithm -------------------------------------------------------------------------------------
--
-- As in core/src/gcra.rs: the state is the theoretical arrival time (TAT), the instant at which everything admitted is
-- served. `debt` is the time until then. Units take cost(q) = floor(q * period / count), rounded once per call.

-- The most units that take no longer than a time.
local function units(limit, time)
    return quotient((time + limit.one) * limit.count - limit.one, limit.period)
end

-- The time that units take; nil above 292 years.
local function cost(limit, quantity)
    local time = quotient(quantity * limit.period, limit.count)
    if limit.int == big and big(LAST) < time then
        return nil
    end
    return time
end

-- The limit of a call with its quantity, in numbers of the constructor `int`.
local function limit_in(int, period, count, call)
    local one = int(1)
    local limit = {
        int = int,
        period = period,
        count = count,
        zero = int(0),
        one = one,
        capacity = int(call.max_burst) + one,
        quantity = int(call.quantity),
        unit = int(call.unit.nanoseconds),
        tolerance = false, -- until the limit can be asked for it
    }
    limit.tolerance = cost(limit, limit.capacity) or out_of_range('max_burst', 0, units(limit, big(LAST)) - limit.one)
    return limit
end

local function big_limit(call)
    local period, count = big(call.period) * big(call.unit.nanoseconds), big(call.count)
    if period < count then
        out_of_range('count', 1, period)
    end
    return limit_in(big, period, count, call)
end

-- The limit of a call, in plain numbers if these are exact.
local function new_limit(call)
    local period, count = tonumber(call.period) * call.unit.nanoseconds, tonumber(call.count)
    if period < EXACT and count <= period then
        -- Costs depend on the fraction alone, and in its lowest terms the products are the smallest.
        local divisor = greatest_common_divisor(period, count)
        period, count = period / divisor, count / divisor
        -- A bound for every product of the limit and of the quantity. It is larger than them even where it is rounded.
        if (tonumber(call.max_burst) + tonumber(call.quantity) + 2) * period + count < HALF then
            return limit_in(tonumber, period, count, call)
        end
    end
    return big_limit(call)
end

-- The time that the quantity of a call takes.
local function cost_of_call(limit, quantity)
    return cost(limit, quantity) or out_of_range('quantity', 0, units(limit, big(LAST)))
end

local function room(limit, debt)
    return units(limit, difference(limit.tolerance, debt, limit.zero))
end

-- The decisions return the wait (nil if the call is admitted), the debt after the call, and the debt to be stored: nil
-- if the state stays as it is, 0 to delete the key. With SATURATE also the quantity taken.

local function throttle(limit, debt, quantity)
    local time = cost_of_call(limit, quantity)
    if limit.tolerance < time then
        return FOREVER, debt
    end
    local most = limit.tolerance - time
    if most < debt then
        return debt - most, debt
    elseif quantity == limit.zero then
        return nil, debt
    end
    return nil, debt + time, debt + time
end

local function saturate(limit, debt, quantity)
    if quantity == limit.zero then
        return nil, debt, nil, limit.zero
    end
    local free = room(limit, debt)
    -- With no room at all a single unit is refused, and its wait is the one to reply.
    local wait, after, store = throttle(limit, debt, smaller(quantity, free < limit.one and limit.one or free))
    return wait, after, store, smaller(quantity, free)
end

-- The wait of a call that is never refused: until one more unit would be admitted, if the limiter is in debt.
local function standing(limit, debt)
    if limit.tolerance < debt then
        return debt - (limit.tolerance - cost(limit, limit.one))
    end
end

local function charge(limit, debt, quantity)
    local after = debt + cost_of_call(limit, quantity)
    return standing(limit, after), after, quantity ~= limit.zero and after or nil
end

local function refund(limit, debt, quantity)
    local back = cost_of_call(limit, quantity)
    local after = difference(debt, back, limit.zero)
    return standing(limit, after), after, back ~= limit.zero and after or nil
end

-- The TAT under a key, or the present instant for no key. If the number alone cannot tell, the key's expiry does.
local function read_tat(key, seconds, nanoseconds)
    local text = server('GET', key)
    if not text then
        return seconds, nanoseconds
    end
    if is_natural(text) then
        local tat_seconds, tat_nanoseconds = split(text)
        if near(tat_seconds, tat_nanoseconds, seconds, nanoseconds, YEAR) then
            return tat_seconds, tat_nanoseconds
        end
        local end_seconds, end_nanoseconds = expiry(key)
        if end_seconds and near(tat_seconds, tat_nanoseconds, end_seconds, end_nanoseconds, DAY) then
            return tat_seconds, tat_nanoseconds
        end
    end
    fail("ERR the key does not hold this limiter's state: expected a TAT in nanoseconds since the epoch")
end

-- The TAT of a limiter that owes a debt.
local function tat_at(limit, seconds, nanoseconds, debt)
    local second = limit.int(SECOND)
    local whole = quotient(debt, second)
    seconds = seconds + approximate(whole)
    nanoseconds = nanoseconds + approximate(debt - whole * second)
    if nanoseconds >= SECOND then
        seconds, nanoseconds = seconds + 1, nanoseconds - SECOND
    end
    if seconds > LAST_SECOND or seconds == LAST_SECOND and nanoseconds > LAST_NANOSECOND then
        beyond_time()
    end
    return seconds, nanoseconds
end

-- A time in units of the call, rounded up.
local function rounded_up(limit, time)
    return quotient(time + limit.unit - limit.one, limit.unit)
end

-- Serves `max_burst count period [quantity] [options]` by a decision. A call that looks replies the decision, but with
-- the state as it is, and writes nothing.
local function gcra(key, args, known, decide, looks)
    local call = options(args, 4, known)
    call.max_burst = checked(args[1], 'max_burst', 0, '9223372036854775806')
    call.count = checked(args[2], 'count', 1, LAST)
    call.period = checked(args[3], 'period', 1, call.unit.most)
    local limit = new_limit(call)

    local seconds, nanoseconds = clock()
    local tat_seconds, tat_nanoseconds = read_tat(key, seconds, nanoseconds)
    local owed_seconds, owed_nanoseconds = since(tat_seconds, tat_nanoseconds, seconds, nanoseconds)
    if limit.int == tonumber and owed_seconds * SECOND + owed_nanoseconds > HALF then
        limit = big_limit(call)
    end
    local debt = limit.int(owed_seconds) * limit.int(SECOND) + limit.int(owed_nanoseconds)

    local wait, after, store, taken = (call.SATURATE and saturate or decide)(limit, debt, limit.quantity)
    if store then
        seconds, nanoseconds = tat_at(limit, seconds, nanoseconds, store)
    end
    if looks then
        after, store = debt, nil
    end

    local reply = integers(
        wait and 1 or 0,
        limit.capacity,
        room(limit, after),
        (not wait or wait == FOREVER) and -1 or rounded_up(limit, wait),
        rounded_up(limit, after),
        taken
    )
    if store == limit.zero then
        server('DEL', key)
    elseif store then
        local tat = string.format('%d%09d', seconds, nanoseconds)
        server('SET', key, tat, 'PXAT', string.format('%d', seconds * 1000 + math.ceil(nanoseconds / MILLISECOND)))
    end
    return reply
end

-- The fixed window ----------------------------------------------------------------------------------------------------
--
-- As in core/src/fixed.rs: the state is a count, and the key expires with the window, at a whole millisecond.

-- The days from the epoch to a date, with months below 1 and above 12 in the years before and after. Counted in years
-- from March on, so that the day of a leap year comes last: 306 days from March to December, 153 days in five months.
local function days_to(year, month, day)
    year, month = year + math.floor((month - 1) / 12), (month - 1) % 12 + 1
    if month < 3 then
        year, month = year - 1, month + 12
    end
    local before = 365 * year + math.floor(year / 4) - math.floor(year / 100) + math.floor(year / 400)
    return before + math.floor((153 * (month - 3) + 2) / 5) + day - 719469
end

-- The year and the month that a day lies in: a guess by the mean length of a year, which is never too late by more
-- than a year, and from there on forward.
local function month_of(day)
    local year = 1970 + math.floor(day / 365.2425) - 1
    while days_to(year + 1, 1, 1) <= day do
        year = year + 1
    end
    local month = 1
    while days_to(year, month + 1, 1) <= day do
        month = month + 1
    end
    return year, month
end

-- The day on which a month begins: its last one if it is shorter.
local function begins(year, month, from)
    return math.min(days_to(year, month, from), days_to(year, month + 1, 1) - 1)
end

-- The end of the window of a calendar that a second lies in, both as seconds of local time.
local ENDS = {
    HOUR = function(local_time)
        return local_time - local_time % 3600 + 3600
    end,
    DAY = function(local_time)
        return local_time - local_time % DAY + DAY
    end,
    WEEK = function(local_time, from)
        local monday = -3 * DAY -- the Monday before the epoch, which was a Thursday
        return local_time - (local_time - monday - (from - 1) * DAY) % (7 * DAY) + 7 * DAY
    end,
    MONTH = function(local_time, from)
        local day = math.floor(local_time / DAY)
        local year, month = month_of(day)
        local this = begins(year, month, from)
        return (day < this and this or begins(year, month + 1, from)) * DAY
    end,
    YEAR = function(local_time)
        return days_to(month_of(math.floor(local_time / DAY)) + 1, 1, 1) * DAY
    end,
}

-- The end of a window that opens now, in milliseconds.
local function window_end(call, seconds, nanoseconds)
    if call.calendar then
        local offset = tonumber(call.UTC or '0') * 60
        local boundary = ENDS[call.calendar](seconds + offset, tonumber(call.FROM or '1')) - offset
        if boundary > LAST_SECOND then
            beyond_time()
        end
        return boundary * 1000
    end
    if call.period then
        local period_seconds, period_nanoseconds = split(call.period .. call.unit.zeros)
        local begin = seconds * 1000 + math.floor(nanoseconds / MILLISECOND)
        return begin + period_seconds * 1000 + math.ceil(period_nanoseconds / MILLISECOND)
    end
    local end_seconds, end_nanoseconds = split(call.instant .. call.unit.zeros)
    if end_seconds < seconds or end_seconds == seconds and end_nanoseconds <= nanoseconds then
        local unit = call.unit.nanoseconds
        local passed = seconds * (SECOND / unit) + math.floor(nanoseconds / unit)
        out_of_range('UNTIL', string.format('%d', passed + 1), call.unit.last)
    end
    return end_seconds * 1000 + math.ceil(end_nanoseconds / MILLISECOND)
end

-- Whether a count could be the state of CL.THROTTLE: an instant within a minute of the key's expiry.
local function reads_as_tat(count, seconds, nanoseconds)
    local tat_seconds, tat_nanoseconds = split(count)
    return near(tat_seconds, tat_nanoseconds, seconds, nanoseconds, 60)
end

-- The count under a key and the instant at which its window ends; nil for no key.
local function read_count(key)
    local text = server('GET', key)
    if not text then
        return nil
    end
    if is_natural(text) then
        local seconds, nanoseconds = expiry(key)
        if seconds and not reads_as_tat(text, seconds, nanoseconds) then
            return text, seconds, nanoseconds
        end
    end
    fail("ERR the key does not hold this limiter's state: expected a count that expires with its window")
end

-- Reads `limit window [quantity] [options]`.
local function fixed_arguments(args)
    local word = args[2]:upper()
    local until_instant = word == 'UNTIL'
    if until_instant and not args[3] then
        fail('ERR syntax error')
    end
    local call = options(args, until_instant and 4 or 3, CALENDARS[word] or WITH_PERIOD)
    call.limit = checked(args[1], 'limit', 1, LAST)
    if until_instant then
        call.instant = checked(args[3], 'UNTIL', 0, call.unit.last)
    elseif CALENDARS[word] then
        call.calendar = word
    elseif word:find('^%a') then
        local words = 'HOUR, DAY, WEEK, MONTH, YEAR or UNTIL'
        fail(string.format('ERR period must be an integer from 1 to %s, or %s', call.unit.most, words))
    else
        call.period = checked(args[2], 'period', 1, call.unit.most)
    end
    return call
end

-- Checks that a period ends by the last millisecond of 2262, whether a window opens or not.
local function check_period(call, seconds, nanoseconds)
    local left_seconds, left_nanoseconds = since(LAST_SECOND, 854000000, seconds, nanoseconds)
    local unit = call.unit.nanoseconds
    local longest = string.format('%d', left_seconds * (SECOND / unit) + math.floor(left_nanoseconds / unit))
    if is_above(call.period, longest) then
        out_of_range('period', 1, longest)
    end
end

local function fixed(key, args)
    local call = fixed_arguments(args)
    local seconds, nanoseconds = clock()
    local count, end_seconds, end_nanoseconds = read_count(key)
    if call.period then
        check_period(call, seconds, nanoseconds)
    end

    local left_seconds, left_nanoseconds = 0, 0
    if count then
        left_seconds, left_nanoseconds = since(end_seconds, end_nanoseconds, seconds, nanoseconds)
    end
    local is_open = count and count ~= '0' and left_seconds + left_nanoseconds > 0
    if not is_open then
        count, left_seconds, left_nanoseconds = '0', 0, 0
    end

    -- Two numbers of 15 digits have a sum that is exact.
    local int = math.max(#call.limit, #call.quantity, #count) > 15 and big or tonumber
    local limit, asked, used, zero, one = int(call.limit), int(call.quantity), int(count), int(0), int(1)
    local free = difference(limit, used, zero)
    local quantity = asked
    if call.SATURATE then
        -- With no room at all a single unit is refused, and its wait is the one to reply.
        quantity = smaller(asked, free < one and one or free)
    end

    local limited = limit < used + quantity
    local writes = not limited and zero < quantity
    if writes then
        if not is_open then
            local milliseconds = window_end(call, seconds, nanoseconds)
            end_seconds, end_nanoseconds = math.floor(milliseconds / 1000), milliseconds % 1000 * MILLISECOND
            left_seconds, left_nanoseconds = since(end_seconds, end_nanoseconds, seconds, nanoseconds)
        end
        used = used + quantity
        count = int == big and tostring(used) or string.format('%d', used)
        if reads_as_tat(count, end_seconds, end_nanoseconds) then
            fail('ERR quantity is out of range: the count would be the end of its window in nanoseconds, '
                .. 'a state of CL.THROTTLE')
        end
    end

    local taken
    if call.SATURATE then
        taken = limited and zero or smaller(asked, free)
        limited = limited and zero < asked
    end
    local unit = call.unit.nanoseconds
    local left = left_seconds * (SECOND / unit) + math.ceil(left_nanoseconds / unit)
    local reply = integers(
        limited and 1 or 0,
        limit,
        difference(limit, used, zero),
        limited and not (limit < quantity) and left or -1,
        left,
        taken
    )
    if writes then
        local milliseconds = end_seconds * 1000 + math.ceil(end_nanoseconds / MILLISECOND)
        server('SET', key, count, 'PXAT', string.format('%d', milliseconds))
    end
    return reply
end

-- The functions -------------------------------------------------------------------------------------------------------

-- Registers the function of a command that has one key and at least so many other arguments.
local function serve(name, arguments, flags, run)
    redis.register_function({
        function_name = 'cl_' .. name,
        flags = flags,
        callback = function(keys, args)
            if #keys ~= 1 then
                return redis.error_reply(string.format('ERR cl_%s takes one key', name))
            elseif #args < arguments then
                return redis.error_reply(string.format("ERR wrong number of arguments for 'cl.%s' command", name))
            end
            local is_served, reply = pcall(run, keys[1], args)
            if is_served then
                return reply
            end
            return redis.error_reply(reply)
        end,
    })
end

-- Without flags, a function is rejected on a read-only replica, and while the server is out of memory.
serve('throttle', 3, {}, function(key, args)
    return gcra(key, args, SATURATE, throttle)
end)
serve('peek', 3, { 'no-writes' }, function(key, args)
    return gcra(key, args, NONE, throttle, true)
end)
serve('refund', 3, { 'allow-oom' }, function(key, args)
    return gcra(key, args, NONE, refund)
end)
serve('charge', 3, {}, function(key, args)
    return gcra(key, args, NONE, charge)
end)
serve('fixed', 2, {}, fixed)
