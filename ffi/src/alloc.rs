//! Rust's allocator: the server's, so that `used_memory` and `maxmemory` count the module's memory.

use std::alloc::{GlobalAlloc, Layout};

use redis_module::alloc::RedisAlloc;

/// The server's allocator, with the alignment of `malloc`.
///
/// The server's jemalloc has size classes that are odd multiples of 8, which it aligns to 8 only. That
/// satisfies Rust's layouts, but not the unwinder of C, which writes 16 bytes at once into the memory that
/// Rust allocates for a panic. A panic must not end the server, so every allocation here is aligned to at
/// least 16.
pub struct ServerMemory;

// SAFETY: RedisAlloc rounds the size up to a multiple of the alignment, and the server aligns such sizes
// accordingly.
unsafe impl GlobalAlloc for ServerMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller vouches for the layout; a stricter alignment does not make it smaller.
        unsafe { RedisAlloc.alloc(as_malloc(layout)) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller vouches for the memory, which is from `alloc`, and for its layout.
        unsafe { RedisAlloc.dealloc(memory, as_malloc(layout)) }
    }
}

/// The layout with at least the alignment of `malloc`. A layout that is too large for this alignment is too
/// large for the server.
fn as_malloc(layout: Layout) -> Layout {
    layout.align_to(16).unwrap_or(layout)
}
