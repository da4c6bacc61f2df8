//! Malformed arguments get a clear error and have no other effect.

use crate::common::Server;

const ARGUMENTS: [&str; 4] = ["max_burst", "count", "period", "quantity"];

/// Words that no argument accepts as a number.
fn not_numbers() -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<u8>> = [
        "",
        " ",
        "abc",
        " 1",
        "1 ",
        "1.5",
        "1.0",
        "+1",
        "-",
        "+",
        "--1",
        "0x10",
        "1e3",
        "1_000",
        "1,000",
        "inf",
        "nan",
        "-1",
        "-9223372036854775808",
        "-9223372036854775809",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "340282366920938463463374607431768211456",
        "111111111111111111111111111111",
        "%s%s%s%n",
        "\u{661}",
        "\u{ff11}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    values.extend([
        b"1\x001".to_vec(),
        b"\x001".to_vec(),
        b"1\0".to_vec(),
        b"\xff\xfe".to_vec(),
        b"1\n".to_vec(),
    ]);
    values.push(vec![b'7'; 1 << 20]);
    values
}

/// A call with one argument replaced.
fn with_argument(position: usize, value: &[u8]) -> Vec<Vec<u8>> {
    let mut command: Vec<Vec<u8>> =
        ["CL.THROTTLE", "k", "9", "10", "3600", "1"].iter().map(|word| word.as_bytes().to_vec()).collect();
    command[position + 2] = value.to_vec();
    command
}

#[test]
fn each_number_that_is_none_is_named() {
    let server = Server::start();
    let mut client = server.connect();
    for state in ["no state", "state"] {
        if state == "state" {
            client.throttle_checked("k", "9 10 3600 4");
        }
        let before = client.snapshot("k");
        for (position, argument) in ARGUMENTS.iter().enumerate() {
            let zero =
                if *argument == "count" || *argument == "period" { vec![b"0".to_vec()] } else { vec![] };
            for value in not_numbers().iter().chain(&zero) {
                let shown = value[..value.len().min(40)].escape_ascii().to_string();
                let error = client.error(&with_argument(position, value));
                assert!(error.starts_with("ERR "), "{argument} `{shown}`: {error}");
                assert!(error.contains(argument), "{argument} `{shown}` is not named: {error}");
                let others = ARGUMENTS.iter().filter(|other| *other != argument);
                for other in others {
                    assert!(!error.contains(other), "{argument} `{shown}` is blamed on {other}: {error}");
                }
                assert!(error.len() < 300, "{argument} `{shown}`: an error of {} bytes", error.len());
            }
        }
        assert_eq!(client.snapshot("k"), before, "on {state}");
    }
    server.assert_alive("arguments that are no numbers");
}

#[test]
fn too_few_arguments_get_the_usual_error() {
    let server = Server::start();
    let mut client = server.connect();
    for command in ["CL.THROTTLE", "CL.THROTTLE k", "CL.THROTTLE k 9", "CL.THROTTLE k 9 10"] {
        let error = client.error(command);
        assert_eq!(
            error.to_lowercase(),
            "err wrong number of arguments for 'cl.throttle' command",
            "{command}"
        );
        assert!(error.starts_with("ERR "), "{error}");
    }
    assert_eq!(client.int("DBSIZE"), 0);
}
