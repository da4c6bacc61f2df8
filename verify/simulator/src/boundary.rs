//! The border to the module: the only file of the simulator with `unsafe`.
//!
//! The module is the file that ships, loaded by `dlopen`. It is handed functions by name, as a server hands
//! them out, and it reads the clocks through libc's symbols, which this file defines for the whole process.
//! Pointers to keys, strings, replies and blocked clients are numbers, which the module only hands back.
//!
//! Functions of C with a variable number of arguments are defined here with as many arguments as the module
//! passes at most. On the 64-bit platforms of Linux these come in the same places; those that are not passed
//! are garbage, and are not looked at.

#![allow(unsafe_code)] // the rest of the simulator denies it

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{RefCell, UnsafeCell};
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_longlong, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::{ptr, slice};

use crate::clock;
use crate::keyspace::Bytes;
use crate::server;
use crate::world::{Blocked, Code, Command, Reply, Subscription, Token, World, with};

/// A context: the module finds `GetApi` in it, and else only hands it back.
#[repr(C)]
struct Ctx {
    get_api: unsafe extern "C" fn(*const c_char, *mut *const c_void) -> c_int,
    index: usize,
}

type C = *mut Ctx;
type Text = *const c_char;

/// An event of the server, as C passes it.
#[repr(C)]
struct Event {
    id: u64,
    version: u64,
}

thread_local! {
    /// The contexts by their depth.
    static CONTEXTS: RefCell<Vec<C>> = const { RefCell::new(Vec::new()) };
}

/// How many calls of the module API there were.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// How many allocations there were, and how many are left.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);
static TRACES: AtomicBool = AtomicBool::new(false);

/// Calls of the module API and allocations so far: the module's steps.
pub fn steps() -> u64 {
    CALLS.load(Relaxed) + ALLOCATIONS.load(Relaxed)
}

/// Allocations of the module that are not freed.
pub fn memory() -> i64 {
    LIVE.load(Relaxed)
}

/// Prints each call of the module API from now on.
pub fn trace() {
    TRACES.store(true, Relaxed);
}

/// Counts one more: there is one thread, which needs no instruction that locks.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

fn called(name: &str) {
    clock::tick();
    count(&CALLS);
    if TRACES.load(Relaxed) {
        eprintln!("        {name}");
    }
}

fn pointer(index: usize) -> C {
    CONTEXTS.with_borrow_mut(|contexts| {
        while contexts.len() <= index {
            let index = contexts.len();
            contexts.push(Box::into_raw(Box::new(Ctx { get_api, index })));
        }
        contexts[index]
    })
}

fn index(ctx: C) -> usize {
    // SAFETY: null, or a context of `pointer`, which is never freed.
    unsafe { ctx.as_ref() }.map_or(0, |ctx| ctx.index)
}

/// # Safety
/// `text` is null or a C string.
unsafe fn string(text: Text) -> String {
    if text.is_null() {
        String::new()
    } else {
        // SAFETY: the caller vouches for it.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("no UTF-8").to_owned()
    }
}

unsafe extern "C" fn get_api(name: Text, place: *mut *const c_void) -> c_int {
    // SAFETY: the module passes a C string and a place for a pointer.
    let name = unsafe { string(name) };
    let known = name
        .strip_prefix("RedisModule_")
        .or_else(|| name.strip_prefix("ValkeyModule_").filter(|_| with(|world| world.is_valkey())))
        .filter(|name| with(|world| is_there(world, name)));
    let Some(function) = known.and_then(function) else { return 1 };
    // SAFETY: as above.
    unsafe { *place = function };
    0
}

/// Whether the server has a function.
fn is_there(world: &World, name: &str) -> bool {
    let since = match name {
        "GetKeyspaceNotificationFlagsAll" => (6, 2, 0),
        "SetAbsExpire" | "GetAbsExpire" => (6, 2, 8),
        "GetCommand"
        | "SetCommandInfo"
        | "IsSubEventSupported"
        | "KeyAtPosWithFlags"
        | "RegisterNumericConfig"
        | "RegisterBoolConfig"
        | "LoadConfigs"
        | "GetClientUserNameById"
        | "GetModuleUserFromUserName"
        | "FreeModuleUser"
        | "ACLCheckCommandPermissions" => (7, 0, 0),
        "SetCommandACLCategories" => (7, 2, 0),
        "AddACLCategory" => (7, 4, 0),
        "UnsubscribeFromKeyspaceEvents" => (8, 2, 0),
        "ACLCheckPermissions" | "GetModuleOptionsAll" => return world.is_valkey(),
        _ => return true,
    };
    // Valkey began as Redis 7.2.4, and has gone its own way since.
    let version = if world.is_valkey() { "7.4.0" } else { &world.settings.version };
    let number = |part: usize| version.split('.').nth(part).and_then(|part| part.parse().ok()).unwrap_or(0);
    (number(0), number(1), number(2)) >= since
}

