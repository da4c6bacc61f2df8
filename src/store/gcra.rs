//! The state of GCRA: the digits of the TAT in a string, the format of `brandur/redis-cell`.

use redis_cell_core::Instant;
use redis_cell_core::gcra::{Tat, decode};

use super::{Save, State};
use crate::error::Error;
use crate::ffi::{Announcement, Key, Kind, Write};

impl State for Tat {
    fn load(key: &Key, now: Instant) -> Result<Option<Self>, Error> {
        match key.kind() {
            Kind::Empty => Ok(None),
            Kind::String => Ok(Some(decode(key.string(), now, || key.expiry())?)),
            _ => Err(Error::WrongType),
        }
    }
}

impl Save for Tat {
    const WRITE: Write = Write::String;

    fn save<'c>(&self, key: &mut Key<'c>) -> Announcement<'c> {
        let mut digits = itoa::Buffer::new();
        key.set_string(digits.format(self.as_nanos()).as_bytes(), self.as_millis_ceil().cast_signed())
    }
}
