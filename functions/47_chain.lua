-- Chains: core/src/chain.rs --------------------------------------------------------------------------------------------
--
-- Pools in order, joined by ELSE, and limiters that SPILL joins to one pool. Each limiter of a call has a row, with its
-- `kind`, its `limit`, its `quantity`, its `state`, and how it is joined to the one before it.

local Chain = {}

do
-- How many rounds the search for the end of a wait has before it halves the rest of the time.
local ROUNDS = 32

-- Returns the units that fit limiters that SPILL joins, together, if nothing is taken for this time. At most `quantity`.
-- Rooms that are known may be those of an earlier instant.
local function room_after(rows, first, final, after, quantity)
    local present, sum = now, zero
    now = now + after
    for k = first, final do
        local row = rows[k]
        if row.room < row.top then
            -- UNTIL may have passed by then, or a period be out of range: the call would be an error, and waits for
            -- nothing more.
            local is_answer, _, remaining = pcall(row.kind.take, row.limit, row.state, zero)
            row.room = is_answer and smaller(remaining, row.top) or row.top
        end
        sum = smaller(sum + row.room, quantity)
    end
    now = present
    return sum
end

-- Returns the first instant, counted from now, at which one of these limiters has its share of the units that are
-- missing. The shares are those of limiters that grow evenly.
local function first_share(rows, first, final, missing, latest)
    local speeds = 0
    for k = first, final do
        speeds = speeds + (rows[k].room < rows[k].top and rows[k].speed or 0)
    end
    for k = first, final do
        local row = rows[k]
        if row.room < row.top then
            local part = divide(missing - one, int(floor(row.speed / speeds * 1e6)), int(1e6))
            local wait = row.kind.take(row.limit, row.state, smaller(row.room + part + one, row.top))
            if wait and wait ~= FOREVER then
                latest = smaller(latest, wait)
            end
        end
    end
    return latest
end

-- Returns the time until limiters that SPILL joins have room for a quantity together, which they lack now.
local function joined_wait(rows, first, final, quantity)
    local most, full = zero, zero
    for k = first, final do
        local row = rows[k]
        local top, wait = smaller(row.limit.most, quantity), row.wait
        if top < quantity then
            wait = row.kind.take(row.limit, row.state, top)
        end
        row.room = smaller(row.remaining, quantity)
        if wait == FOREVER then
            top, wait = row.room, zero
        end
        wait = wait or zero
        row.top, most, full = top, smaller(most + top, quantity), larger(full, wait)
        row.speed = (approximate(top) - approximate(row.room) + 1) / (approximate(wait) + 1)
    end
    if most < quantity then
        return FOREVER
    end
    local early, room = zero, zero
    for k = first, final do
        room = room + rows[k].room
    end
    for _ = 1, ROUNDS do
        early = first_share(rows, first, final, quantity - room, full)
        if early == full then
            return early
        end
        room = room_after(rows, first, final, early, quantity)
        if room == quantity then
            return early
        end
    end
    while one < full - early do
        local middle = quotient(early + full, one + one)
        if room_after(rows, first, final, middle, quantity) == quantity then
            full = middle
        else
            early = middle
        end
        for k = first, final do
            rows[k].room = zero
        end
    end
    return full
end

-- Decides a pool: one limiter, or several that SPILL joins. Returns its wait, or nil and sets what is taken from each.
local function decide_pool(rows, first, final)
    local quantity = rows[first].quantity
    if first == final or quantity == zero then
        local wait = rows[first].wait
        for k = first + 1, final do
            local other = rows[k].wait
            if not (wait and other) then
                wait = nil
            elseif other ~= FOREVER then
                wait = wait == FOREVER and other or smaller(wait, other)
            end
        end
        if not wait and zero < quantity then
            rows[first].taken = quantity
        end
        return wait
    end
    local room = zero
    for k = first, final do
        room = smaller(room + rows[k].remaining, quantity)
    end
    if room < quantity then
        return joined_wait(rows, first, final, quantity)
    end
    for k = first, final do
        local part = smaller(rows[k].remaining, quantity)
        if zero < part then
            rows[k].taken = part
        end
        quantity = quantity - part
    end
end

-- Decides a chain, from its first row to its last one: sets what each limiter says of its whole quantity, and what is
-- taken from it. Returns the wait, or nil if the chain admits the call.
local function decide_chain(rows, keys, first, final)
    local held
    for k = first, final do
        local row = rows[k]
        if row.hold then
            row.load_held(row.hold, k, row, keys[k])
        else
            row.state = row.kind.load(keys[k], row.limit)
        end
        row.wait, row.remaining, row.reset_after = peek(row.kind, row.limit, row.state, row.quantity)
        row.taken = nil
        if not held and row.kind == Lease and Lease.holds(row.state) then
            held = row
        end
    end
    if held and not held.wait then
        held.taken = zero
        return nil
    end
    local wait, begin = FOREVER, first
    while begin <= final do
        local behind = begin + 1
        while behind <= final and rows[behind].join == 'SPILL' do
            behind = behind + 1
        end
        local own = decide_pool(rows, begin, behind - 1)
        if not own then
            return nil
        elseif own ~= FOREVER then
            wait = wait == FOREVER and own or smaller(wait, own)
        end
        begin = behind
    end
    return wait
end

-- Returns the last row of the chain that begins with a row.
local function end_of_chain(rows, first, count)
    local final = first
    while final < count and rows[final + 1].join do
        final = final + 1
    end
    return final
end

-- Takes from a limiter what was decided. The row keeps the numbers of the state before, for a call that is refused.
local function take_from(row)
    row.remaining_before, row.reset_after_before = row.remaining, row.reset_after
    local units = row.kind == Lease and one or row.taken
    local _
    _, row.remaining, row.reset_after, row.store = row.kind.take(row.limit, row.state, units)
end

-- Loads the states of all limiters of a call with chains, decides them, and returns whether the call is refused. `takes`
-- tells whether decisions are carried out.
function Chain.decide(rows, keys, count, takes)
    local is_refused, first = false, 1
    while first <= count do
        local final, row = end_of_chain(rows, first, count), rows[first]
        row.chain_wait = decide_chain(rows, keys, first, final)
        for k = first, final do
            rows[k].is_pool, rows[k].final, rows[k].store = first < final, final, nil
            if takes and rows[k].taken then
                take_from(rows[k])
            end
        end
        if row.chain_wait and not row.shadow then
            is_refused = true
        end
        first = final + 1
    end
    return is_refused
end

-- Lets a call that is refused take nothing.
function Chain.refuse(rows, count, takes)
    for k = 1, count do
        local row = rows[k]
        if takes and row.taken then
            row.remaining, row.reset_after, row.store = row.remaining_before, row.reset_after_before, nil
        end
        row.taken = nil
    end
end

-- Returns the numbers of the chain that begins with a row: its limit, its wait, what it can give now,
-- and the longest time.
function Chain.numbers(rows, first)
    local most, remaining, reset_after = zero, zero, zero
    local pool_most, pool_remaining
    for k = first, rows[first].final do
        local row = rows[k]
        if row.join == 'SPILL' then
            pool_most = smaller(pool_most + row.limit.most, highest)
            pool_remaining = smaller(pool_remaining + row.remaining, highest)
        else
            pool_most, pool_remaining = row.limit.most, row.remaining
        end
        most, remaining = larger(most, pool_most), larger(remaining, pool_remaining)
        if reset_after == FOREVER or row.reset_after == FOREVER then
            reset_after = FOREVER
        else
            reset_after = larger(reset_after, row.reset_after)
        end
    end
    return most, rows[first].chain_wait, remaining, reset_after
end
end