macro_rules! functions {
    ($($name:literal = fn $function:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(#[allow(
            clippy::undocumented_unsafe_blocks,
            reason = "of all: the module passes texts, arrays and places as the server's documentation asks for"
        )]
        unsafe extern "C" fn $function($($arg: $type),*) $(-> $result)? {
            called($name);
            $body
        })*

        fn function(name: &str) -> Option<*const c_void> {
            Some(match name {
                $($name => $function as *const c_void,)*
                _ => return memory_function(name),
            })
        }
    };
}

fn memory_function(name: &str) -> Option<*const c_void> {
    Some(match name {
        "Alloc" => alloc as *const c_void,
        "Free" => free as *const c_void,
        _ => return None,
    })
}

/// The bytes before each allocation of the module, which hold its size.
const HEAD: usize = 16;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size + HEAD, 16).unwrap_or(Layout::new::<u128>())
}

unsafe extern "C" fn alloc(size: usize) -> *mut c_void {
    count(&ALLOCATIONS);
    LIVE.store(LIVE.load(Relaxed) + 1, Relaxed);
    // SAFETY: the size is not 0, and the size stands where there is room for it.
    unsafe {
        let memory = Memory.alloc(layout(size));
        memory.cast::<usize>().write(size);
        memory.add(HEAD).cast()
    }
}

unsafe extern "C" fn free(memory: *mut c_void) {
    if !memory.is_null() {
        LIVE.store(LIVE.load(Relaxed) - 1, Relaxed);
        // SAFETY: the module got it from `alloc`, which has written the size before it, and frees it once.
        unsafe {
            let memory = memory.cast::<u8>().sub(HEAD);
            Memory.dealloc(memory, layout(memory.cast::<usize>().read()));
        }
    }
}

/// The memory of the process, which has one thread: a third of a history's time went to malloc. What is freed
/// is used again for the same size, and never goes back.
pub struct Memory;

/// Sizes up to this many times 16 bytes are kept by size; larger ones are malloc's.
const SIZES: usize = 128;

/// What is free of each size, and what was never used.
struct Free {
    of_size: [*mut u8; SIZES + 1],
    next: *mut u8,
    left: usize,
}

struct OneThread(UnsafeCell<Free>);

// SAFETY: only the process of `simulate` uses it, and has one thread.
unsafe impl Sync for OneThread {}

static FREE: OneThread = OneThread(UnsafeCell::new(Free {
    of_size: [ptr::null_mut(); SIZES + 1],
    next: ptr::null_mut(),
    left: 0,
}));

/// The number of the size of a layout; `None` if malloc has it.
fn size_of(layout: Layout) -> Option<usize> {
    let size = layout.size().div_ceil(16);
    (size <= SIZES && layout.align() <= 16).then_some(size)
}

// SAFETY: places are as large as their size says, aligned to 16, and handed out once until they are freed.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller vouches for the layout; a free place begins with a pointer to the next one.
        unsafe {
            let Some(size) = size_of(layout) else { return System.alloc(layout) };
            let free = &mut *FREE.0.get();
            let place = free.of_size[size];
            if !place.is_null() {
                free.of_size[size] = place.cast::<*mut u8>().read();
                return place;
            }
            if free.left < size * 16 {
                free.left = 1 << 20;
                free.next = System.alloc(Layout::from_size_align_unchecked(free.left, 16));
            }
            let place = free.next;
            free.next = place.add(size * 16);
            free.left -= size * 16;
            place
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the place is from `alloc` with this layout.
        unsafe {
            let Some(size) = size_of(layout) else { return System.dealloc(place, layout) };
            let free = &mut *FREE.0.get();
            place.cast::<*mut u8>().write(free.of_size[size]);
            free.of_size[size] = place;
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller vouches for the new size.
        unsafe {
            let new = Layout::from_size_align_unchecked(size, layout.align());
            match (size_of(layout), size_of(new)) {
                (None, None) => System.realloc(place, layout, size),
                (old, new) if old == new => place,
                _ => {
                    let moved = self.alloc(new);
                    ptr::copy_nonoverlapping(place, moved, size.min(layout.size()));
                    self.dealloc(place, layout);
                    moved
                }
            }
        }
    }
}

fn item(ctx: C, item: Reply) -> c_int {
    with(|world| world.context(index(ctx)).tokens.push(Token::Item(item)));
    0
}

fn fail(errno: c_int) {
    // SAFETY: the place is this thread's.
    unsafe { *libc::__errno_location() = errno };
}

