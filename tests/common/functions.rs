//! The function library, and calls of it.

use super::{BINARY, Client};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

/// The text of the library, as scripts/functions.sh puts it together. In a container, which has no sources,
/// it is the file that `REDIS_CELL_FUNCTIONS` names.
pub static FUNCTIONS: LazyLock<String> = LazyLock::new(|| {
    if let Some(library) = std::env::var_os("REDIS_CELL_FUNCTIONS") {
        return std::fs::read_to_string(library).unwrap();
    }
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("functions").exists());
    // Without cargo, which whoever uses the library may not have.
    let mut script = Command::new(root.unwrap().join("scripts/functions.sh"));
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

/// The number of arguments of each kind of limiter, after its name.
const KINDS: [(&str, usize); 6] =
    [("THROTTLE", 4), ("FUNNEL", 4), ("BUCKET", 4), ("WINDOW", 3), ("LOG", 3), ("LEASE", 3)];

/// Whether a word is this keyword, in any case.
fn is(word: Option<&Vec<u8>>, keyword: &str) -> bool {
    word.is_some_and(|word| word.eq_ignore_ascii_case(keyword.as_bytes()))
}

/// The end of the limiter that begins at a position; `None` if there is none, or not a complete one.
fn limiter_end(words: &[Vec<u8>], mut at: usize) -> Option<usize> {
    if is(words.get(at), "RESET") {
        at += 2;
    }
    if is(words.get(at), "SHADOW") {
        at += 1;
    }
    let end = if is(words.get(at), "FIXED") {
        let mut end = at + if is(words.get(at + 2), "UNTIL") { 4 } else { 3 };
        while ["UTC", "FROM", "IDLE"].iter().any(|option| is(words.get(end), option)) && end + 1 < words.len()
        {
            end += 2;
        }
        end + 1
    } else {
        at + 1 + KINDS.iter().find(|(kind, _)| is(words.get(at), kind))?.1
    };
    (end <= words.len()).then_some(end)
}

/// The positions of the keys of `ONCE` and `HOLD` among the options of a call for several limiters; none if
/// another word is no option.
fn option_keys(options: &[Vec<u8>], settles: bool) -> Vec<usize> {
    let (mut at, mut keys) = (0, Vec::new());
    while at < options.len() {
        let is_one_of = |keywords: &[&str]| keywords.iter().any(|keyword| is(options.get(at), keyword));
        if is_one_of(&["ONCE"]) && at + 2 < options.len() {
            keys.push(at + 1);
            at += 3;
        } else if is_one_of(&["HOLD"]) && at + 1 < options.len() {
            keys.push(at + 1);
            let begins_number = |word: &Vec<u8>| {
                word.first().is_some_and(|first| first.is_ascii_digit() || b"+-.".contains(first))
            };
            at += match options.get(at + 2) {
                _ if settles => 3,
                Some(word) if begins_number(word) => 4,
                _ => 2,
            };
        } else if is_one_of(&["AGO"]) {
            at += 2;
        } else if is_one_of(&["S", "MS", "US"]) {
            at += 1;
        } else {
            return Vec::new();
        }
    }
    keys
}

/// The call of the function that does what a command with these words does: `CL.PEEK key ...` becomes `FCALL
/// cl_peek 1 key ...`. For several limiters, the keys are moved to the front, with those of `ONCE` and `HOLD`
/// last.
pub fn to_function<W: AsRef<[u8]>>(words: &[W]) -> Vec<Vec<u8>> {
    let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_ref().to_vec()).collect();
    let name = words[0].to_ascii_lowercase();
    let name = name.strip_prefix(b"cl.").expect("a command of the module");
    let (mut keys, mut arguments) = (Vec::new(), Vec::new());
    if matches!(name, b"mtake" | b"mpeek" | b"msettle") {
        let mut at = 1;
        loop {
            let joins = !keys.is_empty() && (is(words.get(at), "ELSE") || is(words.get(at), "SPILL"));
            let key = match limiter_end(&words, at + 1) {
                None if joins && limiter_end(&words, at + 2).is_some() => {
                    arguments.push(words[at].clone());
                    at + 1
                }
                _ => at,
            };
            let Some(end) = limiter_end(&words, key + 1) else { break };
            keys.push(words[key].clone());
            arguments.extend_from_slice(&words[key + 1..end]);
            at = end;
        }
        if keys.is_empty() && at < words.len() {
            keys.push(words[at].clone());
            at += 1;
        }
        let mut rest = words[at..].to_vec();
        let options = option_keys(&rest, name == b"msettle");
        keys.extend(options.iter().map(|key| rest[*key].clone()));
        for key in options.into_iter().rev() {
            rest.remove(key);
        }
        arguments.append(&mut rest);
    } else {
        keys.push(words[1].clone());
        arguments.extend_from_slice(&words[2..]);
    }
    let head = [b"FCALL".to_vec(), [b"cl_", name].concat(), keys.len().to_string().into_bytes()];
    [head.to_vec(), keys, arguments].concat()
}
