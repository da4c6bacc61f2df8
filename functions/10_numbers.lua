-- Numbers -------------------------------------------------------------------------------------------------------------
--
-- A number in Lua is a double, exact up to 2^53. Nanoseconds exceed that after 104 days, and an instant needs 61 bits.
-- So there are two kinds of numbers, neither of which is ever rounded:
--
--   plain numbers  doubles up to LARGEST. An operation with a larger result raises INEXACT
--   big numbers    integers of any size, as tables with the operators of the metatable Big
--
-- A call is decided with plain numbers, as almost every call can be. If that raises INEXACT, the same code decides
-- again with big numbers; nothing has been written by then. The code uses the operators +, - and <, and the functions
-- below, which `use_plain` and `use_big` set for each kind. Text becomes a plain number by arithmetic, which takes half
-- as long as `tonumber`.

local EXACT = 2 ^ 53
local LARGEST = 4e15 -- so that the sum of two numbers, plus a second and a unit, is exact
local INEXACT = {}

-- The last instant in 64-bit nanoseconds, in the year 2262, which is also the largest quantity.
local LAST = '9223372036854775807'

-- Converts decimal text to a number.
local int
-- Converts a number from 0 to decimal text.
local digits
-- quotient(a, b) returns a / b, rounded down.
local quotient
-- divide(a, b, c) returns a * b / c, rounded down, and the remainder.
local divide
local zero, one
-- A microsecond, the unit of the clock and of the scores of sorted sets.
local tick
-- The last instant and the longest time, 2^63 - 1 nanoseconds. No plain number reaches it.
local last
-- The largest integer of 64 bits.
local highest
local is_plain

-- Returns whether text is an integer for the server's own commands: no blanks, plus sign or leading zeros.
local function is_integer(text)
    return find(text, '^%-?[1-9]%d*$') ~= nil or text == '0'
end

-- Returns whether one text of digits is a larger number than another. Compares text, which may exceed 53 bits.
local function is_above(text, most)
    local digits, most_digits = #text, #most
    return digits > most_digits or digits == most_digits and text > most
end