functions! {
    "IsModuleNameBusy" = fn is_module_name_busy(_name: Text) -> c_int { 0 }
    "SetModuleAttribs" = fn set_module_attribs(_ctx: C, _name: Text, _version: c_int, _api: c_int) {}
    "CreateCommand" = fn create_command(_ctx: C, name: Text, code: usize, flags: Text, first: c_int, _last: c_int, _step: c_int) -> c_int {
        let (name, flags) = unsafe { (string(name), string(flags)) };
        let has = |flag| flags.split(' ').any(|one| one == flag);
        let command = Command { code: Code(code), writes: has("write"), denies_oom: has("deny-oom"), finds_keys: has("getkeys-api"), has_keys: first > 0 };
        with(|world| world.commands.insert(name.to_uppercase().into(), command));
        0
    }
    "IsKeysPositionRequest" = fn is_keys_position_request(ctx: C) -> c_int {
        with(|world| c_int::from(world.context(index(ctx)).positions.is_some()))
    }
    "KeyAtPos" = fn key_at_pos(ctx: C, at: c_int) { with(|world| world.context(index(ctx)).positions.as_mut().map(|all| all.push(at as usize))); }
    "KeyAtPosWithFlags" = fn key_at_pos_with_flags(ctx: C, at: c_int, _flags: c_int) {
        with(|world| world.context(index(ctx)).positions.as_mut().map(|all| all.push(at as usize)));
    }
    "SetModuleOptions" = fn set_module_options(_ctx: C, _options: c_int) {}
    "Log" = fn log(_ctx: C, level: Text, _format: Text, line: Text) {
        let (level, line) = unsafe { (string(level), string(line)) };
        with(|world| world.log.push(format!("{level}: {line}")));
    }
    "StringPtrLen" = fn string_ptr_len(text: usize, len: *mut usize) -> Text {
        let (start, length) = with(|world| match world.texts.get(text) {
            Some(text) => (text.bytes.as_ptr(), text.bytes.len()),
            None => {
                world.violates("handles", "StringPtrLen: the string was freed");
                (c"".as_ptr().cast(), 0)
            }
        });
        if !len.is_null() {
            unsafe { *len = length };
        }
        start.cast()
    }
    "WrongArity" = fn wrong_arity(ctx: C) -> c_int {
        let name = with(|world| world.context(index(ctx)).words.first().cloned().unwrap_or_default());
        let name = String::from_utf8_lossy(&name).to_lowercase();
        item(ctx, Reply::Error(format!("ERR wrong number of arguments for '{name}' command")))
    }
    "ReplyWithArray" = fn reply_with_array(ctx: C, len: c_long) -> c_int {
        with(|world| world.context(index(ctx)).tokens.push(Token::Array(len as usize)));
        0
    }
    "ReplyWithLongLong" = fn reply_with_long_long(ctx: C, number: c_longlong) -> c_int { item(ctx, Reply::Int(number)) }
    "ReplyWithNullArray" = fn reply_with_null_array(ctx: C) -> c_int { item(ctx, Reply::Null) }
    "ReplyWithSimpleString" = fn reply_with_simple_string(ctx: C, text: Text) -> c_int {
        item(ctx, Reply::Simple(unsafe { string(text) }))
    }
    "ReplyWithStringBuffer" = fn reply_with_string_buffer(ctx: C, start: *const u8, len: usize) -> c_int {
        item(ctx, Reply::Text(unsafe { slice::from_raw_parts(start, len) }.to_vec()))
    }
    "ReplyWithError" = fn reply_with_error(ctx: C, text: Text) -> c_int {
        item(ctx, Reply::Error(unsafe { string(text) }))
    }
    "OpenKey" = fn open_key(ctx: C, name: usize, mode: c_int) -> usize {
        let (db, name) = with(|world| (world.context(index(ctx)).db, world.bytes(name)));
        server::open(db, &name, mode & 2 != 0)
    }
    "CloseKey" = fn close_key(key: usize) { with(|world| world.close(key)); }
    "KeyType" = fn key_type(key: usize) -> c_int { with(|world| world.key_type(key)) }
    "DeleteKey" = fn delete_key(key: usize) -> c_int { with(|world| world.delete(key)); 0 }
    "UnlinkKey" = fn unlink_key(key: usize) -> c_int { with(|world| world.delete(key)); 0 }
    "GetExpire" = fn get_expire(key: usize) -> c_longlong {
        with(|world| match world.expiry(key) {
            -1 => -1,
            at => (at - world.time().max(clock::wall() / 1_000_000)).max(0),
        })
    }
    "SetExpire" = fn set_expire(key: usize, left: c_longlong) -> c_int {
        with(|world| c_int::from(!world.set_expiry(key, if left < 0 { -1 } else { clock::wall() / 1_000_000 + left })))
    }
    "GetAbsExpire" = fn get_abs_expire(key: usize) -> c_longlong { with(|world| world.expiry(key)) }
    "SetAbsExpire" = fn set_abs_expire(key: usize, at: c_longlong) -> c_int { with(|world| c_int::from(!world.set_expiry(key, at))) }
    "StringDMA" = fn string_dma(key: usize, len: *mut usize, mode: c_int) -> *mut c_char {
        let (start, length) = with(|world| world.string(key, mode & 2 != 0)).unwrap_or((ptr::null_mut(), 0));
        unsafe { *len = length };
        start.cast()
    }
    "ValueLength" = fn value_length(key: usize) -> usize { with(|world| world.value_length(key)) }
    "ZsetScore" = fn zset_score(key: usize, member: usize, score: *mut f64) -> c_int {
        let Some(found) = with(|world| world.score(key, member)) else { return 1 };
        unsafe { *score = found };
        0
    }
    "ZsetAdd" = fn zset_add(key: usize, score: f64, member: usize, flags: *mut c_int) -> c_int {
        let only_new = !flags.is_null() && unsafe { *flags } & 2 != 0;
        let (result, created) = with(|world| world.zadd(key, score, member, only_new));
        if !flags.is_null() {
            unsafe { *flags = result };
        }
        server::created(created);
        0
    }
    "ZsetRem" = fn zset_rem(key: usize, member: usize, _deleted: *mut c_int) -> c_int { with(|world| world.zrem(key, member)); 0 }
    "ZsetFirstInScoreRange" = fn zset_first(key: usize, min: f64, max: f64, _minex: c_int, _maxex: c_int) -> c_int {
        with(|world| c_int::from(!world.seek(key, min, max, false)))
    }
    "ZsetLastInScoreRange" = fn zset_last(key: usize, min: f64, max: f64, _minex: c_int, _maxex: c_int) -> c_int {
        with(|world| c_int::from(!world.seek(key, min, max, true)))
    }
    "ZsetRangeNext" = fn zset_next(key: usize) -> c_int { c_int::from(with(|world| world.walk(key, false))) }
    "ZsetRangePrev" = fn zset_previous(key: usize) -> c_int { c_int::from(with(|world| world.walk(key, true))) }
    "ZsetRangeCurrentElement" = fn zset_current(key: usize, score: *mut f64) -> usize {
        let Some((found, member)) = with(|world| world.current(key)) else { return 0 };
        if !score.is_null() {
            unsafe { *score = found };
        }
        member
    }
    "ZsetRangeStop" = fn zset_stop(key: usize) { with(|world| if let Some(open) = world.open.get_mut(key) { open.range = None }); }
    "StringTruncate" = fn string_truncate(key: usize, len: usize) -> c_int {
        server::created(with(|world| world.truncate(key, len)));
        0
    }
    "HashGet" = fn hash_get(key: usize, _flags: c_int, n1: usize, v1: *mut usize, n2: usize, v2: *mut usize, n3: usize, v3: *mut usize, _end: usize) -> c_int {
        for (name, place) in [(n1, v1), (n2, v2), (n3, v3)].into_iter().take_while(|(name, _)| *name != 0) {
            let value = with(|world| world.field(key, name)).unwrap_or(0);
            unsafe { *place = value };
        }
        0
    }
    "HashSet" = fn hash_set(key: usize, _flags: c_int, n1: usize, v1: usize, n2: usize, v2: usize, n3: usize, v3: usize, n4: usize, v4: usize, _end: usize) -> c_int {
        for (name, value) in [(n1, v1), (n2, v2), (n3, v3), (n4, v4)].into_iter().take_while(|(name, _)| *name != 0) {
            server::created(with(|world| world.set_field(key, name, value)));
        }
        0
    }
    "SignalModifiedKey" = fn signal_modified_key(ctx: C, name: usize) -> c_int {
        let (db, name) = with(|world| (world.context(index(ctx)).db, world.bytes(name)));
        server::signal(db, &name);
        0
    }
    "NotifyKeyspaceEvent" = fn notify_keyspace_event(ctx: C, class: c_int, event: Text, name: usize) -> c_int {
        let (db, name) = with(|world| (world.context(index(ctx)).db, world.bytes(name)));
        with(|world| world.looked_up(db, &name, "NotifyKeyspaceEvent"));
        server::notify(db, class, &unsafe { string(event) }, &name);
        0
    }
    "ReplicateVerbatim" = fn replicate_verbatim(ctx: C) -> c_int {
        with(|world| {
            let words = (*world.context(index(ctx)).words).clone();
            world.replicate(index(ctx), words);
        });
        0
    }
    "GetServerInfo" = fn get_server_info(_ctx: C, section: Text) -> usize {
        let section = unsafe { string(section) };
        with(|world| {
            let fields = world.info_section(&section).into_iter().map(|(name, value)| (name, value + "\0")).collect();
            world.infos.insert(fields)
        })
    }
    "FreeServerInfo" = fn free_server_info(_ctx: C, info: usize) { with(|world| world.infos.remove(info)); }
    "ServerInfoGetFieldSigned" = fn server_info_get_field_signed(info: usize, field: Text, error: *mut c_int) -> c_longlong {
        let field = unsafe { string(field) };
        let number = with(|world| world.infos.get(info)?.get(&field)?.trim_end_matches('\0').parse().ok());
        unsafe { *error = c_int::from(number.is_none()) };
        number.unwrap_or(0)
    }
    "ServerInfoGetFieldC" = fn server_info_get_field(info: usize, field: Text) -> Text {
        let field = unsafe { string(field) };
        with(|world| world.infos.get(info).and_then(|fields| fields.get(&field)).map_or(ptr::null(), |value| value.as_ptr().cast()))
    }
    "Replicate" = fn replicate(ctx: C, command: Text, format: Text, a1: usize, a2: usize, a3: usize, a4: usize, a5: usize, a6: usize) -> c_int {
        let words = unsafe { arguments(&string(command), &string(format), &[a1, a2, a3, a4, a5, a6]) };
        if !server::knows(&words[0]) {
            return 1;
        }
        with(|world| world.replicate(index(ctx), words));
        0
    }
    "GetContextFlags" = fn get_context_flags(ctx: C) -> c_int { with(|world| server::flags(world, index(ctx))) as c_int }
    "GetSelectedDb" = fn get_selected_db(ctx: C) -> c_int { with(|world| world.context(index(ctx)).db) }
    "SelectDb" = fn select_db(ctx: C, db: c_int) -> c_int { with(|world| world.context(index(ctx)).db = db); 0 }
    "CreateString" = fn create_string(_ctx: C, start: *const u8, len: usize) -> usize {
        let bytes = if len == 0 { &[] } else { unsafe { slice::from_raw_parts(start, len) } };
        with(|world| world.text(bytes))
    }
    "FreeString" = fn free_string(_ctx: C, text: usize) { with(|world| world.free_text(text)); }
    "BlockClient" = fn block_client(ctx: C, reply: usize, timeout: usize, free: usize, _timeout_ms: c_longlong) -> usize {
        with(|world| {
            let context = world.context(index(ctx)).clone();
            if context.flags != 0 || context.client == 0 {
                world.violates("handles", "BlockClient in a transaction or a script");
            }
            world.blockings += 1;
            let blocked = Blocked {
                order: world.blockings,
                client: Some(context.client), words: context.words, db: context.db, reply: Code(reply),
                timeout: Code(timeout), free: Code(free), disconnect: None, is_unblocked: false, private: 0,
            };
            let blocked = world.blocked.insert(blocked);
            world.context(index(ctx)).has_blocked = Some(blocked);
            blocked
        })
    }
    "UnblockClient" = fn unblock_client(blocked: usize, private: usize) -> c_int {
        with(|world| match world.blocked.get_mut(blocked) {
            Some(found) if !found.is_unblocked => {
                found.is_unblocked = true;
                found.private = private;
                world.unblocked.push_back(blocked);
            }
            Some(_) => world.violates("handles", "a client is unblocked twice"),
            None => world.violates("handles", "a client is unblocked that is gone"),
        });
        0
    }
    "SetDisconnectCallback" = fn set_disconnect_callback(blocked: usize, code: usize) {
        with(|world| if let Some(found) = world.blocked.get_mut(blocked) { found.disconnect = Some(Code(code)) });
    }
    "GetBlockedClientHandle" = fn get_blocked_client_handle(ctx: C) -> usize { with(|world| world.context(index(ctx)).blocked) }
    "GetBlockedClientPrivateData" = fn get_blocked_client_private_data(ctx: C) -> usize { with(|world| world.context(index(ctx)).private) }
    "CreateTimer" = fn create_timer(_ctx: C, period: c_longlong, code: usize, data: usize) -> u64 {
        with(|world| {
            world.timer_count += 1;
            // The server's table has one timer at each microsecond, the one that fires included.
            let mut at = clock::wall().div_euclid(1_000) + period * 1_000;
            while world.firing == Some(at) || world.timers.range((at, 0)..(at + 1, 0)).next().is_some() {
                at += 1;
            }
            world.timers.insert((at, world.timer_count), (Code(code), data));
            world.timer_count
        })
    }
    "StopTimer" = fn stop_timer(_ctx: C, timer: u64, _data: usize) -> c_int {
        with(|world| {
            let found = world.timers.keys().find(|(_, id)| *id == timer).copied();
            match found {
                Some(found) => drop(world.timers.remove(&found)),
                None => world.violates("handles", "a timer is stopped that has fired"),
            }
        });
        0
    }
    "SubscribeToKeyspaceEvents" = fn subscribe_to_keyspace_events(_ctx: C, classes: c_int, code: usize) -> c_int {
        with(|world| world.subscriptions.push(Subscription { classes, code: Code(code), is_running: false }));
        0
    }
    "UnsubscribeFromKeyspaceEvents" = fn unsubscribe_from_keyspace_events(_ctx: C, classes: c_int, code: usize) -> c_int {
        with(|world| {
            if world.subscriptions.iter().any(|one| one.is_running) {
                world.violates("handles", "a subscription ends while a keyspace event is published");
            }
            world.subscriptions.retain(|one| one.code != Code(code) || one.classes != classes);
        });
        0
    }
    "SubscribeToServerEvent" = fn subscribe_to_server_event(_ctx: C, event: Event, code: usize) -> c_int {
        with(|world| match code {
            0 => drop(world.events.remove(&event.id)),
            _ => drop(world.events.insert(event.id, Code(code))),
        });
        0
    }
    "IsSubEventSupported" = fn is_sub_event_supported(_event: Event, _sub: i64) -> c_int { 1 }
    "RegisterInfoFunc" = fn register_info_func(_ctx: C, code: usize) -> c_int { with(|world| world.info = Some(Code(code))); 0 }
    "InfoAddSection" = fn info_add_section(_ctx: C, _name: Text) -> c_int { 0 }
    "InfoAddFieldCString" = fn info_add_text(_ctx: C, name: Text, value: Text) -> c_int {
        let field = unsafe { (string(name), string(value)) };
        with(|world| world.fields.push(field));
        0
    }
    "InfoAddFieldULongLong" = fn info_add_number(_ctx: C, name: Text, value: c_ulonglong) -> c_int {
        let field = unsafe { (string(name), value.to_string()) };
        with(|world| world.fields.push(field));
        0
    }
    "GetClientId" = fn get_client_id(ctx: C) -> c_ulonglong { with(|world| world.context(index(ctx)).client) }
    "Call" = fn call(ctx: C, command: Text, format: Text, a1: usize, a2: usize, a3: usize) -> usize {
        let (name, format) = unsafe { (string(command), string(format)) };
        let flags: String = format.chars().filter(char::is_ascii_uppercase).chain(format.chars().filter(|c| *c == '!')).collect();
        let plain: String = format.chars().filter(char::is_ascii_lowercase).collect();
        let words = unsafe { arguments(&name, &plain, &[a1, a2, a3]) };
        // The key of the caller is the very string that a command is given which runs inside.
        let key = plain.starts_with('s').then_some(a1);
        match server::call(index(ctx), words, key, &flags) {
            Ok(reply) => reply.map_or(0, |reply| with(|world| {
                world.owned_replies += 1;
                world.replies.insert(reply)
            })),
            Err(errno) => {
                fail(errno);
                0
            }
        }
    }
    "FreeCallReply" = fn free_call_reply(reply: usize) {
        with(|world| {
            world.owned_replies -= usize::from(world.replies.remove(reply).is_some());
        });
    }
    "CallReplyType" = fn call_reply_type(reply: usize) -> c_int {
        with(|world| match world.replies.get(reply) {
            Some(Reply::Text(_) | Reply::Simple(_)) => 0,
            Some(Reply::Error(_)) => 1,
            Some(Reply::Int(_)) => 2,
            Some(Reply::Array(_)) => 3,
            Some(Reply::Null) => 4,
            None => -1,
        })
    }
    "CallReplyLength" = fn call_reply_length(reply: usize) -> usize {
        with(|world| if let Some(Reply::Array(items)) = world.replies.get(reply) { items.len() } else { 0 })
    }
    "CallReplyInteger" = fn call_reply_integer(reply: usize) -> c_longlong {
        with(|world| if let Some(Reply::Int(number)) = world.replies.get(reply) { *number } else { 0 })
    }
    "CallReplyArrayElement" = fn call_reply_array_element(reply: usize, at: usize) -> usize {
        // Freed with the world: the module asks for few.
        with(|world| match world.replies.get(reply) {
            Some(Reply::Array(items)) => items.get(at).cloned().map_or(0, |item| world.replies.insert(item)),
            _ => 0,
        })
    }
    "CallReplyStringPtr" = fn call_reply_string(reply: usize, len: *mut usize) -> Text {
        let (start, length) = with(|world| match world.replies.get(reply) {
            Some(Reply::Text(bytes)) => (bytes.as_ptr(), bytes.len()),
            Some(Reply::Simple(text) | Reply::Error(text)) => (text.as_ptr(), text.len()),
            _ => (ptr::null(), 0),
        });
        unsafe { *len = length };
        start.cast()
    }
    "GetCommand" = fn get_command(_ctx: C, _name: Text) -> usize { 1 }
    "SetCommandInfo" = fn set_command_info(_command: usize, _info: *const c_void) -> c_int { 0 }
    "RegisterNumericConfig" = fn register_numeric_config(_ctx: C, _name: Text, _default: c_longlong, _flags: c_uint, _min: c_longlong, _max: c_longlong, _get: usize, _set: usize, _apply: usize, _private: usize) -> c_int { 0 }
    "RegisterBoolConfig" = fn register_bool_config(_ctx: C, _name: Text, _default: c_int, _flags: c_uint, _get: usize, _set: usize, _apply: usize, _private: usize) -> c_int { 0 }
    "LoadConfigs" = fn load_configs(_ctx: C) -> c_int { 0 }
    "GetKeyspaceNotificationFlagsAll" = fn keyspace_classes() -> c_int { 0x7fff }
    "SetCommandACLCategories" = fn set_command_acl_categories(_command: usize, _names: Text) -> c_int { 0 }
    "AddACLCategory" = fn add_acl_category(_ctx: C, _name: Text) -> c_int { 0 }
    "GetClientUserNameById" = fn client_user_name(_ctx: C, client: u64) -> usize {
        with(|world| match world.clients.get(&client).map(|client| client.user.clone()) {
            Some(user) => world.text(&user),
            None => 0,
        })
    }
    "GetModuleUserFromUserName" = fn module_user(name: usize) -> usize {
        with(|world| {
            let name = world.bytes(name).to_vec();
            world.users.insert(name)
        })
    }
    "FreeModuleUser" = fn free_module_user(user: usize) { with(|world| world.users.remove(user)); }
    "ACLCheckCommandPermissions" = fn check_permissions(user: usize, words: *const usize, count: c_int) -> c_int {
        c_int::from(!server::permits(user, unsafe { slice::from_raw_parts(words, count as usize) }))
    }
    "ACLCheckPermissions" = fn check_permissions_in(user: usize, words: *const usize, count: c_int, _db: c_int, _reason: *mut c_int) -> c_int {
        c_int::from(!server::permits(user, unsafe { slice::from_raw_parts(words, count as usize) }))
    }
    "GetModuleOptionsAll" = fn module_options() -> c_int { 0x3ff }
    "AvoidReplicaTraffic" = fn avoid_replica_traffic() -> c_int {
        with(|world| c_int::from(clock::wall() / 1_000_000 < world.paused_until))
    }
}

