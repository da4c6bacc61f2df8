-- Rates: core/src/rate.rs ---------------------------------------------------------------------------------------------
--
-- Units take cost(q) = floor(q * period / count), rounded once per call.

local function read_rate(count, period, unit)
    checked(count, 'count', 1, LAST)
    local rate = { period = checked_time(period, 'period', 1, unit), count = int(count) }
    if rate.period < rate.count then
        out_of_range('count', 1, digits(rate.period))
    elseif is_plain and rate.period % rate.count == 0 then
        rate.period, rate.count = rate.period / rate.count, 1
    end
    return rate
end

-- The most units that take no longer than a time: floor(((time + 1) * count - 1) / period).
local function units_in(rate, time)
    local units, rest = divide(time + one, rate.count, rate.period)
    return rest == zero and units - one or units
end

-- The time that units take; nil above 292 years.
local function time_of(rate, units)
    local time = divide(units, rate.period, rate.count)
    if not (last < time) then
        return time
    end
end

-- The most units whose time is not above 292 years.
local function most_units(rate)
    return units_in(rate, last)
end

-- The time that the quantity of a call takes.
local function cost(rate, quantity)
    return time_of(rate, quantity) or out_of_range('quantity', 0, most_units(rate))
end

-- CL.THROTTLE and its companions: core/src/gcra.rs --------------------------------------------------------------------
--
-- The state is the theoretical arrival time (TAT), the instant at which everything admitted is served, in decimal
-- nanoseconds. `debt` is the time until then.

local Throttle = { delete = 'DEL' }

do
function Throttle.read(args, i, unit)
    local max_burst = checked(args[i], 'max_burst', 0, '9223372036854775806')
    local limit = read_rate(args[i + 1], args[i + 2], unit)
    limit.most = int(max_burst) + one
    limit.tolerance = time_of(limit, limit.most) or out_of_range('max_burst', 0, most_units(limit) - one)
    return limit
end

local function debt_of(tat)
    return tat and difference(tat, now) or zero
end

local function room(limit, debt)
    return units_in(limit, difference(limit.tolerance, debt))
end

-- If the number alone cannot tell that it is a TAT, the key's expiry does.
function Throttle.load(key)
    local text = server('GET', key)
    if not text then
        return nil
    end
    if is_natural(text) then
        local tat = instant(text)
        if is_plain or are_near(tat, now, 365 * DAY) then
            return tat
        end
        local expires = expiry(key)
        if expires and are_near(tat, expires, DAY) then
            return tat
        end
    end
    foreign('a TAT in nanoseconds since the epoch')
end

function Throttle.save(key, _, tat)
    server('SET', key, nanos_of(tat), 'PXAT', expiry_at(tat))
end

function Throttle.take(limit, tat, quantity)
    local debt, time = debt_of(tat), cost(limit, quantity)
    if limit.tolerance < time then
        return FOREVER, room(limit, debt), debt
    end
    local most = limit.tolerance - time
    if most < debt then
        return debt - most, room(limit, debt), debt
    elseif quantity == zero then
        return nil, room(limit, debt), debt
    end
    debt = within_time(debt + time)
    return nil, room(limit, debt), debt, within_time(now + debt)
end

function Throttle.room(limit, tat)
    return room(limit, debt_of(tat))
end

-- The most that may be owed for one more unit to be admitted.
local function room_for_one(limit)
    return difference(limit.tolerance, divide(one, limit.period, limit.count))
end

-- The decision of a call that is never refused: it waits, while the limiter is in debt, for one more unit.
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

-- Serves `max_burst count period [quantity] [unit]` by a decision, which is written unless the call only looks.
local function gcra(decide, key, args, looks)
    local call = options(args, 4, NONE)
    local limit = Throttle.read(args, 1, call.unit)
    local quantity = int(call.quantity)
    read_clock()
    local wait, remaining, reset_after, store = decide(limit, Throttle.load(key), quantity)
    local reply = five(limit.most, call.unit, wait, remaining, reset_after)
    if not looks then
        write(Throttle, key, limit, store)
    end
    return reply
end

function commands.peek(key, args)
    return gcra(function(limit, tat, quantity)
        return peek(Throttle, limit, tat, quantity)
    end, key, args, true)
end

function commands.pause(key, args)
    local unit = last_unit(args, 5)
    local limit = Throttle.read(args, 1, unit)
    local wait = checked_time(args[4], 'wait', 0, unit)
    read_clock()
    local debt = debt_of(Throttle.load(key))
    local ends = wait + room_for_one(limit)
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
    write(Throttle, key, limit, store)
    return reply
end

function commands.reserve(key, args)
    local call = options(args, 4, BOOKING)
    local limit = Throttle.read(args, 1, call.unit)
    local quantity = int(call.quantity)
    local longest = call.MAXWAIT and checked_time(call.MAXWAIT, 'MAXWAIT', 0, call.unit)
    read_clock()
    local debt = debt_of(Throttle.load(key))
    local time = cost(limit, quantity)
    local wait, store
    local reply
    if limit.most < quantity and not call.PREPAY then
        reply = five(limit.most, call.unit, FOREVER, room(limit, debt), debt)
    else
        local awaited = call.PREPAY and cost(limit, smaller(quantity, one)) or time
        wait = difference(debt, difference(limit.tolerance, awaited))
        if longest and longest < wait then
            reply = five(limit.most, call.unit, wait, room(limit, debt), debt)
        else
            debt = within_time(debt + time)
            store = quantity ~= zero and within_time(now + debt) or nil
            reply = five(limit.most, call.unit, wait, room(limit, debt), debt)
            reply[1] = 0 -- a booking is admitted, and waits
        end
    end
    write(Throttle, key, limit, store)
    return reply
end

commands.throttle = taking(Throttle, 3)

function commands.refund(key, args)
    return gcra(refund, key, args)
end

function commands.charge(key, args)
    return gcra(charge, key, args)
end
end

