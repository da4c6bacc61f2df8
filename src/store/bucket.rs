//! The funnel and the token bucket: hashes whose fields have the names that the textbooks give them.

use core::ffi::CStr;

use redis_cell_core::bucket::{Level, Limit, decode};
use redis_cell_core::{Error, Instant};

use super::{Save, State};
use crate::ffi::{Key, Kind};

/// A funnel, known by the space that is left in it.
pub struct Funnel(pub Level);

/// A bucket, known by the tokens in it.
pub struct Bucket(pub Level);

impl State for Funnel {
    fn load(key: &Key, _: Instant) -> Result<Option<Self>, Error> {
        let expected = "a hash with the fields left_quota and leaking_ts";
        Ok(load(key, c"left_quota", c"leaking_ts", expected)?.map(Self))
    }
}

/// The capacity and the rate are there for the reader alone.
impl Save for (Funnel, &Limit) {
    fn save(&self, key: Key) {
        let (Funnel(level), limit) = self;
        let (mut capacity, mut left, mut since) = <(itoa::Buffer, itoa::Buffer, itoa::Buffer)>::default();
        let rate = limit.rate().per_second().to_string();
        key.set_fields(
            &[
                (c"capacity", capacity.format(limit.capacity()).as_bytes()),
                (c"leaking_rate", rate.as_bytes()),
                (c"left_quota", left.format(level.free).as_bytes()),
                (c"leaking_ts", since.format(level.since.as_nanos()).as_bytes()),
            ],
            limit.full_at(level).as_millis_ceil().cast_signed(),
        );
    }
}

impl State for Bucket {
    fn load(key: &Key, _: Instant) -> Result<Option<Self>, Error> {
        let expected = "a hash with the fields tokens and timestamp";
        Ok(load(key, c"tokens", c"timestamp", expected)?.map(Self))
    }
}

impl Save for (Bucket, &Limit) {
    fn save(&self, key: Key) {
        let (Bucket(level), limit) = self;
        let (mut tokens, mut since) = <(itoa::Buffer, itoa::Buffer)>::default();
        key.set_fields(
            &[
                (c"tokens", tokens.format(level.free).as_bytes()),
                (c"timestamp", since.format(level.since.as_nanos()).as_bytes()),
            ],
            limit.full_at(level).as_millis_ceil().cast_signed(),
        );
    }
}

/// Reads the two fields that make a state.
fn load(key: &Key, free: &CStr, since: &CStr, expected: &'static str) -> Result<Option<Level>, Error> {
    match key.kind() {
        Kind::Empty => Ok(None),
        Kind::Hash => {
            let (free, since) = (key.field(free), key.field(since));
            decode(free.as_deref(), since.as_deref(), expected).map(Some)
        }
        _ => Err(Error::WrongType),
    }
}
