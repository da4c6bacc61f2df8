-- A fixed window like rate-limiter-flexible's: a counter that expires.
-- KEYS: the counter. ARGV: the points of the call, the length of the window in seconds.
redis.call('SET', KEYS[1], 0, 'EX', ARGV[2], 'NX')
local consumed = redis.call('INCRBY', KEYS[1], ARGV[1])
local left = redis.call('PTTL', KEYS[1])
if left == -1 then
    redis.call('EXPIRE', KEYS[1], ARGV[2])
    left = 1000 * ARGV[2]
end
return { consumed, left }
