-- CL.FIXED: core/src/fixed.rs and core/src/calendar.rs ----------------------------------------------------------------
--
-- The state is a count in a key that expires when the window ends, at a whole millisecond. A TOTAL has no end: its key
-- keeps the expiry that it has, if any, and with IDLE expires when nothing was taken for that long.

local Fixed = { name = 'FIXED', words = 2, delete = 'DEL', reads_clock = true, writes_once = true }

do
-- Returns the days from the epoch to a date. Months below 1 and above 12 are in the years before and after. Years are
-- counted from March on, so that a leap day comes last: March to December have 306 days, and five months 153.
local function days_to(year, month, day)
    year, month = year + floor((month - 1) / 12), (month - 1) % 12 + 1
    if month < 3 then
        year, month = year - 1, month + 12
    end
    local before = 365 * year + floor(year / 4) - floor(year / 100) + floor(year / 400)
    return before + floor((153 * (month - 3) + 2) / 5) + day - 719469
end

-- Returns the year and the month of a day. Starts from a guess with the mean length of a year, which is never too late
-- and at most a year too early, and continues from there.
local function month_of(day)
    local year = 1970 + floor(day / 365.2425) - 1
    while days_to(year + 1, 1, 1) <= day do
        year = year + 1
    end
    local month = 1
    while days_to(year, month + 1, 1) <= day do
        month = month + 1
    end
    return year, month
end

-- Returns the day on which a month begins, or its last day if it is shorter.
local function begins(year, month, from)
    return min(days_to(year, month, from), days_to(year, month + 1, 1) - 1)
end

local function multiples(time, length)
    return time - time % length, time - time % length + length
end

-- Functions that return the beginning and the end of the calendar window of a second, all in seconds of local time.
local CALENDARS = {
    HOUR = function(time)
        return multiples(time, 3600)
    end,
    DAY = function(time)
        return multiples(time, DAY)
    end,
    WEEK = function(time, from)
        local first = (-3 + from - 1) * DAY -- the epoch was a Thursday
        local begin = time - (time - first) % (7 * DAY)
        return begin, begin + 7 * DAY
    end,
    MONTH = function(time, from)
        local day = floor(time / DAY)
        local year, month = month_of(day)
        local this = begins(year, month, from)
        if day < this then
            return begins(year, month - 1, from) * DAY, this * DAY
        end
        return this * DAY, begins(year, month + 1, from) * DAY
    end,
    YEAR = function(time)
        local year = month_of(floor(time / DAY))
        return days_to(year, 1, 1) * DAY, days_to(year + 1, 1, 1) * DAY
    end,
}

-- Returns the calendar window of a second, in seconds since the epoch, or nil if it ends after the last second.
local function calendar_window(limit, second)
    local from, to = CALENDARS[limit.calendar](second + limit.offset, limit.from)
    if to - limit.offset <= LAST_SECOND then
        return max(from - limit.offset, 0), to - limit.offset
    end
end

-- The arguments that may follow the quantity of CL.FIXED.
local UTC = { -840, '840' }
local WEEKDAY, DAY_OF_MONTH = { 1, '7' }, { 1, '31' }
Fixed.options_of_period = { SATURATE = ALONE, UTC = EXCLUDED, FROM = EXCLUDED, IDLE = EXCLUDED }
Fixed.options_of_calendar = {
    HOUR = { SATURATE = ALONE, UTC = UTC, FROM = EXCLUDED, IDLE = EXCLUDED },
    DAY = { SATURATE = ALONE, UTC = UTC, FROM = EXCLUDED, IDLE = EXCLUDED },
    WEEK = { SATURATE = ALONE, UTC = UTC, FROM = WEEKDAY, IDLE = EXCLUDED },
    MONTH = { SATURATE = ALONE, UTC = UTC, FROM = DAY_OF_MONTH, IDLE = EXCLUDED },
    YEAR = { SATURATE = ALONE, UTC = UTC, FROM = EXCLUDED, IDLE = EXCLUDED },
}

-- Returns what belongs to a window directly behind its word, the instant of `UNTIL` or the period of `IDLE`, and the
-- index behind the window.
function Fixed.window_end(args, i)
    local window = upper(args[i])
    if window == 'UNTIL' then
        return args[i + 1], nil, i + 2
    elseif window == 'TOTAL' and args[i + 1] and upper(args[i + 1]) == 'IDLE' then
        return nil, args[i + 2] or syntax_error(), i + 3
    end
    return nil, nil, i + 1
