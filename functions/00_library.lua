#!lua name=redis_cell

-- The commands of redis-cell, version @VERSION@, as functions for servers that cannot load the module.
--
-- A function has the name of its command (CL.MTAKE is cl_mtake) and the command's arguments, with the keys in front:
--
--     FCALL cl_throttle 1 user123 15 30 60
--     FCALL cl_mtake 2 user123 site THROTTLE 15 30 60 1 FIXED 10000 DAY 1
--
-- Arguments, replies, errors, stored states and expiries are those of the module's commands, so a key can be used by
-- both. docs/functions.md lists the differences. The algorithms are explained in core/src, a file for each; the tests in
-- tests/functions hold this library to the module.
--
-- The library is put together from the files of functions/, in the order of their names. Each limiter is in a block of
-- its own, which is not indented, because Lua allows 200 local variables at a time. While a library is loaded, the server
-- hides all of Lua's own functions from it. So none of them is called, or kept in a local variable, outside of functions.

local VERSION = '@VERSION@'

-- Errors --------------------------------------------------------------------------------------------------------------

-- Ends the call with an error reply. `serve` catches it, because the server would append the line of this file.
local function fail(text)
    error(text, 0)
end

local function syntax_error()
    fail('ERR syntax error')
end

local function out_of_range(name, least, most)
    fail(string.format('ERR %s must be an integer from %s to %s', name, tostring(least), tostring(most)))
end

local function beyond_time()
    fail('ERR quantity is out of range: the state would reach past the year 2262, the end of 64-bit nanoseconds')
end

local function foreign(expected)
    fail("ERR the key does not hold this limiter's state: expected " .. expected)
end

-- Runs a command of the server. Its errors, such as WRONGTYPE, are passed on.
local function server(...)
    local reply = redis.pcall(...)
    if type(reply) == 'table' and reply.err then
        fail(reply.err)
    end
    return reply
end

