//! `cell-plan` as its users run it, on small logs with planted bursts and known answers.

// A test should fail at the first unexpected value.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::Value;
use tempfile::TempDir;

/// Wednesday, 8 October 2025, 09:00:00 UTC.
const START: i64 = 1_759_914_000;

/// A folder for the logs of a test.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }
}

/// Runs `cell-plan` with words, then with paths.
fn plan(words: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cell-plan"));
    command.args(words).args(files).stdin(Stdio::null()).output().unwrap()
}

/// The report of a run that must succeed.
fn report(words: &[&str], files: &[&Path]) -> Value {
    let output = plan(&[&["--json", "-"], words].concat(), files);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The error of a run that must end with status 2.
fn error(words: &[&str], files: &[&Path]) -> String {
    let output = plan(words, files);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// A call of the log: milliseconds after the start, address, user, path, bytes.
type Call = (i64, &'static str, &'static str, &'static str, u64);

/// One call a second of a steady client, and a burst of ten within half a second of another.
fn calls() -> Vec<Call> {
    let steady = (0..20).map(|second| (second * 1_000, "203.0.113.5", "ann", "/a/1?q=2", 100));
    let burst = (0..10).map(|call| (5_000 + call * 50, "2001:db8::7", "bob", "/a/2", 700));
    let mut calls: Vec<Call> = steady.chain(burst).collect();
    calls.sort_by_key(|call| call.0);
    calls
}

fn when(millis: i64, format: &str) -> String {
    Timestamp::from_millisecond(START * 1_000 + millis).unwrap().strftime(format).to_string()
}

fn log(line: impl Fn(Call) -> String) -> String {
    calls().into_iter().map(|call| line(call) + "\n").collect()
}

fn combined() -> String {
    log(|(at, address, user, path, bytes)| {
        let time = when(at, "%d/%b/%Y:%H:%M:%S.%3f +0000");
        format!(r#"{address} - {user} [{time}] "GET {path} HTTP/1.1" 200 {bytes} "-" "a \"b\" c""#)
    })
}

const EACH_ADDRESS: &[&str] = &["-p", "ip:<address> THROTTLE 3 1 1 1"];

/// Of the burst of ten, four are admitted, and the others would have had to wait.
fn assert_the_burst_is_refused(report: &Value) {
    let policy = &report["policies"][0];
    assert_eq!(report["log"]["read"], 30, "{report:#}");
    assert_eq!((&policy["requests"], &policy["refused"]), (&30.into(), &6.into()), "{report:#}");
    assert_eq!((&policy["keys"], &policy["keys_refused"]), (&2.into(), &1.into()), "{report:#}");
    let top = &policy["limiters"][0]["top"];
    assert_eq!(top.as_array().unwrap().len(), 1);
    assert_eq!((&top[0]["requests"], &top[0]["refused"]), (&10.into(), &6.into()));
    assert_eq!(top[0]["first"], when(5_200, "%Y-%m-%dT%H:%M:%S.%1fZ"));
    assert_eq!(top[0]["last"], when(5_450, "%Y-%m-%dT%H:%M:%S.%2fZ"));
    // The fifth of the burst came 200 ms after the first, and the first unit leaks after a second.
    assert_eq!(top[0]["longest_wait"], 0.8);
    let refused: Vec<u64> = serde_json::from_value(policy["series"]["refused"].clone()).unwrap();
    assert_eq!((refused.len(), refused[5]), (20, 6));
}

#[test]
fn every_format_gives_the_same_answer() {
    let folder = Folder::new();
    let logs = [
        ("combined", combined()),
        ("common", combined().replace(r#" "-" "a \"b\" c""#, "")),
        ("vhost", combined().lines().map(|line| ["example.org:443 ", line, "\n"].concat()).collect()),
        (
            "haproxy",
            log(|(at, address, _, path, bytes)| {
                let time = when(at, "%d/%b/%Y:%H:%M:%S.%3f");
                format!(
                    "{address}:51234 [{time}] http-in~ static/srv1 10/0/30/69/109 200 {bytes} - - ---- 1/1/1/1/0 0/0 \
                     {{1wt.eu}} {{}} \"GET {path} HTTP/1.1\""
                )
            }),
        ),
        (
            "haproxy-syslog",
            log(|(at, address, _, path, bytes)| {
                let time = when(at, "%d/%b/%Y:%H:%M:%S.%3f");
                format!(
                    "Oct  8 09:00:00 lb haproxy[14389]: {address}:51234 [{time}] http-in static/srv1 10/0/30/69/109 \
                     200 {bytes} - - ---- 1/1/1/1/0 0/0 \"GET {path} HTTP/1.1\""
                )
            }),
        ),
        (
            "json", // of Envoy
            log(|(at, address, _, path, bytes)| {
                let address = if address.contains(':') {
                    format!("[{address}]:5123")
                } else {
                    format!("{address}:5123")
                };
                let time = when(at, "%Y-%m-%dT%H:%M:%S.%3fZ");
                format!(
                    r#"{{"start_time":"{time}","method":"GET","path":"{path}","bytes_sent":{bytes},"downstream_remote_address":"{address}","user":null}}"#
                )
            }),
        ),
        (
            "json", // of Caddy
            log(|(at, address, user, path, bytes)| {
                let time = format!("{}.{:03}", START + at / 1_000, at % 1_000);
                format!(
                    r#"{{"level":"info","ts":{time},"request":{{"remote_ip":"{address}","uri":"{path}","headers":{{"User-Agent":["curl\/8"]}}}},"user_id":"{user}","size":{bytes}}}"#
                )
            }),
        ),
        (
            "w3c", // of CloudFront; IIS writes spaces in place of tabs
            "#Version: 1.0\n#Fields: date time sc-bytes c-ip cs-method cs-uri-stem cs-username\n".to_owned()
                + &log(|(at, address, user, path, bytes)| {
                    let (date, time) = (when(at, "%Y-%m-%d"), when(at, "%H:%M:%S.%3f"));
                    format!("{date}\t{time}\t{bytes}\t{address}\tGET\t{path}\t{user}")
                }),
        ),
        (
            "w3c",
            "#Fields: c-ip date cs(User-Agent) time cs-uri-stem sc-bytes\n".to_owned()
                + &log(|(at, address, _, path, bytes)| {
                    let (date, time) = (when(at, "%Y-%m-%d"), when(at, "%H:%M:%S.%3f"));
                    format!("{address} {date} \"a b\" {time} {path} {bytes}")
                }),
        ),
        (
            "csv",
            "time,address,path,note,bytes\n".to_owned()
                + &log(|(at, address, _, path, bytes)| {
                    format!("{},{address},{path},\"a, \"\"b\"\"\",{bytes}", START * 1_000 + at)
                }),
        ),
    ];
    for (format, content) in logs {
        let file = folder.file("log", content);
        let report = report(EACH_ADDRESS, &[&file]);
        assert_eq!(report["log"]["files"][0]["format"], format);
        assert_eq!(report["log"]["unreadable"], 0, "{format}");
        assert_the_burst_is_refused(&report);
        let top = report["policies"][0]["limiters"][0]["top"][0]["key"].clone();
        assert_eq!(top, "ip:2001:db8::7", "{format}");
        // The path and a quantity are found in each of them as well: 5,000 bytes are used up by the eighth
        // second.
        let words = ["-p", "<path> FIXED 5000 HOUR <bytes>", "--path", "/a/*", "--json", "-"];
        let sum: Value = serde_json::from_slice(&plan(&words, &[&file]).stdout).unwrap();
        let limiter = &sum["policies"][0]["limiters"][0];
        assert_eq!(
            (&limiter["keys"], &limiter["top"][0]["key"]),
            (&1.into(), &"/a/*".into()),
            "{format}: {sum:#}"
        );
        assert_eq!(sum["policies"][0]["refused"], 16, "{format}: {sum:#}");
    }
}

#[test]
fn fields_are_named_where_a_log_has_its_own() {
    let folder = Folder::new();
    let json = folder.file(
        "own.json",
        log(|(at, _, user, _, bytes)| {
            let at = START * 1_000 + at;
            format!(r#"{{"event":{{"at":{at},"claims.sub":"{user}"}},"usage":{{"tokens":{bytes}}}}}"#)
        }),
    );
    let words =
        ["-p", "u:<user> THROTTLE 3 1 1 1", "--field", "time=event.at", "--field", "user=event.claims.sub"];
    assert_the_burst_is_refused(&report(&words, &[&json]));
    let csv = folder.file(
        "own.csv",
        log(|(at, _, user, _, _)| format!("{};{user}", START * 1_000 + at)).replace(';', ","),
    );
    let words =
        ["-p", "u:<who> THROTTLE 3 1 1 1", "--format", "csv", "--columns", "at,who", "--field", "time=at"];
    assert_the_burst_is_refused(&report(&words, &[&csv]));
    let layout =
        folder.file("own.log", log(|(at, _, user, _, _)| format!("at={} who={user};", START * 1_000 + at)));
    let words = ["-p", "u:<who> THROTTLE 3 1 1 1", "--format", "at=<time> who=<who>;"];
    assert_the_burst_is_refused(&report(&words, &[&layout]));
    let said = error(&["-p", "<tenant> THROTTLE 3 1 1 1", "--format", "at=<time> who=<who>;"], &[&layout]);
    assert!(said.contains("no field tenant, only: time, who"), "{said}");
    let words = ["-p", "<user> FIXED 3 1 1", "--field", "user=nobody", "--format", "at=<time> who=<who>;"];
    let said = error(&words, &[&layout]);
    assert!(said.contains("no field nobody for <user>, only: time, who"), "{said}");
    // Of the usual formats, also those that are parts of others; of JSON, what the first line has.
    let said = error(&["-p", "<addr> THROTTLE 3 1 1 1"], &[&folder.file("access.log", combined())]);
    assert!(said.contains("referer, agent, method, uri, path\n") && !said.contains("rest"), "{said}");
    let words = ["-p", "<usr> THROTTLE 3 1 1 1", "--field", "time=event.at"];
    let said = error(&words, &[&json]);
    assert!(said.ends_with("Its first line has event.at, event.claims.sub, usage.tokens.\n"), "{said}");
    let words = ["-p", "<c-ip> FIXED 3 1 1", "--max-unreadable", "100%"];
    let parts = "#Fields: date time c-ip\n2025-10-08 09:00:00 ::1\n#Fields: date c-ip time\n";
    let said = error(&words, &[&folder.file("iis.log", parts)]);
    assert!(said.contains("iis.log: line 3 names other columns"), "{said}");
    let parts = "#Fields: date time cs(Host)\n2025-10-08 09:00:00 a.example\n";
    let seen = report(&["-p", "<host> FIXED 3 1 1"], &[&folder.file("cdn.log", parts)]);
    assert_eq!(seen["policies"][0]["keys"], 1);
}

#[test]
fn compressed_files_and_standard_input_are_read() {
    let folder = Folder::new();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(combined().as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    assert_the_burst_is_refused(&report(EACH_ADDRESS, &[&folder.file("a.gz", &gzip)]));
    // Two parts, one after the other, as rotated logs are joined.
    let whole = combined();
    let (first, second) = whole.split_at(whole.match_indices('\n').nth(9).unwrap().0 + 1);
    let zstd = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    let first_part = zstd(first);
    let both = [first_part.clone(), zstd(second)].concat();
    assert_the_burst_is_refused(&report(EACH_ADDRESS, &[&folder.file("a.zst", &both)]));
    // Rotated files in any order.
    let (old, new) = (folder.file("log.1", first), folder.file("log", second));
    assert_the_burst_is_refused(&report(EACH_ADDRESS, &[&new, &old]));

    let mut child = Command::new(env!("CARGO_BIN_EXE_cell-plan"))
        .args(EACH_ADDRESS)
        .args(["--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&gzip).unwrap();
    assert_the_burst_is_refused(&serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap());

    // A file that is cut off anywhere is an error, not a shorter log.
    for whole in [&gzip, &both] {
        for kept in (4..whole.len()).step_by(3).filter(|kept| *kept != first_part.len()) {
            error(EACH_ADDRESS, &[&folder.file("cut", &whole[..kept])]);
        }
    }
    let said = error(EACH_ADDRESS, &[&folder.file("cut.gz", &gzip[..gzip.len() - 20])]);
    assert!(said.contains("cut.gz: what follows line "), "{said}");
}

#[test]
fn logs_of_several_servers_are_merged_by_time() {
    let folder = Folder::new();
    let part = |server: usize| -> String {
        let lines = combined();
        let lines = lines.lines().enumerate().filter(|(number, _)| number % 3 == server);
        lines.map(|(_, line)| line.to_owned() + "\n").collect()
    };
    let files = [0, 1, 2].map(|server| folder.file(&format!("server{server}.log"), part(server)));
    let seen = report(EACH_ADDRESS, &[&files[2], &files[0], &files[1]]);
    assert_the_burst_is_refused(&seen);
    assert_eq!(seen["log"]["late"], 0);
    assert_eq!(seen["log"]["files"].as_array().unwrap().len(), 3);
    // One after the other in one stream, they cannot be merged, and the times are not believed.
    let hour = combined().replace(":09:", ":08:");
    let said = error(EACH_ADDRESS, &[&folder.file("joined.log", combined() + &hour)]);
    assert!(said.contains("50.0 % of the lines are earlier than one before them by over a minute"), "{said}");
}

#[test]
fn a_check_does_not_pass_on_what_no_line_has() {
    let folder = Folder::new();
    let lines = log(|(at, _, user, ..)| {
        let pair = if at % 2_000 == 0 { "one" } else { "other" };
        format!(r#"{{"ts":{},"user":"{user}","{pair}":1}}"#, START * 1_000 + at)
    });
    let file = folder.file("log", lines);
    for (policy, reason) in [
        ("u:<usr> THROTTLE 3 1 1 1", "no line has a value for <usr>"),
        ("u:<user> THROTTLE 99 1 1 1 t:<usr> FIXED 5 60 1", "no line has a value for <usr>"),
        ("u:<user> FIXED 5 60 <tokens>", "no line has a value for <tokens>"),
        ("p:<one>:<other> THROTTLE 99 1 1 1", "no line has all fields of the key p:<one>:<other>"),
        ("u:<usr> THROTTLE ? 1 1 1", "no line has a value for <usr>"),
    ] {
        let said = error(&["-p", policy, "--max-refused", "1%"], &[&file]);
        assert!(said.contains(reason), "{policy}: {said}");
    }
    // Nor does it pass on one of several files that was not read, however few lines it has.
    let large = folder.file("large", combined());
    let other = folder.file("other", format!(r#"{{"ts":{},"remote":"::1"}}"#, START * 1_000));
    let said = error(&[EACH_ADDRESS, &["--max-refused", "99%"]].concat(), &[&large, &other]);
    assert!(said.contains("other (json): no line has a value for <address>"), "{said}");
    let words = [EACH_ADDRESS, &["--max-refused", "99%", "--format", "combined"]].concat();
    let said = error(&words, &[&large, &folder.file("few", "no line\n")]);
    assert!(said.contains("few: the only line cannot be read; ") && said.contains("few:1 is "), "{said}");
}

#[test]
fn what_cannot_be_read_is_counted_and_shown() {
    let folder = Folder::new();
    let long = "x".repeat(3 << 20);
    let broken = format!(
        "# a comment\n\u{1b}[2Jno line\n{}{long}\n\n\\xff\n1.2.3.4 - - [99/Oct/2025:09:00:00 +0000] \"-\" 400 0 \"-\" \"-\"\n",
        combined()
    );
    let future = broken + "1.2.3.4 - - [08/Oct/2105:09:00:00 +0000] \"-\" 400 0 \"-\" \"-\"\n";
    let file = folder.file("log", future);
    let words = [EACH_ADDRESS, &["--max-unreadable", "20%"]].concat();
    let seen = report(&words, &[&file]);
    assert_the_burst_is_refused(&seen);
    assert_eq!(seen["log"]["unreadable"], 5, "neither the comment nor the empty line");
    let shown = seen["log"]["first_unreadable"].as_array().unwrap();
    assert_eq!(shown.len(), 3);
    assert_eq!(shown[0]["at"], format!("{}:2", file.display()));
    assert_eq!(shown[1]["text"], "x".repeat(160), "the beginning of a line that is too long");
    let table = String::from_utf8(plan(&words, &[&file]).stdout).unwrap();
    assert!(table.contains("5 lines could not be read") && table.contains(r"\u{1b}[2Jno line"), "{table}");
    assert!(!table.contains('\u{1b}'), "a log must not control the terminal");
    // A check of a log that was not understood must not pass.
    let said = error(EACH_ADDRESS, &[&file]);
    assert!(said.contains("--max-unreadable allows 10.0 %"), "{said}");
    let said = error(&[EACH_ADDRESS, &["--format", "json"]].concat(), &[&file]);
    assert!(said.contains("none of the 35 lines can be read"), "{said}");
    let quoted = folder.file("quoted", r#"1.2.3.4 "GET /""#);
    let said = error(&[EACH_ADDRESS, &["--format", "json"]].concat(), &[&quoted]);
    assert!(said.contains(r#"not a line of this format: 1.2.3.4 "GET /""#), "{said}");
    let said = error(EACH_ADDRESS, &[&folder.file("empty", "")]);
    assert!(said.contains("empty: it is empty"), "{said}");
    let said = error(EACH_ADDRESS, &[&folder.file("comments", "\n# a comment\n\n")]);
    assert!(said.contains("comments: it has empty lines and comments only"), "{said}");
    let said = error(EACH_ADDRESS, &[&folder.file("binary", "a\u{1b}[31mb,c\n1,2\n")]);
    assert!(said.contains("no field time") && !said.contains('\u{1b}'), "{said:?}");
    for (bytes, reason) in [
        (&b"\x7fELF\0,\n{\n"[..], "it begins like a binary file: if it is a log, use cell-plan --format"),
        (b"BZh\xff,a\n", "the format of the log is not recognized"),
    ] {
        let said = error(EACH_ADDRESS, &[&folder.file("binary", bytes)]);
        assert!(said.contains(reason), "{said:?}");
    }
    let said = error(EACH_ADDRESS, &[&folder.file("words", "no format\n")]);
    assert!(said.contains("the format of the log is not recognized"), "{said}");
    let said = error(EACH_ADDRESS, &[Path::new("/no/such/log")]);
    assert!(said.contains("/no/such/log"), "{said}");
}

/// The table and the page.
fn shown(words: &[&str], files: &[&Path]) -> [String; 2] {
    [words.to_vec(), [words, &["--html", "-"]].concat()]
        .map(|words| String::from_utf8(plan(&words, files).stdout).unwrap())
}

#[test]
fn a_pattern_of_paths_that_matches_none_is_noted() {
    let folder = Folder::new();
    let file = folder.file("log", combined());
    let words = ["-p", "<path> FIXED 99 60 1", "--path", "/a/*", "--path", "/b<*"];
    assert_eq!(report(&words, &[&file])["log"]["unused_paths"], serde_json::json!(["/b<*"]));
    let [table, page] = shown(&words, &[&file]);
    assert!(table.contains("          --path /b<* has replaced no <path>\n"), "{table}");
    assert!(!table.contains("--path /a/*"), "{table}");
    assert!(page.contains("<code>--path /b&lt;*</code> has replaced no path"), "{page}");
    // Nor does a pattern replace anything for a policy that asks for no path, but one file is enough.
    let words = [EACH_ADDRESS, &["--path", "/a/*"]].concat();
    assert_eq!(report(&words, &[&file])["log"]["unused_paths"], serde_json::json!(["/a/*"]));
    let other = folder.file("other", combined().replace("/a/", "/c/"));
    let words = ["-p", "<path> FIXED 99 60 1", "--path", "/a/*"];
    assert_eq!(report(&words, &[&file, &other])["log"]["unused_paths"], serde_json::json!([]));
}

#[test]
fn an_empty_file_among_several_is_noted() {
    let folder = Folder::new();
    let file = folder.file("log", combined());
    let (empty, comments) = (folder.file("log.1", ""), folder.file("log.2", "# rotated\n"));
    let files: [&Path; 3] = [&empty, &file, &comments];
    let seen = report(EACH_ADDRESS, &files);
    assert_the_burst_is_refused(&seen);
    assert_eq!(seen["log"]["empty"], serde_json::json!([empty, comments]));
    let [table, page] = shown(EACH_ADDRESS, &files);
    assert!(table.contains(&format!("          No calls in {}\n", empty.display())), "{table}");
    assert!(page.contains(&format!("<p>No calls in <code>{}</code>", empty.display())), "{page}");
    let said = error(EACH_ADDRESS, &[&empty, &comments]);
    assert!(said.contains("log.1: it is empty"), "{said}");
}

#[test]
fn files_with_whole_seconds_are_named_among_others() {
    let folder = Folder::new();
    let whole = combined().lines().map(|line| line.replacen(".000 +", " +", 1) + "\n").collect::<String>();
    let whole = whole.lines().filter(|line| line.contains("203.0.113.5")).collect::<Vec<_>>().join("\n");
    let (fine, coarse) = (folder.file("fine", combined()), folder.file("coarse", whole));
    let seen = report(EACH_ADDRESS, &[&fine, &coarse]);
    assert_eq!(seen["log"]["whole_seconds"], true);
    for file in seen["log"]["files"].as_array().unwrap() {
        assert_eq!(file["whole_seconds"], file["name"] == coarse.to_str().unwrap(), "{file}");
    }
    let [table, page] = shown(EACH_ADDRESS, &[&fine, &coarse]);
    assert!(
        table.contains("coarse (combined, whole seconds)") && table.contains("fine (combined)"),
        "{table}"
    );
    assert!(table.contains("          In 1 of 2 files:\n          Times are whole seconds"), "{table}");
    assert!(page.contains("coarse</code> (whole seconds)"), "{page}");
    assert!(page.contains("Times are whole seconds in 1 of 2 files"), "{page}");
    let [table, page] = shown(EACH_ADDRESS, &[&coarse]);
    assert!(table.contains("coarse (combined)\n") && table.contains("Times are whole seconds:"), "{table}");
    assert!(page.contains("Times are whole seconds:"), "{page}");
    assert_eq!(report(EACH_ADDRESS, &[&fine])["log"]["whole_seconds"], false);
}

#[test]
fn one_is_singular() {
    let folder = Folder::new();
    let line = |user: &str| format!("{{\"ts\":{START},\"user\":{user}}}\n");
    let file = folder.file("log", line("\"a\"") + &line("null") + "no line\n");
    let [table, page] = shown(&["-p", "<user> FIXED 1 60 2", "--max-unreadable", "50%"], &[&file]);
    for words in
        ["1 of 1 call (", "1 of 1 key (", "refused, 1 of 1 key\n", "no key    1 call:", "1 line could"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
    for words in ["<p>1 call: a field", "1 call refused, 1 of 1 key.", "at most 1 call in", "<p>1 line could"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn lines_out_of_order_count_as_late_and_are_reported() {
    let folder = Folder::new();
    let mut lines: Vec<String> = combined().lines().map(str::to_owned).collect();
    lines.swap(0, 2);
    let seen = report(EACH_ADDRESS, &[&folder.file("log", lines.join("\n"))]);
    assert_eq!((&seen["log"]["read"], &seen["log"]["late"]), (&30.into(), &2.into()));
    assert_eq!(seen["log"]["latest_by_seconds"], 2.0);
    assert_eq!(seen["policies"][0]["refused"], 6);
}

#[test]
fn the_smallest_limit_is_found() {
    let folder = Folder::new();
    let file = folder.file("log", combined());
    let found = |words: &[&str]| {
        let report = report(words, &[&file]);
        let policy = &report["policies"][0];
        assert_eq!(report["check"]["passed"], true);
        (policy["found"]["value"].as_i64().unwrap(), policy["refused"].as_u64().unwrap())
    };
    // Of ten at once, nine more than one must fit for none to be refused.
    let burst = "ip:<address> THROTTLE ? 1 1 1";
    assert_eq!(found(&["-p", burst, "--max-refused", "0%"]), (9, 0));
    assert_eq!(found(&["-p", burst, "--max-refused", "10%"]), (6, 3));
    assert_eq!(found(&["-p", burst, "--max-refused-keys", "50%"]), (0, 9));
    // 7000 bytes come from one address.
    let bytes = "ip:<address> FIXED ? HOUR <bytes>";
    assert_eq!(found(&["-p", bytes, "--max-refused-keys", "0%"]), (7000, 0));
    assert_eq!(found(&["-p", bytes, "--max-refused", "1%"]), (7000, 0));
    let said = error(&["-p", burst], &[&file]);
    assert!(said.contains("--max-refused"), "{said}");
    let said = error(&["-p", burst, "--max-refused", "0%"], &[]);
    assert!(said.contains("standard input") || said.contains("needs files"), "{said}");
    let said = error(&["-p", "<address> THROTTLE 0 1 ? 1", "--max-refused", "0%"], &[&file]);
    assert!(said.contains("no number in place of ?"), "{said}");
}

#[test]
fn two_policies_stand_side_by_side_and_the_last_one_is_checked() {
    let folder = Folder::new();
    let file = folder.file("log", combined());
    let both = ["-p", "<address> THROTTLE 3 1 1 1", "-p", "<address> THROTTLE 7 1 1 1", "--max-refused"];
    let run = |share: &str| plan(&[&both[..], &[share]].concat(), &[&file]);
    let passes = run("7%");
    let table = String::from_utf8(passes.stdout).unwrap();
    assert_eq!(passes.status.code(), Some(0), "{table}");
    let rows: Vec<&str> =
        table.lines().skip_while(|line| !line.ends_with("wait  policy")).skip(1).take(2).collect();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert_eq!(rows.len(), 2, "{table}");
    assert!(rows[0].contains(" 6 ") && rows[0].contains("20.0 %"), "{table}");
    assert!(rows[1].contains(" 2 ") && rows[1].contains("6.7 %"), "{table}");
    assert!(table.contains("passed"), "{table}");
    let fails = run("6%");
    assert_eq!(fails.status.code(), Some(1));
    assert!(String::from_utf8(fails.stdout).unwrap().contains("FAILED"));
    for wrong in ["101%", "-1%", "x", "1"] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong}");
    }
    // The page has the same comparison.
    let page = plan(&[&both[..], &["7%", "--html", "-"]].concat(), &[&file]).stdout;
    let page = String::from_utf8(page).unwrap();
    let compared = page.lines().filter(|line| line.starts_with("<tr><td>&lt;address&gt; THROTTLE"));
    let shares = compared.map(|row| row.split("</td><td>").nth(2).unwrap());
    assert_eq!(shares.collect::<Vec<_>>(), ["20.0 %", "6.7 %"], "{page}");
    let nowhere = folder.0.path().join("nowhere/plan.html");
    let said = error(&[&both[..], &["7%", "--html", nowhere.to_str().unwrap()]].concat(), &[&file]);
    assert!(said.starts_with(&format!("cell-plan: {}: ", nowhere.display())), "{said}");
    let said = error(&[&both[..], &["7%", "--json", "-", "--html", "-"]].concat(), &[&file]);
    assert_eq!(said, "cell-plan: standard output cannot have both --json and --html\n");
}

#[test]
fn calls_without_a_user_meet_no_limiter_of_users() {
    let folder = Folder::new();
    let file = folder.file("log", combined().replace("- ann [", "- - ["));
    let seen = report(&["-p", "u:<user> THROTTLE 3 1 1 1"], &[&file]);
    let policy = &seen["policies"][0];
    assert_eq!(
        (&policy["exempt"], &policy["requests"], &policy["refused"]),
        (&20.into(), &10.into(), &6.into())
    );
    // A check says so, of any limiter, unless that many are allowed.
    for policy in ["u:<user> THROTTLE 99 1 1 1", "ip:<address> FIXED 99 1 1 u:<user> FIXED 99 1 1"] {
        let words = ["-p", policy, "--max-refused", "1%"];
        let said = error(&words, &[&file]);
        let reason = "66.7 % of the lines have no key u:<user>, and --max-exempt";
        assert!(said.contains(reason), "{said}");
        // Nor does the report say that the check has passed.
        let shown = |words: &[&str]| String::from_utf8(plan(words, &[&file]).stdout).unwrap();
        assert!(shown(&words).contains(&format!("\nFAILED    {reason}")), "{}", shown(&words));
        let seen: Value = serde_json::from_str(&shown(&[&words[..], &["--json", "-"]].concat())).unwrap();
        assert_eq!(seen["check"]["passed"], false);
        assert!(seen["error"].as_str().unwrap().contains(reason), "{seen}");
        let page = shown(&[&words[..], &["--html", "-"]].concat());
        assert!(page.contains("failed</strong>: 66.7 % of the lines have no key u:&lt;user&gt;"), "{page}");
        report(&[&words[..], &["--max-exempt", "67%"]].concat(), &[&file]);
    }
}

#[test]
fn the_page_is_complete_and_shows_hostile_keys_as_text() {
    let folder = Folder::new();
    let hostile = r#"<script>alert(1)</script>&""#;
    let lines = log(|(at, ..)| serde_json::json!({"ts": START * 1_000 + at, "user": hostile}).to_string());
    let (file, page) = (folder.file("log", lines), folder.0.path().join("plan.html"));
    let words = ["-p", "u:<user> FIXED 5 60 1", "--html", page.to_str().unwrap()];
    assert!(plan(&words, &[&file]).status.success());
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("u:&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;"), "{page}");
    for foreign in ["<script", "http://", "https://", "src=", "@import", "<link"] {
        assert!(!page.contains(foreign), "{foreign} in {page}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("25 of 30"), "{page}");
}

/// 200,000 lines, made while they are read: memory grows with the keys, not with the lines.
#[test]
fn a_long_log_takes_the_memory_of_its_keys() {
    let mut child = Command::new("sh")
        .arg("-c")
        // 200 MB of address space: the log alone would be half of that.
        .arg(format!(
            "ulimit -v 200000; exec {} {} --json -",
            env!("CARGO_BIN_EXE_cell-plan"),
            "-p 'ip:<address> THROTTLE 9 1 1 1'"
        ))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        let mut block = String::new();
        for line in 0..200_000_i64 {
            if line % 1_000 == 0 {
                stdin.write_all(block.as_bytes()).unwrap();
                block.clear();
            }
            let time = START + line / 100;
            writeln!(block, r#"{{"ts":{time},"address":"10.0.{}.{}","uri":"/"}}"#, line % 7, line % 251)
                .unwrap();
        }
        stdin.write_all(block.as_bytes()).unwrap();
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&seen["log"]["read"], &seen["policies"][0]["keys"]), (&200_000.into(), &(7 * 251).into()));
    assert_eq!(seen["policies"][0]["series"]["width"], 5);
}

/// Each seeded fault of `src/faults.rs`, and the test of this file that must fail with it.
#[cfg(feature = "faults")]
const FAULTS: [(&str, &str); 20] = [
    ("cut-is-the-end", "compressed_files_and_standard_input_are_read"),
    ("one-by-one", "logs_of_several_servers_are_merged_by_time"),
    ("absent-is-silent", "a_check_does_not_pass_on_what_no_line_has"),
    ("unread-file-is-silent", "a_check_does_not_pass_on_what_no_line_has"),
    ("no-key-is-silent", "a_check_does_not_pass_on_what_no_line_has"),
    ("header-is-a-call", "every_format_gives_the_same_answer"),
    ("any-future", "what_cannot_be_read_is_counted_and_shown"),
    ("any-unreadable", "what_cannot_be_read_is_counted_and_shown"),
    ("unreadable-is-silent", "what_cannot_be_read_is_counted_and_shown"),
    ("late-is-silent", "lines_out_of_order_count_as_late_and_are_reported"),
    ("one-more", "the_smallest_limit_is_found"),
    ("first-is-checked", "two_policies_stand_side_by_side_and_the_last_one_is_checked"),
    ("always-passes", "two_policies_stand_side_by_side_and_the_last_one_is_checked"),
    ("exempt-is-a-request", "calls_without_a_user_meet_no_limiter_of_users"),
    ("any-exempt", "calls_without_a_user_meet_no_limiter_of_users"),
    ("shadow-refuses", "a_limiter_in_shadow_is_counted_and_refuses_nothing"),
    ("shadow-has-keys", "a_limiter_in_shadow_is_counted_and_refuses_nothing"),
    ("first-is-last", "every_format_gives_the_same_answer"),
    ("top-by-name", "the_keys_that_were_refused_most_often_come_first"),
    ("page-as-is", "the_page_is_complete_and_shows_hostile_keys_as_text"),
];

/// Runs tests of this file again, in processes whose `cell-plan` has a fault.
#[cfg(feature = "faults")]
#[test]
fn the_tests_see_every_seeded_fault() {
    for (fault, test) in [("none", "the_smallest_limit_is_found")].into_iter().chain(FAULTS) {
        let program = std::env::current_exe().unwrap();
        let run =
            Command::new(program).args(["--exact", test]).env("CELL_PLAN_FAULT", fault).output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(said.contains("running 1 test"), "no test is called {test}: {said}");
        assert_eq!(run.status.success(), fault == "none", "{test} with the seeded fault {fault}: {said}");
    }
}

#[test]
fn a_limiter_in_shadow_is_counted_and_refuses_nothing() {
    let folder = Folder::new();
    let file = folder.file("log", combined());
    let seen = report(&["-p", "s:<address> SHADOW THROTTLE 3 1 1 1 <user> FIXED 99 60 1"], &[&file]);
    let policy = &seen["policies"][0];
    assert_eq!(
        (&policy["refused"], &policy["keys"], &policy["keys_refused"]),
        (&0.into(), &2.into(), &0.into())
    );
    let shadow = &policy["limiters"][0];
    assert_eq!(
        (&shadow["shadow"], &shadow["refused"], &shadow["keys"]),
        (&true.into(), &6.into(), &2.into())
    );
    // Nor does a search consider its keys: of two, one may not be refused.
    let words =
        ["-p", "s:<address> SHADOW THROTTLE 3 1 1 1 <user> FIXED ? 60 1", "--max-refused-keys", "40%"];
    assert_eq!(report(&words, &[&file])["policies"][0]["found"]["value"], 20);
}

#[test]
fn the_keys_that_were_refused_most_often_come_first() {
    let folder = Folder::new();
    // No call of client 0 is refused, and seven calls of client 7 are.
    let lines = (0..8).flat_map(|client| (0..=client).map(move |call| (client, call)));
    let lines =
        lines.map(|(client, call)| format!("{{\"ts\":{START},\"user\":\"{client}\",\"call\":{call}}}\n"));
    let file = folder.file("log", lines.collect::<String>());
    let seen = report(&["-p", "u:<user> FIXED 1 60 1", "--top", "3"], &[&file]);
    let top = seen["policies"][0]["limiters"][0]["top"].as_array().unwrap();
    let top: Vec<_> = top.iter().map(|key| (key["key"].as_str().unwrap(), &key["refused"])).collect();
    assert_eq!(top, [("u:7", &7.into()), ("u:6", &6.into()), ("u:5", &5.into())]);
}
