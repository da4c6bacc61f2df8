-- A log like the moving window of the library limits: the times of the last calls in a list, the newest first.
-- KEYS: the list. ARGV: the client's time, the limit, the period in seconds, and the quantity.
local now, limit, period, quantity = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if quantity > limit then
    return 0
end
local oldest = redis.call('LINDEX', KEYS[1], limit - quantity)
if oldest and tonumber(oldest) >= now - period then
    return 0
end
for _ = 1, quantity do
    redis.call('LPUSH', KEYS[1], ARGV[1])
end
redis.call('LTRIM', KEYS[1], 0, limit - 1)
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
