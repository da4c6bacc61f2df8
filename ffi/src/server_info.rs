//! Sections of the server's `INFO`.

use core::ffi::{CStr, c_int};
use core::ptr::NonNull;

use redis_module::raw::RedisModuleServerInfoData;

use super::call::Call;

/// A section of `INFO`. Freed when dropped.
pub(super) struct ServerInfo<'c> {
    call: Call<'c>,
    ptr: NonNull<RedisModuleServerInfoData>,
}

impl<'c> Call<'c> {
    /// The section `name` as it is now.
    pub(super) fn server_info(&self, name: &CStr) -> Option<ServerInfo<'c>> {
        // SAFETY: `ctx` is this call's; the server copies the name.
        let ptr = unsafe { (self.api.get_server_info)(self.ctx.as_ptr(), name.as_ptr()) };
        Some(ServerInfo { call: *self, ptr: NonNull::new(ptr)? })
    }
}

impl ServerInfo<'_> {
    /// The value of a field.
    pub fn text(&self, field: &CStr) -> Option<String> {
        // SAFETY: `ptr` is a section that is not freed yet.
        let value = unsafe { (self.call.api.server_info_get_field)(self.ptr.as_ptr(), field.as_ptr()) };
        // SAFETY: a field that is not null is a C string, which lives as long as the section.
        (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
    }

    /// The value of a field that is an integer.
    pub fn integer(&self, field: &CStr) -> Option<i64> {
        let mut error: c_int = 0;
        let get = self.call.api.server_info_get_field_signed;
        // SAFETY: `ptr` is a section that is not freed yet, and `error` is a variable of this function.
        let value = unsafe { get(self.ptr.as_ptr(), field.as_ptr(), &raw mut error) };
        (error == 0).then_some(value)
    }
}

impl Drop for ServerInfo<'_> {
    fn drop(&mut self) {
        // SAFETY: `ptr` is a section that is not freed yet, and nothing else frees it.
        unsafe { (self.call.api.free_server_info)(self.call.ctx.as_ptr(), self.ptr.as_ptr()) };
    }
}
