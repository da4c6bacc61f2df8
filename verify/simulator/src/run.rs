//! Runs of histories: each in a child of this process, with a module that it loads itself.

use std::rc::Rc;

use crate::boundary::{self, Child, End, Module};
use crate::clock;
use crate::history::{History, Settings, Step, time};
use crate::oracles::Judge;
use crate::server;
use crate::world::{self, MILLI, with};
use crate::writer::Writer;

/// The result of a history.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The history, up to the step that failed.
    pub history: History,
    /// The oracle that found something, and what.
    pub violation: Option<(String, String)>,
    /// How many steps there were, how many replies were compared, and how many queues looked at.
    pub counts: [u64; 3],
}

/// Where the steps of a history come from.
pub enum Source {
    /// From a seed, this many, by this number of clients; 0 for the number of the seed.
    Seed(u64, u32, u64),
    /// The same for a server of this version, beside another module or not; a real one can follow them.
    Real(u64, u32, String, bool),
    /// From lines.
    History(History),
}

impl Source {
    fn settings(&self) -> Settings {
        match self {
            Self::Seed(seed, ..) => Writer::settings(*seed),
            Self::Real(_, _, version, beside) => Settings {
                version: version.clone(),
                beside: *beside,
                listeners: "aof".into(),
                active: false,
                ..Settings::default()
            },
            Self::History(history) => history.settings.clone(),
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Seed(_, count, _) | Self::Real(_, count, ..) => *count as usize,
            Self::History(history) => history.steps.len(),
        }
    }

    /// The longest that it may take, in seconds.
    fn seconds(&self) -> u32 {
        2 + self.count() as u32 / 1_000
    }
}

/// Runs a history in this process, which cannot run another one. `say` is given each step before it happens.
fn play(module: &Module, source: &Source, mut say: Option<&mut dyn FnMut(&str)>) -> Report {
    let settings = source.settings();
    let mut history = History { settings: settings.clone(), steps: vec![] };
    world::begin(settings);
    let mut judge = Judge::default();
    let begin = clock::monotonic();
    // Once for nothing, so that what stays from a load and a call is not counted as lost.
    server::load(module);
    server::client_call(1, Rc::new(["CL.THROTTLE", "warm", "0", "1", "1"].map(Into::into).to_vec()));
    server::unload(module);
    let memory = boundary::memory();
    with(|world| *world = world::World::fresh(world.settings.clone()));
    let loaded = server::load(module);
    if !loaded {
        with(|world| {
            let log = world.log.join("; ");
            world.violates("contract", format!("the module does not load: {log}"));
        });
    }
    judge.begin();
    let mut writer = match source {
        Source::Seed(seed, _, clients) => Some(Writer::new(*seed, *clients)),
        Source::Real(seed, ..) => Some(Writer::new(*seed, 0)),
        Source::History(_) => None,
    };
    let count = source.count();
    for at in 0.. {
        if at >= count && !writer.as_ref().is_some_and(Writer::is_behind) {
            break;
        }
        let step = match (&mut writer, source) {
            (Some(writer), _) => writer.step(),
            (_, Source::History(history)) => history.steps[at].clone(),
            _ => break,
        };
        if let Some(say) = &mut say {
            say(&format!("+{:<12}| {step}", time((clock::monotonic() - begin) / 1_000 * 1_000)));
        }
        let before = judge.before(&step);
        server::step(&step);
        if let Some(say) = say.as_mut().filter(|_| crate::trace::is_on()) {
            with(|world| {
                for answer in &world.answers {
                    say(&format!("{:13}|   {}: {}", "", answer.client, answer.reply.shown()));
                }
            });
        }
        judge.after(&step, &before);
        history.steps.push(step);
        if with(|world| !world.violations.is_empty()) {
            break;
        }
    }
    if with(|world| world.violations.is_empty()) {
        judge.end();
    }
    if let Some(say) = say.filter(|_| crate::trace::is_on()) {
        let keys: Vec<String> = with(|world| {
            let now = clock::wall() / MILLI;
            let there = world.keys.iter().filter(|(_, _, entry)| entry.expiry.is_none_or(|at| at >= now));
            let shown = there.map(|(db, key, entry)| {
                let expiry = entry.expiry.unwrap_or(-1);
                format!("= {db} {} {expiry} {}", key.escape_ascii(), entry.value.shown())
            });
            shown.collect()
        });
        keys.iter().for_each(|line| say(&format!("{:13}| {line}", "")));
    }
    if with(|world| world.violations.is_empty()) {
        finish(module, memory);
    }
    let violation = with(|world| world.violations.first().cloned());
    Report {
        counts: [history.steps.len() as u64, judge.compared, judge.looked],
        history,
        violation: violation.map(|violation| (violation.oracle.to_owned(), violation.text)),
    }
}

/// Ends a run: all clients leave, all keys are deleted, and the memory is freed.
fn finish(module: &Module, memory: i64) {
    let clients: Vec<u64> = with(|world| {
        (world.is_full, world.busy) = (false, 0);
        world.reactions.clear();
        world.clients.keys().copied().collect()
    });
    server::step(&Step::Role(false));
    for client in clients {
        server::step(&Step::Close(client));
    }
    server::step(&Step::Pass(1000 * MILLI));
    server::step(&Step::Call(1, Rc::new(vec![b"FLUSHALL".into()])));
    server::step(&Step::Pass(1000 * MILLI));
    server::unload(module);
    with(|world| {
        let left = boundary::memory() - memory;
        if left > 0 && world.violations.is_empty() {
            world.violates("memory", format!("{left} allocations are left when the module is unloaded"));
        }
        let texts: Vec<String> =
            world.texts.iter().map(|text| text.bytes.escape_ascii().to_string()).take(3).collect();
        for (what, left) in [
            (format!("strings {texts:?}"), world.texts.len()),
            (String::from("replies"), world.owned_replies),
            (String::from("sections of INFO"), world.infos.len()),
            (String::from("users"), world.users.len()),
        ] {
            if left > 0 && world.violations.is_empty() {
                world.violates("memory", format!("{left} {what} are never freed"));
            }
        }
        if !world.blocked.is_empty() && world.violations.is_empty() {
            world.violates("memory", "clients are never unblocked");
        }
    });
}

