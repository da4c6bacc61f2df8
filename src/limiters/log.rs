//! The sliding-window log of `CL.LOG`.

use redis_cell_core::hold::USED;
use redis_cell_core::log::{self, Edit, Entries};
use redis_cell_core::several::Grammar;
use redis_cell_core::{Answer, Decision, Instant, Range, Taken, Unit, Verdict};

use super::arguments::{PERIOD, QUANTITY, kind};
use super::kind::{Arguments, Kind, Target, Verb};
use crate::error::Error;
use crate::ffi::{Argument, Call, Type};
use crate::store::timeline::{Owner, Scores};

pub use redis_cell_core::log::Limit;

/// The limit of a log, whose entries cost memory.
pub const LIMIT: Argument = Argument::new(c"limit", Type::Integer, c"Units per period, 1 to 1,000,000.");

/// A log and the quantity of a call: `LOG limit period quantity`.
#[derive(Clone, Copy)]
pub struct Log {
    pub limit: Limit,
    pub quantity: i64,
    /// Whether to take as much of the quantity as fits, instead of all or nothing.
    pub saturate: bool,
}

impl Log {
    fn entries<'k, 'c>(&self, at: &Target<'k, 'c>) -> Result<Scores<'k, 'c>, Error> {
        Scores::load(at.key, Owner::Log { period: self.limit.period() }, at.now)
    }
}

/// Takes a quantity after clients that wait for `ahead` units.
#[cold]
fn take_behind(
    log: &Scores,
    limit: &Limit,
    now: Instant,
    quantity: i64,
    ahead: u64,
) -> Result<Decision<Entries>, Error> {
    let answer = log::peek_behind(log, limit, now, quantity, ahead)?;
    if answer.limited() {
        return Ok(Decision::keep(answer));
    }
    let decision = log::take(log, limit, now, quantity)?;
    let remaining = decision.answer.remaining.saturating_sub(i64::try_from(ahead).unwrap_or(i64::MAX)).max(0);
    Ok(Decision { answer: Answer { remaining, ..decision.answer }, ..decision })
}

/// Takes as much of a quantity as fits, after clients that wait for `ahead` units.
#[cold]
fn saturate_behind(
    log: &Scores,
    limit: &Limit,
    now: Instant,
    quantity: i64,
    ahead: u64,
) -> Result<Decision<Entries>, Error> {
    let room = log::peek_behind(log, limit, now, 0, ahead)?.remaining;
    let fits = quantity.min(room.max(1)).min(log::QUANTITY.max);
    let mut decision = take_behind(log, limit, now, fits, ahead)?;
    let answer = &mut decision.answer;
    if quantity == 0 {
        answer.verdict = Verdict::Admitted;
    }
    answer.taken = Some(if answer.limited() { 0 } else { fits });
    Ok(decision)
}

impl<'c> Kind<'c> for Log {
    const GRAMMAR: Grammar = log::GRAMMAR;
    const DOCUMENTED: Argument = kind(c"LOG", c"log", c"As CL.LOG.", &[LIMIT, PERIOD, QUANTITY]);

    type Change = Edit;
    type Stored = Edit;

    fn parse(arguments: &Arguments<'c>, verb: Verb, unit: Unit) -> Result<Self, Error> {
        let [limit, period, quantity] = arguments.words()?;
        let range = if verb == Verb::Settle { verb.quantity() } else { log::QUANTITY };
        let (limit, quantity) = (Limit::parse([limit, period], unit)?, range.parse(quantity)?);
        Ok(Self { limit, quantity, saturate: false })
    }

    #[inline(always)]
    fn take(&self, at: &Target<'_, 'c>) -> Result<Decision<Edit>, Error> {
        let (log, limit) = (self.entries(at)?, &self.limit);
        let decision = match (at.ahead, self.saturate) {
            (0, false) => log::take(&log, limit, at.now, self.quantity),
            (0, true) => log::saturate(&log, limit, at.now, self.quantity),
            (ahead, false) => take_behind(&log, limit, at.now, self.quantity, ahead),
            (ahead, true) => saturate_behind(&log, limit, at.now, self.quantity, ahead),
        };
        Ok(decision?.map(Edit::Add))
    }

    fn with_units(&self, quantity: i64) -> Self {
        Self { quantity, ..*self }
    }

    fn units(&self) -> i64 {
        self.quantity
    }

    fn most_used() -> Range {
        USED.up_to(log::LIMIT.max)
    }

    fn cost(&self) -> Result<u64, Error> {
        Ok(self.quantity.unsigned_abs())
    }

    fn peek(&self, at: &Target<'_, 'c>) -> Result<Answer, Error> {
        let log = self.entries(at)?;
        match at.ahead {
            0 => log::peek(&log, &self.limit, at.now, self.quantity),
            ahead => log::peek_behind(&log, &self.limit, at.now, self.quantity, ahead),
        }
    }

    fn settle(&self, at: &Target<'_, 'c>, taken: Option<&Taken>) -> Result<Decision<Edit>, Error> {
        log::settle(&self.entries(at)?, &self.limit, at.now, self.quantity, taken)
    }

    fn give_back(&self, at: &Target<'_, 'c>) -> Result<Decision<Edit>, Error> {
        let given = self.quantity.saturating_neg();
        log::settle(&self.entries(at)?, &self.limit, at.now, given, None)
    }

    fn adds(edit: &Edit) -> bool {
        matches!(edit, Edit::Add(_))
    }

    fn stored(&self, edit: Edit, _: &Call<'c>) -> Edit {
        edit
    }
}
