-- CL.FUNNEL and CL.BUCKET: core/src/bucket.rs -------------------------------------------------------------------------
--
-- The state is the number of free units, and the instant `since` from which the next unit is counted. A full bucket has
-- no state. Funnels and buckets have different fields in their hashes.

local Funnel, Bucket

do
local function read_bucket(args, i, unit)
    local capacity = checked(args[i], 'capacity', 1, LAST)
    local limit = read_rate(args[i + 1], args[i + 2], unit)
    limit.most = int(capacity)
    if not time_of(limit, limit.most) then
        out_of_range('capacity', 1, most_units(limit))
    end
    return limit
end

-- Returns when a bucket is full, but never later than the last instant.
local function full_at(limit, level)
    local time = time_of(limit, larger(smaller(limit.most - level.free, highest), zero))
    return time and smaller(level.since + time, last) or last
end

-- Reads the two fields of a state. The clock may have been wrong when it was written: a bucket with an instant in the
-- future is full when its key expires, at the latest.
local function load_bucket(key, limit, free, since)
    local fields = call('HMGET', key, free, since)
    if fields[1] and fields[2] then
        local units = fields[1]:gsub('^%-', '')
        -- The smallest integer has no positive counterpart.
        local is_free = is_integer(fields[1]) and (is_natural(units) or fields[1] == '-9223372036854775808')
        local from = is_free and instant(fields[2])
        if from then
            local level = { free = int(fields[1]), since = from }
            local expires = now < from and expiry(key)
            if expires then
                level.since = since_epoch(from - difference(full_at(limit, level), expires))
            end
            return level
        end
    elseif not fields[1] and not fields[2] and call('EXISTS', key) == 0 then
        return nil
    end
    foreign(format('a hash with the fields %s and %s', free, since))
end

-- Returns when a bucket has `units` free.
local function free_at(limit, level, units)
    local missing = larger(smaller(units - level.free, highest), zero)
    return within_time(level.since + (time_of(limit, missing) or beyond_time()))
end

-- Returns the present level, which may be full, and the leaks since the instant from which they count.
local function leaked(limit, level)
    if level then
        local leaks = units_in(limit, difference(now, level.since))
        if leaks < smaller(limit.most - level.free, highest) then
            return level, leaks
        end
    end
    return { free = limit.most, since = now }, zero
end

-- Returns the level after a change of the free units; it counts from the instant of the last leak. Also returns the
-- units that are free then: a leak that ends between two nanoseconds may now have ended.
local function changed(limit, level, leaks, free)
    local since = level.since + divide(leaks, limit.period, limit.count)
    local begun = difference(now, since)
    local more = begun < divide(one, limit.period, limit.count) and zero or units_in(limit, begun)
    return { free = free, since = since }, free + more
end

local function bucket_answer(limit, wait, free, level, store)
    return wait, larger(free, zero), difference(free_at(limit, level, limit.most), now), store
end

local function take_from_bucket(limit, stored, quantity)
    local level, leaks = leaked(limit, stored)
    local free = level.free + leaks
    if free < quantity then
        local wait = FOREVER
        if not (limit.most < quantity) then
            wait = difference(free_at(limit, level, quantity), now)
        end
        return bucket_answer(limit, wait, free, level)
    elseif quantity == zero then
        return bucket_answer(limit, nil, free, level)
    end
    level, free = changed(limit, level, leaks, free - quantity)
    return bucket_answer(limit, nil, free, level, level)
end

local function room_in_bucket(limit, stored)
    local level, leaks = leaked(limit, stored)
    return level.free + leaks
end

-- Returns the decision of a call that is never refused. While the bucket is in debt, its wait is for one unit.
local function bucket_standing(limit, free, level, store)
    local wait
    if free < zero then
        wait = difference(free_at(limit, level, one), now)
    end
    return bucket_answer(limit, wait, free, level, store)
end

local function settle_bucket(limit, stored, quantity, taken)
    local level, leaks = leaked(limit, stored)
    local free = level.free + leaks
    local after
    if zero < quantity then
        if not time_of(limit, quantity) then
            out_of_range('quantity', '-9223372036854775807', most_units(limit))
        end
        after = free - quantity
        if after < -highest - one then
            beyond_time()
        end
    else
        local back = -quantity
        if taken then
            back = smaller(units_in(limit, still_owed(taken, time_of(limit, back) or last)), back)
        end
        after = smaller(free + back, limit.most)
    end
    if after == free then
        return bucket_standing(limit, free, level)
    end
    if after ~= limit.most then
        level, after = changed(limit, level, leaks, after)
    end
    if after == limit.most then
        return bucket_standing(limit, after, { free = limit.most, since = now }, DELETED)
    end
    return bucket_standing(limit, after, level, level)
end

-- Returns units per second as a decimal number, truncated to nine digits. Only people read it.
local function per_second(rate)
    local second = int('1000000000')
    local whole, rest = divide(rate.count, second, rate.period)
    local fraction = approximate((divide(rest, second, rate.period)))
    if fraction == 0 then
        return digits(whole)
    end
    return digits(whole) .. '.' .. format('%09.0f', fraction):gsub('0+$', '')
end

local function bucket_kind(name, free, since, save)
    return {
        name = name,
        words = 3,
        delete = 'DEL',
        read = read_bucket,
        load = function(key, limit)
            return load_bucket(key, limit, free, since)
        end,
        take = take_from_bucket,
        room = room_in_bucket,
        settle = settle_bucket,
        save = function(key, limit, level)
            save(key, limit, digits(level.free), nanos_of(level.since))
            write('PEXPIREAT', key, expiry_at(free_at(limit, level, limit.most)))
        end,
    }
end

Funnel = bucket_kind('FUNNEL', 'left_quota', 'leaking_ts', function(key, limit, free, since)
    local capacity, rate = digits(limit.most), per_second(limit)
    write('HSET', key, 'left_quota', free, 'leaking_ts', since, 'capacity', capacity, 'leaking_rate', rate)
end)

Bucket = bucket_kind('BUCKET', 'tokens', 'timestamp', function(key, _, free, since)
    write('HSET', key, 'tokens', free, 'timestamp', since)
end)

commands.funnel, commands.bucket = taking(Funnel), taking(Bucket)
end

