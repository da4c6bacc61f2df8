//! The function library, and calls of it.

use super::{BINARY, Client, root};
use redis_cell_core::several::{GRAMMARS, Keyword, Parts};
use std::process::Command;
use std::sync::LazyLock;

/// The text of the library, as scripts/functions.sh puts it together. In a container, which has no sources,
/// it is the file that `REDIS_CELL_FUNCTIONS` names.
pub static FUNCTIONS: LazyLock<String> = LazyLock::new(|| {
    if let Some(library) = std::env::var_os("REDIS_CELL_FUNCTIONS") {
        return std::fs::read_to_string(library).unwrap();
    }
    // Without cargo, which whoever uses the library may not have.
    let mut script = Command::new(root().join("scripts/functions.sh"));
    let built = script.env("PATH", "/usr/local/bin:/usr/bin:/bin").output().unwrap();
    assert!(built.status.success(), "{built:?}");
    std::fs::read_to_string(String::from_utf8(built.stdout).unwrap().trim_end()).unwrap()
});

/// Whether the server under test has functions.
pub fn has_functions() -> bool {
    BINARY.at_least(7, 0, 0)
}

/// Loads a version of the library.
pub fn load_functions(client: &mut Client, library: &str) {
    assert_eq!(client.text(&["FUNCTION", "LOAD", "REPLACE", library]), "redis_cell");
}

/// The call of the function that does what a command with these words does: `CL.PEEK key ...` becomes `FCALL
/// cl_peek 1 key ...`. For several limiters, the keys are moved to the front, with those of `ONCE` and `HOLD`
/// last.
pub fn to_function<W: AsRef<[u8]>>(words: &[W]) -> Vec<Vec<u8>> {
    let name = words[0].as_ref().to_ascii_lowercase();
    let name = name.strip_prefix(b"cl.").expect("a command of the module");
    let words: Vec<&[u8]> = words[1..].iter().map(AsRef::as_ref).collect();
    let mut keys = vec![0];
    if matches!(name, b"mtake" | b"mpeek" | b"msettle") {
        let parts = Parts::of(words.as_slice(), GRAMMARS);
        let settles = name == b"msettle";
        let known: &[Keyword] = if settles { &Keyword::OF_SETTLEMENTS } else { &Keyword::ALL };
        keys.extend(parts.option_keys(known));
        keys.extend(parts.map(|part| part.key));
    }
    let (keys, arguments): (Vec<_>, Vec<_>) = words.iter().enumerate().partition(|(at, _)| keys.contains(at));
    let words = keys.iter().chain(&arguments).map(|(_, word)| word.to_vec());
    let head = [b"FCALL".to_vec(), [b"cl_", name].concat(), keys.len().to_string().into_bytes()];
    head.into_iter().chain(words).collect()
}
