//! The rules: the YAML of envoyproxy/ratelimit, and the keys that this service adds to it.
//!
//! Each error names the file, the line and the key. All errors are found before any rule is replaced.

use crate::duration;
use crate::proto::{HeaderValue, RateLimitDescriptor, RateLimitOverride, Unit};
use crate::yaml::{self, Fields, Node, Problem, noted};
use prost_types::Struct;
use redis_cell_client::{Fixed, FixedWindow, LeasedLimit, Limit, LocalLimiter, Places, Rate, Units, Weekday};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::sync::{Arc, Once};
use std::time::Duration;

/// All domains and their rules.
#[derive(Debug, Default)]
pub struct Config {
    domains: HashMap<String, Domain>,
}

/// A domain.
#[derive(Debug)]
struct Domain {
    place: String,
    /// `None` if no file says it.
    tag: Option<Tag>,
    top: Level,
}

/// The part of a key that is in braces. In a cluster, all keys of a request must be in one slot, which
/// depends only on the text in braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// The domain: all its limiters are on one shard.
    Domain,
    /// The domain and the first entry: the descriptors of a request must begin with the same entry.
    FirstEntry,
    /// Nothing, for servers that are not a cluster.
    Nothing,
}

/// The descriptors of one list, by their keys.
#[derive(Debug, Default)]
struct Level(HashMap<String, Values>);

/// The descriptors with one key. The empty value stands for those without one.
#[derive(Debug, Default)]
struct Values {
    exact: HashMap<String, Branch>,
    patterns: Vec<(Pattern, Branch)>,
}

/// A descriptor in the configuration.
#[derive(Debug)]
struct Branch {
    place: String,
    /// The key and the value as they are written: a part of the metric's name.
    name: String,
    value_to_metric: bool,
    /// The pattern whose values share a limiter.
    shared: Option<String>,
    rule: Option<Arc<Rule>>,
    below: Level,
}

/// A value with one or more `*`, each of which matches any number of characters.
#[derive(Debug)]
struct Pattern {
    text: String,
    first: String,
    middle: Vec<String>,
    last: String,
}

/// The rule that limits a descriptor.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // independent settings of users
pub struct Rule {
    /// The place in the configuration as `file:line`, for messages.
    pub place: String,
    /// The names of the descriptors that lead to the rule: the labels of its metrics.
    pub levels: Vec<String>,
    /// The limit.
    pub bound: Bound,
    /// The hits per unit of time, for replies.
    pub requests_per_unit: u32,
    /// The unit of time, for replies.
    pub unit: Unit,
    /// The name by which another rule can replace this one. Empty if there is none.
    pub name: String,
    /// The names of the rules that do not apply when this one does.
    pub replaces: Vec<String>,
    /// Whether the rule never refuses.
    pub shadow: bool,
    /// Whether a request is refused only if all rules of this kind refuse it.
    pub quota: bool,
    /// Whether metrics include the values of all entries.
    pub detailed: bool,
    /// The metadata of requests that the rule admits.
    pub metadata: Option<Struct>,
    /// How long all requests are refused after a refusal.
    pub ban: Option<Duration>,
    /// The terms of units that this process takes from the server in batches.
    pub batch: Option<Batch>,
    /// Which hits are charged even over the limit.
    pub overdraft: Overdraft,
    /// Ends after the warning about a request with 0 hits, if the rule does not say `overdraft`.
    warning: Option<Once>,
    /// The headers of responses to requests that this rule refuses.
    pub headers: Vec<HeaderValue>,
    /// The end of the key. It ensures that a changed rule finds no state of another kind.
    pub suffix: String,
}

/// The limit of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// Admits everything.
    #[default]
    Unlimited,
    /// Admits nothing.
    Nothing,
    /// A limit on hits per time.
    Limit(Limit),
    /// A limit on concurrent requests, each for at most this long. The last entry names the request.
    Places(Places, Duration),
}

