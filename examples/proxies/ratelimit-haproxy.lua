-- Rate limiting of HTTP requests with CL.THROTTLE, for HAProxy. haproxy.cfg shows how to use it.

-- Writes the arguments of a command as the server reads them.
local function encoded(...)
    local parts = { "*" .. select("#", ...) }
    for _, argument in ipairs { ... } do
        parts[#parts + 1] = "$" .. #argument .. "\r\n" .. argument
    end
    return table.concat(parts, "\r\n") .. "\r\n"
end

-- The codes of the error replies of a server that does not decide now. All others are errors of the call or of the
-- setup, which must be seen.
local cannot_decide = {
    BUSY = true, CLUSTERDOWN = true, LOADING = true, MASTERDOWN = true, MISCONF = true, NOREPLICAS = true, OOM = true,
    READONLY = true, TRYAGAIN = true,
}

-- Whether a problem is an error of the call or of the setup.
local function must_be_seen(problem)
    local code = problem:match("^%-(%u+)")
    return code and not cannot_decide[code] and not problem:find("max number of clients", 1, true)
end

local user, password = os.getenv("REDIS_USER") or "default", os.getenv("REDIS_PASSWORD")

-- Calls the command. Returns the five numbers, or nil and what went wrong.
local function throttle(socket, host, port, ...)
    socket:settimeout(1) -- second: the most that a failing limiter costs
    if not socket:connect(host, tonumber(port)) then
        return nil, "no connection"
    end
    if password then
        socket:send(encoded("AUTH", user, password))
        local allowed = socket:receive("*l")
        if allowed ~= "+OK" then
            return nil, allowed or "no reply"
        end
    end
    socket:send(encoded("CL.THROTTLE", ...))
    local reply, line = {}, socket:receive("*l")
    if line ~= "*5" then -- an error
        return nil, line or "no reply"
    end
    for element = 1, 5 do
        line = socket:receive("*l")
        reply[element] = line and tonumber(line:sub(2))
        if not reply[element] then
            return nil, "no reply"
        end
    end
    return reply
end

-- Sets the variables txn.limited, txn.limit, txn.remaining, txn.retry_after and txn.reset_after, or none of them if
-- there is no decision, or txn.limiter_error if the call is an error. A connection of HAProxy's Lua belongs to one request, so each request opens its own.
core.register_action("throttle", { "http-req" }, function(txn, host, port, max_burst, count, period)
    local socket = core.tcp()
    local reply, problem = throttle(socket, host, port, "http:" .. txn.f:src(), max_burst, count, period)
    socket:close()
    if not reply then
        if must_be_seen(problem) then
            txn:set_var("txn.limiter_error", 1)
        end
        return txn:Warning("no rate limit: " .. problem)
    end
    for element, name in ipairs { "limited", "limit", "remaining", "retry_after", "reset_after" } do
        txn:set_var("txn." .. name, reply[element])
    end
end, 5)
