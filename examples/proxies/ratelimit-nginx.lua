-- Rate limiting of HTTP requests with CL.THROTTLE, for nginx's Lua module.

local redis = require "nginx.redis" -- OpenResty and others have it as "resty.redis"

local M = {}

-- The codes of the error replies of a server that does not decide now. All others are errors of the call or of the
-- setup, which must be seen.
local cannot_decide = {
    BUSY = true, CLUSTERDOWN = true, LOADING = true, MASTERDOWN = true, MISCONF = true, NOREPLICAS = true, OOM = true,
    READONLY = true, TRYAGAIN = true,
}

-- Calls the command, on a connection that has authenticated itself if there is a password. Returns the five numbers, or
-- what went wrong: with nil that of the connection, with false the text of an error reply.
local function throttle(limit)
    local server = redis:new()
    server:set_timeout(500) -- milliseconds: the most that a failing limiter costs
    local connected, problem = server:connect(limit.host, limit.port)
    if not connected then
        return nil, problem
    end
    if limit.password and server:get_reused_times() == 0 then
        local allowed, problem = server:auth(limit.user or "default", limit.password)
        if not allowed then
            server:close()
            return allowed, problem
        end
    end
    local reply, problem = server["CL.THROTTLE"](server, limit.key, limit.max_burst, limit.count, limit.period)
    if reply == nil then -- the connection is of no use any more
        server:close()
        return nil, problem
    end
    server:set_keepalive(10000, 50) -- each worker keeps up to 50 connections, each for ten idle seconds
    return reply, problem
end

-- Lets the request pass, or answers it.
function M.check(limit)
    local reply, problem = throttle(limit)
    if not reply then
        ngx.log(ngx.ERR, "no rate limit: ", problem)
        local full = problem:find("max number of clients", 1, true)
        if reply == false and not cannot_decide[problem:match("^%u+")] and not full then
            return ngx.exit(500)
        end
        if limit.fail_open then
            return
        end
        return ngx.exit(503)
    end
    local limited, most, remaining, retry_after, reset_after = unpack(reply)
    ngx.header["X-RateLimit-Limit"] = most
    ngx.header["X-RateLimit-Remaining"] = remaining
    ngx.header["X-RateLimit-Reset"] = reset_after
    if limited == 1 then
        ngx.header["Retry-After"] = retry_after
        return ngx.exit(429)
    end
end

return M
