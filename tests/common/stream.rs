//! The commands that a primary propagates to its replicas and its append-only file.

use super::{Client, Server};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

/// One propagated command and the database it applies to. `SELECT` is folded into the latter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    pub db: u32,
    pub command: String,
}

const MARKER: &str = "end-of-test";

/// A replica that applies nothing and remembers everything.
pub struct ReplicaStream {
    socket: TcpStream,
    unread: Vec<u8>,
    db: u32,
}

impl ReplicaStream {
    /// Requests a full synchronization, and skips the snapshot, to the beginning of the stream.
    pub fn attach(server: &Server) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
        let mut stream = Self { socket, unread: Vec::new(), db: 0 };
        stream.socket.write_all(b"PSYNC ? -1\r\n").unwrap();
        let answer = stream.line();
        assert!(answer.starts_with("+FULLRESYNC"), "PSYNC was answered {answer:?}");
        let length = stream.line();
        let length: usize = length
            .strip_prefix('$')
            .and_then(|digits| digits.parse().ok())
            .unwrap_or_else(|| panic!("no snapshot follows, but {length:?}"));
        while stream.unread.len() < length {
            stream.receive();
        }
        stream.unread.drain(..length);
        stream
    }

    /// Everything that was propagated since the last call.
    pub fn effects(&mut self, server: &Server) -> Vec<Effect> {
        server.connect().call(&["PUBLISH", MARKER, ""]); // replicated, and no write
        let mut seen = Vec::new();
        loop {
            while let Some(effect) = next_effect(&mut self.unread, &mut self.db) {
                if effect.command.starts_with(&format!("PUBLISH {MARKER}")) {
                    return seen;
                }
                // Recent servers select the database inside a transaction, older ones before it.
                if let Some(multi) = seen.last_mut().filter(|last: &&mut Effect| last.command == "MULTI") {
                    multi.db = effect.db;
                }
                seen.push(effect);
            }
            self.receive();
        }
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let line = String::from_utf8(line).unwrap().trim_end().to_owned();
                // Bare newlines keep the connection alive while the snapshot is being made.
                if !line.is_empty() {
                    return line;
                }
            } else {
                self.receive();
            }
        }
    }

    fn receive(&mut self) {
        let mut chunk = [0; 8192];
        let n = self.socket.read(&mut chunk).expect("the primary sends nothing more");
        assert_ne!(n, 0, "the primary closed the replication link");
        self.unread.extend_from_slice(&chunk[..n]);
    }
}

/// The commands of the append-only file of a server that has never rewritten it.
pub fn read_aof(server: &Server) -> Vec<Effect> {
    let mut bytes = std::fs::read(aof_path(server)).unwrap();
    let mut db = 0;
    std::iter::from_fn(|| next_effect(&mut bytes, &mut db)).collect()
}

/// Where the commands of that file are.
pub fn aof_path(server: &Server) -> PathBuf {
    // From 7.0 on the file has parts, and the increment contains the commands.
    let parts = server.folder().join("appendonlydir/appendonly.aof.1.incr.aof");
    if parts.exists() { parts } else { server.folder().join("appendonly.aof") }
}

/// Takes the next complete command off the front.
fn next_effect(unread: &mut Vec<u8>, db: &mut u32) -> Option<Effect> {
    loop {
        let (words, length) = parse_command(unread)?;
        unread.drain(..length);
        match words[0].to_uppercase().as_str() {
            "SELECT" => *db = words[1].parse().unwrap(),
            "PING" => {} // the link's heartbeat
            _ => return Some(Effect { db: *db, command: words.join(" ") }),
        }
    }
}

/// Reads `*<n>` and n times `$<length>`, the one shape in which servers write commands.
fn parse_command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let number = |bytes: &[u8], at: &mut usize, sigil: u8| -> Option<usize> {
        let end = *at + bytes.get(*at..)?.iter().position(|byte| *byte == b'\n')?;
        let line = std::str::from_utf8(&bytes[*at..end]).unwrap().trim_end();
        assert_eq!(line.as_bytes()[0], sigil, "no command in RESP: {line:?}");
        *at = end + 1;
        Some(line[1..].parse().unwrap())
    };
    let count = number(bytes, &mut at, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(bytes, &mut at, b'$')?;
        let word = bytes.get(at..at + length)?;
        words.push(String::from_utf8_lossy(word).into_owned());
        at += length + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}

impl Effect {
    /// The effects of one admitted call, as `SELECT`, `SET` with the state and its absolute expiry.
    pub fn of_call(client: &mut Client, db: u32, key: &str) -> Vec<Self> {
        let tat = client.tat(key).unwrap_or_else(|| panic!("{key} holds nothing"));
        let ms = super::ceil_div(tat.into(), 1_000_000);
        assert_eq!(client.expiry_ms(key), ms, "expiry of {key} with TAT {tat}");
        // If the server cannot set an absolute expiry with the value, there are two commands.
        let commands = if super::BINARY.at_least(6, 2, 8) {
            vec![format!("SET {key} {tat} PXAT {ms}")]
        } else {
            vec![format!("SET {key} {tat}"), format!("PEXPIREAT {key} {ms}")]
        };
        commands.into_iter().map(|command| Self { db, command }).collect()
    }

    /// The same as one transaction.
    pub fn transaction(db: u32, effects: Vec<Self>) -> Vec<Self> {
        let word = |command: &str| Self { db, command: command.to_owned() };
        std::iter::once(word("MULTI")).chain(effects).chain([word("EXEC")]).collect()
    }

    /// As it appears outside a transaction: servers before 7.0 wrap everything that a module propagates.
    pub fn alone(db: u32, effects: Vec<Self>) -> Vec<Self> {
        if super::BINARY.at_least(7, 0, 0) { effects } else { Self::transaction(db, effects) }
    }
}

/// The effects of one call, or of one transaction, as they are propagated.
pub fn propagated(db: u32, effects: impl IntoIterator<Item = String>) -> Vec<Effect> {
    Effect::transaction(db, effects.into_iter().map(|command| Effect { db, command }).collect())
}
