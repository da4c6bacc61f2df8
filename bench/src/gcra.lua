-- A script that replaces CL.THROTTLE where no module can be loaded: GCRA, written to be fast.
-- Times are in microseconds: the numbers of Lua are doubles, which cannot hold nanoseconds since 1970 exactly.
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local capacity, count, period = ARGV[1] + 1, tonumber(ARGV[2]), tonumber(ARGV[3])
local interval = period * 1000000 / count
local tolerance = interval * capacity
local tat = tonumber(redis.call('GET', KEYS[1])) or now
if tat < now then tat = now end
local new = tat + interval * (tonumber(ARGV[4]) or 1)
local wait = new - tolerance - now
if wait > 0 then
    local debt = tat - now
    return { 1, capacity, math.floor((tolerance - debt) / interval), math.ceil(wait / 1000000), math.ceil(debt / 1000000) }
end
local debt = new - now
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil(debt / 1000))
return { 0, capacity, math.floor((tolerance - debt) / interval), -1, math.ceil(debt / 1000000) }
