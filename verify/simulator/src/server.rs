//! The server: its commands, its events, its loop. These functions run the module's code, so none of them
//! keeps the world borrowed.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::rc::Rc;

use crate::boundary;
use crate::clock;
use crate::commands::{self, class};
use crate::contract::Call;
use crate::history::Step;
use crate::keyspace::Bytes;
use crate::world::{
    Answer, Client, Code, Context, MILLI, OTHER_HOST, OTHER_PORT, Reaction, Reply, Words, World, reply_of,
    slot_of, with,
};

/// Flags of a context.
mod flag {
    pub const LUA: u32 = 1;
    pub const MULTI: u32 = 1 << 1;
    pub const MASTER: u32 = 1 << 2;
    pub const SLAVE: u32 = 1 << 3;
    pub const READONLY: u32 = 1 << 4;
    pub const CLUSTER: u32 = 1 << 5;
    pub const AOF: u32 = 1 << 6;
    pub const MAXMEMORY: u32 = 1 << 8;
    pub const EVICT: u32 = 1 << 9;
    pub const OOM: u32 = 1 << 10;
    pub const DENY_BLOCKING: u32 = 1 << 21;
}

/// Events of the server.
mod event {
    pub const ROLE_CHANGED: u64 = 0;
    pub const FLUSH: u64 = 2;
    pub const REPLICA_CHANGE: u64 = 6;
    pub const CRON: u64 = 8;
    pub const SWAP: u64 = 11;
    pub const FORK: u64 = 13;
}

/// Calls of the module API and allocations that one entry into the module may take: a turn of its timer takes
/// 2,000 steps, of which the reading of an argument is one, and each of them takes fewer than 20.
pub const MOST_STEPS: u64 = 40_000;

/// The flags that the module sees.
pub fn flags(world: &mut World, context: usize) -> u32 {
    let mut flags = world.context(context).flags;
    flags |= if world.is_replica { flag::SLAVE | flag::READONLY } else { flag::MASTER };
    if world.has_aof {
        flags |= flag::AOF;
    }
    if world.is_full {
        flags |= flag::OOM | flag::MAXMEMORY;
    }
    if world.in_cluster() {
        flags |= flag::CLUSTER;
    }
    if world.settings.evicts {
        flags |= flag::EVICT | flag::MAXMEMORY;
    }
    flags
}

/// Whether the server has a command.
pub fn knows(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name).to_uppercase();
    commands::writes(&name).is_some()
}

/// Runs code of the module in a new context, and returns the context as the code has left it.
fn enter(context: Context, run: impl FnOnce(usize)) -> Context {
    let before = boundary::steps();
    let index = with(|world| {
        world.contexts.push(context);
        world.depth += 1;
        world.contexts.len() - 1
    });
    run(index);
    let context = with(|world| {
        world.depth -= 1;
        let context = world.contexts.pop().unwrap_or_default();
        if world.depth == 0 {
            let are_open = !world.open.is_empty();
            let left = if are_open { world.open.iter().filter(|open| !open.is_lost).count() } else { 0 };
            if left > 0 {
                world.violates("handles", format!("{left} keys are left open"));
            }
            let steps = boundary::steps() - before;
            if steps > MOST_STEPS {
                world.violates("cost", format!("{steps} calls of the server and allocations at once"));
            }
        }
        context
    });
    flush_effects();
    context
}

/// Sends the effects of a unit that is complete to the listeners.
fn flush_effects() {
    with(|world| {
        if world.depth > 0 || world.effects.is_empty() {
            return;
        }
        let effects = std::mem::take(&mut world.effects);
        world.written += effects.len() as u64;
        let now = clock::wall() / MILLI;
        for (db, words) in effects {
            let name = commands::name(&words);
            let Some(image) = &mut world.image else { continue };
            if commands::writes(&name) != Some(true) {
                let line = crate::history::line(&words);
                world.violates("replication", format!("the stream contains a call: {line}"));
                continue;
            }
            let applied = commands::apply(image, db, &words, now, false);
            commands::keys(&words).iter().for_each(|key| world.touched.note(db, key, || ()));
            if let Reply::Error(error) = applied.reply {
                let line = crate::history::line(&words);
                world.violates("replication", format!("the effect {line} fails: {error}"));
            }
        }
    });
}

/// A unit of the server itself, whose effects belong together.
fn unit<T>(work: impl FnOnce() -> T) -> T {
    with(|world| world.depth += 1);
    let result = work();
    with(|world| world.depth -= 1);
    flush_effects();
    result
}