/// The hits that are charged even over the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overdraft {
    /// None.
    #[default]
    Never,
    /// Those of descriptors that say how many hits they have, such as the costs of a response.
    Named,
    /// All.
    Always,
}

/// The terms of units that this process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    /// The limit, which is of a kind whose units can be held.
    pub limit: LeasedLimit,
    /// The largest number of units that this process holds for a key. At least 1.
    pub most: u32,
    /// How long units are held. More than 0.
    pub hold: Duration,
}

/// The rule for a descriptor.
#[derive(Clone, Debug)]
pub struct Found {
    /// The rule.
    pub rule: Arc<Rule>,
    /// The key of the limiter, without the prefix of the settings.
    pub key: String,
    /// The labels of the metrics, if they differ from the rule's.
    pub levels: Option<Vec<String>>,
}

impl Config {
    /// Reads the files, given as names and texts.
    ///
    /// With `merge`, several files may define the same domain.
    ///
    /// # Errors
    /// Returns all errors, in the order of the files and lines.
    pub fn read(files: &[(String, String)], merge: bool) -> Result<Self, Vec<Problem>> {
        let mut config = Self::default();
        let mut problems = Vec::new();
        for (name, text) in files {
            let mut of_file = Vec::new();
            let read = yaml::document(name, text, |node| config.add(&node, merge, &mut of_file));
            noted(read.and_then(|added| added), &mut of_file);
            of_file.sort_by_key(|problem| problem.line);
            problems.append(&mut of_file);
        }
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    /// Returns the number of domains.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// Returns a key in the form of a domain's keys, which no limiter uses. `None` without domains.
    pub fn key_for_health(&self) -> Option<String> {
        let (name, domain) = self.domains.iter().min_by_key(|(name, _)| *name)?;
        let mut escaped = String::new();
        escape(&mut escaped, name);
        Some(match domain.tag {
            Some(Tag::Nothing) => format!("{escaped}|health"),
            Some(Tag::FirstEntry | Tag::Domain) | None => format!("{{{escaped}}}|health"),
        })
    }

    /// Returns whether there is a domain with this name.
    pub fn has(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Returns the rules, each to be shown on its own line.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let mut levels: Vec<&Level> = self.domains.values().map(|domain| &domain.top).collect();
        let mut rules = Vec::new();
        while let Some(level) = levels.pop() {
            for values in level.0.values() {
                let patterns = values.patterns.iter().map(|(_, branch)| branch);
                for branch in values.exact.values().chain(patterns) {
                    rules.extend(&branch.rule);
                    levels.push(&branch.below);
                }
            }
        }
        rules.sort_by(|a, b| a.levels.cmp(&b.levels));
        rules.into_iter()
    }

    fn add(&mut self, node: &Node<'_>, merge: bool, problems: &mut Vec<Problem>) -> Result<(), Problem> {
        let mut fields = node.fields("domain descriptors hash_tag", problems)?;
        let name = fields.take("domain");
        let domain = name.as_ref().and_then(|name| noted(name.text(), problems)).unwrap_or_default();
        let tag_node = fields.take("hash_tag");
        let tag = tag_node.as_ref().and_then(|tag| noted(Tag::read(tag), problems));
        let new = |place| Domain { place, tag: None, top: Level::default() };
        // Collects the rules of a file without a valid domain, only to find their errors.
        let mut stray = new(String::new());
        let known = match (name, self.domains.entry(domain.to_owned())) {
            (Some(name), Entry::Vacant(entry)) if !domain.is_empty() => entry.insert(new(name.place())),
            (Some(_), Entry::Occupied(entry)) if merge => entry.into_mut(),
            (Some(name), Entry::Occupied(entry)) => {
                let place = &entry.get().place;
                problems.push(name.problem(format!("duplicate domain '{domain}', which is in {place}")));
                &mut stray
            }
            _ => {
                problems.push(node.problem("the file has no domain"));
                &mut stray
            }
        };
        if let Some(node) = tag_node.filter(|_| tag.is_some() && known.tag.is_some() && known.tag != tag) {
            let place = &known.place;
            problems.push(node.problem(format!(
                "another file says another one for the domain '{domain}', which begins in {place}"
            )));
        }
        known.tag = known.tag.or(tag);
        if let Some(list) = fields.take("descriptors") {
            known.top.add(&list, &[domain.to_owned()], problems);
        }
        Ok(())
    }

    /// Returns the rule for a descriptor, or `None` if no rule limits it.
    pub fn find(&self, domain: &str, descriptor: &RateLimitDescriptor) -> Option<Found> {
        let known = self.domains.get(domain)?;
        let tag = known.tag.unwrap_or(Tag::Domain);
        let mut shared: Vec<Option<&str>> = Vec::new();
        if let Some(limit) = descriptor.limit {
            let rule = Arc::new(Rule::of(limit, domain, descriptor));
            let key = tag.key(domain, descriptor, &shared, &rule);
            return Some(Found { rule, key, levels: None });
        }
        // The names of metrics, and whether each of them has the value in the request.
        let mut names: Vec<(&Branch, bool)> = Vec::new();
        let mut level = &known.top;
        for entry in &descriptor.entries {
            let (branch, by_value) = level.find(&entry.key, &entry.value)?;
            shared.push(branch.shared.as_deref());
            names.push((branch, branch.value_to_metric && !by_value && branch.shared.is_none()));
            level = &branch.below;
        }
        let rule = Arc::clone(names.last()?.0.rule.as_ref()?);
        let key = tag.key(domain, descriptor, &shared, &rule);
        let dynamic = rule.detailed || names.iter().any(|(_, dynamic)| *dynamic);
        let levels = dynamic.then(|| {
            let entries = names.iter().zip(&descriptor.entries);
            let name =
                |((branch, dynamic), entry): (&(&Branch, bool), &crate::proto::Entry)| match &branch.shared {
                    Some(pattern) => format!("{}_{pattern}", entry.key),
                    None if rule.detailed || *dynamic && !entry.value.is_empty() => {
                        format!("{}_{}", entry.key, entry.value)
                    }
                    None => branch.name.clone(),
                };
            std::iter::once(domain.to_owned()).chain(entries.map(name)).collect()
        });
        Some(Found { rule, key, levels })
    }
}

impl Level {
    fn add(&mut self, list: &Node<'_>, above: &[String], problems: &mut Vec<Problem>) {
        for node in noted(list.list(), problems).unwrap_or_default() {
            let added = self.add_one(&node, above, problems);
            noted(added, problems);
        }
    }

