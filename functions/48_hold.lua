-- Holds: core/src/hold.rs, src/store/hold.rs and src/calls/holds.rs ---------------------------------------------------
--
-- What an owner has taken from limiters is a record, a member of a sorted set, and has an end for each part that can
-- run out. Those that have run out are given back to the windows on which a call decides, and are written with them.

local Hold = {}

do
-- What reads and writes the sorted set; in a table because a block has room for few more local variables.
local Book = {}
local HOLDS = 'the parts of holds, stored by HOLD'
local MOST_PARTS, MOST_ENDED, MOST_UNNAMED, IN_RECORD, RATES_EACH = 100000, 1000, 2000, 16, 32
-- The scores of records, of further parts, and of ends, each with a hash.
local HASHES = 2 ^ 50
local OWNERS, FURTHER, ENDS = HASHES, 2 * HASHES, 3 * HASHES

-- Returns a hash of two names, in words of 32 bits. Names can be long, so a call hashes each first one once.
function Book.hash(one, other)
    local bxor, rol, tobit, byte = bit.bxor, bit.rol, bit.tobit, string.byte
    local known = Book.hashed[one]
    local a, b, c, d = unpack(known or { 0, 0, 0x6c796765, 0x74656462 })
    local function mix()
        a = tobit(a + b)
        b = bxor(rol(b, 5), a)
        a = rol(a, 16)
        c = tobit(c + d)
        d = bxor(rol(d, 8), c)
        a = tobit(a + d)
        d = bxor(rol(d, 7), a)
        c = tobit(c + b)
        b = bxor(rol(b, 13), c)
        c = rol(c, 16)
    end
    local function absorb(word)
        d = bxor(d, word)
        mix()
        a = bxor(a, word)
    end
    local function add(name)
        local length = #name
        local rest = length % 4
        for i = 1, length - 3, 4 do
            local first, second, third, fourth = byte(name, i, i + 3)
            absorb(first + second * 2 ^ 8 + third * 2 ^ 16 + fourth * 2 ^ 24)
        end
        local first, second, third = byte(name, length - rest + 1, length)
        absorb((first or 0) + (second or 0) * 2 ^ 8 + (third or 0) * 2 ^ 16 + length % 256 * 2 ^ 24)
    end
    if not known then
        add(one)
        Book.hashed[one] = { a, b, c, d }
    end
    if other ~= '' then
        add(other)
    end
    c = bxor(c, 0xff)
    mix()
    mix()
    mix()
    return bxor(a, c) % 2 ^ 18 * 2 ^ 32 + bxor(b, d) % 2 ^ 32
end

local function score_of(region, one, other)
    return format(WHOLE, region + Book.hash(one, other or ''))
end

