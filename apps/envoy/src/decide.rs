//! Decisions: the descriptors of a request become the limiters of one call to the server, and the rows of its
//! reply become their statuses.

use crate::config::{Batch, Bound, Config, Found, Overdraft, Rule, length};
use crate::lock;
use crate::metrics::{Counters, Metrics};
use crate::proto::{
    Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use crate::server::{self, Server};
use crate::settings::{Settings, Unavailable};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use redis::RedisError;
use redis_cell_client::several::{Several, Verb};
use redis_cell_client::{
    Answer, Balance, Decision, Difference, Gcra, Leased, LocalLimiter, MPeek, MSettle, MTake, Rate, Saturate,
    Taken, Together, Units, ask, call, is_unavailable,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Decides requests with the rules and the server.
#[derive(Debug)]
pub struct Decider {
    server: Server,
    settings: Settings,
    metrics: Arc<Metrics>,
    local: LocalLimiter,
    /// The units that this process holds, by the terms of their rules.
    leased: Mutex<HashMap<Batch, Leased<Server>>>,
    config: RwLock<Arc<Config>>,
    /// Why the server is unavailable, and when it was last called.
    outage: Mutex<Option<(Instant, RedisError)>>,
    /// When an error of the server was last written to the log.
    logged: Mutex<Option<Instant>>,
}

/// Why there is no decision.
#[derive(Debug)]
pub enum Failure {
    /// The request is invalid.
    Request(&'static str),
    /// The server is unavailable, or has answered with an error.
    Server(RedisError),
}

/// A descriptor of the request, with its rule.
struct Asked {
    found: Option<Found>,
    counters: Option<Arc<Counters>>,
    hits: u64,
    gives_back: bool,
    quota: bool,
    /// The index of its limiter in the call.
    limiter: Option<usize>,
}

impl Asked {
    fn row<'a>(&self, rows: &'a [Row]) -> Option<&'a Row> {
        self.limiter.and_then(|index| rows.get(index))
    }

    /// Returns whether the rule refuses.
    fn is_refused(&self, rows: &[Row]) -> bool {
        let shadow = self.found.as_ref().is_some_and(|found| found.rule.shadow);
        !shadow && self.row(rows).is_some_and(|row| !row.admitted)
    }
}

/// A limiter in the call.
struct Limiter<'a> {
    key: String,
    rule: Arc<Rule>,
    /// The name of the request that holds a place.
    id: &'a str,
    hits: u64,
    /// Whether a descriptor names its number of hits.
    has_named_hits: bool,
    gives_back: bool,
    /// Whether the limiter refuses nothing.
    shadow: bool,
}

impl Limiter<'_> {
    /// Returns whether hits are charged or given back whatever the limit and the other limiters say.
    fn settles(&self) -> bool {
        let is_known = matches!(self.rule.bound, Bound::Limit(_) | Bound::Places(..));
        let is_charged = match self.rule.overdraft {
            Overdraft::Never => false,
            Overdraft::Named => self.has_named_hits,
            Overdraft::Always => true,
        };
        is_known && (self.gives_back || self.hits > 0 && is_charged)
    }

    /// Returns whether the request is refused without asking the server.
    fn admits_nothing(&self) -> bool {
        self.rule.bound == Bound::Nothing && self.hits > 0 && !self.gives_back && !self.shadow
    }
}

/// The server's answer for a limiter.
#[derive(Clone, Copy, Debug)]
struct Row {
    admitted: bool,
    /// The most hits at once.
    limit: u64,
    remaining: u64,
    /// The time until the same hits would be admitted, or until the limiter is fully replenished.
    wait: Duration,
    /// Whether it describes units that this process holds. Other processes may hold more.
    held: bool,
}

impl From<&Answer> for Row {
    fn from(answer: &Answer) -> Self {
        let wait = answer.retry_after().unwrap_or(answer.reset_after);
        let Answer { limit, remaining, .. } = *answer;
        Self { admitted: answer.admitted(), limit, remaining, wait, held: false }
    }
}

impl From<&Balance> for Row {
    fn from(balance: &Balance) -> Self {
        let wait = balance.retry_after.unwrap_or(balance.reset_after);
        let Balance { over_limit, limit, remaining, .. } = *balance;
        Self { admitted: !over_limit, limit, remaining, wait, held: false }
    }
}