    fn add_one(
        &mut self,
        node: &Node<'_>,
        above: &[String],
        problems: &mut Vec<Problem>,
    ) -> Result<(), Problem> {
        const KNOWN: &str = "key value rate_limit descriptors shadow_mode quota_mode detailed_metric \
                             value_to_metric share_threshold metadata";
        let mut fields = node.fields(KNOWN, problems)?;
        let key_node = fields.take("key");
        let key = key_node.as_ref().and_then(|key| noted(key.text(), problems)).unwrap_or_default();
        match key_node {
            Some(node) if key.contains('*') => {
                problems.push(node.problem("a key has no wildcards; they are for values"));
            }
            _ if key.is_empty() => problems.push(node.problem("the descriptor has no key")),
            _ => {}
        }
        let value = fields.take("value");
        let text = value.as_ref().and_then(|value| noted(value.text(), problems)).unwrap_or_default();
        let mut flag = |name| {
            let flag = fields.take(name).and_then(|node| noted(node.boolean(), problems));
            flag.unwrap_or_default()
        };
        let (shadow, quota) = (flag("shadow_mode"), flag("quota_mode"));
        let (detailed, value_to_metric) = (flag("detailed_metric"), flag("value_to_metric"));
        let share = fields.take("share_threshold");
        let shares = share.as_ref().and_then(|node| noted(node.boolean(), problems)).unwrap_or_default();
        if let Some(share) = share.filter(|_| shares && !text.contains('*')) {
            problems.push(share.problem("needs a value with '*'"));
        }
        let metadata = fields.take("metadata").and_then(|node| noted(node.structure(), problems));

        let name = if text.is_empty() { key.to_owned() } else { format!("{key}_{text}") };
        let levels: Vec<String> = above.iter().chain(std::iter::once(&name)).cloned().collect();
        let mut rule = None;
        if let Some(node) = fields.take("rate_limit") {
            let read = Rule::read(&node, &levels, problems);
            if let Some(read) = noted(read, problems).flatten() {
                if matches!(read.bound, Bound::Places(..)) && !text.is_empty() {
                    problems.push(node.problem(
                        "with algorithm: lease the descriptor has no value, which names the request",
                    ));
                }
                if read.batch.is_some() && quota {
                    problems.push(node.problem("with quota_mode a rule has no batch"));
                }
                rule = Some(Arc::new(Rule { shadow, quota, detailed, metadata, ..read }));
            }
        }
        let mut branch = Branch {
            place: node.place(),
            name,
            value_to_metric,
            shared: shares.then(|| text.to_owned()),
            rule,
            below: Level::default(),
        };
        if let Some(list) = fields.take("descriptors") {
            branch.below.add(&list, &levels, problems);
        }

        let values = self.0.entry(key.to_owned()).or_default();
        let pattern = || values.patterns.iter().find(|(pattern, _)| pattern.text == text);
        let known = values.exact.get(text).or_else(|| pattern().map(|(_, branch)| branch));
        if let Some(known) = known {
            let text = format!("duplicate descriptor '{}', which is in {}", levels.join("."), known.place);
            return Err(node.problem(text));
        }
        if text.contains('*') {
            values.patterns.push((Pattern::new(text), branch));
        } else {
            values.exact.insert(text.to_owned(), branch);
        }
        Ok(())
    }