-- Returns a name with its length before it.
local function named(name)
    return format('%d ', #name) .. name
end

-- Returns the name behind a space at a place of a text, and the place behind the name; nil if there is none.
function Book.read_name(text, at)
    local length, from = match(text, '^ (%d+) ()', at)
    if length and is_natural(length) and from + length - 1 <= #text then
        return string.sub(text, from, from + length - 1), from + length
    end
end

-- Calls `read` with the members of a score, the last one first if `command` says so, until it returns false.
function Book.each(key, command, score, read)
    local from, most = 0, 2
    while true do
        local members = call(command, key, score, score, 'LIMIT', from, most)
        for i = 1, #members do
            if not read(members[i]) then
                return
            end
        end
        if #members < most then
            return
        end
        from, most = from + most, 100
    end
end

-- Returns an instant as 19 digits.
function Book.sortable(moment)
    local text = nanos_of(moment)
    return string.rep('0', 19 - #text) .. text
end

-- Returns the parts in a text, or nil if it has anything else.
function Book.read_parts(text, at)
    local list, part = {}, {}
    repeat
        local before, earlier, latest, from = part, nil, nil, nil
        part = { till = before.till, period = before.period }
        part.name, at = Book.read_name(text, at)
        local place = at and match(text, '^ %-()', at)
        if at and not place then
            local till, period
            till, period, place = match(text, '^ (%d+) (%d+)()', at)
            part.till, part.period = till and instant(till), till and natural(period)
        end
        if not place or not part.till or not part.period then
            return nil
        end
        part.word, earlier, latest, at = match(text, '^ (%l+) (%d+) (%d+)()', place)
        if part.word == 'window' then
            part.window, at = match(text, '^ (%d+)()', at)
        elseif part.word == 'rate' then
            from, part.reset_after, at = match(text, '^ ([%d-]+) (%d+)()', at)
            part.at = from == '-' and part.till - part.period or from and instant(from)
            part.reset_after = from and natural(part.reset_after)
        elseif part.word ~= 'total' and part.word ~= 'idle' then
            return nil
        end
        part.earlier, part.latest = at and natural(earlier), at and natural(latest)
        local is_whole = part.earlier and part.latest and (not part.window or is_natural(part.window))
        local began = part.at and part.reset_after and (is_plain or not (part.at < zero))
        if not is_whole or from and not began then
            return nil
        end
        list[#list + 1] = part
    until at > #text
    return list
end

-- Returns the text of a part, behind `before` in a record.
function Book.text_of(part, before)
    local period = '-'
    if not before or before.till ~= part.till or before.period ~= part.period then
        period = nanos_of(part.till) .. ' ' .. digits(part.period)
    end
    local text = concat({ named(part.name), period, part.word, digits(part.earlier), digits(part.latest) }, ' ')
    if part.window then
        return text .. ' ' .. part.window
    elseif part.at then
        local began = part.at == part.till - part.period and '-' or nanos_of(part.at)
        return text .. ' ' .. began .. ' ' .. digits(part.reset_after)
    end
    return text
end

local function has_ended(part)
    return not (now < part.till) or part.period < part.till - now
end

-- Returns whether a part is of a window.
local function is_of_window(part)
    return part and not part.at
end

function Book.add_slot(owner, part, is_further)
    local slot = { name = part.name, before = part, after = part, is_further = is_further }
    owner.slots[#owner.slots + 1], owner.by_name[part.name] = slot, owner.by_name[part.name] or slot
    owner.in_record = owner.in_record + (is_further and 0 or 1)
    return slot
end

-- Returns the slot of a part of an owner, which is looked for outside of the record if it is not known.
function Book.find_slot(key, owner, name)
    local slot = owner.by_name[name]
    if slot or not owner.has_further then
        return slot
    end
    local prefix = 'part ' .. named(owner.id)
    Book.each(key, 'ZRANGEBYSCORE', score_of(FURTHER, owner.id, name), function(member)
        local parts = string.sub(member, 1, #prefix) == prefix and Book.read_parts(member, #prefix + 1)
        if parts and parts[1].name == name and not parts[2] then
            slot = Book.add_slot(owner, parts[1], true)
        end
        return not slot
    end)
    return slot
end

-- Returns what an owner holds in its record, and at most `unnamed` further parts.
function Book.load_owner(key, id, unnamed)
    local owner = { id = id, slots = {}, by_name = {}, in_record = 0 }
    local record, more, further = 'id ' .. named(id), 'more ' .. named(id), {}
    Book.each(key, 'ZRANGEBYSCORE', score_of(OWNERS, id), function(member)
        if string.sub(member, 1, #record) == record then
            local parts = Book.read_parts(member, #record + 1) or foreign(HOLDS)
            for i = 1, #parts do
                Book.add_slot(owner, parts[i])
            end
        elseif string.sub(member, 1, #more) == more then
            local name, behind = Book.read_name(member, #more + 1)
            if behind == #member + 1 then
                owner.has_further = true
                if #further == unnamed then
                    return false
                end
                further[#further + 1] = name
            end
        end
        return true
    end)
    for i = 1, #further do
        if not Book.find_slot(key, owner, further[i]) then
            foreign(HOLDS)
        end
    end
    return owner
end

-- Removes a part that has run out, and with it those of rates in the record that have ended.
function Book.remove_ended(owner, name)
    for i = 1, owner.in_record do
        local slot = owner.slots[i]
        if slot.after and slot.after.at and has_ended(slot.after) then
            slot.after = nil
        end
    end
    owner.by_name[name].after = nil
end

function Book.read_end(member)
    local till, period, at = match(member, '^end (%d+) (%d+)()')
    if not till or #till ~= 19 then
        foreign(HOLDS)
    end
    local ending = { till = instant(match(till, '^0*(%d+)$')), period = natural(period) }
    ending.id, at = Book.read_name(member, at)
    ending.name, at = Book.read_name(member, at)
    if not ending.till or not ending.period or at ~= #member + 1 then
        foreign(HOLDS)
    end
    ending.is_ahead = now < ending.till and has_ended(ending)
    return ending
end

-- Returns the owners of at most `most` parts of a limiter that have run out, when the next one does, whether anybody
-- holds something, and whether an owner other than `own` still does then.
function Book.ends_of(key, name, own, most)
    local score, is_held, are_left, till, ended = score_of(ENDS, name), nil, false, nil, {}
    -- Adds the owner of a part that has run out, unless there are as many as a call carries out.
    local function add(ending)
        if #ended < most then
            ended[#ended + 1] = ending.id
            return true
        end
        till, are_left = now, true
        return false
    end
    -- Parts that were taken before the clock was set back are behind all others.
    Book.each(key, 'ZREVRANGEBYSCORE', score, function(member)
        local ending = Book.read_end(member)
        if ending.name ~= name then
            return true
        end
        is_held = true
        return ending.is_ahead and add(ending)
    end)
    if is_held and not till then
        Book.each(key, 'ZRANGEBYSCORE', score, function(member)
            local ending = Book.read_end(member)
            if ending.name ~= name or ending.is_ahead then
                return true
            elseif not (now < ending.till) then
                return add(ending)
            end
            till, are_left = till or ending.till, ending.id ~= own
            return not are_left
        end)
    end
    return ended, till, is_held, are_left
end

local function is_idle(part)
    return part and part.word == 'idle'
end

-- Returns whether a total that is forgotten when it is idle has lived without a break, as far as calls with HOLD know.
function Book.has_lived(key, name)
    local till = call('ZSCORE', key, 'idle ' .. named(name))
    return till and now < instant_of_millis(till + 0) or false
end

-- Returns whether a part is of the open window, which ends at an instant.
local function is_window(part, ends)
    return ends ~= nil and Fixed.is_window(instant(part.window), ends)
end

-- Returns the units that come back to a window.
local function comes_back(part, window)
    if part.at or part.window and not is_window(part, window.ends) then
        return zero
    end
    return part.latest
end

-- Reads the key of HOLD for a call: what its owner holds, and what has run out of its limiters.
function Hold.look(hold, rows, keys, count, unit)
    Book.hashed = {}
    local key = hold.key
    local parts = call('ZSCORE', key, 'parts')
    hold.is_new, hold.parts = not parts, (parts or 0) + 0
    if not parts and call('EXISTS', key) == 1 or parts and (hold.parts % 1 ~= 0 or hold.parts < 1) then
        foreign(HOLDS)
    end
    if hold.period then
        hold.till = now + hold.period
        if last < hold.till then
            out_of_range('HOLD', 1, quotient(last - now, int(unit.nanoseconds)))
        end
    end
    local left = MOST_ENDED
    hold.ended, hold.own, hold.is_held, hold.others, hold.next = {}, {}, {}, {}, nil
    hold.are_left, hold.is_idle, hold.has_lived, hold.are_mixed = {}, {}, {}, {}
    local has_ended_any = false
    local by_id = {}
    local owner = hold.id and Book.load_owner(key, hold.id, hold.period and 0 or MOST_UNNAMED)
    hold.owner = owner or nil
    for k = 1, count do
        local slot = owner and Book.find_slot(key, owner, keys[k])
        local own = slot and rows[k].kind ~= Lease and slot.after
        hold.ended[k] = {}
        if own and has_ended(own) then
            -- A refusal removes no parts of rates, and would find them again and again.
            hold.ended[k][1], left = own, left - (rows[k].kind == Fixed and 1 or 0)
            Book.remove_ended(owner, keys[k])
        else
            hold.own[k] = own or nil
        end
    end
    local function carry_out(are_windows)
        for k = 1, count do
            local row, name = rows[k], keys[k]
            if hold.parts > 0 and row.kind ~= Lease and (row.kind == Fixed) == are_windows then
                local own = row.limit.idle and hold.id or nil
                local ended, till, is_held, are_left = Book.ends_of(key, name, own, left)
                left, hold.is_held[k], hold.are_left[k] = left - #ended, is_held, are_left
                hold.next = till and (hold.next and smaller(hold.next, till) or till) or hold.next
                for i = 1, #ended do
                    local id = ended[i]
                    if id ~= hold.id then
                        local other = by_id[id]
                        if not other then
                            other = Book.load_owner(key, id, 0)
                            by_id[id], hold.others[#hold.others + 1] = other, other
                        end
                        local slot = Book.find_slot(key, other, name)
                        local part = slot and slot.after
                        if not slot or part and not has_ended(part) then
                            foreign(HOLDS)
                        end
                        -- A rate may have been removed with a window that ended before it.
                        if part then
                            hold.ended[k][#hold.ended[k] + 1] = part
                            Book.remove_ended(other, name)
                        end
                    end
                end
                for i = 1, #hold.ended[k] do
                    hold.is_idle[k] = hold.is_idle[k] or is_idle(hold.ended[k][i])
                end
                local are_more = till and not (now < till)
                hold.has_lived[k] = (hold.is_idle[k] or are_more) and Book.has_lived(key, name)
                -- Parts of an earlier life that are left must not be taken for parts of the present one.
                hold.are_mixed[k] = are_more and not hold.has_lived[k]
            end
            has_ended_any = has_ended_any or hold.ended[k][1] ~= nil
        end
    end
    carry_out(true)
    -- Parts of rates only take memory when they have ended. They are removed when units of an owner have run out, when
    -- the number of parts passes a multiple of RATES_EACH, and before memory is scarce.
    local passes = hold.period and hold.parts % RATES_EACH + count >= RATES_EACH
    local must = has_ended_any or hold.parts > MOST_PARTS / 2
    if must or passes then
        if not must then
            -- More than calls add in between. A refusal removes none, and the next one finds them again.
            left = min(left, 2 * (RATES_EACH + count))
        end
        carry_out(false)
    end
end

-- Loads the state of a limiter, with what has run out given back.
function Hold.load(hold, k, row, key)
    local state = row.kind.load(key, row.limit)
    row.back = nil
    if row.kind == Fixed and state and (not state.ends or now < state.ends) then
        local back = zero
        for i = 1, #hold.ended[k] do
            if hold.has_lived[k] or not is_idle(hold.ended[k][i]) then
                back = back + comes_back(hold.ended[k][i], state)
            end
        end
        if zero < back then
            row.back = back
            state = back < state.count and { count = state.count - back, ends = state.ends } or nil
        end
    end
    row.state = state
    return state
end

-- Returns whether a refusal carries out what has run out: anything of a window.
function Hold.has_run_out(hold, rows)
    for k = 1, #hold.ended do
        if rows[k].kind == Fixed and hold.ended[k][1] then
            return true
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
    local total = store
    if not total and hold.own[k] and row.state and row.state.ends and row.state.ends > now then
        total = row.state
    end
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

-- Returns how many parts of other owners the call removes.
function Hold.removes(hold)
    local removed = 0
    for i = 1, #hold.others do
        removed = removed + Hold.removed(hold.others[i])
    end
    return removed
end

-- Returns the wait of a call whose parts have no room, because its owner is new. `taken` has what it takes.
function Hold.is_full(hold, rows, count, taken)
    if not hold.period then
        return nil
    end
    local new = 0
    for k = 1, count do
        new = new + (rows[k].kind ~= Lease and zero < taken(k) and 1 or 0)
    end
    if new == 0 or hold.parts + new <= MOST_PARTS then
        return nil
    end
    local is_known = hold.owner.has_further or hold.owner.slots[1]
    if is_known or hold.parts + new - Hold.removes(hold) <= MOST_PARTS then
        return nil
    end
    local till = hold.next or expiry(hold.key)
    return till and larger(difference(till, now), one) or int(LAST)
end

-- Returns the difference by which a settlement of `used` units changes a window of which `own` is held.
function Hold.window_difference(own, window, used)
    if not is_of_window(own) then
        return used
    end
    local present = difference(used, own.earlier)
    if window and (not own.window or is_window(own, window.ends)) then
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

-- Returns how many parts of an owner are removed.
function Hold.removed(owner)
    local removed = 0
    for i = 1, #owner.slots do
        removed = removed + (owner.slots[i].before and not owner.slots[i].after and 1 or 0)
    end
    return removed
end

-- Returns what an owner holds after a call that takes a quantity.
function Book.part_after(hold, own, row, name, quantity)
    local part, window_end = { till = hold.till, period = hold.period, name = name }, nil
    if own and not (zero < quantity) then
        part.word, part.window, part.at, part.reset_after = own.word, own.window, own.at, own.reset_after
        part.earlier, part.latest = own.earlier, own.latest
        return part
    elseif not (zero < quantity) then
        return nil
    end
    if row.kind ~= Fixed then
        part.word, part.at = 'rate', row.kind == Log and instant_of_micros(micros_of(now + tick - one)) or now
        part.reset_after = row.reset_after
    elseif row.limit.is_total then
        part.word = row.limit.idle and 'idle' or 'total'
    else
        window_end = row.store.ends or row.state.ends
        part.word, part.window = 'window', nanos_of(window_end)
    end
    part.earlier, part.latest = zero, quantity
    if own and (own.at ~= nil) == (part.at ~= nil) then
        -- A total is one, whether the calls name IDLE or not.
        local is_same = own.window == part.window or own.window and part.window and is_window(own, window_end)
        if not own.at and is_same then
            part.earlier, part.latest = own.earlier, own.latest + quantity
        else
            part.earlier = own.earlier + own.latest
        end
    end
    return part
end

-- Returns the millisecond until which a part can come back, or nil forever. `ends` is when a total is forgotten.
function Book.lasts_until(part, ends)
    if part.word == 'total' then
        return nil
    end
    local till = part.window and instant(part.window) or part.word == 'idle' and ends or part.till
    return max(millis_of(part.till), millis_of(till))
end

-- Replaces what the owner of the call holds.
function Book.set_part(owner, part)
    local slot = owner.by_name[part.name]
    if not slot then
        slot = Book.add_slot(owner, part, owner.in_record >= IN_RECORD)
        slot.before = nil
    end
    slot.after = part
end

-- Returns when a window ends that a call stores, because it changes or because something has come back.
function Book.ends_after(row)
    local store = row.store or row.back and row.state
    return store and store ~= DELETED and store.ends
end

-- Collects what a call changes in the key of HOLD. `taken` has what it takes from each limiter, if it is admitted.
function Hold.plan(hold, rows, keys, count, verb, taken)
    local owner, position = hold.owner, {}
    hold.latest, hold.adds_total, hold.idle = 0, false, {}
    for k = 1, taken and count or 0 do
        position[keys[k]] = k
        local row = rows[k]
        local ends = row.kind == Fixed and Book.ends_after(row)
        if hold.is_held[k] and row.limit.idle and ends then
            hold.latest = max(hold.latest, millis_of(ends)) -- what others hold comes back as long as the total lives
        end
        if verb ~= 'settle' and hold.period and row.kind ~= Lease then
            local part = Book.part_after(hold, hold.own[k], row, keys[k], taken(k))
            if part then
                Book.set_part(owner, part)
                local until_millis = Book.lasts_until(part, ends)
                hold.latest, hold.adds_total = max(hold.latest, until_millis or 0), hold.adds_total or not until_millis
            end
        end
    end
    for i = 1, taken and verb == 'settle' and owner and #owner.slots or 0 do
        local slot = owner.slots[i]
        local part, k = slot.after, position[slot.name]
        if k then
            slot.after = not hold.own[k] and part or nil
        elseif part and not has_ended(part) then
            -- What an owner that settles holds of keys that the call does not name has run out.
            slot.after = nil
            if not part.at then
                slot.after = { name = part.name, till = now, period = part.period, word = part.word,
                    window = part.window, earlier = part.earlier, latest = part.latest }
            end
        end
    end
    for k = 1, count do
        local slot = owner and owner.by_name[keys[k]]
        local ends = taken and rows[k].limit.idle and Book.ends_after(rows[k])
        if not hold.are_left[k] and not (slot and slot.after) then
            if hold.is_idle[k] or is_idle(hold.own[k]) then
                hold.idle[#hold.idle + 1] = { name = keys[k] }
            end
        elseif ends and not hold.are_mixed[k] then
            hold.idle[#hold.idle + 1] = { name = keys[k], latest = millis_of(ends) }
        end
    end
end

-- Adds an end of a part to a list of scores and members.
function Book.add_end(list, id, part)
    local ending = concat({ 'end', Book.sortable(part.till), digits(part.period), named(id), named(part.name) }, ' ')
    list[#list + 1] = { score_of(ENDS, part.name), ending }
end

-- Returns the members of what an owner holds in its record, before or after the call.
function Book.record_of(owner, when)
    local text, list, first, before = 'id ' .. named(owner.id), {}, nil, nil
    for i = 1, #owner.slots do
        local part = not owner.slots[i].is_further and owner.slots[i][when]
        if part then
            text, first, before = text .. ' ' .. Book.text_of(part, before), first or part, part
            if not part.at then
                Book.add_end(list, owner.id, part)
            end
        end
    end
    if first and not list[1] then
        Book.add_end(list, owner.id, first)
    end
    if first then
        list[#list + 1] = { score_of(OWNERS, owner.id), text }
    end
    return list
end

-- Returns the members of a further part.
function Book.further_of(owner, part)
    if not part then
        return {}
    end
    local list = {
        { score_of(FURTHER, owner.id, part.name), 'part ' .. named(owner.id) .. ' ' .. Book.text_of(part) },
        { score_of(OWNERS, owner.id), 'more ' .. named(owner.id) .. ' ' .. named(part.name) },
    }
    Book.add_end(list, owner.id, part)
    return list
end

-- Collects the members that change, and how many parts there are then.
function Book.exchange(hold, before, after)
    local is_before, is_after = {}, {}
    for i = 1, #before do
        is_before[before[i][2]] = true
    end
    for i = 1, #after do
        is_after[after[i][2]] = true
        if not is_before[after[i][2]] then
            hold.added[#hold.added + 1] = after[i]
        end
    end
    for i = 1, #before do
        if not is_after[before[i][2]] then
            hold.removed[#hold.removed + 1] = before[i]
        end
    end
end

-- Returns 1 for a part of a permanent total, else 0.
function Book.total_of(part)
    return part and part.word == 'total' and 1 or 0
end

function Book.collect(hold, owner)
    local changes_record = false
    for i = 1, #owner.slots do
        local slot = owner.slots[i]
        hold.count = hold.count + (slot.after and 1 or 0) - (slot.before and 1 or 0)
        hold.totals = hold.totals + Book.total_of(slot.after) - Book.total_of(slot.before)
        if slot.is_further and slot.before ~= slot.after then
            Book.exchange(hold, Book.further_of(owner, slot.before), Book.further_of(owner, slot.after))
        end
        changes_record = changes_record or not slot.is_further and slot.before ~= slot.after
    end
    if changes_record then
        Book.exchange(hold, Book.record_of(owner, 'before'), Book.record_of(owner, 'after'))
    end
end

-- Decides the members that change and the expiry of the key.
function Hold.plan_expiry(hold)
    local key = hold.key
    hold.added, hold.removed, hold.count, hold.totals = {}, {}, hold.parts, 0
    for i = 1, #hold.others do
        Book.collect(hold, hold.others[i])
    end
    if hold.owner then
        Book.collect(hold, hold.owner)
    end
    local millis = not hold.is_new and call('PEXPIRETIME', key) or nil
    local is_endless = millis == -1
    local stored = is_endless and call('ZSCORE', key, 'until') or nil
    local latest = max(hold.latest, is_endless and (stored or 0) + 0 or millis or 0)
    local held = not hold.is_new and (is_endless or hold.totals ~= 0) and call('ZSCORE', key, 'totals') or nil
    local totals = (held or 0) + hold.totals
    hold.lives, hold.persists = nil, false
    if hold.adds_total or is_endless and totals > 0 then
        if latest > (stored or 0) + 0 then
            hold.added[#hold.added + 1] = { format(WHOLE, latest), 'until' }
        end
        hold.persists = not hold.is_new and not is_endless
    else
        if stored then
            hold.removed[#hold.removed + 1] = { stored, 'until' }
        end
        if latest > 0 and latest ~= millis and (not is_endless or stored or held) then
            hold.lives = latest
        end
    end
    if hold.totals ~= 0 and totals > 0 then
        hold.added[#hold.added + 1] = { format(WHOLE, totals), 'totals' }
    elseif hold.totals ~= 0 and held then
        hold.removed[#hold.removed + 1] = { held, 'totals' }
    end
    for i = 1, #hold.idle do
        local name, latest = hold.idle[i].name, hold.idle[i].latest
        local list = latest and hold.added or hold.removed
        list[#list + 1] = { format(WHOLE, latest or 0), 'idle ' .. named(name) }
    end
    if hold.count == 0 then
        hold.added = {}
    end
    if hold.count ~= hold.parts then
        local list = hold.count > 0 and hold.added or hold.removed
        list[#list + 1] = { format(WHOLE, hold.count), 'parts' }
    end
    if hold.count == 0 and not hold.is_new and call('ZCARD', key) > #hold.removed then
        -- Where a key was a total once, and parts of another limiter have taken the place of its parts.
        local numbers = call('ZRANGEBYSCORE', key, 1, format(WHOLE, HASHES - 1))
        for i = 1, #numbers do
            if match(numbers[i], '^idle ') then
                hold.removed[#hold.removed + 1] = { 0, numbers[i] }
            end
        end
    end
    hold.changes = hold.added[1] or hold.removed[1] or hold.persists or hold.lives
end

-- Writes a list of words, which may be longer than one call can have.
local function write_all(command, key, words)
    for first = 1, #words, 2000 do
        write(command, key, unpack(words, first, min(first + 1999, #words)))
    end
end

-- Writes what was collected.
function Hold.save(hold)
    local words = {}
    for i = 1, #hold.added do
        words[#words + 1], words[#words + 2] = hold.added[i][1], hold.added[i][2]
    end
    write_all('ZADD', hold.key, words)
    words = {}
    for i = 1, #hold.removed do
        words[i] = hold.removed[i][2]
    end
    write_all('ZREM', hold.key, words)
    if hold.persists then
        write('PERSIST', hold.key)
    elseif hold.lives then
        write('PEXPIREAT', hold.key, format(WHOLE, hold.lives))
    end
end
end
