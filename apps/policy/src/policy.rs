//! The limiters of each call, as text in the grammar of `CL.MTAKE`.

use core::fmt;

use redis_cell_core::several::{GRAMMARS, Join, Keyword, Options, Part, Parts, Prefix};
use redis_cell_core::{Error, QUANTITY, Unit, bucket, fixed, gcra, lease, log, window};

use crate::template::{Amount, Fields, Template};

/// Keys and their limiters, as in a call of `CL.MTAKE`.
///
/// The text is `key limiter [key limiter ...] [unit]`, each limiter with or without `SHADOW`, or joined to
/// the one before it by `ELSE` or `SPILL`. In keys, quantities and names of holders, `<name>` stands for a
/// field of the call.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The keys and limiters, at least one.
    pub limiters: Vec<Limiter>,
    /// The unit of all times in the policy and its replies.
    pub unit: Unit,
}

/// A key and its limiter.
#[derive(Clone, Debug)]
pub struct Limiter {
    /// The key as it is written in the policy.
    pub name: String,
    /// The word for the kind and its arguments, as they are written in the policy.
    pub text: String,
    /// The key.
    pub key: Template,
    /// Whether the limiter is in shadow, and so refuses nothing.
    pub shadow: bool,
    /// How the limiter is joined to the one before it.
    pub join: Join,
    /// The kind and its limit.
    pub kind: Kind,
}

/// A limit of one kind, and the amount that a call takes from it.
#[derive(Clone, Debug)]
pub enum Kind {
    /// `THROTTLE max_burst count period quantity`
    Throttle(gcra::Limit, Amount),
    /// `FUNNEL` and `BUCKET`, which decide in the same way: `capacity count period quantity`
    Bucket(bucket::Limit, Amount),
    /// `FIXED limit window [UTC minutes] [FROM day] quantity`
    Fixed(fixed::Limit, Amount),
    /// `WINDOW limit period quantity`
    Window(window::Limit, Amount),
    /// `LOG limit period quantity`
    Log(log::Limit, Amount),
    /// `LEASE limit lease id`
    Lease(lease::Limit, Amount, Template),
}

impl Kind {
    /// Returns the amount that a call takes: the quantity, or the length of the lease and its holder.
    pub const fn taken(&self) -> (Amount, Option<&Template>) {
        match self {
            Self::Throttle(_, amount)
            | Self::Bucket(_, amount)
            | Self::Fixed(_, amount)
            | Self::Window(_, amount)
            | Self::Log(_, amount) => (*amount, None),
            Self::Lease(_, lease, id) => (*lease, Some(id)),
        }
    }
}

impl Policy {
    /// Reads the text of a policy: the arguments of `CL.MTAKE`, separated by spaces, with or without the name
    /// of the command.
    ///
    /// The fields that it names are added to `fields`.
    ///
    /// # Errors
    /// Returns a [`PolicyError`] that names the wrong part.
    pub fn parse(text: &str, fields: &mut Fields) -> Result<Self, PolicyError> {
        let mut words: Vec<&str> = text.split_ascii_whitespace().collect();
        if words.first().is_some_and(|word| word.eq_ignore_ascii_case("CL.MTAKE")) {
            words.remove(0);
        }
        let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut parts = Parts::of(bytes.as_slice(), GRAMMARS);
        let unit = parts.unit(&Keyword::ALL);
        let mut limiters: Vec<Limiter> = Vec::new();
        for part in parts.by_ref() {
            let limiter = Limiter::parse(&part, &words, unit, fields)?;
            if limiters.iter().any(|other| other.key == limiter.key) {
                return Err(PolicyError::SameKey(limiter.name));
            }
            if limiter.join != Join::None {
                limiter.follows(limiters.last())?;
            }
            limiters.push(limiter);
        }
        let rest: Vec<_> = parts.rest().map(String::from_utf8_lossy).collect();
        if limiters.is_empty() {
            return Err(PolicyError::NoLimiter(text.trim().to_owned()));
        }
        let options = Options::parse(parts.rest(), &[]);
        let unit = options.map_err(|_| PolicyError::NoLimiter(rest.join(" ")))?.unit;
        Ok(Self { limiters, unit })
    }
}

