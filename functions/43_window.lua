-- CL.WINDOW: core/src/window.rs ---------------------------------------------------------------------------------------
--
-- The state is the start of the present window, its count, and the count of the previous window. The previous count is
-- weighted by the share of its window that the last period covers, and rounded to the nearest unit.

local Window = { name = 'WINDOW', words = 2, delete = 'DEL' }

do
function Window.read(args, i, unit)
    local most = int(checked(args[i], 'limit', 1, LAST))
    return { most = most, period = checked_time(args[i + 1], 'period', 1, unit), unit = unit }
end

-- Returns the instant that a text gives, or nil. Remembers it with the limit: the windows of most keys begin together.
local function start_in(text, limit)
    if not is_plain then
        return instant(text)
    elseif limit.start_text ~= text or limit.origin ~= origin then
        limit.start = instant(text)
        limit.start_text, limit.origin = limit.start and text, origin -- another program's text may be long
    end
    return limit.start
end

local function load_window(key, limit)
    local fields = call('HMGET', key, 'window', 'current', 'previous')
    local start, current, previous = fields[1], fields[2], fields[3]
    if start and current and previous then
        current, previous = natural(current), natural(previous)
        start = current and previous and start_in(start, limit)
        if start then
            return { start = start, current = current, previous = previous, ends = nil }
        end
    elseif not start and not current and not previous and call('EXISTS', key) == 0 then
        return nil
    end
    foreign('a hash with the fields window, current and previous')
end

-- Returns the start of the window of an instant, a multiple of the period since the epoch.
local function start_of(limit, moment)
    local into
    if is_plain then
        -- The origin may be too large for a plain number, but its remainder is not.
        local seconds = limit.period / SECOND
        local rest
        if seconds % 1 == 0 then
            rest = origin % seconds * SECOND
        else
            rest = plain_remainder(origin, SECOND, limit.period)
        end
        into = (rest + moment) % limit.period
    else
        local _
        _, into = divide(moment, one, limit.period)
    end
    return moment - into
end

-- Returns the state under a key. The clock may have been wrong when it was written: a window that begins in the future
-- is moved back by whole periods, so that nothing counts when its key expires, at the latest.
function Window.load(key, limit)
    local window = load_window(key, limit)
    local expires = window and now < window.start and expiry(key)
    if expires then
        local gone = start_of(limit, window.start) + limit.period
        if zero < window.current then
            gone = gone + limit.period
        end
        local too_late = difference(smaller(gone, last), expires)
        local _, rest = divide(too_late, one, limit.period)
        local back = rest == zero and too_late or too_late - rest + limit.period
        window.start, window.is_moved = since_epoch(window.start - back), true
    end
    return window
end

-- Returns the weight of units of the previous window if `ahead` of the period still covers them.
local function weight(limit, units, ahead)
    local whole, rest = divide(units, ahead, limit.period)
    return rest + rest < limit.period and whole or whole + one
end

-- Returns how long after the start of the present window `units` of the previous one weigh at most `left`.
local function faded(limit, units, left)
    if not (left < units) then
        return zero
    end
    -- ahead = floor(((2 * left + 1) * period - 1) / (2 * units))
    local ahead, rest = divide(left + left + one, limit.period, units + units)
    if rest == zero then
        ahead = ahead - one
    end
    return difference(limit.period, ahead)
end

-- Returns the present window for a stored one. A window in the future, after trouble with the clock, is not changed.
local function present_window(limit, stored)
    local start = start_of(limit, now)
    if stored and not (stored.start < start) then
        if is_plain and stored.start == start then
            stored.ends = start + limit.period
        end
        return stored
    elseif stored and not (limit.period < start - stored.start) then
        return { start = start, current = zero, previous = stored.current }
    end
    return { start = start, current = zero, previous = zero }
end

-- Returns the end of a window, and stores it in the window's table.
local function end_of(limit, window)
    local ends = window.ends
    if not ends then
        ends = within_time(start_of(limit, window.start) + limit.period)
        window.ends = ends
    end
    return ends
end

