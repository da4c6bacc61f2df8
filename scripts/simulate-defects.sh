#!/usr/bin/env bash
# Plants defects in a copy of the module, one by one, and counts the seeds until the simulator finds each: the table in
# docs/verification.md. With arguments, only the defects of these names.
# shellcheck disable=SC2016 # the patterns are for perl
source "$(dirname "$0")/lib.sh"
need_compiler
cargo build --profile suite --locked -p redis-cell-simulator

copy=target/defects
mkdir -p "$copy"
git archive HEAD | tar -x -C "$copy"

# plant NAME FILE EXPRESSION: changes a file by a substitution of Perl, builds the module, and simulates until a seed
# fails. Prints the defect, the number of that seed, its steps and what was found.
plant() {
    local name=$1 file=$copy/$2 found
    if [[ $wanted && " $wanted " != *" $name "* ]]; then return; fi
    cp "$file" "$copy/saved"
    perl -0pi -e "$3" "$file"
    cmp -s "$file" "$copy/saved" && die "$name: nothing to change in $2"
    if (cd "$copy" && CARGO_TARGET_DIR=$PWD/target cargo build --quiet --profile suite --lib -p redis-cell) 2>"$copy/log"; then
        found=$(target/suite/simulate --seeds 1 "${SEEDS:-4000}" --first --no-shrink \
            "$copy/target/suite/libredis_cell.so" | grep -m 1 '^seed' | cut -c1-150 || true)
    else
        found="does not compile: $(grep -m 1 '^error' "$copy/log")"
    fi
    printf '%s\t%s\n' "$name" "${found:-not found in ${SEEDS:-4000} seeds}"
    cp "$copy/saved" "$file"
    touch "$file"
}
wanted=$*

# The survivors of the third attack: what each dropped.
plant role-changed ffi/src/events.rs 's/    event\(raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED\),\n//; s/RedisModuleEvent; 3\]/RedisModuleEvent; 2]/'
plant backlog ffi/src/effects.rs 's/\[c"connected_slaves", c"repl_backlog_active"\]/[c"connected_slaves"]/'
plant second-database ffi/src/events.rs 's/            W::database_changed\(call, Some\(info.dbnum_second\)\);\n//'
plant leavers-wake-nobody src/waiting/index.rs 's/        self.changed\(Place \{ db, name: &name \}, \|\| now\);\n        client/        client/'
# The same and others of the first two attacks.
plant expired ffi/src/events.rs 's/    \| raw::REDISMODULE_NOTIFY_EXPIRED\n//'
plant deleted ffi/src/events.rs 's/raw::REDISMODULE_NOTIFY_GENERIC\n    \| //'
plant flushed ffi/src/events.rs 's/REDISMODULE_SUBEVENT_FLUSHDB_END \{\n        return;/REDISMODULE_SUBEVENT_FLUSHDB_END || true {\n        return;/'
plant fair-turn-unchecked src/waiting/fair.rs 's/        own.would_run\([^;]*;\n//'
plant booking-not-stored core/src/queue.rs 's/if matches!\(decision.answer.verdict, Verdict::Booked\(wait\) if wait > Span::ZERO\) \{/if matches!(decision.answer.verdict, Verdict::Booked(wait) if wait > Span::ZERO) \&\& now == Instant::MAX {/'
plant removal-not-replicated ffi/src/zset.rs 's/call.propagate\(c"ZREMRANGEBYRANK", ([a-z.]+), &ranks\)/let _ = \&ranks/'
plant expiry-not-seen src/waiting/first_come.rs 's/expires = expires;/expires = None;/'
plant gone-not-unblocked src/waiting.rs 's/            call.unblock\(client.blocked, None\);\n/            let _ = client;\n/'
plant not-armed-after-change src/waiting.rs 's/        if index::changed\(Place \{ db: call.db\(\), name \}, ffi::now\) \{\n            arm\(call\);/        if index::changed(Place { db: call.db(), name }, ffi::now) {/'
plant timeouts-forgotten src/waiting/timer.rs 's/            && deadline <= now\n/            \&\& deadline <= now \&\& look.is_some()\n/'
plant signalled-while-open ffi/src/hash.rs 's/        let set = \(!words.is_empty\(\)\).then_some\(Event::Hset\);/        unsafe { (self.call.api.signal_modified_key)(self.call.ctx.as_ptr(), self.name.ptr.as_ptr()) };\n        let set = (!words.is_empty()).then_some(Event::Hset);/'
plant end-not-freed ffi/src/block.rs 's/drop\(unsafe \{ (Box::from_raw\(end.cast::<W::End>\(\)\)) \}\)/core::mem::forget(unsafe { $1 })/'
plant once-not-followed src/waiting/index.rs 's/            index.waiters\(db, &name\).clients.insert\(seat, Naming::Once\);/            let _ = name;/'
plant others-not-woken src/waiting/index.rs 's/            waiters.clients.insert\(Seat \{ id, ticket \}, Naming::Other\);/            let _ = (waiters, id, ticket);/'
plant renewal-waits src/commands/bmtake.rs 's/before.is_some\(\) && request.renews\(call\)\?/before.is_some() \&\& false/'
plant flow-order core/src/fair.rs 's/self.v = self.v.max\(/self.v = self.v.min(/'