/// Deletes a key whose expiry has passed, when it is looked up.
fn expire(db: i32, key: &[u8]) {
    let gone = with(|world| {
        if world.is_replica || !world.is_expired(db, key) {
            return false;
        }
        world.note(db, key);
        world.keys.remove(db, key);
        world.effects.push((db, vec![b"DEL".into(), key.into()]));
        world.touched.note(db, key, || ());
        world.signalled.note(db, key, || ());
        world.gone.insert(db, key, clock::monotonic());
        if world.settings.beside {
            world.open.iter_mut().for_each(|open| open.is_lost |= !open.is_new);
        }
        true
    });
    if gone {
        notify(db, class::EXPIRED, "expired", key);
    }
}

/// A number that tells nothing of those for the numbers beside this one.
fn mixed(number: u64) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(number)
}

/// Opens a key for the module.
pub fn open(db: i32, key: &Rc<[u8]>, writes: bool) -> usize {
    let is_busy = with(|world| {
        world.openings += u64::from(writes);
        // Without a rhythm: whoever opens a key twice in a row would otherwise never be done.
        writes && world.busy > 0 && mixed(world.openings).is_multiple_of(world.busy)
    });
    if is_busy {
        with(|world| world.disturbances = u64::MAX >> 1);
        return 0;
    }
    if with(|world| world.is_expired(db, key)) {
        with(|world| world.disturbances += 1);
        unit(|| expire(db, key));
    }
    with(|world| {
        world.touched.note(db, key, || ());
        world.open(db, key, writes)
    })
}

/// The module has created a key.
pub fn created(key: Option<(i32, Bytes)>) {
    if let Some((db, key)) = key {
        notify(db, class::NEW, "new", &key);
    }
}

/// The module says that it has modified a key. Newer servers look it up.
pub fn signal(db: i32, key: &[u8]) {
    with(|world| {
        world.looked_up(db, key, "SignalModifiedKey");
        world.signalled.note(db, key, || ());
    });
    if with(|world| world.settings.version.starts_with('8')) {
        expire(db, key);
    }
}

/// Publishes a keyspace event: other modules act, and the module is told.
pub fn notify(db: i32, class: i32, event: &str, key: &[u8]) {
    if class != class::NEW {
        with(|world| world.published.note(db, key, || ()));
    }
    let acts = with(|world| {
        let acts = world.settings.beside && !world.is_reacting;
        // Who changes a key in the very event in which it is created breaks the server's own commands, too.
        let may = |one: &Reaction| {
            let of_all = ["SWAPDB", "FLUSHDB", "FLUSHALL"].contains(&&*commands::name(&one.words));
            event != "new" || !(of_all || one.words.iter().any(|word| word == key))
        };
        let found = world
            .reactions
            .iter_mut()
            .filter(|_| acts)
            .find(|one| one.left > 0 && one.key == key && may(one));
        found.map(|one| {
            one.left -= 1;
            one.words.clone()
        })
    });
    if let Some(words) = acts {
        with(|world| {
            world.is_reacting = true;
            world.disturbances += 1;
            world.acted.push(words.clone());
        });
        let context = Context { db, flags: flag::DENY_BLOCKING, ..Context::default() };
        let index = with(|world| {
            world.contexts.push(context);
            world.contexts.len() - 1
        });
        let _ = call(index, words, None, "!");
        with(|world| {
            world.contexts.pop();
            world.is_reacting = false;
        });
    }
    let count = with(|world| world.subscriptions.len());
    for at in 0..count {
        let code = with(|world| {
            let one = world.subscriptions.get_mut(at)?;
            (one.classes & class != 0 && !one.is_running).then(|| {
                one.is_running = true;
                one.code
            })
        });
        let Some(code) = code else { continue };
        let name = with(|world| world.text(key));
        enter(Context { db, ..Context::default() }, |context| {
            boundary::run_keyspace(code, context, class, event, name);
        });
        with(|world| {
            world.free_text(name);
            if let Some(one) = world.subscriptions.get_mut(at) {
                one.is_running = false;
            }
        });
    }
}

fn fire(id: u64, sub: u64, numbers: [i32; 2]) {
    if let Some(code) = with(|world| world.events.get(&id).copied()) {
        enter(Context::default(), |context| boundary::run_event(code, context, id, sub, numbers));
    }
}

