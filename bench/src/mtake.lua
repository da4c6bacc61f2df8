-- A script that replaces CL.MTAKE where no module can be loaded, written to be fast: two GCRA limits, a quota for the
-- calendar month in UTC, and places with named holders. It takes from all or from none. As in gcra.lua, times are in
-- microseconds.
-- KEYS: requests, tokens, month, places. ARGV: max_burst count period quantity for requests, the same for tokens, limit
-- quantity for the month, limit lease holder for the places. Quantities are at least 1.
local floor, ceil, call = math.floor, math.ceil, redis.call
local SECOND = 1000000
local time = call('TIME')
local now = time[1] * SECOND + time[2]
local states = call('MGET', KEYS[1], KEYS[2], KEYS[3])
local rows, tats, refused = {}, {}, false

-- The time until the next month begins. Days are counted in years from March on, which end with the leap day.
local function left_in_month()
    local days = floor(time[1] / 86400) + 719468
    local of_era = days % 146097
    local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
    local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
    local month = floor((5 * of_year + 2) / 153)
    local length = floor((153 * (month + 1) + 2) / 5) - floor((153 * month + 2) / 5)
    if month == 11 then
        local leap = (year + 1) % 4 == 0 and ((year + 1) % 100 ~= 0 or (year + 1) % 400 == 0)
        length = leap and 29 or 28
    end
    local day = of_year - floor((153 * month + 2) / 5)
    return (length - day) * 86400 * SECOND - now % (86400 * SECOND)
end

-- Each row is for the case that all limiters admit. The row without this call is stored after it.
for i = 1, 2 do
    local capacity, count, period = ARGV[4 * i - 3] + 1, tonumber(ARGV[4 * i - 2]), tonumber(ARGV[4 * i - 1])
    local interval = period * SECOND / count
    local tolerance = interval * capacity
    local tat = tonumber(states[i]) or now
    if tat < now then tat = now end
    local debt, need = tat - now, tat - now + interval * ARGV[4 * i]
    local limited, wait = 0, -1
    if need > tolerance then
        limited, refused = 1, true
        if need - debt <= tolerance then wait = ceil((need - tolerance) / SECOND) end
    end
    tats[i] = now + need
    rows[i] = { limited, capacity, floor((tolerance - need) / interval), wait, ceil(need / SECOND),
        floor((tolerance - debt) / interval), ceil(debt / SECOND) }
end

local most, quantity, used = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(states[3])
local left = used and call('PTTL', KEYS[3]) * 1000 or left_in_month()
local limited, wait = 0, -1
if (used or 0) + quantity > most then
    limited, refused = 1, true
    if quantity <= most then wait = ceil(left / SECOND) end
end
rows[3] = { limited, most, most - (used or 0) - quantity, wait, ceil(left / SECOND),
    most - (used or 0), used and ceil(left / SECOND) or 0 }

local places, lease, holder = tonumber(ARGV[11]), ARGV[12] * SECOND, ARGV[13]
local held = call('ZRANGEBYSCORE', KEYS[4], '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES')
local alive, last, renews = #held / 2, now + lease, false
for i = 1, #held, 2 do
    if held[i] == holder then renews = true elseif held[i + 1] + 0 > last then last = held[i + 1] + 0 end
end
limited, wait = 0, -1
if not renews and alive >= places then
    limited, refused = 1, true
    wait = ceil((held[2 * (alive - places) + 2] - now) / SECOND)
end
rows[4] = { limited, places, places - alive - (renews and 0 or 1), wait, ceil((last - now) / SECOND),
    places - alive, alive > 0 and ceil((held[2 * alive] - now) / SECOND) or 0 }

if not refused then
    for i = 1, 2 do
        call('SET', KEYS[i], string.format('%.0f', tats[i]), 'PX', ceil((tats[i] - now) / 1000))
    end
    if used then
        call('INCRBY', KEYS[3], ARGV[10])
    else
        call('SET', KEYS[3], ARGV[10], 'PX', ceil(left / 1000))
    end
    if not renews then call('ZREMRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now)) end
    call('ZADD', KEYS[4], string.format('%.0f', now + lease), holder)
    call('PEXPIREAT', KEYS[4], string.format('%.0f', ceil(last / 1000)))
end

-- The row for all limiters: the smallest remaining quantity, and the longest times. After a limit was lowered, the
-- remaining quantity is 0 rather than negative.
local all = { refused and 1 or 0, 0, math.huge, -1, 0 }
local never = false
for i = 1, 4 do
    local row = rows[i]
    if refused then row[3], row[5] = row[6], row[7] end
    row[6], row[7] = nil, nil
    if row[3] < 0 then row[3] = 0 end
    if row[3] < all[3] then all[2], all[3] = row[2], row[3] end
    if row[1] == 1 and row[4] == -1 then never = true end
    if row[4] > all[4] then all[4] = row[4] end
    if row[5] > all[5] then all[5] = row[5] end
end
if never then all[4] = -1 end
return { all, rows[1], rows[2], rows[3], rows[4] }