-- Returns whether text is an integer from 0 to 2^63 - 1.
local function is_natural(text)
    return find(text, '^[1-9]%d*$') ~= nil and (#text < 19 or not is_above(text, LAST)) or text == '0'
end

-- Returns the double nearest to a number.
local function approximate(number)
    if type(number) == 'number' then
        return number
    end
    local value = 0
    for i = #number, 1, -1 do
        value = value * 1e7 + number[i]
    end
    return number.negative and -value or value
end

-- `min` and `max` do not accept big numbers.
local function smaller(a, b)
    return a < b and a or b
end

local function larger(a, b)
    return a < b and b or a
end

-- Returns a - b, or 0 if b is larger.
local function difference(a, b)
    return b < a and a - b or zero
end

-- Plain numbers. The product of two doubles is exactly the sum of two other doubles (Dekker 1971): each factor is split
-- into halves of 26 bits, whose products are exact.
local SPLITTER = 2 ^ 27 + 1

local function product(a, b)
    local high, scaled_a, scaled_b = a * b, SPLITTER * a, SPLITTER * b
    local upper_a, upper_b = scaled_a - (scaled_a - a), scaled_b - (scaled_b - b)
    local lower_a, lower_b = a - upper_a, b - upper_b
    return high, upper_a * upper_b - high + upper_a * lower_b + lower_a * upper_b + lower_a * lower_b
end

local function within_plain(number)
    if number > LARGEST or number < -LARGEST then
        error(INEXACT)
    end
    return number
end

local function plain_int(text)
    local number = text + 0
    return number < LARGEST and number > -LARGEST and number or within_plain(number)
end

local function plain_digits(number)
    return TEXTS[number] or format(WHOLE, number)
end

local function plain_quotient(a, b)
    local exact = a / b
    return exact - exact % 1
end

local function plain_divide(a, b, c)
    local whole, rest
    local high = a * b
    if high < EXACT then
        rest = high % c
        whole = (high - rest) / c
    elseif c > LARGEST then
        error(INEXACT)
    else
        -- A guess that may be off by one, and the difference from the exact product.
        local low, guessed_high, guessed_low
        high, low = product(a, b)
        whole = plain_quotient(high, c)
        guessed_high, guessed_low = product(whole, c)
        rest = high - guessed_high + (low - guessed_low)
        if rest < 0 then
            whole, rest = whole - 1, rest + c
        elseif rest >= c then
            whole, rest = whole + 1, rest - c
        end
    end
    if whole > LARGEST then
        error(INEXACT)
    end
    return whole, rest
end

-- Returns the remainder of a * b / c, for any quotient below 2^53.
local function plain_remainder(a, b, c)
    local high, low = product(a, b)
    local whole = plain_quotient(high, c)
    local guessed_high, guessed_low = product(whole, c)
    return (high - guessed_high + (low - guessed_low)) % c
end

-- Big numbers: digits in base 10^7, the lowest first, without leading zeros, and a sign. The product of two digits is
-- below 10^14, so a double can hold the sum of a whole column.
local Big = {}

local function trim(number)
    while #number > 1 and number[#number] == 0 do
        number[#number] = nil
    end
    if #number == 1 and number[1] == 0 then
        number.negative = nil
    end
    return setmetatable(number, Big)
end

local function big_int(number)
    local text = type(number) == 'number' and format('%.0f', number) or number
    local first = text:sub(1, 1) == '-' and 2 or 1
    local result = { negative = first == 2 or nil }
    for at = #text, first, -7 do
        result[#result + 1] = tonumber(text:sub(max(at - 6, first), at))
    end
    return trim(result)
end

-- Turns sums, which may be negative or above 10^7, into digits.
local function carry(sums)
    local over = 0
    for i = 1, #sums do
        local sum = sums[i] + over
        sums[i] = sum % 1e7
        over = floor(sum / 1e7)
    end
    if over > 0 then
        sums[#sums + 1] = over
    end
    return trim(sums)
end

-- Compares two numbers without their signs. The result is below, equal to or above 0 as a is to b.
local function compare(a, b)
    if #a ~= #b then
        return #a - #b
    end
    for i = #a, 1, -1 do
        if a[i] ~= b[i] then
            return a[i] - b[i]
        end
    end
    return 0
end

function Big.__unm(a)
    local result = { negative = not a.negative or nil }
    for i = 1, #a do
        result[i] = a[i]
    end
    return trim(result)
end

function Big.__add(a, b)
    local sign, sums = 1, {}
    if a.negative ~= b.negative then
        sign = -1
        if compare(a, b) < 0 then
            a, b = b, a
        end
    end
    for i = 1, max(#a, #b) do
        sums[i] = (a[i] or 0) + sign * (b[i] or 0)
    end
    sums.negative = a.negative
    return carry(sums)
end

function Big.__sub(a, b)
    return a + -b
end

-- Only for numbers from 0.
function Big.__mul(a, b)
    local sums = {}
    for i = 1, #a + #b do
        sums[i] = 0
    end
    for i = 1, #a do
        for j = 1, #b do
            sums[i + j - 1] = sums[i + j - 1] + a[i] * b[j]
        end
    end
    return carry(sums)
end

function Big.__lt(a, b)
    if a.negative ~= b.negative then
        return a.negative == true
    elseif a.negative then
        return compare(b, a) < 0
    end
    return compare(a, b) < 0
end

function Big.__eq(a, b)
    return a.negative == b.negative and compare(a, b) == 0
end

function Big.__tostring(a)
    local parts = { format('%s%d', a.negative and '-' or '', a[#a]) }
    for i = #a - 1, 1, -1 do
        parts[#parts + 1] = format('%07d', a[i])
    end
    return table.concat(parts)
end

-- Computes the quotient of two numbers from 0 by adding guesses in doubles, each rather too small than too large. After
-- a guess, about a part in 2^45 remains, so a few guesses suffice.
local function big_quotient(a, b)
    local result = big_int('0')
    while not (a < b) do
        local guess = floor(approximate(a) / approximate(b) * (1 - 2 ^ -45))
        guess = big_int(max(guess, 1))
        result = result + guess
        a = a - guess * b
    end
    return result
end

local function big_divide(a, b, c)
    local dividend = a * b
    local whole = big_quotient(dividend, c)
    return whole, dividend - whole * c
end

local function use_plain()
    is_plain, int, digits, quotient, divide = true, plain_int, plain_digits, plain_quotient, plain_divide
    zero, one, tick, last, highest = 0, 1, 1000, math.huge, math.huge
end

local function use_big()
    is_plain, int, digits, quotient, divide = false, big_int, tostring, big_quotient, big_divide
    zero, one, tick, last, highest = big_int('0'), big_int('1'), big_int('1000'), big_int(LAST), big_int(LAST)
end

-- Returns the number of a text that is an integer from 0 to 2^63 - 1, or nil.
local function natural(text)
    if is_plain then
        local number = NUMBERS[text] or #text < 16 and find(text, '^[1-9]%d*$') and text + 0
        if number then
            return number
        end
    end
    return is_natural(text) and int(text) or nil
end

-- Checks that a state can hold a time or an instant.
local function within_time(time)
    if last < time then
        beyond_time()
    end
    return time
end

