//! The sliding window: a hash with its start and the two counts.

use redis_cell_core::Instant;
use redis_cell_core::window::{Limit, Sliding};

use super::{Save, State};
use crate::error::Error;
use crate::ffi::{self, Announcement, Key, SharedString, ValueType, Write};

static WINDOW: SharedString = SharedString::new(c"window");
static CURRENT: SharedString = SharedString::new(c"current");
static PREVIOUS: SharedString = SharedString::new(c"previous");

/// The fields, in the order in which they are stored.
static FIELDS: [&SharedString; 3] = [&WINDOW, &CURRENT, &PREVIOUS];

impl State for Sliding {
    type Limit = Limit;

    fn load(key: &Key, now: &mut Instant, limit: &Limit) -> Result<Option<Self>, Error> {
        match key.value_type() {
            ValueType::Empty => Ok(None),
            ValueType::Hash => {
                let [window, current, previous] = key.fields(&FIELDS);
                let window = Self::decode(window, current, previous)?;
                Ok(Some(if window.start > *now { moved_back(key, window, *limit) } else { window }))
            }
            _ => Err(Error::WrongType),
        }
    }
}

/// Moves back a window that lies ahead, so that it has ended when its key expires.
#[cold]
fn moved_back(key: &Key, window: Sliding, limit: Limit) -> Sliding {
    key.lives_until().map_or(window, |end| window.gone_by(&limit, end))
}

impl Save for (Sliding, Limit) {
    const WRITE: Write = Write::Hash;

    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c> {
        let (window, limit) = self;
        // The expiry stays the same until the next window opens, and reading it costs less than setting and
        // replicating it.
        key.expiry();
        let (mut start, mut current, mut previous) = <(itoa::Buffer, itoa::Buffer, itoa::Buffer)>::default();
        key.set_fields(
            FIELDS,
            [
                start.format(window.start.as_nanos()).as_bytes(),
                current.format(window.current).as_bytes(),
                previous.format(window.previous).as_bytes(),
            ],
            ffi::expiry_at(window.gone_at(limit)),
        )
    }
}