/// The words of a command with its arguments in the server's format.
///
/// # Safety
/// The arguments are as the format says.
unsafe fn arguments(command: &str, format: &str, arguments: &[usize]) -> Vec<Bytes> {
    let mut words = vec![command.as_bytes().to_vec()];
    let mut rest = arguments.iter().copied();
    let mut next = move || rest.next().unwrap_or_default();
    for letter in format.chars() {
        match letter {
            's' => words.push(with(|world| world.bytes(next()).to_vec())),
            'l' => words.push((next() as i64).to_string().into_bytes()),
            // SAFETY: the caller vouches for a C string.
            'c' => words.push(unsafe { string(next() as Text) }.into_bytes()),
            'b' => {
                let (start, len) = (next() as *const u8, next());
                words.push(if len == 0 {
                    Bytes::new()
                } else {
                    // SAFETY: the caller vouches for as many bytes.
                    unsafe { slice::from_raw_parts(start, len) }.to_vec()
                });
            }
            'v' => {
                let (start, len) = (next() as *const usize, next());
                for at in 0..len {
                    // SAFETY: the caller vouches for an array of that length.
                    let text = unsafe { *start.add(at) };
                    words.push(with(|world| world.bytes(text).to_vec()));
                }
            }
            _ => {}
        }
    }
    words
}