impl Decider {
    /// Creates a decider without rules.
    pub fn new(server: Server, settings: Settings, metrics: Arc<Metrics>) -> Self {
        let instances = match settings.unavailable {
            Unavailable::Local(instances) => instances,
            _ => std::num::NonZeroU32::MIN,
        };
        let local = LocalLimiter::new(instances);
        Self {
            server,
            settings,
            metrics,
            local,
            leased: Mutex::default(),
            config: RwLock::default(),
            outage: Mutex::default(),
            logged: Mutex::default(),
        }
    }

    /// Returns the present rules.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the rules. Requests that are already being decided keep the old rules.
    pub fn replace(&self, config: Config) {
        // Units held on other terms are given back when their hold ends.
        let terms: HashSet<Batch> = config.rules().filter_map(|rule| rule.batch).collect();
        lock(&self.leased).retain(|batch, _| terms.contains(batch));
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Gives the held units back, when the process ends.
    pub async fn give_back(&self) {
        let leased: Vec<Leased<Server>> = lock(&self.leased).drain().map(|(_, leased)| leased).collect();
        for leased in leased {
            if let Err(error) = leased.give_back().await {
                tracing::warn!("units are not given back: {error}");
            }
        }
    }

    /// Returns whether the server decides: it gets a call with 0 hits under a key of one of the domains,
    /// because its permissions may be limited to these keys.
    pub async fn can_server_decide(&self) -> bool {
        let Some(key) = self.config().key_for_health() else { return true };
        let key = format!("{}{key}", self.settings.prefix);
        let Ok(cmd) = call::mtake(MTake::new().throttle(key, BAN, Units(0))) else { return false };
        let answer = ask::<_, Together<Answer>>(&self.server, self.settings.timeout, &cmd).await;
        answer.is_ok()
    }

    /// Decides a request. `patience` is how long the caller waits, if the caller has set a limit.
    ///
    /// # Errors
    /// Returns a [`Failure`] if there is no decision.
    pub async fn decide(
        &self,
        request: &RateLimitRequest,
        patience: Option<Duration>,
    ) -> Result<RateLimitResponse, Failure> {
        let begun = Instant::now();
        let response = self.decided(request, patience).await;
        self.metrics.answered(begun.elapsed());
        match &response {
            Ok(response) => tracing::debug!(?request, ?response, "decided"),
            Err(Failure::Request(_)) => _ = self.metrics.service_errors.fetch_add(1, Relaxed),
            Err(Failure::Server(_)) => _ = self.metrics.server_errors.fetch_add(1, Relaxed),
        }
        response
    }

    async fn decided(
        &self,
        request: &RateLimitRequest,
        patience: Option<Duration>,
    ) -> Result<RateLimitResponse, Failure> {
        if request.domain.is_empty() {
            return Err(Failure::Request("rate limit domain must not be empty"));
        }
        if request.descriptors.is_empty() {
            return Err(Failure::Request("rate limit descriptor list must not be empty"));
        }
        let config = self.config();
        let mut asked = self.asked(&config, request);
        let limiters = self.limiters(&mut asked, request)?;
        // Uses three quarters of the time that the caller waits, so that the answer still arrives in time.
        let patience = patience.map_or(Duration::MAX, |patience| patience.saturating_mul(3).div_f64(4.0));
        let timeout = self.settings.timeout.min(patience);
        let needs_server = limiters.iter().any(|limiter| limiter.rule.bound != Bound::Nothing);
        let rows = match needs_server.then(|| self.known_outage()) {
            Some(Some(error)) => Err(error),
            Some(None) => self.learn(self.rows(&limiters, &asked, timeout).await),
            None => self.rows(&limiters, &asked, timeout).await,
        };
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                // A rule that admits nothing needs no server to refuse a request.
                let is_certain = limiters.iter().any(Limiter::admits_nothing);
                let mode = self.settings.unavailable;
                if mode == Unavailable::Error && !is_certain {
                    return Err(Failure::Server(error));
                }
                self.metrics.without_server.fetch_add(1, Relaxed);
                match mode {
                    Unavailable::Error | Unavailable::Open => {
                        for asked in &mut asked {
                            let admits_nothing = |found: &Found| found.rule.bound == Bound::Nothing;
                            asked.limiter =
                                asked.limiter.filter(|_| asked.found.as_ref().is_some_and(admits_nothing));
                        }
                        limiters.iter().map(row_of_nothing).collect()
                    }
                    Unavailable::Closed => {
                        limiters.iter().map(|_| Row { wait: PAUSE, ..refused() }).collect()
                    }
                    Unavailable::Local(_) => self.local_rows(&limiters, &asked).map_err(Failure::Server)?,
                }
            }
        };
        Ok(self.response(request, &asked, &with_waits(&limiters, rows)))
    }

    /// Finds the rules for the descriptors, without the rules that others replace.
    fn asked(&self, config: &Config, request: &RateLimitRequest) -> Vec<Asked> {
        let known = config.has(&request.domain);
        if !known {
            self.metrics.unknown_domains.fetch_add(1, Relaxed);
        }
        let find = |descriptor| config.find(&request.domain, descriptor);
        let mut found: Vec<Option<Found>> = request.descriptors.iter().map(find).collect();
        let rules = found.iter().flatten();
        let replaced: HashSet<String> = rules.flat_map(|found| found.rule.replaces.iter().cloned()).collect();
        // As in envoyproxy/ratelimit, an unlimited rule cannot be replaced.
        let unlimited = |found: &Found| found.rule.bound == Bound::Unlimited;
        for found in &mut found {
            let is_replaced =
                |found: &Found| !found.rule.name.is_empty() && replaced.contains(&found.rule.name);
            *found = found.take().filter(|found| unlimited(found) || !is_replaced(found));
        }
        let asked = |(found, descriptor): (Option<Found>, &RateLimitDescriptor)| {
            let hits = descriptor.hits_addend.unwrap_or_else(|| request.hits_addend.max(1).into());
            if let Some(found) = found.as_ref().filter(|_| hits == 0) {
                found.rule.looked_at();
            }
            // An unknown domain has no metrics, so callers cannot create metrics.
            let counters = found.as_ref().filter(|_| known).map(|found| {
                let is_of_rule = found.levels.is_none() && descriptor.limit.is_none();
                let levels = found.levels.as_ref().unwrap_or(&found.rule.levels);
                let counters = self.metrics.of(levels, is_of_rule);
                counters.total.fetch_add(hits, Relaxed);
                counters
            });
            // As in envoyproxy/ratelimit, an unlimited rule has no quota, and if all descriptors have one,
            // that of a descriptor without a rule is never used up.
            let quota = match &found {
                Some(found) => !unlimited(found) && (found.rule.quota || self.settings.quota),
                None => self.settings.quota,
            };
            // The server's integers have 64 bits with a sign.
            let hits = hits.min(i64::MAX.unsigned_abs());
            Asked { found, counters, hits, gives_back: descriptor.is_negative_hits, quota, limiter: None }
        };
        found.into_iter().zip(&request.descriptors).map(asked).collect()
    }

    /// Returns the limiters of the rules. Descriptors with the same key share one limiter.
    fn limiters<'a>(
        &self,
        asked: &mut [Asked],
        request: &'a RateLimitRequest,
    ) -> Result<Vec<Limiter<'a>>, Failure> {
        let quotas = asked.iter().filter(|asked| asked.quota).count();
        let mut limiters: Vec<Limiter<'a>> = Vec::with_capacity(asked.len());
        let mut indexes: HashMap<String, usize> = HashMap::with_capacity(asked.len());
        for (asked, descriptor) in asked.iter_mut().zip(&request.descriptors) {
            let Some(Found { rule, key, .. }) = &asked.found else { continue };
            let is_place = matches!(rule.bound, Bound::Places(..));
            // A place is one hit: a request without hits has none.
            if rule.bound == Bound::Unlimited || is_place && asked.hits == 0 {
                continue;
            }
            let id = descriptor.entries.last().map_or("", |entry| &entry.value);
            let shadow = rule.shadow || self.settings.shadow || asked.quota && quotas > 1;
            let index = *indexes.entry(key.clone()).or_insert(limiters.len());
            asked.limiter = Some(index);
            let Some(limiter) = limiters.get_mut(index) else {
                limiters.push(Limiter {
                    key: format!("{}{key}", self.settings.prefix),
                    rule: Arc::clone(rule),
                    id,
                    hits: asked.hits,
                    has_named_hits: descriptor.hits_addend.is_some(),
                    gives_back: asked.gives_back,
                    shadow,
                });
                continue;
            };
            if is_place && (limiter.id != id || limiter.gives_back != asked.gives_back) {
                return Err(Failure::Request("a request has one place in each rule with algorithm: lease"));
            }
            if limiter.gives_back == asked.gives_back {
                limiter.hits = limiter.hits.saturating_add(asked.hits).min(i64::MAX.unsigned_abs());
            } else {
                limiter.gives_back ^= asked.hits > limiter.hits;
                limiter.hits = limiter.hits.abs_diff(asked.hits);
            }
            limiter.has_named_hits |= descriptor.hits_addend.is_some();
            limiter.shadow &= shadow;
            if rule.requests_per_unit < limiter.rule.requests_per_unit {
                limiter.rule = Arc::clone(rule);
            }
        }
        Ok(limiters)
    }

    /// Calls the server, and returns one row for each limiter: those that settle first, and then the others
    /// together, which take nothing if the request is refused already.
    async fn rows(
        &self,
        limiters: &[Limiter<'_>],
        asked: &[Asked],
        timeout: Duration,
    ) -> Result<Vec<Row>, RedisError> {
        let begun = Instant::now();
        let left = || timeout.saturating_sub(begun.elapsed());
        let settled = self.settled(limiters, timeout).await?;
        let looks = limiters.iter().zip(&settled).any(|(limiter, row)| {
            limiter.admits_nothing() || !limiter.shadow && row.is_some_and(|row| !row.admitted)
        });
        // If the others admit the request, the first of these limiters decides from held units. If more of
        // them did, units would have to be given back when one refuses, and would not be available until
        // then.
        let from_batch =
            |limiter: &Limiter<'_>| limiter.rule.batch.is_some() && limiter.hits > 0 && !limiter.settles();
        let no_quotas = asked.iter().all(|asked| !asked.quota);
        let held = limiters.iter().position(|limiter| !looks && no_quotas && from_batch(limiter));
        let is_asked = |(index, limiter): &(usize, &Limiter<'_>)| {
            Some(*index) != held && limiter.rule.bound != Bound::Nothing && !limiter.settles()
        };
        let others: Vec<_> =
            limiters.iter().enumerate().filter(is_asked).map(|(_, limiter)| limiter).collect();
        let (answers, taken) = self.others(&others, looks, left()).await?;
        let mut answers = answers.into_iter();
        let mut rows = Vec::with_capacity(limiters.len());
        for (index, (limiter, settled)) in limiters.iter().zip(settled).enumerate() {
            rows.push(match settled {
                Some(row) => row,
                None if Some(index) == held => Row { admitted: true, ..self.held_row(limiter) },
                None if limiter.rule.bound == Bound::Nothing => row_of_nothing(limiter),
                None => self.answered(limiter, &mut answers, left()).await?,
            });
        }
        if taken.as_ref().is_some_and(|taken| !taken.combined.admitted()) {
            return Ok(rows);
        }
        let mut is_refused = !self.settings.shadow && all_refuse(asked, &rows);
        if let Some((index, limiter)) = held.and_then(|index| Some((index, limiters.get(index)?)))
            && let Some(row) = rows.get_mut(index)
        {
            *row = self.row_of_batch(limiter, left()).await?;
            is_refused |= !row.admitted && !limiter.shadow;
        }
        if let Some(taken) = taken.filter(|_| is_refused) {
            self.give_back_taken(limiters, &rows, &taken, left()).await;
        }
        Ok(rows)
    }

    /// Looks at limiters together, or takes from all of them or none. Returns the answers, with those about
    /// bans, and what was taken.
    async fn others(
        &self,
        limiters: &[&Limiter<'_>],
        looks: bool,
        timeout: Duration,
    ) -> Result<(Vec<Row>, Option<Taken>), RedisError> {
        if limiters.is_empty() {
            return Ok((Vec::new(), None));
        }
        if looks {
            let peek = limiters.iter().fold(MPeek::new(), |call, limiter| match limiter.rule.bound {
                Bound::Places(places, _) => call.lease(&limiter.key, places, limiter.id),
                Bound::Limit(limit) => {
                    with_ban(call.limit(&limiter.key, limit, Units(limiter.hits)), limiter)
                }
                Bound::Nothing | Bound::Unlimited => call,
            });
            let answer: Together<Answer> = ask(&self.server, timeout, &call::mpeek(peek)?).await?;
            return Ok((answer.each.iter().map(Row::from).collect(), None));
        }
        let take = limiters.iter().fold(MTake::new(), |call, limiter| {
            if limiter.shadow { call.shadow(|call| taking(call, limiter)) } else { taking(call, limiter) }
        });
        let (sent, cmd) = (Instant::now(), call::mtake(take.clone())?);
        let answer: Together<Answer> = ask(&self.server, timeout, &cmd).await?;
        let taken = Taken::new(answer, &take, sent);
        Ok((taken.each.iter().map(Row::from).collect(), Some(taken)))
    }

    /// Reads the answer for a limiter, and the answer behind it, which shows whether its ban holds. A refusal
    /// begins the ban. If that fails, the error is only logged, because the request is refused anyway.
    async fn answered(
        &self,
        limiter: &Limiter<'_>,
        answers: &mut impl Iterator<Item = Row>,
        timeout: Duration,
    ) -> Result<Row, RedisError> {
        let row = answers.next().unwrap_or_else(refused);
        let Some(ban) = limiter.rule.ban else { return Ok(row) };
        let banned = answers.next().unwrap_or_else(refused);
        if !banned.admitted {
            return Ok(Row { remaining: 0, ..banned });
        }
        if row.admitted || limiter.hits == 0 {
            return Ok(row);
        }
        let pause = call::pause(ban_key(limiter), BAN, ban)?;
        Ok(match ask::<_, Balance>(&self.server, timeout, &pause).await {
            Ok(_) => Row { wait: row.wait.max(ban), ..row },
            Err(error) => {
                tracing::error!("a ban has not begun: {error}");
                row
            }
        })
    }

    /// Charges and gives back, and returns the rows of the limiters that settle.
    async fn settled(
        &self,
        limiters: &[Limiter<'_>],
        timeout: Duration,
    ) -> Result<Vec<Option<Row>>, RedisError> {
        let settling: Vec<_> = limiters.iter().filter(|limiter| limiter.settles()).collect();
        if settling.is_empty() {
            return Ok(vec![None; limiters.len()]);
        }
        let settle = settling.iter().fold(MSettle::new(), |call, limiter| {
            let hits = Units(limiter.hits);
            match limiter.rule.bound {
                Bound::Places(places, _) if limiter.gives_back => {
                    call.release(&limiter.key, places, limiter.id)
                }
                Bound::Places(places, lease) => call.renew(&limiter.key, places, lease, limiter.id),
                Bound::Limit(limit) if limiter.gives_back => {
                    call.limit(&limiter.key, limit, Difference::Refund(hits))
                }
                Bound::Limit(limit) => call.limit(&limiter.key, limit, Difference::Charge(hits)),
                Bound::Nothing | Bound::Unlimited => call,
            }
        });
        let balance: Together<Balance> = ask(&self.server, timeout, &call::msettle(settle)?).await?;
        let mut rows = balance.each.iter().map(Row::from);
        let row = |limiter: &Limiter<'_>| limiter.settles().then(|| rows.next().unwrap_or_else(refused));
        Ok(limiters.iter().map(row).collect())
    }

    /// Returns a refusal that describes the units that this process holds.
    fn held_row(&self, limiter: &Limiter<'_>) -> Row {
        let leased = limiter.rule.batch.and_then(|batch| lock(&self.leased).get(&batch).cloned());
        let remaining = leased.map_or(0, |leased| leased.held(&limiter.key));
        Row { remaining, held: true, ..refused() }
    }

    /// Takes held units.
    async fn row_of_batch(&self, limiter: &Limiter<'_>, timeout: Duration) -> Result<Row, RedisError> {
        let Some(batch) = limiter.rule.batch else { return Ok(refused()) };
        let known = lock(&self.leased).get(&batch).cloned();
        let leased = if let Some(leased) = known {
            leased
        } else {
            let most = u64::from(batch.most);
            let sizes = most.div_ceil(10)..=most;
            let leased = Leased::new(self.server.clone(), batch.limit, sizes, batch.hold)?;
            let leased = leased.timeout(self.settings.timeout);
            lock(&self.leased).entry(batch).or_insert(leased).clone()
        };
        let take = leased.take(&limiter.key, Units(limiter.hits));
        let Ok(decision) = tokio::time::timeout(timeout, take).await else {
            return Err((redis::ErrorKind::Io, "the server has not answered in time").into());
        };
        let row = self.held_row(limiter);
        Ok(match decision? {
            Decision::Admitted => Row { admitted: true, ..row },
            Decision::RefusedFor(wait) => Row { wait, ..row },
            _ => row, // never admitted
        })
    }

    /// Gives back the units that the call took for a request that was refused afterwards: by all rules with
    /// `quota_mode`, or because this process holds too few units.
    async fn give_back_taken(
        &self,
        limiters: &[Limiter<'_>],
        rows: &[Row],
        taken: &Taken,
        timeout: Duration,
    ) {
        // Excludes limiters that have taken nothing.
        let has_taken = |(limiter, row): &(&Limiter<'_>, &Row)| {
            limiter.hits > 0 && row.admitted && !row.held && !limiter.settles()
        };
        let others: Vec<_> =
            limiters.iter().zip(rows).filter(has_taken).map(|(limiter, _)| limiter).collect();
        if others.is_empty() {
            return;
        }
        let settle = others.into_iter().fold(MSettle::of(taken), |call, limiter| match limiter.rule.bound {
            Bound::Limit(limit) => call.limit(&limiter.key, limit, Difference::Refund(Units(limiter.hits))),
            Bound::Places(places, _) => call.release(&limiter.key, places, limiter.id),
            Bound::Nothing | Bound::Unlimited => call,
        });
        let back = match call::msettle(settle) {
            Ok(cmd) => ask::<_, Together<Balance>>(&self.server, timeout, &cmd).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = back {
            tracing::error!("what other rules have taken is not given back: {error}");
        }
    }

    /// Decides in this process: takes all or nothing, like the server.
    fn local_rows(&self, limiters: &[Limiter<'_>], asked: &[Asked]) -> Result<Vec<Row>, RedisError> {
        let mut settled = Vec::with_capacity(limiters.len());
        let mut takes = Vec::with_capacity(limiters.len());
        for limiter in limiters {
            settled.push(match limiter.rule.bound {
                Bound::Nothing => Some(row_of_nothing(limiter)),
                Bound::Limit(limit) if limiter.settles() => {
                    let units = if limiter.gives_back { 0 } else { limiter.hits };
                    Some(Row::from(&self.local.take(&limiter.key, limit, Saturate(units))?))
                }
                Bound::Limit(limit) => {
                    takes.push((&limiter.key, limit, Units(limiter.hits)));
                    None
                }
                // Places are only held in the server.
                Bound::Places(..) | Bound::Unlimited => Some(Row { admitted: true, ..refused() }),
            });
        }
        let rows = |answers: &[Answer]| {
            let mut answers = answers.iter();
            let row =
                |row: &Option<Row>| row.unwrap_or_else(|| answers.next().map_or_else(refused, Row::from));
            settled.iter().map(row).collect::<Vec<_>>()
        };
        let agrees = |answers: &[Answer]| {
            let rows = rows(answers);
            let mut each = limiters.iter().zip(&rows);
            !each.any(|(limiter, row)| !limiter.shadow && !row.admitted)
                && (self.settings.shadow || !all_refuse(asked, &rows))
        };
        Ok(rows(&self.local.take_together(&takes, agrees)?))
    }

    fn response(&self, request: &RateLimitRequest, asked: &[Asked], rows: &[Row]) -> RateLimitResponse {
        let row = |asked: &Asked| asked.row(rows).copied();
        let is_refused = |asked: &Asked| asked.is_refused(rows);
        let is_over = asked.iter().any(|asked| !asked.quota && is_refused(asked)) || all_refuse(asked, rows);

        let mut statuses = Vec::with_capacity(asked.len());
        for asked in asked {
            self.count(asked, row(asked), is_over);
            statuses.push(status(asked, row(asked), is_refused(asked)));
        }
        let admits_all = is_over && self.settings.shadow;
        if admits_all {
            self.metrics.global_shadow.fetch_add(1, Relaxed);
        }
        let code = if is_over && !admits_all { Code::OverLimit } else { Code::Ok };
        let refusals = asked.iter().filter(|asked| code == Code::OverLimit && is_refused(asked));
        RateLimitResponse {
            overall_code: code.into(),
            response_headers_to_add: self.headers(&statuses, refusals, &row),
            dynamic_metadata: self.settings.metadata.then(|| metadata(request, asked, &statuses)),
            statuses,
        }
    }

    fn count(&self, asked: &Asked, row: Option<Row>, is_over: bool) {
        let (Some(found), Some(counters)) = (&asked.found, &asked.counters) else { return };
        let hits = asked.hits;
        let Some(row) = row else {
            counters.within.fetch_add(hits, Relaxed);
            return;
        };
        if !row.admitted {
            counters.over.fetch_add(hits, Relaxed);
            if found.rule.shadow {
                counters.shadow.fetch_add(hits, Relaxed);
            }
        } else if !is_over {
            counters.within.fetch_add(hits, Relaxed);
            if row.held {
                return;
            }
            let used = row.limit.saturating_sub(row.remaining);
            let near = used.saturating_sub(near(row.limit, self.settings.near_limit_ratio));
            counters.near.fetch_add(near.min(hits), Relaxed);
        }
    }

    fn headers<'a>(
        &self,
        statuses: &[DescriptorStatus],
        refusals: impl Iterator<Item = &'a Asked>,
        row: &impl Fn(&Asked) -> Option<Row>,
    ) -> Vec<HeaderValue> {
        let mut headers = Vec::new();
        if let Some(names) = &self.settings.headers {
            let limited = statuses.iter().filter(|status| status.current_limit.is_some());
            // The status that refuses, or otherwise the one with the fewest remaining hits.
            let refuses = |status: &DescriptorStatus| status.code == i32::from(Code::OverLimit);
            if let Some(tightest) = limited.min_by_key(|status| (!refuses(status), status.limit_remaining)) {
                let limit = tightest.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
                let reset = tightest.duration_until_reset.map_or(0, |wait| wait.seconds);
                let values = [limit.to_string(), tightest.limit_remaining.to_string(), reset.to_string()];
                let pairs = names.iter().cloned().zip(values);
                headers.extend(pairs.map(|(key, value)| HeaderValue { key, value }));
            }
        }
        let mut wait = None;
        for asked in refusals {
            wait = wait.max(row(asked).map(|row| row.wait));
            headers.extend(asked.found.iter().flat_map(|found| found.rule.headers.iter().cloned()));
        }
        if let (Some(key), Some(wait)) = (&self.settings.retry_after_header, wait) {
            headers.push(HeaderValue { key: key.clone(), value: whole_seconds(wait).to_string() });
        }
        headers
    }

    /// Returns why the server is unavailable, if it was called within the last second. After a second, one
    /// request calls it again, and the others are decided without it.
    fn known_outage(&self) -> Option<RedisError> {
        if self.settings.unavailable == Unavailable::Error {
            return None;
        }
        let mut outage = lock(&self.outage);
        let (asked, error) = outage.as_mut()?;
        if asked.elapsed() < PAUSE {
            return Some(error.clone());
        }
        *asked = Instant::now();
        None
    }

    /// Records the outcome of a request for which the server was called.
    fn learn(&self, rows: Result<Vec<Row>, RedisError>) -> Result<Vec<Row>, RedisError> {
        let mut outage = lock(&self.outage);
        match &rows {
            Ok(_) => *outage = None,
            Err(error) => {
                // Any other error concerns only this request.
                if is_unavailable(error) {
                    *outage = Some((Instant::now(), error.clone()));
                }
                let mut logged = lock(&self.logged);
                if logged.is_none_or(|logged| logged.elapsed() >= PAUSE) {
                    *logged = Some(Instant::now());
                    let at = server::place(&self.settings.servers);
                    tracing::error!("the server {at} has not decided: {error}");
                }
            }
        }
        drop(outage);
        rows
    }
}

/// How long an unavailable server is not called, and the shortest time between errors in the log.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns whether there are rules with `quota_mode` and all of them refuse.
fn all_refuse(asked: &[Asked], rows: &[Row]) -> bool {
    let mut quotas = asked.iter().filter(|asked| asked.quota).peekable();
    quotas.peek().is_some() && quotas.all(|asked| asked.is_refused(rows))
}

/// Returns the number of hits after which further ones are near a limit.
fn near(limit: u64, ratio: f64) -> u64 {
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    // A duration is what has a whole part.
    Duration::try_from_secs_f64(f64::from(limit) * ratio).map_or(0, |hits| hits.as_secs())
}

/// Replaces the waits of 0 in refusals, such as refusals of more hits than the limit, which are never
/// admitted: a client that waited for this time would be refused again and again.
fn with_waits(limiters: &[Limiter<'_>], mut rows: Vec<Row>) -> Vec<Row> {
    for (row, limiter) in rows.iter_mut().zip(limiters) {
        if !row.admitted && row.wait.is_zero() {
            row.wait = length(limiter.rule.unit);
        }
    }
    rows
}

const fn refused() -> Row {
    Row { admitted: false, limit: 0, remaining: 0, wait: Duration::ZERO, held: false }
}

/// Returns the row of a limiter that admits nothing.
fn row_of_nothing(limiter: &Limiter<'_>) -> Row {
    let admitted = limiter.hits == 0 || limiter.gives_back;
    Row { admitted, wait: length(limiter.rule.unit), ..refused() }
}

/// A limiter that only a pause can exhaust.
const BAN: Gcra = Rate::per_second(1_000_000).burst(0);

fn ban_key(limiter: &Limiter<'_>) -> String {
    format!("{}|ban", limiter.key)
}

fn taking(call: MTake, limiter: &Limiter<'_>) -> MTake {
    match limiter.rule.bound {
        Bound::Places(places, lease) => call.lease(&limiter.key, places, lease, limiter.id),
        Bound::Limit(limit) => with_ban(call.limit(&limiter.key, limit, Units(limiter.hits)), limiter),
        Bound::Nothing | Bound::Unlimited => call,
    }
}

/// Adds the limiter that shows whether a ban holds.
fn with_ban<V: Verb<Quantity = Units>>(call: Several<V>, limiter: &Limiter<'_>) -> Several<V> {
    match limiter.rule.ban {
        Some(_) => call.throttle(ban_key(limiter), BAN, Units(0)),
        None => call,
    }
}

fn status(asked: &Asked, row: Option<Row>, is_refused: bool) -> DescriptorStatus {
    let code = if is_refused { Code::OverLimit } else { Code::Ok }.into();
    let none = DescriptorStatus { code, current_limit: None, limit_remaining: 0, duration_until_reset: None };
    match (&asked.found, row) {
        (Some(found), Some(row)) => DescriptorStatus {
            current_limit: Some(RateLimit {
                requests_per_unit: found.rule.requests_per_unit,
                unit: found.rule.unit.into(),
                name: found.rule.name.clone(),
            }),
            limit_remaining: u32::try_from(row.remaining).unwrap_or(u32::MAX),
            duration_until_reset: Some(prost_types::Duration { seconds: whole_seconds(row.wait), nanos: 0 }),
            ..none
        },
        (Some(found), None) if found.rule.bound == Bound::Unlimited => {
            DescriptorStatus { limit_remaining: u32::MAX, ..none }
        }
        _ => none,
    }
}

/// Rounds up to whole seconds, so that a client that waits for this time is not refused again.
fn whole_seconds(wait: Duration) -> i64 {
    let up = u64::from(wait.subsec_nanos() > 0);
    i64::try_from(wait.as_secs().saturating_add(up)).unwrap_or(i64::MAX)
}

/// Returns the metadata for other filters of Envoy: the request, and the metadata of rules that admit it.
fn metadata(request: &RateLimitRequest, asked: &[Asked], statuses: &[DescriptorStatus]) -> Struct {
    let number = |number: u64| value(Kind::NumberValue(f64::from(u32::try_from(number).unwrap_or(u32::MAX))));
    let text = |text: String| value(Kind::StringValue(text));
    let list = |values: Vec<Value>| value(Kind::ListValue(ListValue { values }));
    let descriptor = |descriptor: &RateLimitDescriptor| {
        let entries = descriptor.entries.iter().map(|entry| text(format!("{}={}", entry.key, entry.value)));
        let mut fields = BTreeMap::from([("entries".to_owned(), list(entries.collect()))]);
        if let Some(limit) = descriptor.limit {
            let unit = limit.unit().as_str_name();
            let limit = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
            fields.insert("limit".to_owned(), text(limit));
        }
        if let Some(hits) = descriptor.hits_addend {
            fields.insert("hitsAddend".to_owned(), number(hits));
        }
        value(Kind::StructValue(Struct { fields }))
    };
    let mut fields = BTreeMap::from([
        ("domain".to_owned(), text(request.domain.clone())),
        ("descriptors".to_owned(), list(request.descriptors.iter().map(descriptor).collect())),
    ]);
    if request.hits_addend > 0 {
        fields.insert("hitsAddend".to_owned(), number(request.hits_addend.into()));
    }
    let mut passed = Struct::default();
    for (asked, status) in asked.iter().zip(statuses) {
        let metadata = asked.found.as_ref().and_then(|found| found.rule.metadata.as_ref());
        if let Some(metadata) = metadata.filter(|_| status.code == i32::from(Code::Ok)) {
            merge(&mut passed, metadata);
        }
    }
    if !passed.fields.is_empty() {
        fields.insert("metadata".to_owned(), value(Kind::StructValue(passed)));
    }
    Struct { fields }
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

/// Adds the fields that do not exist yet, also in nested mappings.
fn merge(into: &mut Struct, from: &Struct) {
    for (key, value) in &from.fields {
        match (into.fields.get_mut(key).and_then(|known| known.kind.as_mut()), &value.kind) {
            (Some(Kind::StructValue(known)), Some(Kind::StructValue(value))) => merge(known, value),
            (Some(_), _) => {}
            (None, _) => _ = into.fields.insert(key.clone(), value.clone()),
        }
    }
}
