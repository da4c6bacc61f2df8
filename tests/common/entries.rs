//! Sorted sets of instants, as the server shows them.

use super::Client;

/// A member of a sorted set and its score.
pub type Entry = (Vec<u8>, i64);

/// The members of a sorted set with their scores, which must be written as integers.
pub fn entries(client: &mut Client, key: &str) -> Vec<Entry> {
    let flat: Vec<Vec<u8>> = client.get(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
    let number = |score: &[u8]| std::str::from_utf8(score).unwrap().parse().unwrap();
    flat.chunks(2).map(|pair| (pair[0].clone(), number(&pair[1]))).collect()
}
