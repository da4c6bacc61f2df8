-- Sorted sets of instants: core/src/timeline.rs and src/store/timeline.rs ---------------------------------------------
--
-- Logs and leases keep one entry for each unit or place. A score is an instant in microseconds since the epoch. The
-- numbers of entries are plain in every call.

local YEARS = 10 * 365 * DAY -- how far from the clock a score may be before it counts as foreign
local PRUNED_AT_MOST = 10000 -- the most expired entries that a call removes, unless it adds more than half as many

-- Returns the microseconds of a score, or nil if it is not a whole number from 0 to 2^53 - 1.
local function micros_in(score)
    local number = score + 0 -- also for 'inf'
    if number >= 0 and number < EXACT and number % 1 == 0 then
        return number
    end
end

-- Returns the microseconds of an entry. Entries in the future count as earlier.
local function moved(scores, micros)
    return scores.above and micros > scores.above and max(micros - scores.by, 0) or micros
end

local function instant_in(scores, score)
    local micros = micros_in(score)
    return micros and instant_of_micros(moved(scores, micros))
end

-- Returns whether an entry of a log with this score can have this name.
local function is_entry_of_log(name, micros)
    local score = match(name, '^(%d+)%-%d+$')
    return score ~= nil and score == format(WHOLE, micros)
end

-- Returns the sorted set under a key, or nil if there is no key: the number of entries, the first and the last instant,
-- and the name and the microseconds of the last entry. `expected` is the text for a key that holds another value.
local function load_scores(key, expected)
    local entry = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
    if not entry[1] then
        return nil
    end
    local micros, count = micros_in(entry[2]), call('ZCARD', key)
    if not micros then
        foreign(expected)
    end
    local final = instant_of_micros(micros)
    local scores = {
        key = key,
        expected = expected,
        count = count,
        first = final,
        last = final,
        name = entry[1],
        micros = micros,
        own = nil, -- room for the end of the holder's own lease
    }
    if count > 1 then
        scores.first = instant_in(scores, call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]) or foreign(expected)
    end
    return scores
end

-- Returns the instant of the entry with this rank, counted from 0 for the earliest, or nil after the last entry.
local function at_rank(scores, rank)
    if rank >= scores.count then
        return nil
    elseif rank == 0 then
        return scores.first
    elseif rank == scores.count - 1 then
        return scores.last
    end
    return instant_in(scores, call('ZRANGE', scores.key, rank, rank, 'WITHSCORES')[2]) or foreign(scores.expected)
end

-- The clock may have been wrong when entries were written. If the last one is later than `furthest` from now, and would
-- count, for `time`, longer than the key lives, the entries in the future count as earlier by the difference.
local function heed_expiry(scores, furthest, time)
    local expires = now + furthest < scores.last and expiry(scores.key)
    local gone = expires and smaller(scores.last + time, last)
    if gone and expires < gone then
        local micros = int(MICROSECOND)
        scores.by = approximate(quotient(gone - expires + micros - one, micros))
        scores.above = max(micros_of(scores.last) - scores.by, micros_of(now))
        scores.first = instant_of_micros(moved(scores, micros_of(scores.first)))
        scores.last = instant_of_micros(moved(scores, micros_of(scores.last)))
    end
end

-- Writes the scores of entries that count as earlier.
local function move_back(scores)
    while scores.above do
        local entry = call('ZRANGE', scores.key, '-1', '-1', 'WITHSCORES')
        local micros = micros_in(entry[2])
        if not micros or micros <= scores.above then
            return
        end
        local earlier = moved(scores, micros)
        write('ZADD', scores.key, 'XX', format(WHOLE, earlier), entry[1])
        if earlier > scores.above or write == rehearse then
            return
        end
    end
end

local function count_above(scores, micros)
    return call('ZCOUNT', scores.key, '(' .. format(WHOLE, micros), '+inf')
end

-- Returns the number of entries later than an instant.
local function later_than(scores, moment)
    if not scores.first then
        return 0
    elseif scores.above then
        local after = micros_of(moment)
        local ahead = count_above(scores, max(after + scores.by, scores.above))
        if after >= scores.above then
            return ahead
        end
        return ahead + count_above(scores, after) - count_above(scores, scores.above)
    elseif moment < scores.first then
        return scores.count
    elseif moment < scores.last then
        return call('ZCOUNT', scores.key, '(' .. format(WHOLE, micros_of(moment)), '+inf')
    end
    return 0
end

-- Scores end in the year 2255: 2^53 - 1 microseconds.
local function last_tick()
    return is_plain and last or int('9007199254740991000')
end

local function check_tick()
    if last_tick() < now then
        beyond_time()
    end
end

-- Returns how many of the expired entries a call removes that adds `added` entries.
local function pruned(expired, added)
    return min(expired, max(PRUNED_AT_MOST, 2 * added))
end

local function prune(key, count)
    if count > 0 then
        write('ZREMRANGEBYRANK', key, 0, count - 1)
    end
end