    /// Returns the most specific descriptor: the one with the value, or the first whose pattern matches, or
    /// the one without a value. Also returns whether it is the one with the value.
    fn find(&self, key: &str, value: &str) -> Option<(&Branch, bool)> {
        let values = self.0.get(key)?;
        if let Some(branch) = values.exact.get(value) {
            return Some((branch, true));
        }
        let matching = values.patterns.iter().find(|(pattern, _)| pattern.matches(value));
        matching.map(|(_, branch)| branch).or(values.exact.get("")).map(|branch| (branch, false))
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let mut parts: Vec<String> = text.split('*').map(str::to_owned).collect();
        let last = parts.pop().unwrap_or_default();
        let mut parts = parts.into_iter();
        Self { text: text.to_owned(), first: parts.next().unwrap_or_default(), middle: parts.collect(), last }
    }

    fn matches(&self, value: &str) -> bool {
        let inner =
            value.strip_prefix(self.first.as_str()).and_then(|rest| rest.strip_suffix(self.last.as_str()));
        let found = inner.and_then(|inner| {
            // Matching each part as early as possible leaves the most text for the next parts.
            self.middle
                .iter()
                .try_fold(inner, |rest, part| rest.split_once(part.as_str()).map(|(_, behind)| behind))
        });
        found.is_some()
    }
}

impl Tag {
    fn read(node: &Node<'_>) -> Result<Self, Problem> {
        match node.text()? {
            "domain" => Ok(Self::Domain),
            "first_entry" => Ok(Self::FirstEntry),
            "none" => Ok(Self::Nothing),
            other => Err(node.problem(format!("must be domain, first_entry or none, and is '{other}'"))),
        }
    }

