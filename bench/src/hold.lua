-- A script that replaces CL.MTAKE and CL.MSETTLE with HOLD where no module can be loaded, written to be fast: a GCRA
-- limit and a quota, of which units come back when their owner does not settle in time. It takes from both or from
-- none. As in gcra.lua, times are in microseconds.
-- KEYS: requests, quota, the ends of holds, what they hold. ARGV: take or settle, max_burst count period quantity for
-- requests, limit period quantity of the quota (of a settlement: what was used), owner, seconds of the hold. Replies 0
-- or 1, and what is left of both, and the quantities.
local floor, call = math.floor, redis.call
local SECOND = 1000000
local time = call('TIME')
local now = time[1] * SECOND + time[2]

-- What has run out comes back first.
local ended = call('ZRANGEBYSCORE', KEYS[3], '-inf', time[1])
for i = 1, #ended do
    call('DECRBY', KEYS[2], call('HGET', KEYS[4], ended[i]))
    call('HDEL', KEYS[4], ended[i])
    call('ZREM', KEYS[3], ended[i])
end

local states = call('MGET', KEYS[1], KEYS[2])
local quantity, used, owner = tonumber(ARGV[8]), tonumber(states[2]) or 0, ARGV[9]
local left = ARGV[6] - used
if ARGV[1] == 'settle' then
    local difference = quantity - (call('HGET', KEYS[4], owner) or 0)
    call('INCRBY', KEYS[2], difference)
    call('HDEL', KEYS[4], owner)
    call('ZREM', KEYS[3], owner)
    return { 0, 0, left - difference, 0, quantity }
end
local capacity, interval = ARGV[2] + 1, ARGV[4] * SECOND / ARGV[3]
local tat = tonumber(states[1]) or now
if tat < now then tat = now end
local need = tat - now + interval * ARGV[5]
local requests = floor((interval * capacity - need) / interval)
if requests < 0 or quantity > left then
    return { 1, requests, left, 0, 0 }
end
call('SET', KEYS[1], string.format('%.0f', now + need), 'PX', math.ceil(need / 1000))
call('INCRBY', KEYS[2], quantity)
if not states[2] then call('EXPIRE', KEYS[2], ARGV[7]) end
if quantity > 0 then
    call('HINCRBY', KEYS[4], owner, quantity)
    call('ZADD', KEYS[3], time[1] + ARGV[10], owner)
    call('EXPIRE', KEYS[4], ARGV[10] * 2)
    call('EXPIRE', KEYS[3], ARGV[10] * 2)
end
return { 0, requests, left - quantity, tonumber(ARGV[5]), quantity }