/// The module's file, loaded.
pub struct Module {
    on_load: usize,
    on_unload: usize,
}

impl Module {
    /// Loads a file.
    ///
    /// # Errors
    /// Why the file cannot be loaded.
    pub fn open(path: &str) -> Result<Self, String> {
        let name = CString::new(path).map_err(|error| error.to_string())?;
        // SAFETY: the file is a module, whose initialisers do nothing; errors are C strings.
        let file = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if file.is_null() {
            // SAFETY: after a failure there is a message.
            return Err(unsafe { string(libc::dlerror()) });
        }
        // SAFETY: the file is open, the names are C strings.
        let symbol = |name: &CStr| unsafe { libc::dlsym(file, name.as_ptr()) } as usize;
        let module =
            Self { on_load: symbol(c"RedisModule_OnLoad"), on_unload: symbol(c"RedisModule_OnUnload") };
        if module.on_load == 0 { Err(format!("{path} is no module")) } else { Ok(module) }
    }

    /// Has the module load itself into the server. False if it refuses.
    pub fn load(&self, context: usize) -> bool {
        // SAFETY: this is the entry point of a module, with the type that the server documents.
        let load = unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn(C, *const usize, c_int) -> c_int>(self.on_load)
        };
        // SAFETY: the context lives as long as the process; there are no arguments.
        unsafe { load(pointer(context), ptr::null(), 0) == 0 }
    }

    /// Has the module unload itself.
    pub fn unload(&self, context: usize) {
        // SAFETY: as in `load`.
        let unload =
            unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(C) -> c_int>(self.on_unload) };
        // SAFETY: as in `load`.
        unsafe { unload(pointer(context)) };
    }
}

