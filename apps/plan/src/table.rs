//! The report as text for a terminal.

use core::fmt::{self, Write};

use crate::report::{Check, LimiterReport, LogReport, PolicyReport, Report};

/// Renders the report as text.
///
/// # Errors
/// Never: writing to a string does not fail.
pub fn render(report: &Report) -> Result<String, fmt::Error> {
    let mut text = String::new();
    log(&mut text, &report.log)?;
    if report.policies.len() > 1 {
        side_by_side(&mut text, &report.policies)?;
    }
    for (number, policy) in (1..).zip(&report.policies) {
        one(&mut text, (report.policies.len() > 1).then_some(number), policy, &report.log)?;
    }
    if let Some(check) = &report.check {
        verdict(&mut text, check, report)?;
    }
    Ok(text)
}

fn log(text: &mut String, log: &LogReport) -> fmt::Result {
    let coarse = log.coarse_files();
    let files = log.files.iter().map(|file| {
        let mark = if file.whole_seconds && coarse.is_some() { ", whole seconds" } else { "" };
        format!("{} ({}{mark})", shown(&file.name), file.format)
    });
    let files: Vec<_> = files.collect();
    writeln!(text, "log       {}", files.join("\n          "))?;
    writeln!(text, "          {} from {} to {}", counted(log.read, "call"), log.first, log.last)?;
    if log.unreadable > 0 {
        writeln!(text, "          {} could not be read; the first:", counted(log.unreadable, "line"))?;
        for line in &log.first_unreadable {
            let beginning: String = shown(&line.text).chars().take(66).collect();
            writeln!(text, "          {}: {}\n            {beginning}", shown(&line.at), line.why)?;
        }
    }
    if log.late > 0 {
        let by = span(log.latest_by_seconds);
        writeln!(text, "          Calls earlier than one before them: {}, by up to {by};", number(log.late))?;
        writeln!(text, "          they count as being as late as that one")?;
    }
    for file in &log.empty {
        writeln!(text, "          No calls in {}", shown(file))?;
    }
    for path in &log.unused_paths {
        writeln!(text, "          --path {} has replaced no <path>", shown(path))?;
    }
    if let Some(coarse) = coarse {
        writeln!(text, "          In {coarse} of {} files:", log.files.len())?;
    }
    if log.whole_seconds {
        writeln!(text, "          Times are whole seconds: all calls of a second count as simultaneous, so")?;
        writeln!(text, "          bursts look larger than they were. Log milliseconds for exact verdicts.")?;
    }
    Ok(())
}

fn side_by_side(text: &mut String, policies: &[PolicyReport]) -> fmt::Result {
    writeln!(
        text,
        "\n{:>12} {:>9} {:>12} {:>9} {:>10}  policy",
        "refused", "", "keys refused", "", "p99 wait"
    )?;
    for (number_of, policy) in (1..).zip(policies) {
        let wait = policy.waits.map_or_else(|| "-".to_owned(), |waits| span(waits.p99));
        writeln!(
            text,
            "{:>12} {:>9} {:>12} {:>9} {wait:>10}  {number_of:>6}",
            number(policy.refused),
            percent(policy.refused_share),
            number(policy.keys_refused),
            percent(policy.keys_refused_share)
        )?;
    }
    Ok(())
}

fn one(text: &mut String, number_of: Option<usize>, policy: &PolicyReport, log: &LogReport) -> fmt::Result {
    let number_of = number_of.map(|number| number.to_string()).unwrap_or_default();
    writeln!(text, "\npolicy {number_of:<2} {}", shown(&policy.policy))?;
    if let Some(found) = &policy.found {
        let tried = found.tried.len();
        writeln!(
            text,
            "found     {} in place of ?, the smallest that is enough; {tried} were tried",
            found.value
        )?;
    }
    let (refused, calls) = (number(policy.refused), counted(policy.requests, "call"));
    writeln!(text, "refused   {refused} of {calls} ({})", percent(policy.refused_share))?;
    let (refused, keys) = (number(policy.keys_refused), counted(policy.keys, "key"));
    writeln!(text, "          {refused} of {keys} ({})", percent(policy.keys_refused_share))?;
    if policy.never > 0 {
        writeln!(
            text,
            "          {} for a quantity above the limit, which no wait helps",
            number(policy.never)
        )?;
    }
    if policy.exempt > 0 {
        writeln!(
            text,
            "no key    {}: a field of every key is missing; no limiter applies",
            counted(policy.exempt, "call")
        )?;
    }
    for error in &policy.errors {
        writeln!(text, "error     {}: {}", counted(error.requests, "call"), error.error)?;
    }
    if let Some(waits) = policy.waits {
        let [p50, p90, p99, longest] = [waits.p50, waits.p90, waits.p99, waits.longest].map(span);
        writeln!(text, "wait      half {p50}, 90 % {p90}, 99 % {p99}, longest {longest}")?;
    }
    over_time(text, policy)?;
    for limiter in &policy.limiters {
        self::limiter(text, limiter, log)?;
    }
    Ok(())
}

