-- Rates: core/src/rate.rs ---------------------------------------------------------------------------------------------
--
-- Units take cost(q) = floor(q * period / count), rounded once per call. If a unit takes a whole number of nanoseconds,
-- this is the rate's `interval`, and plain numbers need no `divide`.

local function read_rate(count, period, unit)
    checked(count, 'count', 1, LAST)
    local rate = { period = checked_time(period, 'period', 1, unit), count = int(count) }
    if rate.period < rate.count then
        out_of_range('count', 1, digits(rate.period))
    elseif is_plain and rate.period % rate.count == 0 then
        rate.interval = rate.period / rate.count
    end
    return rate
end

-- Returns the largest number of units that take no longer than a time: floor(((time + 1) * count - 1) / period).
local function units_in(rate, time)
    local interval = rate.interval
    if interval then
        return (time - time % interval) / interval
    end
    local units, rest = divide(time + one, rate.count, rate.period)
    return rest == zero and units - one or units
end

-- Returns the time that units take, or nil if it is longer than 292 years.
local function time_of(rate, units)
    local interval = rate.interval
    if interval then
        local time = units * interval
        return time < LARGEST and time or within_plain(time)
    end
    local time = divide(units, rate.period, rate.count)
    if not (last < time) then
        return time
    end
end

-- Returns the largest number of units that take at most 292 years.
local function most_units(rate)
    return units_in(rate, last)
end

-- Returns the time that the quantity of a call takes.
local function cost(rate, quantity)
    return time_of(rate, quantity) or out_of_range('quantity', 0, most_units(rate))
end

-- CL.THROTTLE and its companions: core/src/gcra.rs --------------------------------------------------------------------
--
-- The state is the theoretical arrival time (TAT), the instant at which all admitted units are served, in decimal
-- nanoseconds. `debt` is the time until then.

local Throttle = { name = 'THROTTLE', words = 3, delete = 'DEL', writes_once = true }

do
function Throttle.read(args, i, unit)
    local max_burst = checked(args[i], 'max_burst', 0, '9223372036854775806')
    local limit = read_rate(args[i + 1], args[i + 2], unit)
    limit.most = int(max_burst) + one
    limit.tolerance = time_of(limit, limit.most) or out_of_range('max_burst', 0, most_units(limit) - one)
    return limit
end

local function debt_of(tat)
    return tat and now < tat and tat - now or zero
end

local function room(limit, debt)
    return debt < limit.tolerance and units_in(limit, limit.tolerance - debt) or zero
end

-- If the number alone does not show that it is a TAT, the key's expiry does. The clock may have been wrong when it was
-- written: if a state owes more than `most`, by default the tolerance, it owes only until its key expires.
function Throttle.load(key, limit, most)
    local text = call('GET', key)
    if not text then
        return nil
    end
    local tat = instant(text)
    if tat then
        local is_doubtful = now + (most or limit.tolerance) < tat
        local is_certain = is_plain or are_near(tat, now, 365 * DAY)
        if is_certain and not is_doubtful then
            return tat
        end
        local expires = expiry(key)
        if is_certain or expires and are_near(tat, expires, DAY) then
            return is_doubtful and expires and smaller(expires, tat) or tat
        end
    end
    foreign('a TAT in nanoseconds since the epoch')
end

function Throttle.save(key, _, tat)
    local nanos, expires = nanos_and_expiry_at(tat)
    write('SET', key, nanos, 'PXAT', expires)
end

function Throttle.take(limit, tat, quantity)
    local debt = tat and now < tat and tat - now or zero
    local tolerance, interval = limit.tolerance, limit.interval
    local time = interval and interval * quantity
    if not time or time > LARGEST then
        time = cost(limit, quantity)
    end
    local most = tolerance - time
    if most < debt then
        return most < zero and FOREVER or debt - most, room(limit, debt), debt
    elseif quantity == zero then
        return nil, room(limit, debt), debt
    end
    debt = debt + time
    tat = now + debt
    if interval then
        local left = tolerance - debt
        return nil, (left - left % interval) / interval, debt, tat
    end
    return nil, units_in(limit, tolerance - debt), debt, last < tat and beyond_time() or tat
end

