-- Time ----------------------------------------------------------------------------------------------------------------
--
-- Lengths of time and instants are in nanoseconds. Big instants count from the Unix epoch. Plain ones count from the
-- origin, which is the last multiple of 10^15 nanoseconds (11 days) before the call. So the text of most instants is
-- the same few digits, and then the 15 digits of the plain number.

local SECOND = 1e9
local MILLISECOND = 1e6
local MICROSECOND = 1e3
local DAY = 86400 -- in seconds

-- The last instant in 64-bit nanoseconds. No state contains a later one.
local LAST_SECOND, LAST_NANOSECOND = 9223372036, 854775807

-- Up to this second, plain numbers need no check against the last instant: instants in sorted sets end in 2255.
local LAST_PLAIN_SECOND = 8990000000

-- The instant of the call: seconds since the epoch, nanoseconds in that second, and the number.
local clock_seconds, clock_nanoseconds
local clock_text -- the seconds as the server writes them, which are the same in many calls
local now

-- The origin in seconds. Until the next one, the first digits of an instant, its pattern, and its format.
local ORIGINS = 1e15
local origin, first_digits, present_pattern, present_format

local function set_origin()
    local seconds = clock_seconds - clock_seconds % (ORIGINS / SECOND)
    if seconds ~= origin then
        origin, first_digits = seconds, seconds * SECOND / ORIGINS
        local digits = format(WHOLE, first_digits)
        present_pattern, present_format = '^' .. digits .. '(%d+)$', digits .. REST
    end
end

-- Reads the server's clock, which counts microseconds.
local function read_clock()
    local time = call('TIME')
    if time[1] ~= clock_text then
        clock_text = time[1]
        clock_seconds = clock_text + 0
        set_origin()
    end
    clock_nanoseconds = time[2] * MICROSECOND
    if not is_plain then
        now = big_int(clock_seconds) * big_int(SECOND) + big_int(clock_nanoseconds)
    elseif clock_seconds > LAST_PLAIN_SECOND then
        error(INEXACT)
    else
        now = (clock_seconds - origin) * SECOND + clock_nanoseconds
    end
end

-- Splits decimal nanoseconds, of an instant or a length of time, into seconds and nanoseconds.
local function split(text)
    return tonumber(text:sub(1, -10)) or 0, tonumber(text:sub(-9))
end

-- Returns the instant that a text gives in decimal nanoseconds since the epoch, or nil if it is not a valid one.
local function instant(text)
    if is_plain then
        local present = match(text, present_pattern)
        if present and #present == 15 then
            return present + 0
        end
    end
    if is_plain and is_natural(text) then
        local seconds, nanoseconds = split(text)
        local moment = (seconds - origin) * SECOND + nanoseconds
        return moment < LARGEST and moment > -LARGEST and moment or within_plain(moment)
    elseif is_natural(text) then
        return big_int(text)
    end
end

-- Returns the instant of microseconds since the epoch, which are below 2^53.
local function instant_of_micros(micros)
    if is_plain then
        local moment = (micros - origin * 1e6) * MICROSECOND
        return moment < LARGEST and moment > -LARGEST and moment or within_plain(moment)
    end
    return big_int(micros) * big_int(MICROSECOND)
end

-- Returns the instant of milliseconds since the epoch, which are below 2^53, but never one after the last instant.
local function instant_of_millis(millis)
    if is_plain then
        local moment = (millis - origin * 1000) * MILLISECOND
        return moment < LARGEST and moment > -LARGEST and moment or within_plain(moment)
    end
    return smaller(big_int(millis) * big_int(MILLISECOND), last)
end

-- Returns an instant as decimal nanoseconds since the epoch.
local function nanos_of(moment)
    if is_plain then
        local rest = moment % ORIGINS
        if rest == moment then
            return format(present_format, moment)
        end
        return format(WHOLE .. REST, first_digits + (moment - rest) / ORIGINS, rest)
    end
    return tostring(moment)
end

-- Returns the microseconds from the epoch to an instant, rounded down.
local function micros_of(moment)
    if is_plain then
        return origin * 1e6 + (moment - moment % MICROSECOND) / MICROSECOND
    end
    return approximate(big_quotient(moment, big_int(MICROSECOND)))
end

-- Returns the milliseconds from the epoch to an instant, rounded up: the first expiry that is not before it.
local function millis_of(moment)
    if is_plain then
        return origin * 1000 + (moment + -moment % MILLISECOND) / MILLISECOND
    end
    return approximate(big_quotient(moment + big_int(MILLISECOND - 1), big_int(MILLISECOND)))
end

-- Returns these milliseconds as an argument of a command.
local function expiry_at(moment)
    local millis = millis_of(moment)
    return converts and format(WHOLE, millis) or millis
end

-- Returns an instant as decimal nanoseconds since the epoch, and its milliseconds as an argument of a command.
local function nanos_and_expiry_at(moment)
    local rest = is_plain and moment % ORIGINS
    if rest == moment then
        local millis = origin * 1000 + (moment + -moment % MILLISECOND) / MILLISECOND
        return format(present_format, moment), converts and format(WHOLE, millis) or millis
    end
    return nanos_of(moment), expiry_at(moment)
end

-- Returns the instant at which a key expires, or nil if it never does.
local function expiry(key)
    local millis = call('PEXPIRETIME', key)
    if millis >= 0 then
        return instant_of_millis(millis)
    end
end

-- Returns an instant, but never one before the epoch.
local function since_epoch(moment)
    return is_plain and moment or larger(moment, zero)
end

-- Returns a time in units of `nanoseconds`, rounded up.
local function rounded_up(time, nanoseconds)
    if is_plain then
        return (time + -time % nanoseconds) / nanoseconds
    end
    nanoseconds = int(nanoseconds)
    return quotient(time + nanoseconds - one, nanoseconds)
end

-- Returns whether two instants are at most `seconds` apart.
local function are_near(a, b, seconds)
    return not (int(seconds .. '000000000') < larger(a, b) - smaller(a, b))
end

-- Checks that `number` periods end by the last whole millisecond of 64-bit nanoseconds, even if no window opens.
local function check_periods(limit, number)
    if is_plain then
        return -- too far away for plain numbers
    end
    local longest = quotient(difference(int('9223372036854000000'), now), int(number))
    if longest < limit.period then
        out_of_range('period', 1, quotient(longest, int(limit.unit.nanoseconds)))
    end
end