/// Runs one of the server's own commands; `by_hand` unless it is the module's.
fn run_own(db: i32, words: &Words, replicates: bool) -> Reply {
    let name = commands::name(words);
    for key in commands::keys(words) {
        if with(|world| world.commands_running <= 1) {
            with(|world| world.looked_up(db, key, &name));
        }
        expire(db, key);
        with(|world| {
            world.note(db, key);
            world.touched.note(db, key, || ());
            world.signalled.note(db, key, || ());
        });
    }
    // It looks up the key in the other database, too, and signals it there.
    if let ("MOVE", [_, key, to]) = (&*name, &words[..])
        && let Some(to) = commands::number(to)
    {
        expire(to as i32, key);
        with(|world| world.signalled.note(to as i32, key, || ()));
    }
    let flushed = match &*name {
        "FLUSHDB" => Some(db),
        "FLUSHALL" => Some(-1),
        _ => None,
    };
    if let Some(db) = flushed {
        fire(event::FLUSH, 0, [0, db]);
    }
    let applied = with(|world| {
        if flushed.is_some() || *name == *"SWAPDB" {
            for key in world.keys.iter().map(|(_, key, _)| key.clone()).collect::<Vec<_>>() {
                for db in 0..2 {
                    world.signalled.note(db, &key, || ());
                    world.published.note(db, &key, || ());
                }
            }
        }
        let now = world.time();
        let applied = commands::apply(&mut world.keys, db, words, now, true);
        world.effects.extend(applied.effect.clone().filter(|_| replicates).map(|effect| (db, effect)));
        applied
    });
    if let Some(db) = flushed {
        fire(event::FLUSH, 1, [0, db]);
    }
    if *name == *"SWAPDB" {
        let number = |at: usize| String::from_utf8_lossy(&words[at]).parse().unwrap_or(0);
        fire(event::SWAP, 0, [number(1), number(2)]);
    }
    for (db, class, event, key) in applied.events {
        notify(db, class, event, &key);
    }
    applied.reply
}

/// Counts the reply of a command of the module.
fn replied(words: &Words, context: &Context) -> Option<Reply> {
    let reply = reply_of(&context.tokens)?;
    let is_error = matches!(reply, Reply::Error(_));
    let is_counted = match &reply {
        Reply::Error(text) => !text.starts_with("ERR wrong number of arguments"),
        Reply::Simple(_) => false,
        _ => true,
    };
    if is_counted {
        with(|world| {
            let [all, errors] = world.replied.entry(commands::name(words)).or_default();
            (*all, *errors) = (*all + 1, *errors + u64::from(is_error));
        });
    }
    Some(reply)
}

/// Runs a command of the module with these words, of which `key` may be a string that exists.
fn run_module(code: Code, context: Context, key: Option<usize>) -> Context {
    let words = Rc::clone(&context.words);
    let texts: Vec<usize> = with(|world| {
        let mut texts: Vec<usize> = words.iter().map(|word| world.text(word)).collect();
        if let Some(key) = key
            && texts.len() > 1
            && let Some(text) = world.texts.get_mut(key)
        {
            text.holders += 1;
            world.free_text(texts[1]);
            texts[1] = key;
        }
        texts
    });
    let context = enter(context, |context| boundary::run_call(code, context, &texts));
    with(|world| texts.iter().for_each(|text| world.free_text(*text)));
    context
}

/// The keys of a call, as the server finds them before it checks permissions.
fn keys_of(words: &Words) -> Vec<Bytes> {
    let Some(command) = with(|world| world.commands.get(commands::name(words).as_bytes()).copied()) else {
        return commands::keys(words).to_vec();
    };
    if !command.finds_keys {
        return words.get(1).filter(|_| command.has_keys).cloned().into_iter().collect();
    }
    let context = Context { words: Rc::new(words.clone()), positions: Some(vec![]), ..Context::default() };
    let found = run_module(command.code, context, None).positions.unwrap_or_default();
    let keys: Vec<Bytes> = found.iter().filter_map(|at| words.get(*at).cloned()).collect();
    if let Some(call) = Call::parse(words) {
        let mut own: Vec<Bytes> = call.keys().map(Into::into).chain(call.once.clone()).collect();
        let mut found = keys.clone();
        own.sort_unstable();
        found.sort_unstable();
        if own != found {
            let (line, found) = (crate::history::line(words), crate::history::line(&found));
            with(|world| world.violates("contract", format!("the keys of {line} are said to be {found}")));
        }
    }
    keys
}

/// Whether a user may run the call with these words.
pub fn permits(user: usize, words: &[usize]) -> bool {
    if with(|world| world.denied.is_empty()) {
        return true;
    }
    let words: Words = with(|world| words.iter().map(|word| world.bytes(*word).to_vec()).collect());
    let Some(user) = with(|world| world.users.get(user).cloned()) else { return false };
    let keys = keys_of(&words);
    with(|world| world.forbids(&user, &keys)).is_none()
}

