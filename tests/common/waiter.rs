//! A client that has sent a command and waits for the reply.

use super::{Client, Server, Words};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;

pub struct Waiter {
    pub socket: BufReader<TcpStream>,
    pub id: i64,
}

impl Waiter {
    /// Sends a command in database 0, on a connection of its own.
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

    pub fn send<W: Words + ?Sized>(&mut self, command: &W) {
        let mut packed = redis::Cmd::new();
        for word in command.words() {
            packed.arg(word);
        }
        self.socket.get_mut().write_all(&packed.get_packed_command()).unwrap();
    }

    /// Waits for the reply: numbers separated by spaces, `null`, or the error as on the wire.
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

    /// Whether no reply has arrived so far.
    pub fn is_waiting(&mut self) -> bool {
        self.socket.get_ref().set_nonblocking(true).unwrap();
        let seen = self.socket.fill_buf().map(<[u8]>::len).map_err(|e| e.kind());
        self.socket.get_ref().set_nonblocking(false).unwrap();
        seen == Err(ErrorKind::WouldBlock)
    }
}

/// Waits until the server reports this number of blocked clients.
pub fn wait_for_blocked(client: &mut Client, count: usize) {
    client.wait_for("blocked_clients", &count.to_string());
}
