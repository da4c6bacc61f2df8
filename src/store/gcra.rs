//! The state of GCRA: the digits of the TAT in a string, the format of `brandur/redis-cell`.

use redis_cell_core::gcra::{Limit, Tat, decode};
use redis_cell_core::{Instant, Span};

use super::{Save, State};
use crate::error::Error;
use crate::ffi::{self, Announcement, Key, ValueType, Write};

impl State for Tat {
    type Limit = Limit;

    #[inline(always)]
    fn load(key: &Key, now: &mut Instant, limit: &Limit) -> Result<Option<Self>, Error> {
        load(key, *now, limit.tolerance())
    }
}

/// The TAT that the key holds. If it owes more than `tolerance`, it is at most the instant at which the key
/// expires.
///
/// # Errors
/// As [`State::load`].
#[inline(always)]
pub fn load(key: &Key, now: Instant, tolerance: Span) -> Result<Option<Tat>, Error> {
    match key.value_type() {
        ValueType::Empty => Ok(None),
        ValueType::String => {
            let tat = decode(key.string(), now, || key.expiry())?;
            Ok(Some(if tat.since(now) > tolerance { owed(key, tat) } else { tat }))
        }
        _ => Err(Error::WrongType),
    }
}

/// The TAT, or the instant at which its key expires if that is earlier.
#[cold]
fn owed(key: &Key, tat: Tat) -> Tat {
    key.lives_until().map_or(tat, |end| end.min(tat))
}

impl Save for Tat {
    const WRITE: Write = Write::String;

    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c> {
        let mut digits = itoa::Buffer::new();
        key.set_string(digits.format(self.as_nanos()).as_bytes(), ffi::expiry_at(*self))
    }
}