/// A report on the cluster, of two nodes.
fn cluster(world: &World, what: &[u8]) -> Option<Reply> {
    let text = |text: &str| Reply::Text(text.into());
    let range = |first: u16, last: u16, port: i64, id: &str| {
        let node = Reply::Array(vec![text(OTHER_HOST), Reply::Int(port), text(id), Reply::Array(vec![])]);
        Reply::Array(vec![Reply::Int(first.into()), Reply::Int(last.into()), node])
    };
    Some(match what {
        b"MYID" => text("this"),
        b"INFO" => text("cluster_state:ok\r\n"),
        b"NODES" => text(&format!(
            "this 127.0.0.1:7000@17000 myself,master - 0 0 {} connected 0-16383\n",
            world.epoch
        )),
        _ => {
            let (mut ranges, mut next) = (vec![], 0);
            for &slot in &world.left {
                if slot > next {
                    ranges.push(range(next, slot - 1, 7000, "this"));
                }
                ranges.push(range(slot, slot, OTHER_PORT, "other"));
                next = slot + 1;
            }
            if next < 16_384 {
                ranges.push(range(next, 16_383, 7000, "this"));
            }
            Reply::Array(ranges)
        }
    })
}

/// `RM_Call`: the reply, or an error number.
pub fn call(context: usize, words: Words, key: Option<usize>, flags: &str) -> Result<Option<Reply>, i32> {
    let (db, client) = with(|world| (world.context(context).db, world.context(context).client));
    let name = commands::name(&words);
    if *name == *"CLUSTER" && with(|world| world.in_cluster()) {
        return Ok(with(|world| cluster(world, &words[1])));
    }
    if *name == *"MODULE" {
        let others = usize::from(with(|world| world.settings.beside));
        return Ok(Some(Reply::Array(vec![Reply::Null; others])));
    }
    let has_dry_runs = with(|world| world.settings.version.as_str() >= "7.2");
    if flags.contains('D') && !has_dry_runs {
        return Err(libc::EBADF);
    }
    let command = with(|world| world.commands.get(name.as_bytes()).copied());
    if command.is_none() && commands::writes(&name).is_none() {
        return Err(libc::ENOENT);
    }
    if words.len() == 1 {
        let wrong = Reply::Error(format!("ERR wrong number of arguments for '{name}' command"));
        return if flags.contains('D') { Ok(Some(wrong)) } else { Err(libc::EINVAL) };
    }
    if words
        .get(1)
        .is_some_and(|key| with(|world| world.moved.contains(key) || world.redirection(key).is_some()))
    {
        // With the flag E there is a reply besides.
        boundary::set_errno(libc::EPERM);
        return if flags.contains('E') || flags.contains('D') {
            Ok(Some(Reply::Error("ERR Attempted to access a non local key in a cluster node".into())))
        } else {
            Err(libc::EPERM)
        };
    }
    let words = Rc::new(words);
    with(begin_command);
    let reply = unit(|| {
        let Some(command) = command else { return Some(run_own(db, &words, flags.contains('!'))) };
        if flags.contains('M') && command.denies_oom && with(|world| world.is_out_of_memory()) {
            return Some(Reply::Error("OOM command not allowed when used memory > 'maxmemory'.".into()));
        }
        if flags.contains('D') {
            return None;
        }
        let client = if with(|world| world.is_reacting) { 0 } else { client };
        let context = Context {
            db,
            client,
            flags: flag::DENY_BLOCKING,
            words: Rc::clone(&words),
            ..Context::default()
        };
        let context = run_module(command.code, context, key);
        let reply = replied(&words, &context);
        if reply.is_none() {
            with(|world| {
                world.violates("contract", format!("{name} has not replied once: {:?}", context.tokens))
            });
        }
        reply
    });
    with(|world| world.commands_running -= 1);
    Ok(reply)
}

fn begin_command(world: &mut World) {
    if world.commands_running == 0 {
        world.snapshot = clock::read(true).div_euclid(MILLI);
    }
    world.commands_running += 1;
}

