//! The windows: a string that counts until it expires, and a hash that counts in two windows.

use redis_cell_core::window::{Counter, Limit, Sliding};
use redis_cell_core::{Error, Instant};

use super::{Save, State};
use crate::ffi::{Key, Kind, Word};

static WINDOW: Word = Word::new(c"window");
static CURRENT: Word = Word::new(c"current");
static PREVIOUS: Word = Word::new(c"previous");

/// The names of all these fields.
pub static FIELDS: [&Word; 3] = [&WINDOW, &CURRENT, &PREVIOUS];

/// The fixed window: the count's digits in a string that expires with the window.
impl State for Counter {
    fn load(key: &Key, now: Instant) -> Result<Option<Self>, Error> {
        match key.kind() {
            Kind::Empty => Ok(None),
            Kind::String => Self::decode(key.string(), now, key.expiry()).map(Some),
            _ => Err(Error::WrongType),
        }
    }
}

impl Save for Counter {
    fn save(&self, key: Key) {
        let mut digits = itoa::Buffer::new();
        key.set_string(digits.format(self.count).as_bytes(), self.end.as_millis_ceil().cast_signed());
    }
}

/// The sliding window: its start and the two counts.
impl State for Sliding {
    fn load(key: &Key, _: Instant) -> Result<Option<Self>, Error> {
        match key.kind() {
            Kind::Empty => Ok(None),
            Kind::Hash => {
                let [window, current, previous] = key.fields(&FIELDS);
                Self::decode(window, current, previous).map(Some)
            }
            _ => Err(Error::WrongType),
        }
    }
}

impl Save for (Sliding, &Limit) {
    fn save(&self, key: Key) {
        let (window, limit) = self;
        // It is the same until the next window opens, and to know it costs less than to set it and to tell of it.
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
        );
    }
}
