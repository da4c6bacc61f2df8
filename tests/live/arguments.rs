//! Wrong arguments of every command: the error names what is wrong, and nothing changes.

use crate::common::{COMMANDS, Server};

/// Calls with the name of one of their numbers, for which `#` stands.
fn numbers() -> Vec<(String, &'static str)> {
    let places = |calls: &[&str], names: &[&'static str]| -> Vec<(String, &'static str)> {
        let call = |call: &str, place: usize| {
            let words: Vec<&str> = (0..names.len()).map(|n| if n == place { "#" } else { "5" }).collect();
            (call.replace('*', &words.join(" ")), names[place])
        };
        calls.iter().flat_map(|template| (0..names.len()).map(move |place| call(template, place))).collect()
    };
    let option = |call: &str, option: &'static str| places(&[&format!("{call} {option} *")], &[option]);
    let several =
        |kind: &str| ["MTAKE", "BMTAKE", "MPEEK", "MSETTLE"].map(|verb| format!("CL.{verb} k {kind} *"));
    let kind = |words: &[&str], kind: &str, names: &[&'static str]| {
        let calls = several(kind);
        places(&[words, &calls.each_ref().map(String::as_str)].concat(), names)
    };
    let rate = ["max_burst", "count", "period", "quantity"];
    let bucket = ["capacity", "count", "period", "quantity"];
    let window = ["limit", "period", "quantity"];
    let like_throttle =
        ["CL.THROTTLE k *", "CL.PEEK k *", "CL.REFUND k *", "CL.CHARGE k *", "CL.RESERVE k *"];
    [
        kind(&like_throttle, "THROTTLE", &rate),
        places(&["CL.BTHROTTLE k *"], &["max_burst", "count", "period", "quantity", "timeout"]),
        places(&["CL.PAUSE k *"], &["max_burst", "count", "period", "wait"]),
        option("CL.RESERVE k 5 5 60", "MAXWAIT"),
        kind(&["CL.FUNNEL k *"], "FUNNEL", &bucket),
        kind(&["CL.BUCKET k *"], "BUCKET", &bucket),
        kind(&["CL.FIXED k *"], "FIXED", &window),
        kind(&["CL.WINDOW k *"], "WINDOW", &window),
        kind(&["CL.LOG k *"], "LOG", &window),
        places(&["CL.ACQUIRE k * me", "CL.MTAKE k LEASE * me"], &["limit", "lease"]),
        places(&["CL.RENEW k * me"], &["lease"]),
        option("CL.FIXED k 5 MONTH", "UTC"),
        option("CL.FIXED k 5 WEEK", "FROM"),
        option("CL.FIXED k 5", "UNTIL"),
        option("CL.FIXED k 5 TOTAL", "IDLE"),
        option("CL.MSETTLE k FIXED 5 60 1", "AGO"),
        places(&["CL.MSETTLE k RESET * THROTTLE 9 10 60 -1 AGO 1"], &["RESET"]),
        places(&["CL.MTAKE k FIXED 5 60 1 ONCE o *"], &["ONCE"]),
        places(&["CL.BMTAKE k FIXED 5 60 1 TIMEOUT *"], &["timeout"]),
        option("CL.BMTAKE k FIXED 5 60 1 FLOW f", "WEIGHT"),
        option("CL.BMTAKE k FIXED 5 60 1", "MAXLEN"),
    ]
    .concat()
}

