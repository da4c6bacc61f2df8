#!lua name=redis_cell

-- The commands of redis-cell, version @VERSION@, as functions for servers that cannot load the module.
--
-- A function has the name of its command (CL.MTAKE is cl_mtake) and the arguments of the command, with the keys first:
--
--     FCALL cl_throttle 1 user123 15 30 60
--     FCALL cl_mtake 2 user123 site THROTTLE 15 30 60 1 FIXED 10000 DAY 1
--
-- Arguments, replies, errors, stored states and expiries are the same as in the module's commands, so both can use a
-- key. docs/functions.md lists the differences. The files of core/src explain the algorithms, one each. The tests in
-- tests/functions compare this library with the module.
--
-- The library is assembled from the files of functions/, in the order of their names. Each limiter is in its own block,
-- which is not indented, because Lua allows only 200 local variables at a time.

local VERSION = '@VERSION@'

-- Functions of the server and of Lua, in local variables because global ones take longer to find. The server hides them
-- all while it loads a library. So the first call looks them up, and none is called outside functions.
local acl_check, call, ceil, concat, find, floor, format, match, max, min, pcall, tonumber, type, unpack, upper
-- Runs a command that writes: `call`, or, in a rehearsal, `rehearse`.
local write
-- Formats for integers, and for the last 15 digits of an instant.
local WHOLE, REST
-- Whether numbers become arguments of commands here, and not in the server. Redis does that fast from version 7.4 on;
-- 7.0 takes longer than Lua, and 7.2 writes some integers with an exponent, which its commands reject.
local converts
-- Small numbers by their texts, and the texts. Most quantities are small, and a look-up is faster than a conversion.
local NUMBERS, TEXTS = {}, {}

local function find_functions()
    acl_check, call, concat = redis.acl_check_cmd, redis.call, table.concat
    ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
    find, format, match, upper = string.find, string.format, string.match, string.upper
    pcall, tonumber, type, unpack = _G.pcall, _G.tonumber, _G.type, _G.unpack
    -- `%d` is faster, but has only 32 bits in a 32-bit server.
    local has_64_bits = format('%d', 2 ^ 53) == '9007199254740992'
    WHOLE, REST = has_64_bits and '%d' or '%.0f', has_64_bits and '%015d' or '%015.0f'
    converts = (redis.REDIS_VERSION_NUM or 0) < 0x00070400
    for number = 0, 100 do
        local text = format('%d', number)
        NUMBERS[text], TEXTS[number] = number, text
    end
end

-- Errors --------------------------------------------------------------------------------------------------------------

-- Ends the call with an error reply. `run` catches the error, because the server would append the line of this file.
local function fail(text)
    error(text, 0)
end

local function syntax_error()
    fail('ERR syntax error')
end

local function out_of_range(name, least, most)
    fail(format('ERR %s must be an integer from %s to %s', name, tostring(least), tostring(most)))
end

local function beyond_time()
    fail('ERR quantity is out of range: the state would reach past the year 2262, the end of 64-bit nanoseconds')
end

local function foreign(expected)
    fail("ERR the key does not hold this limiter's state: expected " .. expected)
end