/// Runs a call of a client, and answers it unless it waits.
fn execute(id: u64, words: &Rc<Words>, flags: u32) -> Option<Reply> {
    let name = commands::name(words);
    let (db, user) = with(|world| {
        world.clients.get(&id).map(|client| (client.db, client.user.clone())).unwrap_or_default()
    });
    let own = match &*name {
        "SELECT" => {
            let db = words.get(1).and_then(|word| String::from_utf8_lossy(word).parse().ok()).unwrap_or(0);
            with(|world| world.clients.entry(id).or_default().db = db);
            Some(Reply::Simple("OK".into()))
        }
        "CLIENT" => Some(client_command(words)),
        "INFO" => {
            let lines: String = info().iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
            Some(Reply::Text(lines.into()))
        }
        _ => None,
    };
    if own.is_some() {
        return own;
    }
    let command = with(|world| world.commands.get(name.as_bytes()).copied());
    let writes = command.map_or_else(|| commands::writes(&name), |command| Some(command.writes));
    let Some(writes) = writes else { return Some(Reply::Error(format!("ERR unknown command '{name}'"))) };
    let asks = with(|world| !world.denied.is_empty() || !world.moved.is_empty());
    let keys = if asks { keys_of(words) } else { vec![] };
    let error = with(|world| {
        let key = words.get(1);
        if let Some(error) = world.forbids(&user, &keys) {
            Some(error)
        } else if key.is_some_and(|key| world.moved.contains(key)) {
            Some("MOVED 1 127.0.0.1:7001")
        } else if keys.iter().any(|key| world.moved.contains(key)) {
            Some("TRYAGAIN Multiple keys request during rehashing of slot")
        } else if let Some(error) = key.and_then(|key| world.redirection(key)) {
            return Some(error);
        } else if writes && world.is_replica {
            Some("READONLY You can't write against a read only replica.")
        } else if world.is_out_of_memory() && command.is_some_and(|command| command.denies_oom) {
            Some("OOM command not allowed when used memory > 'maxmemory'.")
        } else {
            None
        }
        .map(str::to_owned)
    });
    if let Some(error) = error {
        return Some(Reply::Error(error));
    }
    with(begin_command);
    let reply = match command {
        None => Some(unit(|| run_own(db, words, true))),
        Some(command) => {
            let context = Context { db, client: id, flags, words: Rc::clone(words), ..Context::default() };
            let context = run_module(command.code, context, None);
            match context.has_blocked {
                Some(blocked) => {
                    with(|world| {
                        if !context.tokens.is_empty() {
                            world.violates("contract", "a client that waits has been replied to");
                        }
                        let client = world.clients.entry(id).or_default();
                        client.blocked = Some(blocked);
                        client.since = clock::monotonic();
                        world.turned.insert(id);
                    });
                    None
                }
                None => {
                    let reply = replied(words, &context);
                    if reply.is_none() {
                        let tokens = &context.tokens;
                        with(|world| {
                            world.violates("contract", format!("{name} has not replied once: {tokens:?}"))
                        });
                    }
                    reply.or(Some(Reply::Null))
                }
            }
        }
    };
    with(|world| world.commands_running -= 1);
    reply
}

/// The commands of clients that concern other clients.
fn client_command(words: &Words) -> Reply {
    let word = |at: usize| {
        words.get(at).map(|word| String::from_utf8_lossy(word).to_uppercase()).unwrap_or_default()
    };
    let id = word(2).parse().unwrap_or(0);
    match word(1).as_str() {
        "UNBLOCK" => {
            let blocked = with(|world| world.clients.get(&id).and_then(|client| client.blocked));
            let Some(blocked) = blocked else { return Reply::Int(0) };
            if with(|world| world.blocked.get(blocked).is_none_or(|blocked| blocked.is_unblocked)) {
                return Reply::Int(0);
            }
            end_block(blocked, if word(3) == "ERROR" { Ended::Error } else { Ended::Timeout });
            Reply::Int(1)
        }
        "KILL" => {
            close(id);
            Reply::Int(1)
        }
        _ => Reply::Error("ERR unknown subcommand".into()),
    }
}

/// How the server ends a wait.
#[derive(Clone, Copy, PartialEq)]
enum Ended {
    Timeout,
    Error,
    Closed,
    Demoted,
}

/// Ends the wait of a client by the server.
fn end_block(handle: usize, by: Ended) {
    let Some(blocked) = with(|world| world.blocked.get(handle).cloned()) else { return };
    let Some(id) = blocked.client else { return };
    let context = Context {
        db: blocked.db,
        client: id,
        words: Rc::clone(&blocked.words),
        blocked: handle,
        private: blocked.private,
        ..Context::default()
    };
    let mut reply = match by {
        Ended::Error => Some(Reply::Error("UNBLOCKED client unblocked via CLIENT UNBLOCK".into())),
        Ended::Demoted => Some(Reply::Error(
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
                .into(),
        )),
        _ => None,
    };
    if by == Ended::Timeout {
        let context = run_module(blocked.timeout, context, None);
        reply = replied(&blocked.words, &context);
        if reply.is_none() {
            with(|world| world.violates("contract", "the callback of a timeout has not replied once"));
        }
    } else if let Some(code) = blocked.disconnect {
        enter(context, |context| boundary::run_with(code, context, handle));
    }
    with(|world| {
        if let Some(blocked) = world.blocked.get_mut(handle) {
            blocked.client = None;
        }
    });
    if by != Ended::Closed {
        answer_blocked(id, &blocked.words, blocked.db, reply.unwrap_or(Reply::Null));
    }
    if by == Ended::Demoted {
        with(|world| world.clients.remove(&id)); // the server closes the connection behind the error
    }
}

