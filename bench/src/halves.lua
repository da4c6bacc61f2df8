-- A sliding window like the one of the library limits: the counters of the previous and the present window, whose
-- expiries determine how much of each counts.
-- KEYS: the previous and the present counter. ARGV: the limit, the period in seconds, and the quantity.
local limit, period, quantity = tonumber(ARGV[1]), 1000 * ARGV[2], tonumber(ARGV[3])
local left = redis.call('PTTL', KEYS[2])
if left > 0 and left < period then
    redis.call('RENAME', KEYS[2], KEYS[1])
    redis.call('SET', KEYS[2], 0, 'PX', left + period)
end
local previous = redis.call('GET', KEYS[1]) or 0
local weight = math.max(redis.call('PTTL', KEYS[1]), 0) / period
local present = redis.call('GET', KEYS[2]) or 0
if math.floor(previous * weight) + present + quantity > limit then
    return 0
end
if redis.call('INCRBY', KEYS[2], ARGV[3]) == quantity then
    redis.call('PEXPIRE', KEYS[2], 2 * period)
end
return 1