end

-- Returns the limit for a window: `period`, the name of a calendar with its options, `UNTIL` and an instant, or `TOTAL`
-- and the period of `IDLE`, if it is given.
function Fixed.limit(most, window, unit, given, ends, idle)
    local limit = { most = int(checked(most, 'limit', 1, LAST)), unit = unit }
    local word = upper(window)
    if word == 'UNTIL' then
        limit.ends = checked(ends or syntax_error(), 'UNTIL', 0, unit.last) .. unit.zeros
    elseif word == 'TOTAL' then
        limit.is_total, limit.idle = true, idle and checked_time(idle, 'IDLE', 1, unit)
    elseif CALENDARS[word] then
        limit.calendar, limit.offset, limit.from = word, (given.UTC or 0) * 60, (given.FROM or 1) + 0
    elseif find(word, '^%a') then
        local words = 'HOUR, DAY, WEEK, MONTH, YEAR, UNTIL or TOTAL'
        fail(format('ERR period must be an integer from 1 to %s, or %s', unit.most, words))
    else
        limit.period = checked_time(window, 'period', 1, unit)
    end
    return limit
end

-- Reads a window without options.
function Fixed.read(args, i, unit)
    return Fixed.limit(args[i], args[i + 1], unit, NONE)
end

-- Returns an open window with its end counted from the present instant, or nil if the call needs the clock. Windows end
-- at a whole millisecond. So the milliseconds that are left decide a call in any unit but US.
local function window_from_now(key, limit, text)
    if text and not limit.is_total and is_plain and limit.unit ~= MICROSECONDS and #text < 16 and find(text, '^[1-9]%d*$') then
        local left = call('PTTL', key) * MILLISECOND
        if left > 0 and left < LARGEST then
            return { count = text + 0, ends = left }
        end
    end
end

-- Loads the states of a call for several limiters if all of them are open windows that need no clock. Returns whether
-- that is so.
function Fixed.load_from_now(rows, count, keys)
    for i = 1, count do
        if rows[i].kind ~= Fixed then
            return false
        end
    end
    for i = 1, count do
        local row, key = rows[i], keys[i]
        local window = window_from_now(key, row.limit, call('GET', key))
        if not window then
            -- The instants of the others do not count from the epoch.
            for loaded = 1, i do
                rows[loaded].state = nil
            end
            return false
        end
        row.state = window
    end
    return true
end

