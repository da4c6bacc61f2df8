//! Pools in order: what is included, then what was bought, then money, drawn on by many clients at once.

use crate::common::{Client, Server};
use std::thread;

const LIMITS: [i64; 3] = [100, 70, 40];
/// Each has its pools. In most of them, some call takes a part of its quantity from each.
const ACCOUNTS: usize = 10;
const CLIENTS: u32 = 8;
const CALLS: usize = 150;

/// A number below `most`, the same for the same seed.
fn random(seed: &mut u32, most: u32) -> u32 {
    *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*seed >> 8) % most
}

type Sums = [[i64; 3]; ACCOUNTS];

/// What a client's calls have taken from each pool of each account, by their replies.
fn spend(client: &mut Client, mut seed: u32) -> Sums {
    let mut sums = Sums::default();
    for call in 0..CALLS {
        let account = call % ACCOUNTS;
        let (tokens, cents) = (random(&mut seed, 9), random(&mut seed, 3));
        let [included, bought, paid] = LIMITS;
        let call = format!(
            "CL.MTAKE {account}:0 FIXED {included} 36000 {tokens} SPILL {account}:1 FIXED {bought} TOTAL {tokens} \
             ELSE {account}:2 FIXED {paid} TOTAL {cents}"
        );
        let rows: Vec<Vec<i64>> = client.get(&call);
        let taken: Vec<i64> = rows[1..].iter().map(|row| row[5]).collect();
        let (tokens, cents) = (i64::from(tokens), i64::from(cents));
        match rows[0][0] {
            0 => assert!(
                taken[0] + taken[1] == tokens && taken[2] == 0 || taken == [0, 0, cents],
                "{call}: {rows:?}"
            ),
            _ => assert_eq!(taken, [0, 0, 0], "{call}: {rows:?}"),
        }
        sums[account].iter_mut().zip(taken).for_each(|(sum, taken)| *sum += taken);
    }
    sums
}

#[test]
pub fn what_replies_say_was_taken_is_what_the_keys_hold() {
    let server = Server::start();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let mut client = server.connect();
            thread::spawn(move || spend(&mut client, number))
        })
        .collect();
    let mut sums = Sums::default();
    for client in clients {
        let taken = client.join().unwrap();
        sums.iter_mut().flatten().zip(taken.iter().flatten()).for_each(|(sum, taken)| *sum += taken);
    }
    let mut client = server.connect();
    for (account, sums) in sums.iter().enumerate() {
        let held = [0, 1, 2].map(|pool| client.int(&format!("GET {account}:{pool}")));
        assert_eq!(sums, &held, "by the replies, and by the keys");
        assert!(held.iter().zip(LIMITS).all(|(held, limit)| *held <= limit), "{held:?}");
        assert_eq!(held[..2], LIMITS[..2], "most calls find little, so all that was included is used");
    }
}
