-- For redis_exporter --script: every number in the module's section of INFO, by its name there.
local series = {}
for name, number in redis.call('INFO', 'redis-cell'):gmatch('redis%-cell_([%w_]+):(%d+)\r\n') do
    series[#series + 1] = name
    series[#series + 1] = number
end
return series