/// Runs a command, or another callback with the arguments of a call.
pub fn run_call(code: Code, context: usize, words: &[usize]) {
    // SAFETY: the module has registered the code for this purpose, and so it has the type that the server
    // documents.
    let run = unsafe {
        std::mem::transmute::<usize, unsafe extern "C" fn(C, *const usize, c_int) -> c_int>(code.0)
    };
    // SAFETY: the context and the strings live during the call.
    unsafe { run(pointer(context), words.as_ptr(), words.len() as c_int) };
}

/// Runs a timer, or frees private data.
pub fn run_with(code: Code, context: usize, data: usize) {
    // SAFETY: as in `run_call`.
    let run = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(C, usize)>(code.0) };
    // SAFETY: as in `run_call`.
    unsafe { run(pointer(context), data) };
}

/// Runs the callback of a keyspace event.
pub fn run_keyspace(code: Code, context: usize, class: i32, event: &str, key: usize) {
    let event = CString::new(event).unwrap_or_default();
    // SAFETY: as in `run_call`.
    let run =
        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(C, c_int, Text, usize) -> c_int>(code.0) };
    // SAFETY: as in `run_call`.
    unsafe { run(pointer(context), class, event.as_ptr(), key) };
}

/// Runs the callback of an event of the server. `numbers` are the two numbers of its data.
pub fn run_event(code: Code, context: usize, id: u64, sub: u64, numbers: [i32; 2]) {
    #[repr(C)]
    struct Data {
        version: u64,
        numbers: [i32; 2],
    }
    let mut data = Data { version: 1, numbers };
    // SAFETY: as in `run_call`.
    let run = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(C, Event, u64, *mut Data)>(code.0) };
    // SAFETY: as in `run_call`; the data of the events that are fired begin with a version and two numbers.
    unsafe { run(pointer(context), Event { id, version: 1 }, sub, &raw mut data) };
}