#[test]
fn an_error_names_the_number_that_is_wrong() {
    let (_server, mut client) = Server::with_client();
    let long = vec![b'7'; 1 << 20];
    for (call, name) in numbers() {
        let wrong: &[&[u8]] = match name {
            "timeout" => &[b"x", b"-1", b"nan", b"inf", b"1e300"],
            // Every number is read by the same function.
            _ if call.starts_with("CL.THROTTLE") => &[&long, b"1\x001", b"\xff\xfe", b"0x10", b"%s%n", b" 1"],
            _ => &[b"x", b"", b"-1", b"-0", b"1.5", b"+1", b"01", b"1e3", b"\xff", b"9223372036854775808"],
        };
        for number in wrong {
            let may_be_negative = name == "UTC" || name == "quantity" && call.starts_with("CL.MSETTLE");
            if *number == b"-1" && may_be_negative {
                continue;
            }
            let words: Vec<&[u8]> =
                call.split(' ').map(|word| if word == "#" { *number } else { word.as_bytes() }).collect();
            let error = client.error(&words);
            assert!(error.starts_with("ERR ") && error.contains(name), "{call}: {error}");
            assert!(error.len() < 300, "{call}: {error}");
        }
    }
    assert_eq!(client.int("DBSIZE"), 0);
    // Where the end of time is near, the range is that of the call.
    for (call, range) in [
        ("CL.FUNNEL k 9223372037 1 1", "capacity must be an integer from 1 to 9223372036"),
        ("CL.BUCKET k 1 1001 1 1 US", "count must be an integer from 1 to 1000"),
        ("CL.FIXED k 1 9223372037", "period must be an integer from 1 to 9223372036,"),
        ("CL.LOG k 1000001 60", "limit must be an integer from 1 to 1000000"),
        ("CL.LOG k 10 60 10001", "quantity must be an integer from 0 to 10000"),
        ("CL.ACQUIRE k 2 9000000000 me", "lease must be an integer from 1 to "),
        ("CL.PAUSE k 9 10 60 9000000000", "wait must be an integer from 0 to "),
    ] {
        let error = client.error(call);
        assert!(error.starts_with(&format!("ERR {}", range.trim_end_matches(','))), "{call}: {error}");
    }
}

#[test]
fn words_that_do_not_belong_to_a_command_are_a_syntax_error() {
    let (server, mut client) = Server::with_client();
    for command in COMMANDS.iter().filter(|command| command.has_keys()) {
        for words in [
            "MS BOGUS",
            "MS M",
            "MS 1",
            "MS MS",
            "S US",
            "MS SATURATE SATURATE",
            "MS PREPAY PREPAY",
            "MS MAXWAIT",
        ] {
            let error = client.error(&format!("{} {words}", command.on("k")));
            assert_eq!(error, "ERR syntax error", "{} {words}", command.name);
        }
        let error = client.error(&[command.name, "k"]);
        let expected = format!("ERR wrong number of arguments for '{}' command", command.lower());
        assert_eq!(error.to_lowercase(), expected.to_lowercase());
    }
    for call in [
        "CL.THROTTLE k 9 10 60 SATURATE 1",
        "CL.PEEK k 9 10 60 1 SATURATE",
        "CL.LOG k 9 60 1 PREPAY",
        "CL.BTHROTTLE k 9 10 60 1 0 SATURATE",
        "CL.FIXED k 5 60 UTC 60",
        "CL.FIXED k 5 DAY FROM 1",
        "CL.FIXED k 5 UNTIL 9000000000 UTC 0",
        "CL.MTAKE k NOTHING 9 10 60 1",
        "CL.MTAKE k THROTTLE 9 10 60 1 b THROTTLE",
        "CL.MTAKE k THROTTLE 9 10 60 1 AGO 5",
        "CL.MTAKE k RESET 5 THROTTLE 9 10 60 1",
        "CL.MTAKE k SHADOW SHADOW THROTTLE 9 10 60 1",
        "CL.MPEEK k SHADOW THROTTLE 9 10 60 1",
        "CL.MSETTLE k SHADOW THROTTLE 9 10 60 1",
        "CL.MSETTLE k RESET 5 THROTTLE 9 10 60 -1",
        "CL.MSETTLE k THROTTLE 9 10 60 1 AGO 1 AGO 1",
    ] {
        assert_eq!(client.error(call), "ERR syntax error", "{call}");
    }
    let many = [&["CL.THROTTLE", "k", "9", "10", "60", "1"][..], &vec!["MS"; 100_000]].concat();
    assert_eq!(client.error(&many), "ERR syntax error", "100,000 options");
    assert_eq!(client.int("DBSIZE"), 0);
    server.assert_alive("wrong arguments");
}