/// A blocked client gets its reply, and goes on with what it has sent meanwhile.
fn answer_blocked(id: u64, words: &Rc<Words>, db: i32, reply: Reply) {
    with(|world| {
        let Some(client) = world.clients.get_mut(&id) else { return };
        client.blocked = None;
        world.turned.insert(id);
        let waited = Some(client.since);
        world.answers.push(Answer {
            client: id,
            words: Rc::clone(words),
            db,
            reply,
            waited,
            at: clock::monotonic(),
        });
    });
}

/// Runs calls that a client has sent while it was blocked.
fn run_pending(id: u64) {
    loop {
        let next = with(|world| {
            let is_paused = clock::wall() / MILLI < world.paused_until;
            let client =
                world.clients.get_mut(&id).filter(|client| client.blocked.is_none() && !is_paused)?;
            client.pending.pop_front()
        });
        let Some(words) = next else { return };
        client_call(id, words);
    }
}

fn close(id: u64) {
    if let Some(blocked) = with(|world| world.clients.get(&id).and_then(|client| client.blocked)) {
        end_block(blocked, Ended::Closed);
    }
    with(|world| {
        world.clients.remove(&id);
        world.turned.insert(id);
    });
}

/// The module's section of INFO.
pub fn info() -> Vec<(String, String)> {
    if let Some(code) = with(|world| world.info) {
        enter(Context::default(), |_| boundary::run_info(code));
    }
    with(|world| std::mem::take(&mut world.fields))
}

/// A client sends a call.
pub fn client_call(id: u64, words: Rc<Words>) {
    let name = commands::name(&words);
    let is_paused = with(|world| clock::wall() / MILLI < world.paused_until);
    let waits = with(|world| {
        let client = world
            .clients
            .entry(id)
            .or_insert_with(|| Client { user: b"default".into(), ..Client::default() });
        let waits = client.blocked.is_some()
            || (is_paused && !["CLIENT", "INFO", "CL.PEEK", "CL.MPEEK"].contains(&&*name));
        if waits {
            client.pending.push_back(Rc::clone(&words));
            world.behind.insert(id);
        }
        waits
    });
    if waits {
        return;
    }
    let queued = with(|world| world.clients.get_mut(&id).and_then(|client| client.queued.take()));
    let reply = match (&*name, queued) {
        ("MULTI", _) => {
            with(|world| world.clients.entry(id).or_default().queued = Some(vec![]));
            Some(Reply::Simple("OK".into()))
        }
        ("EXEC", Some(calls)) => {
            with(begin_command);
            let replies = unit(|| {
                let run = |words: &Rc<Words>| {
                    let reply = execute(id, words, flag::MULTI | flag::DENY_BLOCKING).unwrap_or(Reply::Null);
                    let db = with(|world| world.clients.get(&id).map_or(0, |client| client.db));
                    let answer = Answer {
                        client: id,
                        words: Rc::clone(words),
                        db,
                        reply: reply.clone(),
                        waited: None,
                        at: clock::monotonic(),
                    };
                    with(|world| world.answers.push(answer));
                    reply
                };
                calls.iter().map(run).collect()
            });
            with(|world| world.commands_running -= 1);
            Some(Reply::Array(replies))
        }
        (_, Some(mut calls)) => {
            calls.push(Rc::clone(&words));
            with(|world| world.clients.entry(id).or_default().queued = Some(calls));
            Some(Reply::Simple("QUEUED".into()))
        }
        ("LUA", None) => execute(id, &Rc::new(words[1..].to_vec()), flag::LUA | flag::DENY_BLOCKING),
        _ => execute(id, &words, 0),
    };
    let words = if *name == *"LUA" { Rc::new(words[1..].to_vec()) } else { words };
    if let Some(reply) = reply {
        with(|world| {
            let db = world.clients.get(&id).map_or(0, |client| client.db);
            world.answers.push(Answer { client: id, words, db, reply, waited: None, at: clock::monotonic() });
        });
    }
}

