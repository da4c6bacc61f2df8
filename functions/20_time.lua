-- Time ----------------------------------------------------------------------------------------------------------------
--
-- Lengths of time and instants are in nanoseconds. Plain instants are counted from the beginning of the second in which
-- the call happens, the origin; big ones from the Unix epoch.

local SECOND = 1e9
local MILLISECOND = 1e6
local MICROSECOND = 1e3
local DAY = 86400 -- in seconds

-- The end of 64-bit nanoseconds. No state lies beyond it.
local LAST_SECOND, LAST_NANOSECOND = 9223372036, 854775807

-- The last second of which plain numbers need not know how near the end of time is: those of sorted sets end in 2255.
local LAST_PLAIN_SECOND = 8990000000

-- The instant of the call, as seconds since the epoch and nanoseconds of that second, and as a number.
local clock_seconds, clock_nanoseconds
local now
local origin

-- Reads the server's clock, which has microseconds.
local function read_clock()
    local time = call('TIME')
    clock_seconds, clock_nanoseconds = time[1] + 0, time[2] * MICROSECOND
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

-- The instant that a text is, in decimal nanoseconds since the epoch. Nil if it is none up to the last one.
local function instant(text)
    -- From 2001 to 2286, an instant has 19 digits.
    local seconds, nanoseconds = match(text, '^([1-9]%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d)$')
    if is_plain and (seconds or is_natural(text)) then
        if not seconds then
            seconds, nanoseconds = split(text)
        end
        return within_plain((seconds - origin) * SECOND + nanoseconds)
    elseif is_natural(text) then
        return big_int(text)
    end
end

-- The instant of a number of microseconds below 2^53 since the epoch.
local function instant_of_micros(micros)
    if is_plain then
        return within_plain((micros - origin * 1e6) * MICROSECOND)
    end
    return big_int(micros) * big_int(MICROSECOND)
end

-- The instant of a number of milliseconds below 2^53 since the epoch. Later ones than the last instant count as that.
local function instant_of_millis(millis)
    if is_plain then
        return within_plain((millis - origin * 1000) * MILLISECOND)
    end
    return smaller(big_int(millis) * big_int(MILLISECOND), last)
end

-- An instant as decimal nanoseconds since the epoch.
local function nanos_of(moment)
    if is_plain then
        local nanoseconds = moment % SECOND
        return format(INSTANT, origin + (moment - nanoseconds) / SECOND, nanoseconds)
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
        return origin * 1000 + (moment + -moment % MILLISECOND) / MILLISECOND
    end
    return approximate(big_quotient(moment + big_int(MILLISECOND - 1), big_int(MILLISECOND)))
end

-- The milliseconds as an argument of a command.
local function expiry_at(moment)
    return format(WHOLE, millis_of(moment))
end

-- The instant at which a key expires, nil for never.
local function expiry(key)
    local millis = call('PEXPIRETIME', key)
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
    local nanoseconds = unit.nanoseconds
    if is_plain then
        return (time + -time % nanoseconds) / nanoseconds
    end
    nanoseconds = int(nanoseconds)
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

