-- The functions -------------------------------------------------------------------------------------------------------

-- Runs a call with plain numbers, or with big ones if plain ones are not exact. Errors become replies, including the
-- errors of the server's commands.
local function run(body, key, args, verb)
    if not call then
        find_functions()
    end
    if not is_plain then
        use_plain()
    end
    now = nil
    local is_served, reply = pcall(body, key, args, verb)
    if is_served then
        return reply
    elseif reply == INEXACT then
        use_big()
        now = nil
        is_served, reply = pcall(body, key, args, verb)
        if is_served then
            return reply
        end
    end
    return redis.error_reply(type(reply) == 'table' and reply.err or reply)
end

local function register(name, flags, callback)
    redis.register_function({ function_name = 'cl_' .. name, flags = flags, callback = callback })
end

local function wrong_number(name)
    return redis.error_reply(string.format("ERR wrong number of arguments for 'cl.%s' command", name))
end

-- Registers the function of a command with one key and at least `arguments` other arguments.
local function serve(name, arguments, flags)
    local command = commands[name]
    register(name, flags, function(keys, args)
        if #keys ~= 1 then
            return redis.error_reply(string.format('ERR cl_%s takes one key', name))
        elseif #args < arguments then
            return wrong_number(name)
        end
        return run(command, keys[1], args)
    end)
end

-- Registers the function of a command for several limiters. The smallest limiter has four arguments.
local function serve_several(name, flags, verb)
    register(name, flags, function(keys, args)
        if #keys == 0 then
            return redis.error_reply(string.format('ERR cl_%s takes at least one key', name))
        elseif #keys + #args < 5 then
            return wrong_number(name)
        end
        local reply = run(several, keys, args, verb)
        forget(#keys)
        return reply
    end)
end

-- Without flags, a function is rejected on a read-only replica and while the server is out of memory. A function that
-- gives back or renews also runs without memory, and one that only reads also runs on replicas.
local GIVES_BACK, LOOKS = { 'allow-oom' }, { 'no-writes' }

serve('throttle', 3, {})
serve('peek', 3, LOOKS)
serve('refund', 3, GIVES_BACK)
serve('charge', 3, {})
serve('reserve', 3, {})
serve('pause', 4, {})
serve('funnel', 3, {})
serve('bucket', 3, {})
serve('fixed', 2, {})
serve('window', 2, {})
serve('log', 2, {})
serve('acquire', 3, {})
serve('renew', 2, GIVES_BACK)
serve('release', 1, GIVES_BACK)
serve_several('mtake', {}, TAKE)
serve_several('mpeek', LOOKS, PEEK)
serve_several('msettle', GIVES_BACK, SETTLE)

-- Returns the version of the library, from which a client learns that the library is too old.
register('version', LOOKS, function()
    return VERSION
end)
