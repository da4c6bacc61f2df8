//! The sliding-window log among several limiters, as `CL.LOG` has it.

use redis_cell_core::limiter;
use redis_cell_core::log::{self, Edit, Limit};
use redis_cell_core::several::Grammar;
use redis_cell_core::{Answer, Decision, Taken, Unit};

use super::kind::{Arguments, Kind, Place, Verb};
use crate::error::Error;
use crate::ffi::Call;
use crate::store::timeline::{Owner, Scores};
use crate::waiting;

/// `LOG limit period quantity`
pub struct Log {
    limit: Limit,
    quantity: i64,
}

impl Log {
    fn entries<'k, 'c>(&self, at: &Place<'k, 'c>) -> Result<Scores<'k, 'c>, Error> {
        Scores::load(at.key, Owner::Log { period: self.limit.period() }, at.now)
    }
}

impl<'c> Kind<'c> for Log {
    const GRAMMAR: Grammar = Grammar::LOG;

    type Change = Edit;
    type Stored = Edit;

    fn parse(arguments: &Arguments<'c>, verb: Verb, unit: Unit) -> Result<Self, Error> {
        let [limit, period, quantity] = arguments.words()?;
        let range = if verb == Verb::Settle { verb.quantity() } else { log::QUANTITY };
        Ok(Self { limit: Limit::parse([limit, period], unit)?, quantity: range.parse(quantity)? })
    }

    fn take(&self, at: &Place<'_, 'c>) -> Result<Decision<Edit>, Error> {
        let log = self.entries(at)?;
        let decision = waiting::behind_log(&log, &self.limit, at.now, self.quantity, at.ahead, || {
            log::take(&log, &self.limit, at.now, self.quantity)
        })?;
        Ok(decision.map(Edit::Add))
    }

    fn units(&self) -> i64 {
        self.quantity
    }

    fn cost(&self) -> Result<u64, Error> {
        Ok(self.quantity.unsigned_abs())
    }

    fn peek(&self, at: &Place<'_, 'c>) -> Result<Answer, Error> {
        let log = self.entries(at)?;
        let alone = |quantity| log::peek(&log, &self.limit, at.now, quantity);
        match at.ahead {
            0 => alone(self.quantity),
            ahead => limiter::behind_units(ahead, self.quantity, alone),
        }
    }

    fn settle(&self, at: &Place<'_, 'c>, taken: Option<&Taken>) -> Result<Decision<Edit>, Error> {
        log::settle(&self.entries(at)?, &self.limit, at.now, self.quantity, taken)
    }

    fn give_back(&self, at: &Place<'_, 'c>) -> Result<Decision<Edit>, Error> {
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
