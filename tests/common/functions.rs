//! The function library, and calls of it.

use super::{BINARY, Client};

/// The text of the library.
pub const FUNCTIONS: &str = include_str!("../../functions/redis_cell.lua");

/// Whether the server under test has functions.
pub fn has_functions() -> bool {
    BINARY.at_least(7, 0, 0)
}

/// Loads a version of the library.
pub fn load_functions(client: &mut Client, library: &str) {
    assert_eq!(client.text(&["FUNCTION", "LOAD", "REPLACE", library]), "redis_cell");
}

/// The call of the function that does what a command with these words does: `CL.PEEK key ...` becomes `FCALL
/// cl_peek 1 key ...`.
pub fn to_function<W: AsRef<[u8]>>(words: &[W]) -> Vec<Vec<u8>> {
    let name = words[0].as_ref().to_ascii_lowercase();
    let name = name.strip_prefix(b"cl.").expect("a command of the module");
    let mut call = vec![b"FCALL".to_vec(), [b"cl_", name].concat(), b"1".to_vec()];
    call.extend(words[1..].iter().map(|word| word.as_ref().to_vec()));
    call
}
