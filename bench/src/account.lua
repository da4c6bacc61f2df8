-- A script that replaces CL.MTAKE with a chain where no module can be loaded, written to be fast: a GCRA limit, and a
-- quota that spills into units that were bought. It takes from all or from none. As in gcra.lua, times are in
-- microseconds.
-- KEYS: requests, included, bought. ARGV: max_burst count period quantity for requests, limit and period of what is
-- included, limit of what was bought, quantity of both. Replies 0 or 1, what is left of the three, and what was taken
-- of the latter two.
local floor, call = math.floor, redis.call
local SECOND = 1000000
local time = call('TIME')
local now = time[1] * SECOND + time[2]
local states = call('MGET', KEYS[1], KEYS[2], KEYS[3])

local capacity, interval = ARGV[1] + 1, ARGV[3] * SECOND / ARGV[2]
local tat = tonumber(states[1]) or now
if tat < now then tat = now end
local need = tat - now + interval * ARGV[4]
local requests = floor((interval * capacity - need) / interval)
local quantity = tonumber(ARGV[8])
local included, bought = ARGV[5] - (states[2] or 0), ARGV[7] - (states[3] or 0)
local first = math.min(quantity, math.max(included, 0))
local second = quantity - first
if requests < 0 or second > bought then
    return { 1, requests, included, bought, 0, 0 }
end
call('SET', KEYS[1], string.format('%.0f', now + need), 'PX', math.ceil(need / 1000))
if first > 0 then
    call('INCRBY', KEYS[2], first)
    if not states[2] then call('EXPIRE', KEYS[2], ARGV[6]) end
end
if second > 0 then call('INCRBY', KEYS[3], second) end
return { 0, requests, included - first, bought - second, first, second }
