-- Fixed windows as in LiteLLM's proxy, several in one call: the start of each window, and its counter. The
-- client compares the counts with the limits. KEYS: for each limit, the start and the counter. ARGV: the time
-- and the length of the windows, in seconds.
local now, length = tonumber(ARGV[1]), tonumber(ARGV[2])
local reply = {}
for i = 1, #KEYS, 2 do
    local start, count = redis.call('GET', KEYS[i]), 1
    if start and now - start < length then
        count = redis.call('INCR', KEYS[i + 1])
    else
        start = ARGV[1]
        redis.call('SET', KEYS[i], start)
        redis.call('SET', KEYS[i + 1], count)
        redis.call('EXPIRE', KEYS[i], ARGV[2])
        redis.call('EXPIRE', KEYS[i + 1], ARGV[2])
    end
    reply[#reply + 1] = start
    reply[#reply + 1] = count
end
return reply
