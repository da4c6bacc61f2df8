//! A settlement's knowledge of the call that took the units.

use crate::time::{Span, Unit};

/// The options of a settlement about the call that took the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// How long ago that call was, rounded up to the unit.
    pub age: Span,
    /// The `reset_after` of its reply, rounded up to the unit.
    pub reset_after: Option<Span>,
    /// The unit of both.
    pub unit: Unit,
}

impl Taken {
    /// How much of the time that the call took has not leaked yet, if serving the units that are given back
    /// takes `cost`.
    ///
    /// The units that the call took are served at the end of its `reset_after`, which was rounded up by at
    /// most one unit. Without a `reset_after`, it is only known that serving it takes at least `cost`.
    pub fn still_owed(&self, cost: Span) -> Span {
        let owed = self.reset_after.map_or(cost, |reset_after| reset_after.saturating_sub(self.unit_span()));
        owed.saturating_sub(self.age)
    }

    /// One unit of time.
    pub(crate) fn unit_span(&self) -> Span {
        Span::from_units(1, self.unit).unwrap_or_default()
    }
}