/// Runs the callback of INFO.
pub fn run_info(code: Code) {
    // SAFETY: as in `run_call`.
    let run = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(C, c_int)>(code.0) };
    // SAFETY: as in `run_call`.
    unsafe { run(pointer(0), 0) };
}

/// libc's function, for the simulator and for the module that it loads.
///
/// # Safety
/// `time` is a place for a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    let is_wall = [libc::CLOCK_REALTIME, libc::CLOCK_REALTIME_COARSE].contains(&clock);
    let is_other = ![
        libc::CLOCK_MONOTONIC,
        libc::CLOCK_MONOTONIC_RAW,
        libc::CLOCK_MONOTONIC_COARSE,
        libc::CLOCK_BOOTTIME,
    ]
    .contains(&clock);
    if !clock::is_on() || (is_other && !is_wall) {
        // SAFETY: the caller vouches for the place.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as c_int;
    }
    let nanos = clock::read(is_wall);
    if is_wall {
        clock::module_reads();
    }
    let read =
        libc::timespec { tv_sec: nanos.div_euclid(1_000_000_000), tv_nsec: nanos.rem_euclid(1_000_000_000) };
    // SAFETY: the caller vouches for the place.
    unsafe { *time = read };
    0
}

/// libc's function: the module's tables are ordered alike in every run.
///
/// # Safety
/// There is room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(place: *mut c_void, len: usize, _flags: c_uint) -> isize {
    // SAFETY: the caller vouches for the room.
    unsafe { ptr::write_bytes(place.cast::<u8>(), 42, len) };
    len as isize
}

