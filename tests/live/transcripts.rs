//! The documented transcripts, replayed with a shorter second.

use crate::common::{Client, Server, Throttle, ints, wait_until, wall_ns};
use std::ops::Range;

/// The range of `TAT - now` right after a call for which its reply is the printed one.
enum Left {
    Fresh,
    Drained,
    Within(Range<f64>),
}

struct Line {
    key: String,
    /// The call's arguments, with its period in microseconds at the pace of the replay.
    arguments: String,
    limit: Throttle,
    printed: Vec<i64>,
    left: Left,
}

/// The length of a second in microseconds, and the calls.
fn parse(text: &str) -> (i64, Vec<Line>) {
    let milliseconds = text
        .lines()
        .find_map(|line| line.strip_prefix("# second = ")?.strip_suffix(" ms"))
        .expect("the transcript says how long a second lasts");
    let second = 1000 * milliseconds.parse::<i64>().unwrap();
    let line = |line: &str| {
        let [call, printed, left] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let words: Vec<&str> = call.split(' ').collect();
        let period = words[4].parse::<i64>().unwrap() * second;
        let quantity = words.get(5).unwrap_or(&"1");
        let arguments = format!("{} {} {period} {quantity} US", words[2], words[3]);
        Line {
            key: words[1].to_owned(),
            limit: Throttle::parse(&arguments),
            arguments,
            printed: printed.split(' ').map(|n| n.parse().unwrap()).collect(),
            left: match left {
                "fresh" => Left::Fresh,
                "drained" => Left::Drained,
                range => {
                    let (low, high) = range.split_once("..").unwrap();
                    Left::Within(low.parse().unwrap()..high.parse().unwrap())
                }
            },
        }
    };
    (second, text.lines().filter(|line| !line.starts_with('#')).map(line).collect())
}

/// The call came at an instant that the transcript does not cover.
struct Missed(String);

fn replay(client: &mut Client, text: &str) -> Result<(), Missed> {
    let (second, lines) = parse(text);
    for line in &lines {
        let quantity = line.arguments.split(' ').nth(3).unwrap().parse().unwrap();
        let cost = if line.printed[0] == 0 { line.limit.cost(quantity) } else { 0 };
        let cost_us = i64::try_from(cost / 1000).unwrap();
        match &line.left {
            Left::Fresh => drop(client.call(&["DEL", &line.key])),
            Left::Drained => wait_for_left(client, line, 0),
            // The middle of the range leaves a slow machine the most time.
            Left::Within(range) => {
                wait_for_left(client, line, in_us(f64::midpoint(range.start, range.end), second) - cost_us);
            }
        }
        let call = format!("CL.THROTTLE {} {}", line.key, line.arguments);
        let before = wall_ns();
        let reply = client.ints(&call);
        let after = wall_ns();
        if let Left::Within(range) = &line.left {
            // Read with GET, not from the reply that is being tested.
            let tat = client.tat(&line.key).ok_or_else(|| Missed(format!("{call}: the state expired")))?;
            let (most, least) = ((tat - before) / 1000, (tat - after) / 1000);
            if least < in_us(range.start, second) || most >= in_us(range.end, second) {
                return Err(Missed(format!("{call}: {least}..{most} us left, not {range:?} s")));
            }
        }
        assert_eq!(reply[..3], line.printed[..3], "{call}: {reply:?}, printed {:?}", line.printed);
        for (name, wait, printed) in
            [("retry", reply[3], line.printed[3]), ("reset", reply[4], line.printed[4])]
        {
            let expected =
                if printed < 0 { printed..=printed } else { printed * second..=(printed + 1) * second };
            assert!(expected.contains(&wait), "{call}: {name} after {wait} us, printed {printed} s");
        }
    }
    Ok(())
}

fn in_us(seconds: f64, second: i64) -> i64 {
    // Ranges are written with at most one decimal.
    (seconds * 10.0).round().to_string().parse::<i64>().unwrap() * second / 10
}

/// Peeks until at most `target` microseconds are left.
fn wait_for_left(client: &mut Client, line: &Line, target: i64) {
    let mut words: Vec<&str> = line.arguments.split(' ').collect();
    words[3] = "0";
    let look = format!("CL.THROTTLE {} {}", line.key, words.join(" "));
    wait_until("the limiter to drain", || match client.ints(&look)[4] {
        left if left <= target => Ok(()),
        left => Err(format!("{left} us left, waiting for {target}")),
    });
}

#[test]
fn transcripts_are_what_the_server_answers() {
    let (_server, mut client) = Server::with_client();
    for text in [
        include_str!("../transcripts/thirty-per-minute.tsv"),
        include_str!("../transcripts/five-per-minute.tsv"),
        include_str!("../transcripts/first-release.tsv"),
        include_str!("../transcripts/leaky-bucket.tsv"),
    ] {
        // Again with fresh keys if the machine was too slow for the pace of the transcript.
        let missed: Vec<String> = (0..8).map_while(|_| Some(replay(&mut client, text).err()?.0)).collect();
        assert!(missed.len() < 8, "this machine is too busy to keep the transcript's pace: {missed:#?}");
    }
}

/// Articles about other limiters print how many of a number of calls at once are admitted. GCRA with the same
/// capacity and rate admits as many.
#[test]
fn immediate_calls_of_other_programs() {
    let (_server, mut client) = Server::with_client();
    for (program, capacity, rate, calls, admitted) in [
        ("funnel-0.5-per-second", 15, "30 60", 20, 15),
        ("funnel-0.1-per-second", 6, "6 60", 20, 6),
        // Its calls take 50 ms, the time of a unit. Here the second is longer instead.
        ("token-bucket-20-per-second", 30, "20 60", 50, 30),
    ] {
        let call = format!("CL.THROTTLE {program} {} {rate}", capacity - 1);
        let replies: Vec<Vec<i64>> = client
            .pipeline(&vec![call.as_str(); calls])
            .into_iter()
            .map(|reply| ints(&reply.unwrap()).unwrap())
            .collect();
        for (i, reply) in (0..).zip(&replies) {
            let expected = [i64::from(i >= admitted), capacity, (capacity - 1 - i).max(0)];
            assert_eq!(reply[..3], expected, "{program}, call {i}");
        }
    }
}
