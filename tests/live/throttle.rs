//! The replies of CL.THROTTLE, compared with brandur/redis-cell, and its options.

use crate::common::{Server, ints};
use std::time::Duration;

const UNITS: [&str; 4] = ["", " S", " MS", " US"];

#[test]
fn answers_the_documented_example() {
    let server = Server::start();
    let calls = [
        "CL.THROTTLE user123 15 30 60 1",
        "CL.THROTTLE user123 15 30 60 4",
        "CL.THROTTLE user123 15 30 60 17",
    ];
    let answers = server.connect().pipeline(&calls);
    let answers: Vec<_> = answers.iter().map(|answer| ints(answer.as_ref().unwrap()).unwrap()).collect();
    assert_eq!(answers, [[0, 16, 15, -1, 2], [0, 16, 11, -1, 10], [1, 16, 11, -1, 10]]);
}

#[test]
fn the_command_name_is_case_insensitive() {
    let server = Server::start();
    let mut client = server.connect();
    for name in ["cl.throttle", "CL.THROTTLE", "Cl.Throttle"] {
        assert_eq!(client.ints(&[name, name, "15", "30", "60"]), [0, 16, 15, -1, 2]);
    }
}

#[test]
fn a_client_that_waits_for_retry_after_is_admitted() {
    let server = Server::start();
    let mut client = server.connect();
    for (key, arguments, unit_ns) in [("ms", "0 1 70 1 MS", 1_000_000), ("us", "0 7 500000 1 US", 1_000)] {
        client.throttle_checked(key, arguments);
        for turn in 0..3 {
            let refused = client.throttle_checked(key, arguments);
            if refused[0] == 0 {
                continue; // so slow a machine that the wait was over already
            }
            std::thread::sleep(Duration::from_nanos(u64::try_from(refused[3]).unwrap() * unit_ns));
            assert_eq!(
                client.throttle_checked(key, arguments)[0],
                0,
                "{arguments}, turn {turn}, after {refused:?}"
            );
        }
    }
}

#[test]
fn options_come_in_any_order_and_any_case() {
    let server = Server::start();
    let mut client = server.connect();
    for (i, options) in
        ["2 SATURATE MS", "2 MS SATURATE", "2 saturate ms", "2 ms saturate", "2 Saturate mS", "2 Ms sAtUrAtE"]
            .iter()
            .enumerate()
    {
        let reply = client.throttle_checked(&format!("with-quantity-{i}"), &format!("9 10 60000 {options}"));
        assert_eq!(reply, [0, 10, 8, -1, 12_000, 2], "{options}");
    }
    for (i, options) in ["SATURATE MS", "MS SATURATE", "saturate ms"].iter().enumerate() {
        let reply = client.throttle_checked(&format!("without-{i}"), &format!("9 10 60000 {options}"));
        assert_eq!(reply, [0, 10, 9, -1, 6_000, 1], "{options}");
    }
    for (options, reset) in [("1 s", 6), ("1 S", 6), ("s", 6), ("1 us", 6), ("us", 6), ("Ms", 6), ("1 uS", 6)]
    {
        let reply = client
            .throttle_checked(&format!("unit {options}").replace(' ', "-"), &format!("9 10 60 {options}"));
        assert_eq!(reply, [0, 10, 9, -1, reset], "{options}");
    }
}

#[test]
fn wrong_options_are_a_syntax_error() {
    let server = Server::start();
    let mut client = server.connect();
    for options in [
        "1 BOGUS",
        "1 SATURATED",
        "1 SATURAT",
        "1 N",
        "1 NS",
        "1 M",
        "1 SEC",
        "1 1",
        "1 S 1",
        "1 SATURATE 1",
        "SATURATE 1",
        "MS 1",
        "1 S S",
        "1 MS MS",
        "1 S MS",
        "1 US S",
        "1 SATURATE SATURATE",
        "S S",
        "SATURATE SATURATE",
        "SATURATE saturate",
        "1 SATURATE MS BOGUS",
        "1 SATURATE MS US",
        "1 SATURATE MS SATURATE",
        "1 MS SATURATE extra words to the end of the line",
    ] {
        let error = client.error(&format!("CL.THROTTLE key 9 10 60 {options}"));
        assert_eq!(error, "ERR syntax error", "{options}");
    }
    for options in [&[b"1".as_ref(), b""][..], &[b"1", b"M\0"], &[b"1", b"\xff"], &[b"1", b"S", b""]] {
        let mut command: Vec<&[u8]> = vec![b"CL.THROTTLE", b"key", b"9", b"10", b"60"];
        command.extend(options);
        assert_eq!(client.error(&command), "ERR syntax error", "{options:?}");
    }
    let many: Vec<String> = "CL.THROTTLE key 9 10 60 1".split(' ').map(str::to_owned).collect();
    let many = [many, vec!["MS".to_owned(); 100_000]].concat();
    assert_eq!(client.error(&many), "ERR syntax error", "100,000 options");
    assert_eq!(client.int("DBSIZE"), 0);
}

/// A long random walk through calls of every kind, each compared with the contract.
#[test]
fn any_sequence_of_calls_answers_as_the_contract_says() {
    let server = Server::start();
    let mut client = server.connect();
    let mut seed: u64 = 0x5EED_CE11;
    let mut below = |n: u64| {
        // SplitMix64: the same walk in every run.
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    };
    let (mut admitted, mut refused) = (0, 0);
    for _ in 0..1500 {
        let key = format!("walk{}", below(200));
        let unit = below(4);
        let limits = format!("{} {}", below(12), 1 + below(40));
        let period = (1 + below(90)) * [1, 1, 37, 12_345][usize::try_from(unit).unwrap()];
        let quantity =
            ["", " 0", " 1", " 1", " 2", " 3", " 7", " 12", " 500"][usize::try_from(below(9)).unwrap()];
        let saturate = ["", "", " SATURATE"][usize::try_from(below(3)).unwrap()];
        let unit = UNITS[usize::try_from(unit).unwrap()];
        let reply = client.throttle_checked(&key, &format!("{limits} {period}{quantity}{saturate}{unit}"));
        if reply[0] == 0 { admitted += 1 } else { refused += 1 }
    }
    assert!(admitted > 200 && refused > 200, "{admitted} admitted, {refused} refused: no walk at all");
}