/// Replies to clients that the module has unblocked.
fn handle_unblocked() {
    while let Some(handle) = with(|world| world.unblocked.pop_front()) {
        let Some(blocked) = with(|world| world.blocked.get(handle).cloned()) else { continue };
        if let Some(id) = blocked.client {
            let context = Context {
                db: blocked.db,
                client: id,
                words: Rc::clone(&blocked.words),
                private: blocked.private,
                blocked: handle,
                ..Context::default()
            };
            let context = run_module(blocked.reply, context, None);
            match replied(&blocked.words, &context) {
                Some(reply) => answer_blocked(id, &blocked.words, blocked.db, reply),
                None => {
                    with(|world| world.violates("contract", "the callback of a wait has not replied once"));
                    answer_blocked(id, &blocked.words, blocked.db, Reply::Null);
                }
            }
        }
        if blocked.private != 0 {
            let code = blocked.free;
            enter(Context::default(), |context| boundary::run_with(code, context, blocked.private));
        }
        with(|world| world.blocked.remove(handle));
        if let Some(id) = blocked.client {
            run_pending(id);
        }
    }
}

/// One turn of the server's loop.
pub fn turn() {
    handle_unblocked();
    let now = clock::read(true).div_euclid(1_000);
    let last = with(|world| world.timer_count);
    loop {
        let timer = with(|world| {
            let (&(at, id), _) = world.timers.first_key_value()?;
            // Timers that are set meanwhile wait for the next turn, or for later.
            world.firing = (at <= now && id <= last).then_some(at);
            world.firing.and_then(|at| world.timers.remove(&(at, id)))
        });
        let Some((code, data)) = timer else { break };
        enter(Context::default(), |context| boundary::run_with(code, context, data));
    }
    with(|world| world.firing = None);
    if with(|world| clock::monotonic() >= world.cron) {
        with(|world| world.cron = clock::monotonic() + world.cron_every);
        cron();
    }
    handle_unblocked();
    if with(|world| clock::wall() / MILLI >= world.paused_until) {
        let waiting: Vec<u64> = with(|world| {
            let World { behind, clients, .. } = world;
            behind.retain(|id| clients.get(id).is_some_and(|one| !one.pending.is_empty()));
            behind.iter().copied().filter(|id| clients[id].blocked.is_none()).collect()
        });
        waiting.into_iter().for_each(run_pending);
    }
}

fn cron() {
    with(|world| {
        if std::mem::take(&mut world.awaits_cron) {
            world.timed_since = clock::monotonic();
        }
    });
    if with(|world| world.settings.active && !world.is_replica && clock::wall() / MILLI >= world.paused_until)
    {
        let gone: Vec<(i32, Bytes)> = with(|world| {
            let now = world.time();
            let passed = world.keys.iter().filter(|(_, _, entry)| entry.expiry.is_some_and(|at| now > at));
            passed.map(|(db, key, _)| (db, key.clone())).collect()
        });
        for (db, key) in gone {
            unit(|| expire(db, &key));
        }
    }
    fire(event::CRON, 0, [10, 0]);
}

/// Lets time pass while the server works.
fn pass(nanos: i64) {
    let start = clock::monotonic();
    let end = start + nanos;
    let mut turns = 0;
    // A cron that runs ten times a second would take too long for days.
    with(|world| world.cron_every = (nanos / 64).max(100 * MILLI));
    loop {
        let (timer, cron, pause) = with(|world| {
            let timer = world.timers.first_key_value().map(|((at, _), _)| at * 1_000 - clock::wall());
            let pause = Some(world.paused_until * MILLI - clock::wall()).filter(|left| *left > 0);
            (timer, world.cron - clock::monotonic(), pause)
        });
        let next = timer.into_iter().chain(pause).chain([cron]).min().unwrap_or(cron).max(1_000);
        let left = end - clock::monotonic();
        if next > left {
            clock::pass(left.max(0));
            turn();
            return;
        }
        clock::pass(next);
        turn();
        turns += 1;
        if turns > 200_000 {
            // A client may look again every few milliseconds for days, of which these turns are enough.
            if clock::monotonic() - start < turns * MILLI / 2 {
                with(|world| world.violates("progress", "the loop turns and no time passes"));
            }
            return;
        }
    }
}

