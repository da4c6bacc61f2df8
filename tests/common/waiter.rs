//! A client that has asked for something and has not been answered yet.

use super::{Client, Server, Words, wait_until};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;

pub struct Waiter {
    socket: BufReader<TcpStream>,
    pub id: i64,
}

impl Waiter {
    /// Asks in database 0, on a connection of its own.
    pub fn ask(server: &Server, command: &str) -> Self {
        Self::ask_in(server, 0, command)
    }

    pub fn ask_in(server: &Server, db: u32, command: &str) -> Self {
        let mut waiter = Self::connect(server);
        waiter.send("CLIENT ID");
        waiter.id = waiter.answer().parse().unwrap();
        waiter.send(&format!("SELECT {db}"));
        assert_eq!(waiter.answer(), "OK");
        waiter.send(command);
        waiter
    }

    pub fn connect(server: &Server) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
        Self { socket: BufReader::with_capacity(512, socket), id: 0 }
    }

    pub fn send(&mut self, command: &str) {
        let mut packed = redis::Cmd::new();
        for word in command.words() {
            packed.arg(word);
        }
        self.socket.get_mut().write_all(&packed.get_packed_command()).unwrap();
    }

    /// The answer once it comes: numbers separated by spaces, `null`, or the error as on the wire.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.socket.read_line(&mut line).expect("no answer came");
        assert!(!line.is_empty(), "the connection was closed without an answer");
        let (sigil, rest) = line.trim_end().split_at(1);
        match (sigil, rest) {
            ("*", "-1") => "null".to_owned(),
            ("*", count) => {
                let items: Vec<String> = (0..count.parse().unwrap()).map(|_| self.answer()).collect();
                items.join(" ")
            }
            (":" | "+" | "-", rest) => rest.to_owned(),
            _ => panic!("an answer of another kind: {line:?}"),
        }
    }

    /// Whether nothing has been answered so far.
    pub fn is_waiting(&mut self) -> bool {
        self.socket.get_ref().set_nonblocking(true).unwrap();
        let seen = self.socket.fill_buf().map(<[u8]>::len).map_err(|e| e.kind());
        self.socket.get_ref().set_nonblocking(false).unwrap();
        seen == Err(ErrorKind::WouldBlock)
    }
}

/// Until the server says that so many clients are blocked.
pub fn wait_for_blocked(client: &mut Client, count: usize) {
    wait_until(&format!("{count} blocked clients"), || match client.info("blocked_clients") {
        seen if seen == count.to_string() => Ok(()),
        seen => Err(seen),
    });
}