impl Limiter {
    fn parse(part: &Part, words: &[&str], unit: Unit, fields: &mut Fields) -> Result<Self, PolicyError> {
        let syntax = PolicyError::Limiter(Error::Syntax);
        let word = part.arguments.start.checked_sub(1).and_then(|word| words.get(word));
        let (Some(&name), Some(word), Some(arguments)) =
            (words.get(part.key), word, words.get(part.arguments.clone()))
        else {
            return Err(syntax);
        };
        if matches!(part.prefix, Prefix::Reset(_)) {
            return Err(syntax); // only settlements have RESET
        }
        let Some((last, limit)) = arguments.split_last() else { return Err(syntax) };
        let limit: Vec<&[u8]> = limit.iter().map(|word| word.as_bytes()).collect();
        let key = Template::parse(name, fields)?;
        let mut quantity = |range| Amount::parse(last, range, fields);
        let kind = match (GRAMMARS.get(part.kind).map(|grammar| grammar.word), limit.as_slice()) {
            (Some(b"THROTTLE"), &[burst, count, period]) => {
                Kind::Throttle(gcra::Limit::parse([burst, count, period], unit)?, quantity(&QUANTITY)?)
            }
            (Some(b"FUNNEL" | b"BUCKET"), &[capacity, count, period]) => {
                Kind::Bucket(bucket::Limit::parse([capacity, count, period], unit)?, quantity(&QUANTITY)?)
            }
            (Some(b"FIXED"), words) => {
                let limit = fixed::Limit::parse_words(&mut words.iter().copied(), unit)?;
                Kind::Fixed(limit, quantity(&QUANTITY)?)
            }
            (Some(b"WINDOW"), &[limit, period]) => {
                Kind::Window(window::Limit::parse([limit, period], unit)?, quantity(&QUANTITY)?)
            }
            (Some(b"LOG"), &[limit, period]) => {
                Kind::Log(log::Limit::parse([limit, period], unit)?, quantity(&log::QUANTITY)?)
            }
            (Some(b"LEASE"), &[limit, lease]) => {
                let lease = core::str::from_utf8(lease).map_err(|_| syntax)?;
                let lease = Amount::parse(lease, &lease::LEASE.up_to(unit.max()), fields)?;
                Kind::Lease(lease::Limit::parse(limit)?, lease, Template::parse(last, fields)?)
            }
            _ => return Err(syntax),
        };
        let text = format!("{word} {}", arguments.join(" "));
        let shadow = part.prefix == Prefix::Shadow;
        Ok(Self { name: name.to_owned(), text, key, shadow, join: part.join, kind })
    }

    /// Checks that the limiter can be joined to the one before it.
    fn follows(&self, before: Option<&Self>) -> Result<(), PolicyError> {
        let Some(before) = before.filter(|before| !before.shadow && !self.shadow) else {
            return Err(PolicyError::Limiter(Error::Syntax));
        };
        match (before.kind.taken(), self.kind.taken()) {
            _ if self.join != Join::Spill => Ok(()),
            ((_, Some(_)), _) | (_, (_, Some(_))) => Err(PolicyError::Limiter(Error::SpiltLease)),
            ((one, _), (other, _)) if one != other => Err(PolicyError::Limiter(Error::Quantities)),
            _ => Ok(()),
        }
    }
}

/// Returns the word in place of a limiter's, and the one that it resembles.
fn misspelt(text: &str) -> Option<(&str, &str)> {
    let is_one_of = |word: &str, words: &[&str]| words.iter().any(|other| other.eq_ignore_ascii_case(word));
    let mut words = text.split_ascii_whitespace().skip_while(|word| is_one_of(word, &["ELSE", "SPILL"]));
    words.next()?;
    let word = words.find(|word| !is_one_of(word, &["SHADOW"]))?;
    let bare = word.to_ascii_uppercase();
    let bare = bare.strip_prefix("CL.").unwrap_or(&bare);
    let kinds = GRAMMARS.iter().filter_map(|grammar| core::str::from_utf8(grammar.word).ok());
    let (edits, kind) = kinds.map(|kind| (strsim::damerau_levenshtein(bare, kind), kind)).min()?;
    (edits <= 2 && edits.saturating_mul(2) < bare.len() && word != kind).then_some((word, kind))
}

/// An error in the text of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyError {
    /// The word where no key with a complete limiter begins.
    NoLimiter(String),
    /// An error in the arguments of a limiter, with the text of the server's reply.
    Limiter(Error),
    /// The key that two limiters have.
    SameKey(String),
    /// The word with a `<` that does not begin a `<name>`.
    Field(String),
}

impl From<Error> for PolicyError {
    fn from(error: Error) -> Self {
        Self::Limiter(error)
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLimiter(text) => {
                write!(f, "no key with a complete limiter at `{text}`. ")?;
                if let Some((word, meant)) = misspelt(text) {
                    write!(f, "Did you mean {meant} by {word}? ")?;
                }
                f.write_str(
                    "A policy is `key limiter [key limiter ...] [unit]` as for CL.MTAKE, for example \
                     `ip:<address> THROTTLE 15 30 60 1`",
                )
            }
            Self::Limiter(error) => f.write_str(error.to_string().trim_start_matches("ERR ")),
            Self::SameKey(key) => write!(f, "two limiters have the key {key}"),
            Self::Field(word) => write!(f, "a field is written `<name>`, which {word} has not"),
        }
    }
}

impl core::error::Error for PolicyError {}
