//! Rust's memory, which is the server's, so that `used_memory` and `maxmemory` count it.

use std::alloc::{GlobalAlloc, Layout};

use redis_module::alloc::RedisAlloc;

/// The server's memory, aligned as `malloc` aligns it.
///
/// The server's jemalloc knows sizes that are odd multiples of 8 and aligns those to 8 alone. That is enough for what Rust
/// asks for, but not for what C takes for granted: unwinding writes 16 bytes at once into the memory that Rust gives it for
/// a panic, and a panic must not end the server. Sizes that are multiples of 16 are aligned to 16.
pub struct ServerMemory;

// SAFETY: RedisAlloc hands out memory of at least the size asked for; of one that is a multiple of its alignment, aligned so.
unsafe impl GlobalAlloc for ServerMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller vouches for the layout; aligned more strictly, it is not smaller.
        unsafe { RedisAlloc.alloc(as_malloc(layout)) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller vouches for the memory, which is from `alloc`, and for its layout.
        unsafe { RedisAlloc.dealloc(memory, as_malloc(layout)) }
    }
}

/// A layout with the alignment that `malloc` gives at the least. One that is too large for that is so for the server, too.
fn as_malloc(layout: Layout) -> Layout {
    layout.align_to(16).unwrap_or(layout)
}