/// Lets a step of a history happen.
pub fn step(step: &Step) {
    match step {
        Step::Call(client, words) => client_call(*client, Rc::clone(words)),
        Step::Close(client) => close(*client),
        Step::Pass(nanos) => pass(*nanos),
        Step::Hang(nanos) => clock::pass(*nanos),
        Step::Set(by) => {
            clock::step(*by);
            with(|world| world.awaits_cron |= *by < 0);
        }
        Step::SetWithin(readings, by) => clock::step_within(*readings, *by),
        Step::Reacts(times, key, words) => with(|world| {
            world.reactions.push(Reaction { key: key.clone(), words: words.clone(), left: *times });
        }),
        Step::User(client, name) => with(|world| {
            world.clients.entry(*client).or_default().user = name.clone();
        }),
        Step::Denied(yes, name, key) => {
            with(|world| put(&mut world.denied, (name.clone(), key.clone()), *yes));
        }
        Step::Moved(yes, key) => with(|world| put(&mut world.moved, key.clone(), *yes)),
        Step::Left(yes, key) => with(|world| {
            let slot = slot_of(key);
            put(&mut world.left, slot, *yes);
            if !*yes {
                // The module looks for that less often than it serves clients.
                world.epoch += 1;
                world.timed_since = world.timed_since.max(clock::monotonic() + 1_000 * MILLI);
            }
            // The other node has the keys now, and both servers here trim them.
            world.keys.retain(|key| slot_of(key) != slot || !*yes);
            world.image.iter_mut().for_each(|image| image.retain(|key| slot_of(key) != slot || !*yes));
        }),
        Step::Evict(key) => unit(|| evict(0, key)),
        Step::Replica(what) => replica(what),
        Step::Role(replica) => role(*replica),
        Step::Pause(nanos) => with(|world| world.paused_until = (clock::wall() + nanos) / MILLI),
        Step::Full(full) => with(|world| world.is_full = *full),
        Step::Busy(times) => with(|world| world.busy = *times),
    }
}

fn put<T: Ord>(set: &mut BTreeSet<T>, thing: T, yes: bool) {
    if yes {
        set.insert(thing);
    } else {
        set.remove(&thing);
    }
}

/// Deletes a key because memory is scarce.
fn evict(db: i32, key: &[u8]) {
    let gone = with(|world| {
        if world.is_replica || world.keys.remove(db, key).is_none() {
            return false;
        }
        world.effects.push((db, vec![b"DEL".into(), key.into()]));
        world.touched.note(db, key, || ());
        true
    });
    if gone {
        notify(db, class::EVICTED, "evicted", key);
    }
}

/// The events of the server's replica.
fn replica(what: &str) {
    match what {
        "comes" => {
            fire(event::FORK, 0, [0, 0]);
            with(|world| {
                world.image = Some(world.keys.clone());
                world.has_backlog = true;
                world.replicas = 1;
            });
            fire(event::REPLICA_CHANGE, 0, [0, 0]);
            fire(event::FORK, 1, [0, 0]);
        }
        "goes" if with(|world| world.replicas) > 0 => {
            with(|world| world.replicas = 0);
            fire(event::REPLICA_CHANGE, 1, [0, 0]);
        }
        // It is sent what it has missed, which is in the backlog.
        "returns" if with(|world| world.has_backlog && world.replicas == 0) => {
            with(|world| world.replicas = 1);
            fire(event::REPLICA_CHANGE, 0, [0, 0]);
        }
        "ends" => with(|world| {
            if world.replicas == 0 && !world.has_aof {
                world.has_backlog = false;
                world.image = None;
            }
        }),
        _ => {}
    }
}

/// The server becomes a replica, which ends all waits, or a primary.
fn role(replica: bool) {
    if with(|world| std::mem::replace(&mut world.is_replica, replica)) == replica {
        return;
    }
    // Valkey in a cluster leaves blocked clients alone.
    if replica && !with(|world| world.is_valkey() && world.in_cluster()) {
        let waiting: BTreeSet<usize> =
            with(|world| world.clients.values().filter_map(|client| client.blocked).collect());
        for blocked in waiting {
            if with(|world| world.blocked.get(blocked).is_some_and(|blocked| !blocked.is_unblocked)) {
                end_block(blocked, Ended::Demoted);
            }
        }
    } else {
        // What it sends from here on may be asked for by the former primary.
        with(|world| {
            world.has_backlog = true;
            world.image = Some(world.keys.clone());
        });
    }
    fire(event::ROLE_CHANGED, u64::from(replica), [0, 0]);
}

/// Loads the module. False if it refuses.
pub fn load(module: &boundary::Module) -> bool {
    let mut loaded = false;
    enter(Context::default(), |context| loaded = module.load(context));
    loaded
}

/// Unloads the module, when no client waits.
pub fn unload(module: &boundary::Module) {
    enter(Context::default(), |context| module.unload(context));
}