function Throttle.room(limit, tat)
    return room(limit, debt_of(tat))
end

-- Returns the largest debt with which one more unit is admitted.
local function room_for_one(limit)
    return difference(limit.tolerance, divide(one, limit.period, limit.count))
end

-- Returns the decision of a call that is never refused. While the limiter is in debt, its wait is for one more unit.
local function standing(limit, debt, store)
    local wait
    if limit.tolerance < debt then
        wait = debt - room_for_one(limit)
    end
    return wait, room(limit, debt), debt, store
end

local function charge(limit, tat, quantity)
    local debt = within_time(debt_of(tat) + cost(limit, quantity))
    return standing(limit, debt, quantity ~= zero and within_time(now + debt) or nil)
end

local function give_back(limit, tat, back)
    local debt = difference(debt_of(tat), back)
    if not tat or back == zero then
        return standing(limit, debt)
    end
    return standing(limit, debt, debt == zero and DELETED or within_time(now + debt))
end

local function refund(limit, tat, quantity)
    return give_back(limit, tat, cost(limit, quantity))
end

function Throttle.settle(limit, tat, quantity, taken)
    if not (quantity < zero) then
        if not time_of(limit, quantity) then
            out_of_range('quantity', '-9223372036854775807', most_units(limit))
        end
        return charge(limit, tat, quantity)
    end
    local back = time_of(limit, -quantity) or last
    return give_back(limit, tat, taken and smaller(still_owed(taken, back), back) or back)
end

-- Runs `max_burst count period [quantity] [unit]` with a function that decides. If `looks`, writes nothing.
local function gcra(decide, key, args, looks)
    local quantity, unit = options(args, 4, NONE)
    local limit = limit_of(Throttle, args, 1, unit)
    read_clock()
    local wait, remaining, reset_after, store = decide(limit, Throttle.load(key, limit), quantity)
    local reply = five(limit.most, unit, wait, remaining, reset_after)
    if not looks then
        carry_out(Throttle, key, limit, store)
    end
    return reply
end

local function look(limit, tat, quantity)
    return peek(Throttle, limit, tat, quantity)
end

function commands.peek(key, args)
    return gcra(look, key, args, true)
end

function commands.pause(key, args)
    local unit = last_unit(args, 5)
    local limit = limit_of(Throttle, args, 1, unit)
    local wait = checked_time(args[4], 'wait', 0, unit)
    read_clock()
    local ends = wait + room_for_one(limit)
    local debt = debt_of(Throttle.load(key, limit, ends))
    local store
    if debt < ends then
        store = now + ends
        if last < store then
            local longest = difference(last - now, room_for_one(limit))
            out_of_range('wait', 0, quotient(longest, int(unit.nanoseconds)))
        end
        debt = ends
    end
    local reply = five(limit.most, unit, standing(limit, debt))
    carry_out(Throttle, key, limit, store)
    return reply
end

function commands.reserve(key, args)
    local quantity, unit, given = options(args, 4, BOOKING)
    local limit = limit_of(Throttle, args, 1, unit)
    local longest = given.MAXWAIT and checked_time(given.MAXWAIT, 'MAXWAIT', 0, unit)
    read_clock()
    local debt = debt_of(Throttle.load(key, limit))
    local time = cost(limit, quantity)
    local wait, store
    local reply
    if limit.most < quantity and not given.PREPAY then
        reply = five(limit.most, unit, FOREVER, room(limit, debt), debt)
    else
        local awaited = given.PREPAY and cost(limit, smaller(quantity, one)) or time
        wait = difference(debt, difference(limit.tolerance, awaited))
        if longest and longest < wait then
            reply = five(limit.most, unit, wait, room(limit, debt), debt)
        else
            debt = within_time(debt + time)
            store = quantity ~= zero and within_time(now + debt) or nil
            reply = five(limit.most, unit, wait, room(limit, debt), debt)
            reply[1] = 0 -- a booking is admitted, even if it has to wait
        end
    end
    carry_out(Throttle, key, limit, store)
    return reply
end

commands.throttle = taking(Throttle)

function commands.refund(key, args)
    return gcra(refund, key, args)
end

function commands.charge(key, args)
    return gcra(charge, key, args)
end
end

