//! `ONCE key period`: the reply of a call is stored, for a client that sends the call again.
//!
//! A client that has not received a reply does not know whether its call was run. It sends the call again,
//! and gets the stored reply if there is one. The reply is written after the states of all limiters, in the
//! same transaction, so it exists if and only if they were written.

use redis_cell_core::several::{self, Columns, Row};
use redis_cell_core::{Answer, Instant, Reply as Integers, Unit};

use crate::error::Error;
use crate::ffi::{self, Access, Announcement, Arg, Call, Handles, Key, ValueType, Write};
use crate::outcome::{FEW, Repeated};

/// The longest integer, with a sign and a space before it.
const INTEGER: usize = 21;

/// The longest row of a call without chains.
const ROW: usize = 5 * INTEGER;

/// The digits of 0 to 99.
static PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [*b"00"; 100];
    let mut number = 0_u8;
    let mut rest: &mut [[u8; 2]] = &mut pairs;
    while let Some((pair, behind)) = rest.split_first_mut() {
        *pair = [b'0' + number / 10, b'0' + number % 10];
        number += 1;
        rest = behind;
    }
    pairs
};

/// Where a call stores its reply.
pub struct Once<'c> {
    pub key: Arg<'c>,
    pub option: several::Once,
}

/// The content of the key.
pub enum Stored<'k, 'c> {
    /// Nothing: the open key. It is in a box because nearly all calls have none, but every call moves this
    /// value.
    Nothing(Box<Key<'k, 'c>>),
    /// The reply of an earlier call: its rows.
    Reply(Repeated),
}

impl<'c> Once<'c> {
    /// Opens the key, and reads the reply of this many columns to a call for `limiters` limiters.
    ///
    /// # Errors
    /// [`Error::WrongType`] and [`redis_cell_core::Error::Foreign`] when it holds something else,
    /// [`Error::Busy`], and [`Error::Server`] when the server lacks a command that is needed to store a
    /// reply.
    pub fn look_up<'k>(
        &self,
        call: &'k Call<'c>,
        handles: &'k Handles,
        limiters: usize,
        columns: Columns,
    ) -> Result<Stored<'k, 'c>, Error> {
        let key = handles.open(call, self.key, Access::Write)?;
        match key.value_type() {
            ValueType::Empty => Write::String.check().map(|()| Stored::Nothing(Box::new(key))),
            ValueType::String => {
                let integers = several::read_reply(key.string(), limiters, columns)?;
                Ok(Stored::Reply((integers, columns)))
            }
            _ => Err(Error::WrongType),
        }
    }

    /// Stores a reply under the open key, which holds nothing.
    pub fn store(
        key: &mut Key<'_, 'c>,
        rows: &[Row],
        combined: Option<Answer>,
        unit: Unit,
        until: Instant,
    ) -> Announcement<'c> {
        let has_taken = combined.is_some_and(|combined| combined.taken.is_some());
        // With chains, the buffer has room for the number of columns, because the rows of chains are not
        // replied.
        let row = if has_taken { ROW + INTEGER } else { ROW };
        let longest = rows.len().saturating_add(1).saturating_mul(row);
        let (mut few, mut many) = ([b' '; ROW * (FEW + 1)], Vec::new());
        let reply = if let Some(reply) = few.get_mut(..longest) {
            reply
        } else {
            many.resize(longest, b' ');
            &mut many
        };
        // Written from the last digit to the first, which needs no copies.
        let (mut end, mut last) = (longest, ([-1; 5], 0));
        let each = rows.iter().rev().filter(|row| row.is_replied()).map(|row| &row.answer);
        for answer in each.chain(&combined) {
            let (Integers { five, taken }, behind) = (answer.reply(unit), end);
            if let Some(taken) = taken {
                end = write_before(reply, end, taken);
            }
            // With one limiter, the combined row is that limiter's row.
            if last.0 == five
                && taken.is_none()
                && let Some(begin) = end.checked_sub(last.1)
                && let Some((free, written)) = reply.split_at_mut_checked(end)
                && let (Some(copy), Some(row)) = (free.get_mut(begin..), written.get(..last.1))
            {
                copy.copy_from_slice(row);
                end = begin;
                continue;
            }
            for integer in five.into_iter().rev() {
                end = write_before(reply, end, integer);
            }
            last = (five, behind.saturating_sub(end));
        }
        if has_taken {
            end = write_before(reply, end, 6); // the number of columns
        }
        let begin = end.saturating_add(1); // behind the first space
        key.set_string(reply.get(begin..).unwrap_or_default(), ffi::expiry_at(until))
    }
}

/// Writes an integer before the position `end`, with a space before it. Returns the position of the space.
#[inline]
fn write_before(reply: &mut [u8], mut end: usize, integer: i64) -> usize {
    let mut left = integer.unsigned_abs();
    while left > 9 {
        let pair = usize::try_from(left % 100).unwrap_or_default();
        left /= 100;
        end = end.saturating_sub(2);
        if let (Some(places), Some(digits)) =
            (reply.get_mut(end..).and_then(<[u8]>::first_chunk_mut), PAIRS.get(pair))
        {
            *places = *digits;
        }
    }
    let mut write = |byte| {
        end = end.saturating_sub(1);
        if let Some(place) = reply.get_mut(end) {
            *place = byte;
        }
    };
    // One digit is left, or none if their number was even.
    if left > 0 || integer == 0 {
        write(b'0' | u8::try_from(left).unwrap_or_default());
    }
    if integer < 0 {
        write(b'-');
    }
    write(b' ');
    end
}
