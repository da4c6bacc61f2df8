//! The report as a single page, without scripts, fonts or pictures from elsewhere.

#![expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "coordinates of a picture may round")]

use core::fmt::{self, Write};

use crate::report::{Found, KeyReport, PolicyReport, Report, SeriesReport, Waits};
use crate::table::{counted, number, percent, span};

/// Green and vermilion of Okabe and Ito's palette, which people with any form of colour blindness tell apart.
/// They are lighter on a dark page. Refused bars are also hatched, so that they differ without colour.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--faint:#5b6470;--paper:#fff;--line:#d0d7de;--ok:#009e73;--no:#d55e00}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--faint:#9aa4b0;--paper:#0d1117;--line:#30363d;--ok:#2cc99a;--no:#ff8a3d}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:64rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2.5rem;border-top:1px solid var(--line);padding-top:1.5rem}
code{font:.9em ui-monospace,monospace;overflow-wrap:anywhere}.faint{color:var(--faint)}
table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}
th,td{padding:.25rem .75rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
:is(th,td):first-child{text-align:left;white-space:normal;min-width:9rem}
td:first-child{font:.9em ui-monospace,monospace;overflow-wrap:anywhere}
.big{font-size:2rem;font-weight:600}.no{color:var(--no)}.ok{color:var(--ok)}
figure{margin:1rem 0}figure>div,figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1rem;font-size:.875rem}
figcaption svg{width:.9rem;height:.9rem;vertical-align:-1px;margin-right:.3rem}
.bars{display:block;width:100%;height:15rem;border-bottom:1px solid var(--faint)}
svg .ok{fill:var(--ok)}svg .no{fill:url(#hatch)}summary{cursor:pointer}
";

/// Renders the report as a page.
///
/// # Errors
/// Never: writing to a string does not fail.
pub fn render(report: &Report) -> Result<String, fmt::Error> {
    let mut page = String::new();
    let log = &report.log;
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Calls that would have been refused</title><style>{STYLE}</style></head><body>\n\
         <h1>Calls that would have been refused</h1>\n<p>{} from {} to {}",
        counted(log.read, "call"),
        log.first,
        log.last
    )?;
    let coarse = log.coarse_files();
    let files = log.files.iter().map(|file| {
        let mark = if file.whole_seconds && coarse.is_some() { " (whole seconds)" } else { "" };
        format!("<code>{}</code>{mark}", escaped(&file.name))
    });
    let files: Vec<_> = files.collect();
    writeln!(page, " in {}.</p>", files.join(", "))?;
    notes(&mut page, report)?;
    if let Some(check) = &report.check {
        let (class, word) = if check.passed { ("ok", "passed") } else { ("no", "failed") };
        let error = report.error.as_ref().map_or_else(String::new, |error| format!(": {}", escaped(error)));
        writeln!(
            page,
            "<p>The check of the last policy has <strong class=\"{class}\">{word}</strong>{error}.</p>"
        )?;
    }
    // All pictures share one definition of the hatching.
    page.push_str(
        "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>\
         <pattern id=\"hatch\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><rect width=\"4\" height=\"4\" style=\"fill:var(--no)\"/>\
         <rect width=\"1\" height=\"4\" style=\"fill:var(--paper);opacity:.45\"/></pattern></defs></svg>\n",
    );
    if report.policies.len() > 1 {
        side_by_side(&mut page, &report.policies)?;
    }
    for policy in &report.policies {
        one(&mut page, policy)?;
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

/// Writes the problems of the log.
fn notes(page: &mut String, report: &Report) -> fmt::Result {
    let log = &report.log;
    if log.unreadable > 0 {
        writeln!(page, "<p>{} could not be read. The first:</p><ul>", counted(log.unreadable, "line"))?;
        for line in &log.first_unreadable {
            let [at, why, text] = [&line.at, &line.why, &line.text].map(|text| escaped(text));
            writeln!(page, "<li>{at}, {why}: <code>{text}</code></li>")?;
        }
        page.push_str("</ul>\n");
    }
    if log.late > 0 {
        let (late, by) = (number(log.late), span(log.latest_by_seconds));
        writeln!(
            page,
            "<p>Calls earlier than one before them: {late}, by up to {by}; they count as being as late as that one.</p>"
        )?;
    }
    for file in &log.empty {
        writeln!(page, "<p>No calls in <code>{}</code>.</p>", escaped(file))?;
    }
    for path in &log.unused_paths {
        writeln!(page, "<p><code>--path {}</code> has replaced no path.</p>", escaped(path))?;
    }
    if log.whole_seconds {
        let files = log.coarse_files();
        let files =
            files.map_or_else(String::new, |coarse| format!(" in {coarse} of {} files", log.files.len()));
        writeln!(
            page,
            "<p>Times are whole seconds{files}: all calls of a second count as simultaneous, so bursts look larger \
             than they were.</p>"
        )?;
    }
    Ok(())
}

/// Writes a table with these columns.
fn table<const N: usize>(
    page: &mut String,
    columns: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> fmt::Result {
    writeln!(page, "<table><tr><th>{}</th></tr>", columns.join("</th><th>"))?;
    for row in rows {
        let cells = row.map(|value| escaped(&value)).join("</td><td>");
        writeln!(page, "<tr><td>{cells}</td></tr>")?;
    }
    page.push_str("</table>\n");
    Ok(())
}

/// Writes a row for each policy.
fn side_by_side(page: &mut String, policies: &[PolicyReport]) -> fmt::Result {
    let rows = policies.iter().map(|policy| {
        let [refused, keys] = [policy.refused, policy.keys_refused].map(number);
        let [share, share_of_keys] = [policy.refused_share, policy.keys_refused_share].map(percent);
        let wait = policy.waits.map_or_else(|| "-".to_owned(), |waits| span(waits.p99));
        [policy.policy.clone(), refused, share, keys, share_of_keys, wait]
    });
    table(page, ["policy", "refused", "", "keys refused", "", "p99 wait"], rows)
}

fn one(page: &mut String, policy: &PolicyReport) -> fmt::Result {
    writeln!(page, "<h2><code>{}</code></h2>", escaped(&policy.policy))?;
    if let Some(found) = &policy.found {
        writeln!(
            page,
            "<p>{} is the smallest number in place of <code>?</code> that is enough.</p>",
            found.value
        )?;
    }
    writeln!(
        page,
        "<p><span class=\"big no\">{}</span> of the calls refused, {} of {}; <span class=\"big no\">{}</span> of the \
         keys, {} of {}.</p>",
        percent(policy.refused_share),
        number(policy.refused),
        number(policy.requests),
        percent(policy.keys_refused_share),
        number(policy.keys_refused),
        number(policy.keys)
    )?;
    if policy.never > 0 {
        writeln!(
            page,
            "<p>{} had a quantity above the limit, which no wait helps.</p>",
            number(policy.never)
        )?;
    }
    if policy.exempt > 0 {
        let exempt = counted(policy.exempt, "call");
        writeln!(page, "<p>{exempt}: a field of every key is missing; no limiter applies.</p>")?;
    }
    for error in &policy.errors {
        writeln!(
            page,
            "<p>An error for {}: {}.</p>",
            counted(error.requests, "call"),
            escaped(&error.error)
        )?;
    }
    series(page, &policy.series)?;
    if let Some(waits) = &policy.waits {
        self::waits(page, waits)?;
    }
    if let Some(found) = &policy.found {
        search(page, found)?;
    }
    for limiter in &policy.limiters {
        let shadow = if limiter.shadow { " in shadow" } else { "" };
        writeln!(
            page,
            "<h3><code>{} {}</code>{shadow}</h3><p>{} refused, {} of {}.</p>",
            escaped(&limiter.key),
            escaped(&limiter.limiter),
            counted(limiter.refused, "call"),
            number(limiter.keys_refused),
            counted(limiter.keys, "key")
        )?;
        keys(page, &limiter.top)?;
    }
    Ok(())
}

/// Draws admitted and refused calls over time, as stacked bars.
fn series(page: &mut String, series: &SeriesReport) -> fmt::Result {
    const WIDTH: f64 = 960.0;
    const HEIGHT: f64 = 240.0;
    let both = || series.admitted.iter().zip(&series.refused);
    let most = both().map(|(admitted, refused)| admitted.saturating_add(*refused)).max().unwrap_or(1).max(1);
    let step = WIDTH / (series.admitted.len().max(1) as f64);
    let height = |count: u64| count as f64 / most as f64 * HEIGHT;
    let unit = span(series.width as f64);
    // The bars are as wide as the page. Text in the picture would shrink with the bars on a phone.
    page.push_str("<figure><figcaption>");
    for (class, word) in [("ok", "admitted"), ("no", "refused")] {
        write!(
            page,
            "<span><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"14\" height=\"14\"/>\
             </svg>{word}</span>"
        )?;
    }
    write!(
        page,
        "<span>at most {} in {unit}</span></figcaption>\
         <svg class=\"bars\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"Admitted and refused calls over time\">",
        counted(most, "call")
    )?;
    for ((&admitted, &refused), at) in both().zip(0_u32..) {
        if admitted.saturating_add(refused) == 0 {
            continue;
        }
        let (x, width) = (f64::from(at) * step, (step * 0.9).max(0.5));
        let (below, above) = (height(admitted), height(refused));
        let (floor, roof) = (HEIGHT - below, HEIGHT - below - above);
        let begins = clock(series, at.into());
        write!(
            page,
            "<g><title>{begins}: {} admitted, {} refused</title>",
            number(admitted),
            number(refused)
        )?;
        write!(
            page,
            "<rect class=\"ok\" x=\"{x:.1}\" y=\"{floor:.1}\" width=\"{width:.1}\" height=\"{below:.1}\"/>\
             <rect class=\"no\" x=\"{x:.1}\" y=\"{roof:.1}\" width=\"{width:.1}\" height=\"{above:.1}\"/></g>"
        )?;
    }
    let last = u64::try_from(series.admitted.len().saturating_sub(1)).unwrap_or_default();
    writeln!(
        page,
        "</svg><div><span>{}</span><span>{}</span></div></figure>",
        clock(series, 0),
        clock(series, last)
    )
}

/// Returns the time at which an interval begins.
fn clock(series: &SeriesReport, at: u64) -> String {
    let second = series.start_unix.saturating_add(at.saturating_mul(series.width));
    let nanos = second.saturating_mul(1_000_000_000);
    crate::report::time(redis_cell_core::Instant::saturating_from_nanos(nanos))
}

fn waits(page: &mut String, waits: &Waits) -> fmt::Result {
    let [p50, p90, p99, longest] = [waits.p50, waits.p90, waits.p99, waits.longest].map(span);
    writeln!(
        page,
        "<p>Of the refused calls, half would have been admitted after {p50}, 90 % after {p90}, 99 % after {p99}, and \
         all after {longest}, if nobody else had called meanwhile.</p>"
    )
}

/// Writes the numbers that a search has tried.
fn search(page: &mut String, found: &Found) -> fmt::Result {
    writeln!(page, "<details><summary>{} numbers were tried</summary>", found.tried.len())?;
    let rows = found.tried.iter().map(|tried| {
        let mark = if tried.value == found.value { " ← found" } else { "" };
        let [calls, keys] = [tried.refused_share, tried.keys_refused_share].map(percent);
        [format!("{}{mark}", tried.value), calls, keys]
    });
    table(page, ["number", "calls refused", "keys refused"], rows)?;
    page.push_str("</details>\n");
    Ok(())
}

/// Writes the keys that were refused most often.
fn keys(page: &mut String, top: &[KeyReport]) -> fmt::Result {
    if top.is_empty() {
        return Ok(());
    }
    let rows = top.iter().map(|key| {
        let ([refused, calls], wait) = ([key.refused, key.requests].map(number), span(key.longest_wait));
        [key.key.clone(), refused, calls, wait, key.first.clone(), key.last.clone()]
    });
    table(page, ["key", "refused", "calls", "longest wait", "first", "last"], rows)
}

/// Escapes text from a log, which may be anything.
fn escaped(text: &str) -> String {
    if crate::faults::has("page-as-is") {
        return text.to_owned();
    }
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.extend(control.escape_default()),
            other => escaped.push(other),
        }
    }
    escaped
}
