-- Time ----------------------------------------------------------------------------------------------------------------
--
-- Lengths of time and instants are in nanoseconds. Plain instants are counted from the beginning of the second in which
-- the call happens, the origin; big ones from the Unix epoch.

local SECOND = 1e9
local MILLISECOND = 1e6
local MICROSECOND = 1e3
local DAY = 86400 -- in seconds

-- The end of 64-bit nanoseconds, in the year 2262. No state lies beyond it.
local LAST = '9223372036854775807'
local LAST_SECOND, LAST_NANOSECOND = 9223372036, 854775807

-- The last second of which plain numbers need not know how near the end of time is: those of sorted sets end in 2255.
local LAST_PLAIN_SECOND = 8990000000

-- The instant of the call, as seconds since the epoch and nanoseconds of that second, and as a number.
local clock_seconds, clock_nanoseconds
local now
local origin

-- Reads the server's clock, which has microseconds.
local function read_clock()
    local time = server('TIME')
    clock_seconds, clock_nanoseconds = tonumber(time[1]), tonumber(time[2]) * MICROSECOND
    if not is_plain then
        now = big_int(clock_seconds) * big_int(SECOND) + big_int(clock_nanoseconds)
    elseif clock_seconds > LAST_PLAIN_SECOND then
        error(INEXACT)
    else
        origin, now = clock_seconds, clock_nanoseconds
    end
end

-- The seconds and nanoseconds of an instant, or of a length of time, that is written as decimal nanoseconds.
local function split(text)
    return tonumber(text:sub(1, -10)) or 0, tonumber(text:sub(-9))
end

local function plain_instant(seconds, nanoseconds)
    local instant = (seconds - origin) * SECOND + nanoseconds
    if instant > LARGEST or instant < -LARGEST then
        error(INEXACT)
    end
    return instant
end

-- The instant that is written as decimal nanoseconds since the epoch.
local function instant(text)
    if is_plain then
        return plain_instant(split(text))
    end
    return big_int(text)
end

-- The instant of a number of microseconds below 2^53 since the epoch.
local function instant_of_micros(micros)
    if is_plain then
        local seconds = plain_quotient(micros, 1e6)
        return plain_instant(seconds, (micros - seconds * 1e6) * MICROSECOND)
    end
    return big_int(micros) * big_int(MICROSECOND)
end

-- The instant of a number of milliseconds below 2^53 since the epoch. Later ones than the last instant count as that.
local function instant_of_millis(millis)
    if is_plain then
        local seconds = plain_quotient(millis, 1000)
        return plain_instant(seconds, (millis - seconds * 1000) * MILLISECOND)
    end
    return smaller(big_int(millis) * big_int(MILLISECOND), last)
end

-- An instant as decimal nanoseconds since the epoch.
local function nanos_of(moment)
    if is_plain then
        local nanoseconds = moment % SECOND
        return string.format('%.0f%09.0f', origin + (moment - nanoseconds) / SECOND, nanoseconds)
    end
    return tostring(moment)
end

-- The microseconds from the epoch to an instant, rounded down.
local function micros_of(moment)
    if is_plain then
        return origin * 1e6 + (moment - moment % MICROSECOND) / MICROSECOND
    end
    return approximate(big_quotient(moment, big_int(MICROSECOND)))
end

-- The milliseconds from the epoch to an instant, rounded up: the first expiry that is not before it.
local function millis_of(moment)
    if is_plain then
        local over = moment % MILLISECOND
        return origin * 1000 + (moment - over) / MILLISECOND + (over > 0 and 1 or 0)
    end
    return approximate(big_quotient(moment + big_int(MILLISECOND - 1), big_int(MILLISECOND)))
end

-- The milliseconds as an argument of a command.
local function expiry_at(moment)
    return string.format('%.0f', millis_of(moment))
end

-- The instant at which a key expires, nil for never.
local function expiry(key)
    local millis = server('PEXPIRETIME', key)
    if millis >= 0 then
        return instant_of_millis(millis)
    end
end

-- An instant, the epoch at the earliest.
local function since_epoch(moment)
    return is_plain and moment or larger(moment, zero)
end

-- A time in units of the call, rounded up.
local function rounded_up(time, unit)
    local nanoseconds = int(unit.nanoseconds)
    return quotient(time + nanoseconds - one, nanoseconds)
end

-- Whether two instants lie at most so many seconds apart.
local function are_near(a, b, seconds)
    return not (int(seconds .. '000000000') < larger(a, b) - smaller(a, b))
end

-- Checks that so many periods end by the last whole millisecond of time, whether a window opens or not.
local function check_periods(limit, number)
    if is_plain then
        return -- no plain number reaches it
    end
    local longest = quotient(difference(int('9223372036854000000'), now), int(number))
    if longest < limit.period then
        out_of_range('period', 1, quotient(longest, int(limit.unit.nanoseconds)))
    end
end

