//! The description of a command for the server, from which it is registered and documented.

use core::ffi::CStr;
use std::borrow::Cow;

use super::call::{Arg, Call};

/// The description of a command for the server.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Its name, in lower case.
    pub name: &'static CStr,
    /// Its summary, in one sentence.
    pub summary: &'static str,
    /// Its reply, in one sentence. The server has no field for it, so it follows the summary.
    pub reply: &'static str,
    /// Its time complexity.
    pub complexity: &'static CStr,
    /// The version of the module that introduced it.
    pub since: &'static CStr,
    /// Its arguments, in the order of its synopsis.
    pub arguments: &'static [Argument],
    /// Its flags, for what it does and when it may run.
    pub flags: &'static [Flag],
    /// Where its keys are.
    pub keys: Keys,
    /// How it uses their values.
    pub uses: Use,
    /// The server's tips for clients and proxies, separated by spaces.
    pub tips: &'static CStr,
}

impl Spec {
    /// The smallest number of arguments of a call, counting the name. Each command checks its optional ones
    /// itself.
    pub const fn arity(&self) -> usize {
        arity(self.arguments, 1)
    }
}

/// `sum` plus the smallest number of arguments that these take.
const fn arity(arguments: &[Argument], sum: usize) -> usize {
    let Some((first, rest)) = arguments.split_first() else { return sum };
    let count = match first.kind {
        _ if first.optional => 0,
        Type::Block(inner) => arity(inner, if first.token.is_some() { 1 } else { 0 }),
        Type::OneOf(inner) => smallest(inner),
        Type::Token => 1,
        _ if first.token.is_some() => 2,
        _ => 1,
    };
    arity(rest, sum.saturating_add(count))
}

/// The smallest number of arguments that one of these takes.
const fn smallest(alternatives: &[Argument]) -> usize {
    let Some((first, rest)) = alternatives.split_first() else { return 0 };
    let (count, others) = (arity(core::slice::from_ref(first), 0), smallest(rest));
    if rest.is_empty() || count < others { count } else { others }
}

/// The server's flags for what a command does and when it may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// It may write, so it does not run on replicas.
    Write,
    /// It never writes.
    ReadOnly,
    /// It may need memory, so it does not run when the server is out of memory.
    DenyOom,
    /// It takes constant time.
    Fast,
    /// It may block the client.
    Blocking,
    /// It is for administrators.
    Admin,
    /// It may run while the server loads its data.
    Loading,
    /// It may run on a replica that has lost its primary.
    Stale,
}

impl Flag {
    /// The name of the flag in a command's registration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::ReadOnly => "readonly",
            Self::DenyOom => "deny-oom",
            Self::Fast => "fast",
            Self::Blocking => "blocking",
            Self::Admin => "admin",
            Self::Loading => "allow-loading",
            Self::Stale => "allow-stale",
        }
    }

    /// The ACL categories that follow from the flag, separated by spaces.
    pub const fn categories(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::ReadOnly => "read",
            Self::Fast => "fast",
            Self::Blocking => "blocking",
            Self::Admin => "admin dangerous",
            Self::DenyOom | Self::Loading | Self::Stale => "",
        }
    }
}

/// Where the keys of a command are.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    /// There are none.
    None,
    /// The first argument is the only key.
    First,
    /// This function finds them: it returns their positions, or none for a call that it cannot read.
    Found(fn(&Call) -> Vec<usize>),
}

impl Keys {
    /// The keys of a call.
    pub fn of<'c>(self, call: &Call<'c>) -> Cow<'c, [Arg<'c>]> {
        match self {
            Self::None => Cow::Borrowed(&[]),
            Self::First => Cow::Borrowed(call.args(1, 1)),
            Self::Found(find) => {
                Cow::Owned(find(call).iter().filter_map(|position| call.arg(*position)).collect())
            }
        }
    }
}

/// How a command uses the values of its keys, in the terms of the server's key specifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// There are no keys.
    None,
    /// `RO access`: it reads the value, and its reply depends on it.
    Read,
    /// `RW access update`: it reads the value, its reply depends on it, and it may update it.
    ReadUpdate,
    /// `RW update`: it may update the value, and replies only whether it did.
    Update,
    /// `RW delete`: it may delete from the value, and replies only whether it did.
    Delete,
}

/// An argument, as the synopsis shows it.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Its name in the synopsis.
    pub name: &'static CStr,
    /// Its meaning, unit, range and default.
    pub summary: &'static CStr,
    /// Its type.
    pub kind: Type,
    /// The token that precedes it, or the token itself if it has no value.
    pub token: Option<&'static CStr>,
    /// It may be omitted.
    pub optional: bool,
    /// It may be repeated.
    pub multiple: bool,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// The name of a key.
    Key,
    /// Any bytes.
    String,
    /// An integer.
    Integer,
    /// A decimal number.
    Double,
    /// The token alone.
    Token,
    /// One of these.
    OneOf(&'static [Argument]),
    /// All of these, in order.
    Block(&'static [Argument]),
}

impl Argument {
    /// A required argument.
    pub const fn new(name: &'static CStr, kind: Type, summary: &'static CStr) -> Self {
        Self { name, summary, kind, token: None, optional: false, multiple: false }
    }

    /// A token without a value.
    pub const fn token(token: &'static CStr, name: &'static CStr, summary: &'static CStr) -> Self {
        Self::new(name, Type::Token, summary).after(token)
    }

    /// The same argument after a token.
    #[must_use]
    pub const fn after(self, token: &'static CStr) -> Self {
        Self { token: Some(token), ..self }
    }

    /// The same argument, which may be omitted.
    #[must_use]
    pub const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// The same argument, which may be repeated.
    #[must_use]
    pub const fn multiple(self) -> Self {
        Self { multiple: true, ..self }
    }
}
