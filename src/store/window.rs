//! The windows: a string that counts until it expires, and a hash that counts in two windows.

use redis_cell_core::Instant;
use redis_cell_core::fixed::Counter;
use redis_cell_core::window::{Limit, Sliding};

use super::{Save, State};
use crate::error::Error;
use crate::ffi::{Announcement, Key, Kind, SharedString, Write};

static WINDOW: SharedString = SharedString::new(c"window");
static CURRENT: SharedString = SharedString::new(c"current");
static PREVIOUS: SharedString = SharedString::new(c"previous");

/// The fields, in the order in which they are stored.
static FIELDS: [&SharedString; 3] = [&WINDOW, &CURRENT, &PREVIOUS];

/// The fixed window: the count's digits in a string that expires with the window.
impl State for Counter {
    fn load(key: &Key, _: Instant) -> Result<Option<Self>, Error> {
        match key.kind() {
            Kind::Empty => Ok(None),
            Kind::String => Ok(Some(Self::decode(key.string(), key.expiry())?)),
            _ => Err(Error::WrongType),
        }
    }
}

impl Save for Counter {
    const WRITE: Write = Write::String;

    fn save<'c>(&self, key: &mut Key<'c>) -> Announcement<'c> {
        let mut digits = itoa::Buffer::new();
        key.set_string(digits.format(self.count).as_bytes(), self.end.as_millis_ceil().cast_signed())
    }
}

/// The sliding window: its start and the two counts.
impl State for Sliding {
    fn load(key: &Key, _: Instant) -> Result<Option<Self>, Error> {
        match key.kind() {
            Kind::Empty => Ok(None),
            Kind::Hash => {
                let [window, current, previous] = key.fields(&FIELDS);
                Ok(Some(Self::decode(window, current, previous)?))
            }
            _ => Err(Error::WrongType),
        }
    }
}

impl Save for (Sliding, Limit) {
    const WRITE: Write = Write::Hash;

    fn save<'c>(&self, key: &mut Key<'c>) -> Announcement<'c> {
        let (window, limit) = self;
        // It is the same until the next window opens, and to know it costs less than to set it and to tell of
        // it.
        key.expiry();
        let (mut start, mut current, mut previous) = <(itoa::Buffer, itoa::Buffer, itoa::Buffer)>::default();
        key.set_fields(
            FIELDS,
            [
                start.format(window.start.as_nanos()).as_bytes(),
                current.format(window.current).as_bytes(),
                previous.format(window.previous).as_bytes(),
            ],
            window.gone_at(limit).as_millis_ceil().cast_signed(),
        )
    }
}