/// The real time, in nanoseconds since some instant.
pub fn real_time() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is a variable of this function.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// What it has returned.
    Done(Vec<u8>),
    /// The signal that has ended it.
    Killed(i32),
}

/// A child that works.
pub struct Child {
    pid: c_int,
    pipe: c_int,
}

/// Runs `work` in a child of this process, which a crash does not end, and which a hang ends after some
/// seconds of the processor. The process must have one thread.
pub fn start_child(seconds: u32, work: impl FnOnce() -> Vec<u8>) -> Child {
    fork(seconds, |pipe| {
        let bytes = work();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            // SAFETY: the descriptor is open, and the bytes have that length.
            let sent = unsafe { libc::write(pipe, rest.as_ptr().cast(), rest.len()) };
            if sent <= 0 {
                break;
            }
            rest = &rest[sent as usize..];
        }
    })
}

/// Runs `work` in a child that may write to the pipe, as [`start_child`] says.
fn fork(seconds: u32, work: impl FnOnce(c_int)) -> Child {
    let mut pipe = [0; 2];
    // SAFETY: there is room for two descriptors; each is closed once by each process; the process has one
    // thread, so the child may do everything.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0, "no pipe");
        let pid = libc::fork();
        assert!(pid >= 0, "no child");
        if pid == 0 {
            libc::close(pipe[0]);
            // Of the processor, because a machine may be busy; a child that waits for a lock uses none.
            let time = libc::timeval { tv_sec: seconds.into(), tv_usec: 0 };
            let limit =
                libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: time };
            libc::setitimer(libc::ITIMER_PROF, &raw const limit, ptr::null_mut());
            libc::alarm(60);
            work(pipe[1]);
            // A module with coverage counts what it has run when the process exits.
            if libc::getenv(c"LLVM_PROFILE_FILE".as_ptr()).is_null() {
                libc::_exit(0);
            }
            libc::exit(0);
        }
        libc::close(pipe[1]);
        Child { pid, pipe: pipe[0] }
    }
}

impl Child {
    /// Waits for the child.
    pub fn end(self) -> End {
        let (bytes, status) = self.wait();
        if libc::WIFSIGNALED(status) { End::Killed(libc::WTERMSIG(status)) } else { End::Done(bytes) }
    }

    /// Waits for the child, and returns what it has written, however it has ended.
    fn end_with_bytes(self) -> Vec<u8> {
        self.wait().0
    }

    fn wait(self) -> (Vec<u8>, c_int) {
        let (mut bytes, mut buffer, mut status) = (Vec::new(), [0_u8; 65_536], 0);
        // SAFETY: the descriptor is open and closed once; the buffer has that length; the child is waited for
        // once.
        unsafe {
            loop {
                let read = libc::read(self.pipe, buffer.as_mut_ptr().cast(), buffer.len());
                if read <= 0 {
                    break;
                }
                bytes.extend_from_slice(&buffer[..read as usize]);
            }
            libc::close(self.pipe);
            libc::waitpid(self.pid, &raw mut status, 0);
        }
        (bytes, status)
    }
}

/// Sets the error number that the module reads after a call.
pub fn set_errno(errno: i32) {
    fail(errno);
}

/// Runs `work` in a child, and returns the lines that it has spoken, even if it has crashed.
pub fn start_speaker(seconds: u32, work: impl FnOnce(&mut dyn FnMut(&str))) -> String {
    let child = fork(seconds, |pipe| {
        work(&mut |line| {
            let line = format!("{line}\n");
            // SAFETY: the descriptor is open, and the line has that length.
            unsafe { libc::write(pipe, line.as_ptr().cast(), line.len()) };
        });
    });
    String::from_utf8_lossy(&child.end_with_bytes()).into_owned()
}