    /// Returns the key of a limiter. Different descriptors always have different keys.
    fn key(
        self,
        domain: &str,
        descriptor: &RateLimitDescriptor,
        shared: &[Option<&str>],
        rule: &Rule,
    ) -> String {
        let mut key = String::with_capacity(64);
        if self != Self::Nothing {
            key.push('{');
        }
        escape(&mut key, domain);
        if self == Self::Domain {
            key.push('}');
        }
        // In a request that holds a place, the last entry is the request's name.
        let names = usize::from(matches!(rule.bound, Bound::Places(..)));
        let entries = descriptor.entries.len().saturating_sub(names);
        for (index, entry) in descriptor.entries.iter().take(entries).enumerate() {
            key.push(';');
            escape(&mut key, &entry.key);
            key.push('=');
            match shared.get(index) {
                Some(Some(pattern)) => escape(&mut key, pattern),
                _ => escape(&mut key, &entry.value),
            }
            if index == 0 && self == Self::FirstEntry {
                key.push('}');
            }
        }
        key.push('|');
        key.push_str(&rule.suffix);
        key
    }
}

/// Appends a text in which the characters that separate the parts of a key are escaped.
fn escape(key: &mut String, text: &str) {
    for c in text.chars() {
        if matches!(c, '%' | '{' | '}' | ';' | '=' | '|') {
            // Writing to a String does not fail.
            let _: Result<(), std::fmt::Error> = write!(key, "%{:02X}", u32::from(c));
        } else {
            key.push(c);
        }
    }
}

/// How long units are held if the rule does not set a time.
const HOLD: Duration = Duration::from_millis(300);

impl Rule {
    /// Warns, once for each rule, about a request with 0 hits if the rule does not say `overdraft`: what
    /// such a request precedes is often charged when the response is complete.
    pub fn looked_at(&self) {
        if let Some(warning) = &self.warning {
            warning.call_once(|| {
                tracing::warn!(
                    "{}: a request has 0 hits. If hits are charged when the response is complete, the rule \
                     needs overdraft: true, and overdraft: false otherwise",
                    self.place
                );
            });
        }
    }

    /// Reads a rule. Returns `None` if there are errors, which are added to `problems`.
    fn read(
        node: &Node<'_>,
        levels: &[String],
        problems: &mut Vec<Problem>,
    ) -> Result<Option<Self>, Problem> {
        const KNOWN: &str = "unit requests_per_unit unlimited name replaces algorithm burst unit_multiplier \
                             utc_offset from ban batch hold overdraft headers";
        let mut fields = node.fields(KNOWN, problems)?;
        let name = fields.take("name").and_then(|node| noted(node.text(), problems)).unwrap_or_default();
        let mut replaces = Vec::new();
        if let Some(list) = fields.take("replaces") {
            for item in noted(list.list(), problems).unwrap_or_default() {
                let read = read_replaced(&item, name, problems);
                replaces.extend(noted(read, problems).map(str::to_owned));
            }
        }
        let ban = fields.take("ban").and_then(|node| noted(read_duration(&node), problems));
        let (batch, hold) = (fields.take("batch"), fields.take("hold"));
        let overdraft = fields.take("overdraft").and_then(|node| noted(read_overdraft(&node), problems));
        let headers = fields.take("headers").and_then(|node| noted(read_headers(&node), problems));
        let unlimited = fields.take("unlimited").and_then(|node| noted(node.boolean(), problems));
        let read = if unlimited == Some(true) {
            fields.take("requests_per_unit");
            let held = [batch.clone().map(|node| ("batch", node)), hold.clone().map(|node| ("hold", node))];
            for (name, node) in fields.rest().into_iter().chain(held.into_iter().flatten()) {
                problems.push(node.problem(format!("an unlimited rule has no {name}")));
            }
            Some((Bound::Unlimited, 0, Unit::Unknown, String::new()))
        } else {
            read_bound(node, &mut fields, problems)
        };
        let Some((bound, requests_per_unit, unit, suffix)) = read else { return Ok(None) };
        let batch = noted(read_batch(batch.as_ref(), hold.as_ref(), bound, ban), problems).flatten();
        Ok(Some(Self {
            name: name.to_owned(),
            replaces,
            ban,
            batch,
            overdraft: overdraft.unwrap_or_default(),
            warning: overdraft.is_none().then(Once::new),
            headers: headers.unwrap_or_default(),
            suffix,
            place: node.place(),
            levels: levels.to_vec(),
            bound,
            requests_per_unit,
            unit,
            ..Self::default()
        }))
    }

