//! The fixed window: the count's digits in a string that expires with the window, or that lasts if it has no
//! end.
//!
//! Its only instant is its key's expiry, which follows the wall clock, so the window follows that clock.

use redis_cell_core::Instant;
use redis_cell_core::fixed::{Counter, Limit};

use super::{Save, State};
use crate::error::Error;
use crate::ffi::{self, Announcement, Key, ValueType, Write};

impl State for Counter {
    type Limit = Limit;

    fn load(key: &Key, now: &mut Instant, limit: &Limit) -> Result<Option<Self>, Error> {
        let counter = match key.type_and_expiry() {
            (ValueType::Empty, _) => None,
            (ValueType::String, expiry) if limit.is_total() => {
                Some(Self::decode_total(key.string(), expiry)?)
            }
            (ValueType::String, expiry) => Some(Self::decode(key.string(), expiry)?),
            _ => return Err(Error::WrongType),
        };
        if !ffi::is_ahead() {
            return Ok(counter);
        }
        let (counter, then) = after_steps(counter, *limit, *now);
        *now = then;
        Ok(counter)
    }
}

// Not by reference, so that on the common path the limit need not be in memory.
#[cold]
fn after_steps(counter: Option<Counter>, limit: Limit, now: Instant) -> (Option<Counter>, Instant) {
    let now = ffi::wall(now);
    counter.map_or((None, now), |counter| counter.after_steps(&limit, now, ffi::stretches()))
}

impl Save for Counter {
    const WRITE: Write = Write::String;

    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c> {
        let mut digits = itoa::Buffer::new();
        let count = digits.format(self.count).as_bytes();
        if self.outlasts_time() {
            return key.set_lasting_string(count);
        }
        key.set_string(count, self.end.as_millis_ceil().cast_signed())
    }
}