/// Renders the intervals with refusals as a line of blocks.
fn over_time(text: &mut String, policy: &PolicyReport) -> fmt::Result {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const COLUMNS: usize = 60;
    let series = &policy.series;
    let most = series.refused.iter().copied().max().unwrap_or_default();
    if most == 0 {
        return Ok(());
    }
    let each = series.refused.len().div_ceil(COLUMNS).max(1);
    let columns: Vec<u64> = series.refused.chunks(each).map(|chunk| chunk.iter().sum()).collect();
    let most = columns.iter().copied().max().unwrap_or(1);
    let block = |&count: &u64| {
        let level = count.saturating_mul(8).div_ceil(most.max(1)).checked_sub(1);
        level
            .and_then(|level| usize::try_from(level).ok())
            .and_then(|level| BLOCKS.get(level))
            .unwrap_or(&' ')
    };
    let width = u64::try_from(each).unwrap_or(1).saturating_mul(series.width);
    writeln!(text, "when      {}", columns.iter().map(block).collect::<String>().trim_end())?;
    let most = number(most);
    writeln!(text, "          from {}, {width} s a block, at most {most} refused in one", series.start)
}

fn limiter(text: &mut String, limiter: &LimiterReport, log: &LogReport) -> fmt::Result {
    let shadow = if limiter.shadow { " in shadow" } else { "" };
    writeln!(
        text,
        "\n  {} {}{shadow}:\n  {} refused, {} of {}",
        shown(&limiter.key),
        shown(&limiter.limiter),
        number(limiter.refused),
        number(limiter.keys_refused),
        counted(limiter.keys, "key")
    )?;
    if limiter.top.is_empty() {
        return Ok(());
    }
    // The date is left out where all of the log has the same one.
    let day = if log.first.get(..10) == log.last.get(..10) { 11 } else { 5 };
    let when = |time: &str| time.get(day..19).unwrap_or_default().replace('T', " ");
    let width = 19_usize.saturating_sub(day);
    writeln!(
        text,
        "  {:>10} {:>10} {:>9}  {:<width$}  {:<width$}  key",
        "refused", "calls", "longest", "first", "last"
    )?;
    for key in &limiter.top {
        let (refused, calls, wait) = (number(key.refused), number(key.requests), span(key.longest_wait));
        let (first, last, name) = (when(&key.first), when(&key.last), shown(&key.key));
        writeln!(text, "  {refused:>10} {calls:>10} {wait:>9}  {first:<width$}  {last:<width$}  {name}")?;
    }
    Ok(())
}

fn verdict(text: &mut String, check: &Check, report: &Report) -> fmt::Result {
    let Some(last) = report.policies.last() else { return Ok(()) };
    let mut allowed = Vec::new();
    if let Some(max) = check.max_refused {
        allowed.push(format!("{} of the calls, allowed {}", percent(last.refused_share), percent(max)));
    }
    if let Some(max) = check.max_refused_keys {
        allowed.push(format!("{} of the keys, allowed {}", percent(last.keys_refused_share), percent(max)));
    }
    let refuses = || format!("refuses {}", allowed.join("; "));
    let word = if check.passed { "passed" } else { "FAILED" };
    writeln!(text, "\n{word}    {}", report.error.as_deref().map_or_else(refuses, shown))
}

/// Escapes control characters, which a terminal would obey, in the text of a log.
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Formats a count with its noun in the singular or the plural.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", number(count), if count == 1 { "" } else { "s" })
}

/// Formats a number with commas between thousands.
pub fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && digits.len().saturating_sub(at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a share in percent, with more digits for small shares.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        ..0.01 => "< 0.01 %".to_owned(),
        ..1.0 => format!("{percent:.2} %"),
        _ => format!("{percent:.1} %"),
    }
}

/// Formats seconds in the most readable unit.
pub fn span(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".to_owned(),
        ..1.0 => format!("{:.0} ms", (seconds * 1000.0).ceil()),
        ..120.0 => format!("{seconds:.1} s"),
        ..7200.0 => format!("{:.1} min", seconds / 60.0),
        ..172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} d", seconds / 86_400.0),
    }
}