    /// Creates the rule for a descriptor that contains its own limit.
    fn of(limit: RateLimitOverride, domain: &str, descriptor: &RateLimitDescriptor) -> Self {
        let name = |entry: &crate::proto::Entry| {
            if entry.value.is_empty() { entry.key.clone() } else { format!("{}_{}", entry.key, entry.value) }
        };
        let names = descriptor.entries.iter().map(name);
        let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
        let window = window(unit, 1, None, 1);
        let levels = std::iter::once(domain.to_owned()).chain(names).collect();
        let bound = match window {
            _ if limit.requests_per_unit == 0 => Bound::Nothing,
            // This service does not know the unit.
            None => Bound::Unlimited,
            Some(window) => Bound::Limit(Fixed::new(limit.requests_per_unit.into(), window).into()),
        };
        Self {
            place: "the request".to_owned(),
            levels,
            bound,
            requests_per_unit: limit.requests_per_unit,
            unit,
            suffix: format!("fixed:{}", unit.name()),
            ..Self::default()
        }
    }
}

fn read_overdraft(node: &Node<'_>) -> Result<Overdraft, Problem> {
    match (node.text()?, node.boolean()) {
        ("named", _) => Ok(Overdraft::Named),
        (_, Ok(true)) => Ok(Overdraft::Always),
        (_, Ok(false)) => Ok(Overdraft::Never),
        (other, Err(_)) => Err(node.problem(format!("must be true, false or named, and is '{other}'"))),
    }
}

/// Reads the limit, the numbers for replies, and the end of the key. Returns `None` if there are errors,
/// which are added to `problems`.
fn read_bound(
    node: &Node<'_>,
    fields: &mut Fields<'_>,
    problems: &mut Vec<Problem>,
) -> Option<(Bound, u32, Unit, String)> {
    let unit_node = fields.take("unit");
    let unit = match &unit_node {
        Some(unit) => read_unit(unit),
        None => Err(node.problem("has no unit, and is not unlimited")),
    };
    let count = match fields.take("requests_per_unit") {
        Some(count) => count.number(0, u32::MAX),
        None => Err(node.problem("has no requests_per_unit")),
    };
    let multiplier = fields.take("unit_multiplier").map_or(Ok(1), |node| node.number(1, 1_000_000));
    let kind = fields.take("algorithm").map_or(Ok("fixed"), |node| read_algorithm(&node));
    let (unit, count) = (noted(unit, problems), noted(count, problems));
    let (multiplier, kind) = (noted(multiplier, problems), noted(kind, problems));
    let (burst_node, utc, from) = (fields.take("burst"), fields.take("utc_offset"), fields.take("from"));
    let burst = burst_node.as_ref().and_then(|node| noted(node.number(1, u32::MAX), problems));
    if kind.is_some_and(|kind| kind != "fixed") {
        let calendar = [&utc, &from].into_iter().flatten();
        problems.extend(calendar.map(|node| node.problem("is for algorithm: fixed")));
    }
    if let Some(node) = burst_node
        && kind.is_some_and(|kind| !matches!(kind, "gcra" | "bucket" | "funnel"))
    {
        problems.push(node.problem("is for algorithm: gcra, bucket or funnel"));
    }
    let (unit, count, multiplier, kind) = (unit?, count?, multiplier?, kind?);

    let period = length(unit).saturating_mul(multiplier);
    let rate = Rate::new(count.into(), period);
    let burst = burst.unwrap_or(count.max(1));
    let limit = match kind {
        "gcra" => rate.burst(burst.saturating_sub(1).into()).into(),
        "bucket" => Limit::Bucket(rate.capacity(burst.into())),
        "funnel" => Limit::Funnel(rate.capacity(burst.into())),
        "window" => Limit::Window(rate),
        "log" => Limit::Log(rate),
        "lease" => {
            let bound = if count == 0 { Bound::Nothing } else { Bound::Places(Places(count.into()), period) };
            return Some((bound, count, unit, "lease".to_owned()));
        }
        _ => {
            let window = read_window(unit, multiplier, utc.as_ref(), from.as_ref());
            let Some(window) = noted(window, problems)? else {
                let node = unit_node.as_ref().unwrap_or(node);
                problems.push(node.problem("has no unit_multiplier: months and years differ in length"));
                return None;
            };
            Limit::Fixed(Fixed::new(count.into(), window))
        }
    };
    let times = if multiplier == 1 { String::new() } else { multiplier.to_string() };
    let suffix = format!("{kind}:{times}{}", unit.name());
    if count == 0 {
        return Some((Bound::Nothing, count, unit, suffix));
    }
    // Reads the limit as the server does.
    if let Err(error) = LocalLimiter::with_keys(NonZeroU32::MIN, 1).take("", limit, Units(0)) {
        problems.push(node.problem(error.detail().unwrap_or("is out of range").to_owned()));
        return None;
    }
    Some((Bound::Limit(limit), count, unit, suffix))
}

/// Reads the terms of the units that are held.
fn read_batch(
    batch: Option<&Node<'_>>,
    hold: Option<&Node<'_>>,
    bound: Bound,
    ban: Option<Duration>,
) -> Result<Option<Batch>, Problem> {
    let Some(node) = batch else {
        return match hold {
            Some(node) => Err(node.problem("is for rules with a batch")),
            None => Ok(None),
        };
    };
    let most = node.number(1, 1_000_000)?;
    let hold = hold.map_or(Ok(HOLD), read_duration)?;
    let limit = match bound {
        Bound::Limit(Limit::Throttle(limit)) => limit.into(),
        Bound::Limit(Limit::Fixed(limit)) => limit.into(),
        // There are no units to hold.
        Bound::Nothing | Bound::Unlimited => return Ok(None),
        Bound::Limit(_) | Bound::Places(..) => {
            return Err(node.problem("is for algorithm: fixed or gcra"));
        }
    };
    if ban.is_some() {
        return Err(node.problem("is not for rules with a ban, which the server alone knows"));
    }
    Ok(Some(Batch { limit, most, hold }))
}

fn read_unit(node: &Node<'_>) -> Result<Unit, Problem> {
    let text = node.text()?;
    let unit = Unit::from_str_name(&text.to_ascii_uppercase()).filter(|unit| *unit != Unit::Unknown);
    unit.ok_or_else(|| {
        node.problem(format!("must be second, minute, hour, day, week, month or year, and is '{text}'"))
    })
}

fn read_algorithm(node: &Node<'_>) -> Result<&'static str, Problem> {
    let text = node.text()?;
    let known = ["fixed", "gcra", "window", "log", "bucket", "funnel", "lease"];
    known.into_iter().find(|known| *known == text).ok_or_else(|| {
        node.problem(format!("must be fixed, gcra, window, log, bucket, funnel or lease, and is '{text}'"))
    })
}

/// Reads the name of a rule that the rule `name` replaces.
fn read_replaced<'a>(node: &Node<'a>, name: &str, problems: &mut Vec<Problem>) -> Result<&'a str, Problem> {
    let mut fields = node.fields("name", problems)?;
    match fields.take("name").map_or(Ok(""), |node| node.text())? {
        "" => Err(node.problem("has no name")),
        replaced if replaced == name => Err(node.problem("a rule does not replace itself")),
        replaced => Ok(replaced),
    }
}

