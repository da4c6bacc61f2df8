//! Strings of the server that the module makes from its own bytes, and texts for C.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use core::{mem, ptr};
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis_module::raw::RedisModuleString;

use super::api::{self, Api};

/// A constant string, as a string of the server: made when it is first needed, shared by all calls, and kept
/// until the module is unloaded.
pub struct SharedString {
    pub(super) text: &'static CStr,
    string: AtomicPtr<RedisModuleString>,
}

impl SharedString {
    /// The string `text`.
    pub const fn new(text: &'static CStr) -> Self {
        Self { text, string: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The server's string.
    pub(super) fn string(&'static self, api: &Api) -> *mut RedisModuleString {
        let made = self.string.load(Relaxed);
        if !made.is_null() {
            return made;
        }
        let made = make(api, self.text.to_bytes());
        self.string.store(made, Relaxed);
        shared().push(self);
        made
    }
}

/// The shared strings that were made.
static SHARED: Mutex<Vec<&SharedString>> = Mutex::new(Vec::new());

fn shared() -> MutexGuard<'static, Vec<&'static SharedString>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees all shared strings, when the module is unloaded.
pub fn free_shared() {
    let Some(api) = api::get() else { return };
    for shared in mem::take(&mut *shared()) {
        let made = shared.string.swap(ptr::null_mut(), Relaxed);
        // SAFETY: `make` made the string when it was put into the list, and it has just been taken from its
        // only place.
        unsafe { free(api, made) };
    }
}

/// Strings that the module made, for one command of the server. Freed when dropped.
pub(super) struct Strings(pub Vec<*mut RedisModuleString>, &'static Api);

impl Strings {
    /// Makes a string of each of these.
    pub fn new(api: &'static Api, words: &[&[u8]]) -> Self {
        Self(words.iter().map(|word| make(api, word)).collect(), api)
    }
}

impl Drop for Strings {
    fn drop(&mut self) {
        let Self(strings, api) = self;
        for string in strings {
            // SAFETY: `make` made the string, and nothing else frees it.
            unsafe { free(api, *string) };
        }
    }
}

/// A string of the server with these bytes, for the caller to [`free`].
pub(super) fn make(api: &Api, bytes: &[u8]) -> *mut RedisModuleString {
    // SAFETY: a string that the caller frees needs no context; the server copies the bytes.
    unsafe { (api.create_string)(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()) }
}

/// Frees a string. If the server still uses it, the server frees it later.
///
/// # Safety
/// `string` is valid, and the module's to free: from [`make`], or handed over by the server.
pub(super) unsafe fn free(api: &Api, string: *mut RedisModuleString) {
    // SAFETY: the caller vouches for the string, which needs no context.
    unsafe { (api.free_string)(ptr::null_mut(), string) };
}

/// `text` for C. None of the module's texts contains a NUL; such a text would end there.
pub(super) fn text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}