-- Returns the units that count now.
local function estimate(limit, window)
    if window.previous == zero then
        return window.current
    end
    local ahead = difference(limit.period, difference(now, window.start))
    return window.current + weight(limit, window.previous, ahead)
end

-- Returns the first instant at which a quantity, at most the limit, is admitted if nothing else is taken.
local function admits_at(limit, window, quantity)
    local free, ends = limit.most - quantity, window.ends or end_of(limit, window)
    -- In this window, when the weighted previous count is small enough ...
    if not (free < window.current) then
        local at = window.start + faded(limit, window.previous, free - window.current)
        if at < ends then
            return at
        end
    end
    -- ... or in the next, where the present count is the previous one.
    return within_time(ends + faded(limit, window.current, free))
end

-- Returns the instant from which on nothing in a window counts.
local function counts_until(limit, window)
    local ends = window.ends or end_of(limit, window)
    return zero < window.current and within_time(ends + limit.period) or ends
end

function Window.save(key, limit, window)
    if window.added then
        write('HINCRBY', key, 'current', TEXTS[window.added] or digits(window.added))
    else
        local start, current, previous = nanos_of(window.start), digits(window.current), digits(window.previous)
        write('HSET', key, 'window', start, 'current', current, 'previous', previous)
    end
    -- The keys of a limit mostly expire together.
    if limit.gone ~= window.gone or limit.gone_origin ~= origin then
        limit.gone, limit.gone_origin, limit.expiry = window.gone, origin, expiry_at(window.gone)
    end
    write('PEXPIREAT', key, limit.expiry)
end

-- Returns the window with another count. In the stored window, `added` is the difference.
local function with_count(limit, stored, window, current)
    local added = window == stored and current - window.current
    return {
        start = window.start,
        current = current,
        previous = window.previous,
        ends = window.ends or end_of(limit, window),
        added = not window.is_moved and added,
        gone = nil, -- the instant from which on nothing counts
    }
end

local function window_answer(limit, window, wait, used, store)
    end_of(limit, window)
    local reset_after = zero
    if used ~= zero then
        reset_after = difference(admits_at(limit, window, limit.most), now)
    end
    return wait, difference(limit.most, used), reset_after, store
end

function Window.take(limit, stored, quantity)
    if not is_plain then
        check_periods(limit, 2)
    end
    local window = present_window(limit, stored)
    local used = estimate(limit, window)
    if limit.most < used + quantity then
        local wait = FOREVER
        if not (limit.most < quantity) then
            wait = difference(admits_at(limit, window, quantity), now)
        end
        return window_answer(limit, window, wait, used)
    elseif quantity == zero then
        return window_answer(limit, window, nil, used)
    end
    -- Everything is available again when the present count, as the previous one, has faded.
    local current, ends = window.current + quantity, window.ends or end_of(limit, window)
    local full_at = within_time(ends + faded(limit, current, zero))
    window = with_count(limit, stored, window, current)
    window.gone = within_time(ends + limit.period)
    return nil, limit.most - (used + quantity), full_at - now, window
end

function Window.room(limit, stored)
    check_periods(limit, 2)
    return limit.most - estimate(limit, present_window(limit, stored))
end

function Window.settle(limit, stored, quantity, taken)
    check_periods(limit, 2)
    local before = present_window(limit, stored)
    local current = before.current
    if zero < quantity then
        if highest - current < quantity then
            out_of_range('quantity', '-9223372036854775807', highest - current)
        end
        current = current + quantity
    elseif not taken or not (now < before.start + taken.age) then
        -- A window that began when the units were taken, or earlier, may contain them.
        current = larger(current + quantity, zero)
    end
    local after = with_count(limit, stored, before, current)
    local used = estimate(limit, after)
    local wait
    if limit.most < used then
        wait = difference(admits_at(limit, after, one), now)
    end
    local store
    if current ~= before.current then
        store = used == zero and DELETED or after
        if store == after then
            after.gone = counts_until(limit, after)
        end
    end
    return window_answer(limit, after, wait, used, store)
end

commands.window = taking(Window)
end