/// Reads the window of a rule. Returns `None` for a window of several months or years.
fn read_window(
    unit: Unit,
    multiplier: u32,
    utc: Option<&Node<'_>>,
    from: Option<&Node<'_>>,
) -> Result<Option<FixedWindow>, Problem> {
    let minutes = utc.map(read_offset).transpose()?;
    if let Some(node) = utc.filter(|_| multiplier > 1 || length(unit) < length(Unit::Hour)) {
        return Err(
            node.problem("is for windows of the calendar, which are an hour, a day, a week, ... long")
        );
    }
    let first = match (from, unit) {
        (Some(node), Unit::Week) => node.number(1, 7)?,
        (Some(node), Unit::Month) => node.number(1, 31)?,
        (Some(node), _) => return Err(node.problem("is for weeks and months")),
        (None, _) => 1,
    };
    Ok(window(unit, multiplier, minutes, first))
}

/// Returns the length of a unit of time: 30 days for a month, 365 for a year.
pub const fn length(unit: Unit) -> Duration {
    const DAY: u64 = 86_400;
    Duration::from_secs(match unit {
        Unit::Unknown => 0,
        Unit::Second => 1,
        Unit::Minute => 60,
        Unit::Hour => 3_600,
        Unit::Day => DAY,
        Unit::Week => 7 * DAY,
        Unit::Month => 30 * DAY,
        Unit::Year => 365 * DAY,
    })
}

