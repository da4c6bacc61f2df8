//! Several limits at once: what one call to all of them is told.

use crate::{Answer, Retry};

/// The answer that stands for all `rows`.
///
/// Limited when one of them is; `limit` and `remaining` of the tightest, that with the smallest remaining;
/// `retry_after` the longest, or never when one refuses for ever; the longest `reset_after`. `None` for no rows.
///
/// Cost: O(n), no allocation.
pub fn combine(rows: impl IntoIterator<Item = Answer>) -> Option<Answer> {
    rows.into_iter().reduce(|all, row| {
        let tightest = if row.remaining < all.remaining { row } else { all };
        Answer {
            limited: all.limited || row.limited,
            limit: tightest.limit,
            remaining: tightest.remaining,
            retry_after: longest(all, row),
            reset_after: all.reset_after.max(row.reset_after),
            taken: None,
        }
    })
}

/// How long two answers together have to be waited for. One that admits has nothing to say in this.
fn longest(one: Answer, other: Answer) -> Retry {
    match (one.limited, other.limited) {
        (true, true) => match (one.retry_after, other.retry_after) {
            (Retry::After(one), Retry::After(other)) => Retry::After(one.max(other)),
            _ => Retry::Never,
        },
        (true, false) => one.retry_after,
        (false, _) => other.retry_after,
    }
}
