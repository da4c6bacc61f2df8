//! `ONCE key period`: the reply of a call is stored, for whoever sends the call again.
//!
//! A client that has not received a reply does not know whether its call was run. It sends the call again,
//! and gets the stored reply if there is one. The reply is written behind the states of all limiters, in the
//! same transaction, so it is there if and only if they are.

use redis_cell_core::several::{self, Row};
use redis_cell_core::{Instant, Unit};
use smallvec::SmallVec;

use crate::error::Error;
use crate::ffi::{self, Access, Announcement, Arg, Call, Key, Kind, Write};

/// Where a call stores its reply.
pub struct Once<'c> {
    pub key: Arg<'c>,
    pub option: several::Once,
}

/// What the key holds.
pub enum Stored<'c> {
    /// Nothing: the open key.
    Nothing(Key<'c>),
    /// The reply of an earlier call: its rows.
    Reply(Vec<[i64; 5]>),
}

impl<'c> Once<'c> {
    /// Opens the key, and reads the reply to a call for so many limiters.
    ///
    /// # Errors
    /// [`Error::WrongType`] and [`redis_cell_core::Error::Foreign`] when it holds something else,
    /// [`Error::Busy`], and [`Error::Server`] when the server lacks a command that storing a reply takes.
    pub fn look_up(&self, call: &Call<'c>, limiters: usize) -> Result<Stored<'c>, Error> {
        let key = Key::open(*call, self.key, Access::Write)?;
        match key.kind() {
            Kind::Empty => Write::String.check().map(|()| Stored::Nothing(key)),
            Kind::String => Ok(Stored::Reply(several::read_reply(key.string(), limiters)?)),
            _ => Err(Error::WrongType),
        }
    }

    /// Stores a reply under the open key, which holds nothing.
    pub fn store(key: &mut Key<'c>, rows: &[Row], unit: Unit, until: Instant) -> Announcement<'c> {
        let combined = several::combine_rows(rows);
        let mut reply = SmallVec::<[u8; 256]>::new();
        let mut digits = itoa::Buffer::new();
        for answer in combined.iter().chain(rows.iter().map(|row| &row.answer)) {
            for integer in answer.reply(unit).five {
                // Two of five, nearly always.
                match integer {
                    0 => reply.extend_from_slice(b"0 "),
                    -1 => reply.extend_from_slice(b"-1 "),
                    _ => {
                        reply.extend_from_slice(digits.format(integer).as_bytes());
                        reply.push(b' ');
                    }
                }
            }
        }
        reply.pop();
        key.set_string(&reply, ffi::expiry_at(until))
    }
}
