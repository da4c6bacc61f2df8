-- Holds: core/src/hold.rs, src/store/hold.rs and src/calls/holds.rs ---------------------------------------------------
--
-- What an owner has taken from a limiter is a part: two members of a sorted set whose scores are all 0. Those that have
-- run out are given back to the windows on which a call decides, and are written with them.

local Hold = {}

do
local HOLDS = 'the parts of holds, stored by HOLD'
local MOST_PARTS, MOST_ENDED = 100000, 1000
-- By how many milliseconds the expiry is longer that is stored while the key has none.
local MARGIN = 60000

-- Returns a name with its length before it and a space behind it.
local function named(name)
    return format('%d ', #name) .. name .. ' '
end

-- Returns where the members with a prefix end, which itself ends with a space.
local function behind(prefix)
    return string.sub(prefix, 1, -2) .. '!'
end

local function between(key, from, to, most)
    return call('ZRANGEBYLEX', key, '[' .. from, '(' .. to, 'LIMIT', 0, most)
end

local function first_with(key, prefix)
    return between(key, prefix, behind(prefix), 1)[1]
end

-- Returns an instant as 19 digits.
local function sortable(moment)
    local text = nanos_of(moment)
    return string.rep('0', 19 - #text) .. text
end

-- Returns the kind of a limiter's parts.
local function class_of(row)
    local limit = row.limit
    if row.kind == Fixed and limit.is_total then
        return limit.idle and 'idle' or 'total'
    end
    return 'part'
end

local function number_of(text)
    return text and natural(text) or foreign(HOLDS)
end

local function moment_of(digits)
    local text = match(digits, '^0*(%d+)$')
    return text and instant(text) or foreign(HOLDS)
end

-- Returns the part of the limiter at `name` that a member describes.
local function read_part(member, class, name)
    local prefix = class .. ' ' .. named(name)
    if string.sub(member, 1, #prefix) ~= prefix then
        foreign(HOLDS)
    end
    local rest = string.sub(member, #prefix + 1)
    local till, length, at = match(rest, '^(%d+) (%d+) ()')
    if not till or #till ~= 19 then
        foreign(HOLDS)
    end
    local id = string.sub(rest, at, at + length - 1)
    local period, earlier, latest, origin = match(string.sub(rest, at + length), '^ (%d+) (%d+) (%d+)(.*)$')
    if not period or #id ~= length + 0 then
        foreign(HOLDS)
    end
    local part = { id = id, class = class, till = moment_of(till), period = number_of(period), name = name }
    part.earlier, part.latest = number_of(earlier), number_of(latest)
    if class == 'part' then
        part.window = match(origin, '^ window (%d+)$')
        part.at, part.reset_after = match(origin, '^ rate (%d+) (%d+)$')
        if part.at then
            part.at, part.reset_after = moment_of(part.at), number_of(part.reset_after)
        elseif not part.window then
            foreign(HOLDS)
        end
    elseif origin ~= '' then
        foreign(HOLDS)
    end
    part.by_key, part.by_id = member, 'id ' .. named(id) .. named(name) .. till .. ' ' .. class
    return part
end

-- Returns the part of an owner of which `by_id` is the first member.
local function part_of(key, by_id, id)
    local prefix = 'id ' .. named(id)
    local rest = string.sub(by_id, #prefix + 1)
    local length, at = match(rest, '^(%d+) ()')
    if not length then
        foreign(HOLDS)
    end
    local name = string.sub(rest, at, at + length - 1)
    local till, class = match(string.sub(rest, at + length), '^ (%d+) (%l+)$')
    if #name ~= length + 0 or not till or not (class == 'part' or class == 'idle' or class == 'total') then
        foreign(HOLDS)
    end
    local member = first_with(key, class .. ' ' .. named(name) .. till .. ' ' .. named(id))
    return read_part(member or foreign(HOLDS), class, name)
end

local function has_ended(part)
    return not (now < part.till) or part.period < part.till - now
end

-- Returns whether a part is of a window.
local function is_of_window(part)
    return part and not part.at
end

-- Adds at most `most` parts of a limiter that have run out to a list.
local function add_ended(list, key, class, name, most)
    local prefix = class .. ' ' .. named(name)
    local final = behind(prefix)
    local highest_part = call('ZREVRANGEBYLEX', key, '(' .. final, '[' .. prefix, 'LIMIT', 0, 1)[1]
    if most < 1 or not highest_part then
        return most
    end
    local after = prefix .. sortable(now + one)
    local known = {}
    for i = 1, #list do
        known[list[i].by_key] = true
    end
    local function add(part)
        most = most - 1
        if not known[part.by_key] then
            list[#list + 1] = part
        end
    end
    -- Parts that were taken before the clock was set back are behind all others.
    local latest = read_part(highest_part, class, name)
    if now < latest.till and has_ended(latest) then
        local ahead = call('ZREVRANGEBYLEX', key, '(' .. final, '[' .. after, 'LIMIT', 0, most)
        for i = 1, #ahead do
            local part = read_part(ahead[i], class, name)
            if not has_ended(part) then
                break
            end
            add(part)
        end
    end
    local ended = most > 0 and between(key, prefix, after, most) or {}
    for i = 1, #ended do
        add(read_part(ended[i], class, name))
    end
    return most
end

-- Returns the units that come back to a window.
local function comes_back(part, window)
    if part.at or part.window and part.window ~= nanos_of(window.ends) then
        return zero
    end
    return part.latest
end

-- Reads the key of HOLD for a call: what its owner holds, and what has run out of its limiters.
function Hold.look(hold, rows, keys, count)
    local key = hold.key
    local first, final = call('ZRANGE', key, 0, 0, 'WITHSCORES'), call('ZRANGE', key, -1, -1, 'WITHSCORES')
    hold.is_new = not first[1]
    if first[1] and (first[2] + 0 ~= 0 or final[2] + 0 ~= 0 or not find(first[1], '^id ') or not (find(final[1], '^part ')
        or find(final[1], '^idle ') or find(final[1], '^total ') or find(final[1], '^until '))) then
        foreign(HOLDS)
    end
    if hold.period then
        hold.till = now + hold.period
        if last < hold.till then
            out_of_range('HOLD', 1, LAST)
        end
    end
    local left = MOST_ENDED
    hold.ended, hold.own = {}, {}
    local has_windows, has_ended_any = false, false
    for k = 1, count do
        local own = hold.id and rows[k].kind ~= Lease and first_with(key, 'id ' .. named(hold.id) .. named(keys[k]))
        own = own and part_of(key, own, hold.id)
        hold.ended[k] = {}
        if own and has_ended(own) then
            hold.ended[k][1], left = own, left - 1
        else
            hold.own[k] = own or nil
        end
        has_windows = has_windows or rows[k].kind == Fixed
    end
    local function carry_out(are_windows)
        for k = 1, count do
            local row = rows[k]
            if row.kind ~= Lease and (row.kind == Fixed) == are_windows then
                left = add_ended(hold.ended[k], key, class_of(row), keys[k], left)
            end
            has_ended_any = has_ended_any or hold.ended[k][1] ~= nil
        end
    end
    carry_out(true)
    -- Parts of rates only take memory when they have ended. They are removed when units of an owner have run out, by
    -- calls without windows, and before memory is scarce.
    if not has_windows or has_ended_any or floor(call('ZCARD', key) / 2) > MOST_PARTS / 2 then
        carry_out(false)
    end
    -- What an owner that settles holds of keys that the call does not name has run out.
    hold.others = {}
    if hold.id and not hold.period then
        local is_named, prefix = {}, 'id ' .. named(hold.id)
        for k = 1, count do
            is_named[keys[k]] = true
        end
        local all = between(key, prefix, behind(prefix), MOST_ENDED)
        for i = 1, #all do
            local part = part_of(key, all[i], hold.id)
            if not is_named[part.name] and not has_ended(part) then
                hold.others[#hold.others + 1] = part
            end
        end
    end
end

-- Loads the state of a limiter, with what has run out given back.
function Hold.load(hold, k, row, key)
    local state = row.kind.load(key, row.limit)
    row.back = nil
    if row.kind == Fixed and state and (not state.ends or now < state.ends) then
        local back = zero
        for i = 1, #hold.ended[k] do
            back = back + comes_back(hold.ended[k][i], state)
        end
        if zero < back then
            row.back = back
            state = back < state.count and { count = state.count - back, ends = state.ends } or nil
        end
    end
    row.state = state
    return state
end

-- Returns whether units of a window have run out.
function Hold.has_run_out(hold)
    for k = 1, #hold.ended do
        for i = 1, #hold.ended[k] do
            if is_of_window(hold.ended[k][i]) then
                return true
            end
        end
    end
    return false
end

-- Lets a decision write what has come back to its window.
function Hold.complete(row)
    local store, state = row.store, row.state
    if not row.back then
        return
    elseif not store then
        row.store = state and { count = state.count, ends = state.ends, added = -row.back } or DELETED
    elseif store ~= DELETED and store.added and state then
        store.added = store.added - row.back
    elseif store ~= DELETED and store.added then
        row.store = { count = store.count, is_lasting = true } -- a total that begins again
    end
end

-- Lets a total that is forgotten when it is idle live as long as what is held of it.
function Hold.prolong(hold, k, row)
    local limit, store = row.limit, row.store
    if row.kind ~= Fixed or not limit.idle or not hold.period or store == DELETED then
        return
    end
    local total = store or hold.own[k] and not (zero < row.quantity) and row.state
    local till = total and instant_of_millis(millis_of(hold.till))
    if total and (not total.ends or total.ends < till) then
        row.store = { count = total.count, ends = till }
        row.reset_after = till - now
    end
end

-- Returns whether the call only renews what its owner holds.
function Hold.renews(hold, rows, count)
    local holds = false
    for k = 1, count do
        holds = holds or hold.own[k] ~= nil
        if rows[k].kind ~= Lease and zero < rows[k].quantity then
            return false
        end
    end
    return holds and hold.period ~= nil
end

-- Returns the wait of a call whose parts have no room, because its owner is new. `taken` has what it takes.
function Hold.is_full(hold, rows, keys, count, taken)
    if not hold.period then
        return nil
    end
    local new, ended = 0, 0
    for k = 1, count do
        new = new + (rows[k].kind ~= Lease and zero < taken(k) and 1 or 0)
        ended = ended + #hold.ended[k]
    end
    if new == 0 or floor(call('ZCARD', hold.key) / 2) + new - ended <= MOST_PARTS
        or first_with(hold.key, 'id ' .. named(hold.id)) then
        return nil
    end
    local till
    for k = 1, count do
        local class = class_of(rows[k])
        local member = first_with(hold.key, class .. ' ' .. named(keys[k]))
        local part = member and read_part(member, class, keys[k])
        till = part and (till and smaller(till, part.till) or part.till) or till
    end
    till = till or expiry(hold.key)
    return till and larger(difference(till, now), one) or last
end

-- Returns the difference by which a settlement of `used` units changes a window of which `own` is held.
function Hold.window_difference(own, window, used)
    if not is_of_window(own) then
        return used
    end
    local present = difference(used, own.earlier)
    if window and (not own.window or own.window == nanos_of(window.ends)) then
        return present - own.latest
    end
    return difference(present, own.latest)
end

-- Returns the difference by which a settlement of `used` units changes a rate or a log of which `own` is held, and what
-- it knows of the last take.
function Hold.rate_difference(own, kind, used)
    if not own or not own.at then
        return zero
    end
    local present = kind == Log and instant_of_micros(micros_of(now + tick - one)) or now
    local taken = { age = difference(present, own.at), reset_after = own.reset_after, unit = zero }
    return larger(used - own.earlier - own.latest, -own.latest), taken
end

-- Returns what each limiter of a pool bears of `used` units: of those with what is held and the room in these lists.
local function spread(used, held, room)
    local sum, bears = zero, {}
    for i = 1, #room do
        bears[i] = held[i] or zero
        sum = sum + bears[i]
    end
    local back, beyond = difference(sum, used), difference(used, sum)
    for i = #room, 1, -1 do
        local given = smaller(back, bears[i])
        bears[i], back = bears[i] - given, back - given
    end
    for i = 1, #room do
        local more = smaller(beyond, room[i])
        bears[i], beyond = bears[i] + more, beyond - more
    end
    bears[#room] = bears[#room] + beyond
    return bears
end

-- Plans the settlement of the chain from a row to another: sets what each of them bears as `taken`, or nil.
function Hold.settle_chain(hold, rows, keys, first, final)
    local pools, holds_any = {}, false
    for k = first, final do
        local row = rows[k]
        Hold.load(hold, k, row, keys[k])
        row.taken = nil
        local has_place = row.kind == Lease and Lease.holds(row.state)
        holds_any = holds_any or has_place or hold.own[k] ~= nil
        if row.join ~= 'SPILL' then
            pools[#pools + 1] = { rows = {}, held = {}, room = {}, all = zero }
        end
        local pool = pools[#pools]
        if row.kind ~= Lease then
            local own = hold.own[k]
            local _, room = row.kind.take(row.limit, row.state, zero)
            if row.kind == Log then
                room = smaller(room, int(Log.most_entries))
            end
            pool.rows[#pool.rows + 1] = k
            pool.room[#pool.rows] = room
            pool.held[#pool.rows] = own and own.earlier + own.latest or nil
            pool.is_held = pool.is_held or own ~= nil
        end
    end
    local chosen
    for i = 1, #pools do
        local pool = pools[i]
        if not holds_any then
            -- Rates of which nothing is held are skipped.
            local windows = { rows = {}, held = {}, room = {}, all = zero }
            for j = 1, #pool.rows do
                if rows[pool.rows[j]].kind == Fixed then
                    windows.rows[#windows.rows + 1] = pool.rows[j]
                    windows.room[#windows.rows] = pool.room[j]
                    windows.all = windows.all + pool.room[j]
                end
            end
            pools[i] = windows
            if windows.rows[1] and not (chosen and chosen.fits) then
                windows.fits = not (windows.all < rows[windows.rows[1]].quantity)
                chosen = windows
            end
        end
    end
    for i = 1, #pools do
        local pool = pools[i]
        if pool.is_held or pool == chosen then
            local bears = spread(rows[pool.rows[1]].quantity, pool.held, pool.room)
            for j = 1, #pool.rows do
                if pool.held[j] or zero < bears[j] then
                    rows[pool.rows[j]].taken = bears[j]
                end
            end
        end
    end
end

-- Returns the members of a part, and the millisecond until which it can come back, or nil forever.
local function members_of(part, id, name, ends)
    local till = sortable(part.till)
    local by_key = concat({ part.class, ' ', named(name), till, ' ', named(id), digits(part.period), ' ',
        digits(part.earlier), ' ', digits(part.latest) })
    local millis = millis_of(part.till)
    if part.at then
        by_key = by_key .. ' rate ' .. nanos_of(part.at) .. ' ' .. digits(part.reset_after)
    elseif part.window then
        by_key = by_key .. ' window ' .. part.window
        millis = max(millis, millis_of(moment_of(part.window)))
    elseif part.class == 'idle' then
        millis = max(millis, ends and millis_of(ends) or 0)
    else
        millis = nil
    end
    return 'id ' .. named(id) .. named(name) .. till .. ' ' .. part.class, by_key, millis
end

-- Returns what an owner holds after a call that takes a quantity.
local function part_after(hold, own, row, quantity)
    local part = { till = hold.till, period = hold.period, class = class_of(row) }
    if own and not (zero < quantity) then
        part.class, part.window, part.at, part.reset_after = own.class, own.window, own.at, own.reset_after
        part.earlier, part.latest = own.earlier, own.latest
        return part
    elseif not (zero < quantity) then
        return nil
    end
    if row.kind ~= Fixed then
        part.at = row.kind == Log and instant_of_micros(micros_of(now + tick - one)) or now
        part.reset_after = row.reset_after
    elseif part.class == 'part' then
        part.window = nanos_of(row.store.ends or row.state.ends)
    end
    part.earlier, part.latest = zero, quantity
    if own and (own.at ~= nil) == (part.at ~= nil) then
        if not own.at and own.class == part.class and own.window == part.window then
            part.earlier, part.latest = own.earlier, own.latest + quantity
        else
            part.earlier = own.earlier + own.latest
        end
    end
    return part
end

-- Collects what a call changes in the key of HOLD. `taken` has what it takes from each limiter, if it is admitted.
function Hold.plan(hold, rows, keys, count, verb, taken)
    local added, removed, latest, adds_total = {}, {}, 0, false
    local function remove(part)
        removed[#removed + 1], removed[#removed + 2] = part.by_id, part.by_key
    end
    local function add(by_id, by_key, millis)
        added[#added + 1], added[#added + 2] = by_id, by_key
        latest, adds_total = max(latest, millis or 0), adds_total or not millis
    end
    for k = 1, count do
        for i = 1, #hold.ended[k] do
            remove(hold.ended[k][i])
        end
    end
    for k = 1, taken and count or 0 do
        local own, row = hold.own[k], rows[k]
        if verb == 'settle' then
            if own then
                remove(own)
            end
        elseif hold.period and row.kind ~= Lease then
            local part = part_after(hold, own, row, taken(k))
            if part then
                if own then
                    remove(own)
                end
                local store = row.store
                add(members_of(part, hold.id, keys[k], row.kind == Fixed and store and store ~= DELETED and store.ends))
            end
        end
    end
    for i = 1, #hold.others do
        local part = hold.others[i]
        remove(part)
        if not part.at then
            part.till = now
            local by_id, by_key = members_of(part, hold.id, part.name)
            added[#added + 1], added[#added + 2] = by_id, by_key
        end
    end
    hold.added, hold.removed, hold.latest, hold.adds_total = added, removed, latest, adds_total
end

-- Returns whether a permanent total is held after the changes.
local function keeps_a_total(hold)
    local removed = 0
    for i = 1, #hold.removed do
        removed = removed + (find(hold.removed[i], '^total ') and 1 or 0)
    end
    for i = 1, #hold.added do
        if find(hold.added[i], '^total ') then
            return true
        end
    end
    return #between(hold.key, 'total ', 'total!', removed + 1) > removed
end

-- Decides the expiry of the key, and adds the member that stores it while the key has none.
function Hold.plan_expiry(hold)
    local key = hold.key
    local millis = not hold.is_new and call('PEXPIRETIME', key) or nil
    local is_endless = millis == -1
    local stored = is_endless and first_with(key, 'until ') or nil
    local before = is_endless and (stored and match(stored, '^until (%d+)$') or 0) + 0 or millis or 0
    local latest = max(hold.latest, before)
    hold.lives, hold.persists = nil, false
    if hold.adds_total or is_endless and keeps_a_total(hold) then
        if latest > (stored and match(stored, '^until (%d+)$') or 0) + 0 then
            hold.added[#hold.added + 1] = format('until ' .. WHOLE, latest + MARGIN)
            hold.removed[#hold.removed + 1] = stored
        end
        hold.persists = not hold.is_new and not is_endless
    else
        hold.removed[#hold.removed + 1] = stored
        if latest > 0 and latest ~= millis and (not is_endless or stored) then
            hold.lives = latest
        end
    end
end

-- Writes what was collected.
function Hold.save(hold)
    local is_removed, is_added, words = {}, {}, {}
    for i = 1, #hold.removed do
        is_removed[hold.removed[i]] = true
    end
    for i = 1, #hold.added do
        is_added[hold.added[i]] = true
    end
    for i = 1, #hold.added do
        if not is_removed[hold.added[i]] then
            words[#words + 1], words[#words + 2] = '0', hold.added[i]
        end
    end
    if words[1] then
        write('ZADD', hold.key, unpack(words))
    end
    words = {}
    for i = 1, #hold.removed do
        if not is_added[hold.removed[i]] then
            words[#words + 1] = hold.removed[i]
        end
    end
    if words[1] then
        write('ZREM', hold.key, unpack(words))
    end
    if hold.persists then
        write('PERSIST', hold.key)
    elseif hold.lives then
        write('PEXPIREAT', hold.key, format(WHOLE, hold.lives))
    end
end
end