/// Begins to run a history in a child.
pub fn start(module: &Module, source: &Source) -> Child {
    boundary::start_child(source.seconds(), || pack(&play(module, source, None)))
}

/// What came of it.
pub fn end(module: &Module, source: &Source, child: Child) -> Report {
    match child.end() {
        End::Done(bytes) if !bytes.is_empty() => unpack(&bytes, source.settings()),
        end => {
            // The same again, with each step sent before it happens.
            let lines = boundary::start_speaker(source.seconds(), |speak| {
                play(module, source, Some(speak));
            });
            let mut history = History { settings: source.settings(), steps: vec![] };
            let steps = lines.lines().filter_map(|line| Step::parse(line.split_once('|')?.1));
            history.steps.extend(steps);
            let oracle =
                if [libc::SIGALRM, libc::SIGPROF].map(End::Killed).contains(&end) { "hang" } else { "crash" };
            let counts = [history.steps.len() as u64, 0, 0];
            Report { history, violation: Some((oracle.into(), format!("the process ends: {end:?}"))), counts }
        }
    }
}

/// Runs a history in a child.
pub fn run(module: &Module, source: &Source) -> Report {
    end(module, source, start(module, source))
}

/// Runs a history here, printing each step, and what clients are replied.
pub fn show(module: &Module, source: &Source) -> Report {
    crate::trace::start();
    play(module, source, Some(&mut |line| eprintln!("{line}")))
}

fn pack(report: &Report) -> Vec<u8> {
    let [steps, compared, looked] = report.counts;
    let mut text = format!("{steps} {compared} {looked}\n");
    if let Some((oracle, found)) = &report.violation {
        text += &format!("{oracle}\n{}\n{}", found.replace('\n', " "), report.history);
    }
    text.into_bytes()
}

fn unpack(bytes: &[u8], settings: Settings) -> Report {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.splitn(4, '\n');
    let mut counts = [0; 3];
    let numbers = lines.next().unwrap_or_default().split(' ').filter_map(|number| number.parse().ok());
    counts.iter_mut().zip(numbers).for_each(|(place, number)| *place = number);
    let (oracle, found) =
        (lines.next().unwrap_or_default().to_owned(), lines.next().unwrap_or_default().to_owned());
    let violation = (!oracle.is_empty()).then_some((oracle, found));
    let history = lines.next().and_then(|text| History::parse(text).ok());
    Report { history: history.unwrap_or(History { settings, steps: vec![] }), violation, counts }
}

/// The steps of a source, each call with its reply behind it, and the keys at the end. Steps begin with `>`,
/// replies with `<`, keys with `< =`.
pub fn transcript(module: &Module, source: &Source) -> String {
    crate::trace::start();
    boundary::start_speaker(source.seconds(), |speak| {
        let mut say = |line: &str| {
            let (clock, text) = line.split_once('|').unwrap_or(("", line));
            let is_reply = clock.trim().is_empty();
            speak(&format!("{} {}", if is_reply { '<' } else { '>' }, text.trim()));
        };
        let report = play(module, source, Some(&mut say));
        if let Some((oracle, found)) = report.violation {
            speak(&format!("! {oracle}: {found}"));
        }
    })
}

/// A shorter history in which the same oracle finds something.
pub fn shrink(module: &Module, report: &Report) -> Report {
    let oracle = report.violation.as_ref().map(|(oracle, _)| oracle.clone());
    let fails = |history: &History| {
        let found = run(module, &Source::History(history.clone()));
        let same = found.violation.as_ref().map(|(oracle, _)| oracle) == oracle.as_ref();
        // The steps after the failure are removed.
        same.then_some(found)
    };
    let Some(mut best) = fails(&report.history) else { return report.clone() };
    let mut size = best.history.steps.len().div_ceil(2);
    let mut tries = 0;
    // Each try of a history that hangs takes seconds.
    let most = if oracle.as_deref() == Some("hang") { 12 } else { 3_000 };
    while size > 0 && tries < most {
        let mut at = 0;
        let mut shorter = false;
        while at < best.history.steps.len() && tries < most {
            let mut history = best.history.clone();
            let end = (at + size).min(history.steps.len());
            history.steps.drain(at..end);
            tries += 1;
            match fails(&history) {
                Some(found) if found.history.steps.len() < best.history.steps.len() => {
                    best = found;
                    shorter = true;
                }
                _ => at += size,
            }
        }
        if !shorter || size > 1 {
            size /= 2;
        }
    }
    best
}

/// The report as a person reads it.
pub fn shown(module: &Module, report: &Report) -> String {
    let Some((oracle, found)) = &report.violation else { return String::new() };
    // With the clock beside each step.
    let source = Source::History(report.history.clone());
    let lines = boundary::start_speaker(source.seconds(), |speak| {
        crate::trace::start();
        play(module, &source, Some(speak));
    });
    format!("{oracle}: {found}\n{}\n{lines}", report.history.settings)
}