-- Returns the count and the end of its window, or nil without a state. Reads the clock if that has not been done.
function Fixed.load(key, limit)
    local text = call('GET', key)
    if not now then
        local window = window_from_now(key, limit, text)
        if window then
            now = 0
            return window
        end
        read_clock()
    end
    if not text then
        return nil
    end
    local count = natural(text)
    if count then
        local ends = expiry(key)
        if limit.is_total and not ends and #text < 19 then
            return { count = count }
        end
        -- The state of CL.THROTTLE is an instant within a minute of its key's expiry. No plain count is such an
        -- instant, because it would be in 1970.
        if ends and (is_plain or not (#text > 15 and are_near(instant(text), ends, 60))) then
            return { count = count, ends = ends }
        end
    end
    foreign(limit.is_total and 'a count, below 10^18 if it does not expire' or 'a count that expires with its window')
end

function Fixed.save(key, _, window)
    if window.is_lasting then
        write('SET', key, digits(window.count))
    elseif window.added then
        write('INCRBY', key, TEXTS[window.added] or digits(window.added))
    else
        write('SET', key, digits(window.count), 'PXAT', expiry_at(window.ends))
    end
end

-- Returns the window if it is open. A window in which nothing was admitted is not open.
local function open_window(window)
    return window and zero < window.count and now < window.ends and window or nil
end

-- Returns the end of a window that opens now, a whole millisecond, or nil for an instant that has passed.
local function opened_until(limit)
    if limit.calendar then
        local _, ends = calendar_window(limit, clock_seconds)
        return instant_of_millis((ends or beyond_time()) * 1000)
    elseif limit.period then
        local begin = instant_of_millis(clock_seconds * 1000 + floor(clock_nanoseconds / MILLISECOND))
        return instant_of_millis(millis_of(within_time(begin + limit.period)))
    end
    local seconds, nanoseconds = split(limit.ends)
    if seconds > clock_seconds or seconds == clock_seconds and nanoseconds > clock_nanoseconds then
        return instant_of_millis(seconds * 1000 + ceil(nanoseconds / MILLISECOND))
    end
end

local function passed(limit)
    local unit = limit.unit.nanoseconds
    local units = big_int(clock_seconds) * big_int(SECOND / unit) + big_int(floor(clock_nanoseconds / unit) + 1)
    out_of_range('UNTIL', units, limit.unit.last)
end

local function fixed_answer(limit, window, wait, store)
    if not window then
        return wait, limit.most, zero, store
    end
    return wait, difference(limit.most, window.count), window.ends - now, store
end

local AMBIGUOUS = 'ERR quantity is out of range: the count would be the end of its window in nanoseconds, '
    .. 'a state of CL.THROTTLE'

-- Returns the decision to store a count, or to add `added` to an open window, whose key keeps its expiry. A count that
-- could be read as a state of CL.THROTTLE is never written.
local function count_in(limit, count, ends, wait, added)
    if not is_plain and #digits(count) > 15 and are_near(count, ends, 60) then
        fail(AMBIGUOUS)
    end
    local window = { count = count, ends = ends, added = added }
    return wait, difference(limit.most, count), ends - now, window
end

-- Returns the total that is counted now, without an end if its key does not expire. A count of 0 keeps its expiry.
local function present_total(stored)
    return stored and (not stored.ends or now < stored.ends) and stored or { count = zero, has_ended = stored }
end

local function total_answer(limit, total, wait, store)
    local reset_after = zero
    if zero < total.count then
        reset_after = total.ends and total.ends - now or FOREVER
    end
    return wait and reset_after, difference(limit.most, total.count), reset_after, store
end

-- Returns the instant at which the key of a total expires after a take.
local function renewed_until(limit, total)
    if not limit.idle then
        return total.ends
    end
    if not is_plain then
        local left = difference(int('9223372036854000000'), now)
        if left < limit.idle then
            out_of_range('IDLE', 1, quotient(left, int(limit.unit.nanoseconds)))
        end
    end
    local begin = instant_of_millis(clock_seconds * 1000 + floor(clock_nanoseconds / MILLISECOND))
    local ends = instant_of_millis(millis_of(begin + limit.idle))
    return total.ends and larger(total.ends, ends) or ends
end

-- Returns the decision to store a total, of which `added` is new. Nothing else is written if it keeps its expiry.
local function count_in_all(limit, before, count, ends, wait, added, least)
    if not is_plain and not ends and #digits(count) > 18 then
        out_of_range('quantity', least, int('999999999999999999') - before.count)
    elseif not is_plain and ends and #digits(count) > 15 and are_near(count, ends, 60) then
        fail(AMBIGUOUS)
    end
    local total = { count = count, ends = ends, added = ends == before.ends and added }
    total.is_lasting = before.has_ended and not ends
    return total_answer(limit, total, wait, total)
end

local function take_in_all(limit, stored, quantity)
    local total = present_total(stored)
    local ends, count = renewed_until(limit, total), total.count + quantity
    if limit.most < quantity then
        local _, remaining, reset_after = total_answer(limit, total)
        return FOREVER, remaining, reset_after
    elseif limit.most < count then
        return total_answer(limit, total, true)
    elseif quantity == zero then
        return total_answer(limit, total)
    end
    return count_in_all(limit, total, count, ends, nil, quantity, 0)
end

local function settle_in_all(limit, stored, quantity)
    local total = present_total(stored)
    local ends, count = renewed_until(limit, total), total.count + quantity
    if zero < quantity then
        if highest < count then
            out_of_range('quantity', '-9223372036854775807', highest - total.count)
        end
        return count_in_all(limit, total, count, ends, limit.most < count, quantity, '-9223372036854775807')
    elseif quantity == zero or total.count == zero then
        return total_answer(limit, total, limit.most < total.count)
    elseif not (zero < count) then
        return total_answer(limit, { count = zero }, nil, DELETED)
    end
    return count_in_all(limit, total, count, total.ends, limit.most < count, quantity)
end

function Fixed.take(limit, stored, quantity)
    if limit.is_total then
        return take_in_all(limit, stored, quantity)
    end
    local window, most = open_window(stored), limit.most
    local count = window and window.count + quantity or quantity
    if not is_plain and limit.period then
        check_periods(limit, 1)
    elseif is_plain and window and zero < quantity and count <= most then
        return nil, most - count, window.ends - now, { added = quantity } -- the most frequent case
    end
    if most < count then
        return fixed_answer(limit, window, limit.most < quantity and FOREVER or window and window.ends - now or zero)
    elseif quantity == zero then
        return fixed_answer(limit, window)
    end
    return count_in(limit, count, window and window.ends or opened_until(limit) or passed(limit), nil, window and quantity)
end

function Fixed.room(limit, stored)
    local window
    if limit.is_total then
        window = present_total(stored)
    else
        window = open_window(stored)
    end
    return window and limit.most - window.count or limit.most
end

-- Returns the wait of a call that is never refused: the time until the window ends, while more than the limit is used.
local function fixed_standing(limit, count, ends)
    if limit.most < count then
        return ends - now
    end
end

-- Returns whether the open window, which ends at an instant, is the one that was to end at `known`. The end changes a
-- little when its key is moved to another server.
function Fixed.is_window(known, ends)
    return now < known and are_near(known, ends, 1)
end

-- Returns whether units were taken from the window that ends at an instant, as far as can be known.
local function covers(limit, ends, taken)
    if limit.ends then
        local seconds, nanoseconds = split(limit.ends)
        return Fixed.is_window(instant_of_millis(seconds * 1000 + ceil(nanoseconds / MILLISECOND)), ends)
    end
    local begin, slack
    if limit.period then
        local milliseconds = int(MILLISECOND)
        begin = ends - quotient(limit.period + milliseconds - one, milliseconds) * milliseconds
        -- The call that opened the window is as old as the window, and its age was rounded up.
        slack = taken.unit
    else
        -- The key may expire at any millisecond. Its window contains the instant before its expiry.
        local second = calendar_window(limit, ceil(millis_of(ends) / 1000) - 1)
        if not second then
            return false
        end
        begin, slack = instant_of_millis(second * 1000), zero
        if Fixed.is_window(begin, ends) then
            -- The key was moved, and the window was to end at this boundary.
            second = calendar_window(limit, second - 1)
            begin = instant_of_millis(second * 1000)
        end
    end
    if taken.reset_after then
        -- The window from which they were taken ended after this.
        slack = difference(taken.reset_after, taken.unit)
    end
    return not (slack < since_epoch(begin) - since_epoch(now - taken.age))
end

function Fixed.settle(limit, stored, quantity, taken)
    if limit.is_total then
        return settle_in_all(limit, stored, quantity)
    end
    if limit.period then
        check_periods(limit, 1)
    end
    local window = open_window(stored)
    local count = window and window.count or zero
    local ends = window and window.ends or zero < quantity and opened_until(limit)
    if zero < quantity and ends then
        if highest - count < quantity then
            out_of_range('quantity', '-9223372036854775807', highest - count)
        end
        count = count + quantity
        return count_in(limit, count, ends, fixed_standing(limit, count, ends), window and quantity)
    end
    if not window or not (quantity < zero) or taken and not covers(limit, window.ends, taken) then
        return fixed_answer(limit, window, window and fixed_standing(limit, count, window.ends))
    end
    count = count + quantity
    if not (zero < count) then
        return fixed_answer(limit, nil, nil, DELETED)
    end
    return count_in(limit, count, window.ends, fixed_standing(limit, count, window.ends), quantity)
end

local take = taker(Fixed)

-- Reads `limit window [quantity] [options]`.
function commands.fixed(key, args)
    if not args[3] then
        return take(key, limit_of(Fixed, args, 1, UNITS.S), one, UNITS.S)
    end
    local ends, idle, behind = Fixed.window_end(args, 2)
    local known = Fixed.options_of_calendar[upper(args[2])] or Fixed.options_of_period
    local quantity, unit, given = options(args, behind, known)
    local limit
    if ends or idle or given.UTC or given.FROM then
        limit = Fixed.limit(args[1], args[2], unit, given, ends, idle)
    else
        limit = limit_of(Fixed, args, 1, unit)
    end
    return take(key, limit, quantity, unit, given.SATURATE)
end
end