/// Returns the window of a unit: a calendar window for an hour or more. `None` for several months or years.
fn window(unit: Unit, multiplier: u32, utc: Option<i16>, from: u8) -> Option<FixedWindow> {
    let calendar = match unit {
        Unit::Unknown => return None,
        Unit::Month | Unit::Year if multiplier > 1 => return None,
        Unit::Month => FixedWindow::month_from(from),
        Unit::Year => FixedWindow::year(),
        _ if multiplier > 1 => return Some(FixedWindow::period(length(unit).saturating_mul(multiplier))),
        Unit::Second | Unit::Minute => return Some(FixedWindow::period(length(unit))),
        Unit::Hour => FixedWindow::hour(),
        Unit::Day => FixedWindow::day(),
        Unit::Week => FixedWindow::week_from(match from {
            2 => Weekday::Tuesday,
            3 => Weekday::Wednesday,
            4 => Weekday::Thursday,
            5 => Weekday::Friday,
            6 => Weekday::Saturday,
            7 => Weekday::Sunday,
            _ => Weekday::Monday,
        }),
    };
    Some(match utc {
        Some(minutes) => calendar.utc_offset_minutes(minutes),
        None => calendar,
    })
}

/// Reads how far local time is ahead of UTC: `+05:30`, `-08:00`, or `0`.
fn read_offset(node: &Node<'_>) -> Result<i16, Problem> {
    let text = node.text()?;
    let minutes = || {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => (-1_i16, digits),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let (hours, minutes) = digits.split_once(':').unwrap_or((digits, "0"));
        let minutes = minutes.parse::<i16>().ok().filter(|minutes| (0..60).contains(minutes))?;
        let hours = hours.parse::<i16>().ok().filter(|hours| (0..=14).contains(hours))?;
        let total = hours.checked_mul(60)?.checked_add(minutes)?;
        sign.checked_mul(total).filter(|total| total.unsigned_abs() <= 840)
    };
    minutes().ok_or_else(|| node.problem(format!("must be an offset such as +05:30, and is '{text}'")))
}

fn read_duration(node: &Node<'_>) -> Result<Duration, Problem> {
    const LONGEST: Duration = Duration::from_secs(36_500 * 86_400); // ends within the server's range of time
    let text = node.text()?;
    let duration = duration::parse(text).filter(|duration| !duration.is_zero() && *duration <= LONGEST);
    duration.ok_or_else(|| node.problem(format!("must be a duration from 1us to 36500d, and is '{text}'")))
}

fn read_headers(node: &Node<'_>) -> Result<Vec<HeaderValue>, Problem> {
    let mut headers = Vec::new();
    for (name, node) in node.mapping()?.rest() {
        let (key, value) = (name.to_ascii_lowercase(), node.text()?.to_owned());
        let valid = axum::http::HeaderName::from_bytes(key.as_bytes()).is_ok()
            && axum::http::HeaderValue::from_str(&value).is_ok();
        if !valid {
            return Err(node.problem("is not a header of HTTP"));
        }
        headers.push(HeaderValue { key, value });
    }
    Ok(headers)
}
