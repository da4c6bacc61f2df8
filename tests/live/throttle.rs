//! The replies of CL.THROTTLE, compared with brandur/redis-cell, and its options.

use crate::common::Server;
use std::time::Duration;

#[test]
fn the_command_name_is_case_insensitive() {
    let (_server, mut client) = Server::with_client();
    for name in ["cl.throttle", "CL.THROTTLE", "Cl.Throttle"] {
        assert_eq!(client.ints(&[name, name, "15", "30", "60"]), [0, 16, 15, -1, 2]);
    }
}

#[test]
fn a_client_that_waits_for_retry_after_is_admitted() {
    let (_server, mut client) = Server::with_client();
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
    let (_server, mut client) = Server::with_client();
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
