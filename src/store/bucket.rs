//! The funnel and the token bucket: hashes whose fields have the names that the textbooks give them.

use redis_cell_core::bucket::{Level, Limit, decode};
use redis_cell_core::{Instant, Span};

use super::{Save, State};
use crate::error::Error;
use crate::ffi::{self, Announcement, Key, SharedString, ValueType, Write};

static CAPACITY: SharedString = SharedString::new(c"capacity");
static LEAKING_RATE: SharedString = SharedString::new(c"leaking_rate");
static LEFT_QUOTA: SharedString = SharedString::new(c"left_quota");
static LEAKING_TS: SharedString = SharedString::new(c"leaking_ts");
static TOKENS: SharedString = SharedString::new(c"tokens");
static TIMESTAMP: SharedString = SharedString::new(c"timestamp");

/// A funnel, described by the space that is left in it.
pub struct Funnel(pub Level);

/// A bucket, described by the tokens in it.
pub struct Bucket(pub Level);

impl State for Funnel {
    type Limit = Limit;

    fn load(key: &Key, now: &mut Instant, limit: &Limit) -> Result<Option<Self>, Error> {
        static READ: [&SharedString; 2] = [&LEFT_QUOTA, &LEAKING_TS];
        Ok(load(key, *now, limit, &READ, "a hash with the fields left_quota and leaking_ts")?.map(Self))
    }
}

/// The capacity and the rate are stored only for people who read the key.
impl Save for (Funnel, Limit) {
    const WRITE: Write = Write::Hash;

    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c> {
        let (Funnel(level), limit) = self;
        let (mut capacity, mut left, mut since) = <(itoa::Buffer, itoa::Buffer, itoa::Buffer)>::default();
        let rate = limit.rate().per_second();
        key.set_fields(
            // A small hash is a list that the server searches from the start, so the fields that each call
            // reads come first.
            [&LEFT_QUOTA, &LEAKING_TS, &CAPACITY, &LEAKING_RATE],
            [
                left.format(level.free).as_bytes(),
                since.format(level.since.as_nanos()).as_bytes(),
                capacity.format(limit.capacity()).as_bytes(),
                rate.as_bytes(),
            ],
            ffi::expiry_at(limit.full_at(level)),
        )
    }
}

impl State for Bucket {
    type Limit = Limit;

    fn load(key: &Key, now: &mut Instant, limit: &Limit) -> Result<Option<Self>, Error> {
        static READ: [&SharedString; 2] = [&TOKENS, &TIMESTAMP];
        Ok(load(key, *now, limit, &READ, "a hash with the fields tokens and timestamp")?.map(Self))
    }
}

impl Save for (Bucket, Limit) {
    const WRITE: Write = Write::Hash;

    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c> {
        let (Bucket(level), limit) = self;
        let (mut tokens, mut since) = <(itoa::Buffer, itoa::Buffer)>::default();
        key.set_fields(
            [&TOKENS, &TIMESTAMP],
            [tokens.format(level.free).as_bytes(), since.format(level.since.as_nanos()).as_bytes()],
            ffi::expiry_at(limit.full_at(level)),
        )
    }
}

/// Reads the two fields of a state: units and an instant.
fn load(
    key: &Key,
    now: Instant,
    limit: &Limit,
    fields: &'static [&SharedString; 2],
    expected: &'static str,
) -> Result<Option<Level>, Error> {
    match key.value_type() {
        ValueType::Empty => Ok(None),
        ValueType::Hash => {
            let [free, since] = key.fields(fields);
            let level = decode(free, since, expected)?;
            Ok(Some(if level.since > now { moved_back(key, level, *limit) } else { level }))
        }
        _ => Err(Error::WrongType),
    }
}

/// Moves back a level that lies ahead, so that the bucket is full at the latest when its key expires.
#[cold]
fn moved_back(key: &Key, level: Level, limit: Limit) -> Level {
    let back = key.lives_until().map_or(Span::ZERO, |end| limit.full_at(&level).since(end));
    Level { since: level.since.saturating_sub(back), ..level }
}
