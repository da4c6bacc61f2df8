//! Real servers, each started on a free port in its own folder and stopped when dropped.

use super::{Client, Reaper, root, wait_until};
use redis::ConnectionLike;
use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;

/// The server under test, as it describes itself.
pub struct Binary {
    path: String,
    /// `redis` or `valkey`.
    pub name: String,
    pub version_text: String,
    pub version: (u32, u32, u32),
}

pub static BINARY: LazyLock<Binary> = LazyLock::new(|| {
    let path = std::env::var("REDIS_CELL_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let output = Command::new(&path)
        .arg("--version")
        .output()
        .unwrap_or_else(|e| panic!("cannot run `{path}` (set REDIS_CELL_SERVER to a server binary): {e}"));
    // "Redis server v=7.0.15 ...", "Valkey server v=8.1.1 ...", and of Valkey 7.2 "Server v=7.2.7 ..."
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = match line.split_whitespace().next().unwrap_or_default() {
        "Server" => "valkey".to_owned(),
        name => name.to_lowercase(),
    };
    let version_text = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))
        .unwrap_or_else(|| panic!("`{path} --version` does not look like a server's: {line:?}"))
        .to_owned();
    let mut parts = version_text.split('.').map(|part| part.parse().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    Binary { path, name, version: (part(), part(), part()), version_text }
});

impl Binary {
    /// For properties that a server does not report: its start-up options, and how it frames replicated
    /// commands.
    pub fn at_least(&self, major: u32, minor: u32, patch: u32) -> bool {
        self.version >= (major, minor, patch)
    }
}

/// How long one look at a server that starts waits for an answer.
const ANSWER: Duration = Duration::from_secs(5);

thread_local! {
    /// The seeded fault of the servers that this thread starts.
    static FAULT: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Runs a test with the seeded fault in the module of every server that it starts.
pub fn with_fault(fault: &'static str, test: fn()) {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            FAULT.set(None);
        }
    }
    FAULT.set(Some(fault));
    let _restore = Restore;
    test();
}

/// Whether this test is run with a seeded fault.
pub fn has_fault() -> bool {
    FAULT.get().is_some_and(|fault| fault != "none")
}

/// A port on which nothing listens now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The module under test.
pub fn module_path() -> PathBuf {
    if FAULT.get().is_some() {
        return faulty_module_path();
    }
    let path = std::env::var_os("REDIS_CELL_MODULE");
    let mut path = path.map_or_else(|| "target/release/libredis_cell.so".into(), PathBuf::from);
    if path.is_relative() {
        path = root().join(path);
    }
    assert!(path.is_file(), "no module at {}: run `make test`, which builds it", path.display());
    path
}

/// The build with the faults of `ffi/src/faults.rs`.
pub fn faulty_module_path() -> PathBuf {
    let path = std::env::var_os("REDIS_CELL_FAULTY_MODULE")
        .expect("REDIS_CELL_FAULTY_MODULE must name the module of tests/faulty: run `make test`");
    let path = PathBuf::from(path);
    assert!(path.is_file(), "no module at {}: run `make test`, which builds it", path.display());
    path
}

/// How to start a server.
#[derive(Clone)]
pub struct Options {
    module: Option<PathBuf>,
    module_arguments: Vec<String>,
    /// The text of a configuration file, for settings that command-line arguments cannot express.
    configuration: Option<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// A program with its arguments, which executes the server.
    wrapper: Vec<String>,
}

impl Options {
    pub fn new() -> Self {
        let mut options = Self {
            module: Some(module_path()),
            module_arguments: Vec::new(),
            configuration: None,
            arguments: Vec::new(),
            environment: Vec::new(),
            wrapper: Vec::new(),
        };
        for (name, value) in [
            ("bind", "127.0.0.1"),
            ("save", ""),
            ("appendonly", "no"),
            ("repl-diskless-sync-delay", "0"), // a replica does not wait for others to join it
            ("repl-ping-replica-period", "3600"), // the replication stream carries effects only
        ] {
            options = options.set(name, value);
        }
        if BINARY.at_least(7, 0, 0) {
            options = options.set("enable-debug-command", "yes").set("enable-module-command", "yes");
        }
        if let Some(fault) = FAULT.get() {
            options = options.environment("REDIS_CELL_FAULT", fault);
        }
        options
    }

    /// A Sentinel with these lines as its configuration.
    pub fn sentinel(configuration: &str) -> Self {
        let mut options = Self::new().without_module();
        options.arguments = ["--bind", "127.0.0.1", "--sentinel"].map(str::to_owned).to_vec();
        options.configuration = Some(configuration.to_owned());
        options
    }

    pub fn without_module(mut self) -> Self {
        self.module = None;
        self
    }

    pub fn module(mut self, path: PathBuf) -> Self {
        self.module = Some(path);
        self
    }

    /// The arguments after the file's name in the `loadmodule` directive.
    pub fn module_arguments(mut self, words: &str) -> Self {
        self.module_arguments = words.split_whitespace().map(str::to_owned).collect();
        self
    }

    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.arguments.push(format!("--{name}"));
        self.arguments.push(value.to_owned());
        self
    }

    /// Renames a command of the server; to nothing to disable it.
    pub fn rename(mut self, command: &str, to: &str) -> Self {
        self.arguments.extend(["--rename-command", command, to].map(str::to_owned));
        self
    }

    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server through a program that takes the server's command line as its last arguments and
    /// executes it.
    pub fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Every write is on disk before its reply is sent.
    pub fn append_only(self) -> Self {
        self.set("appendonly", "yes").set("appendfsync", "always")
    }

    pub fn start(self) -> Server {
        let folder = tempfile::Builder::new().prefix("redis-cell-live-").tempdir().unwrap();
        if let Some(text) = &self.configuration {
            fs::write(folder.path().join("server.conf"), text).unwrap();
        }
        let mut server = Server { options: self, folder, port: 0, process: None };
        server.launch();
        server
    }
}

/// A running server. Dropping it kills it, and fails the test if it was no longer alive.
pub struct Server {
    options: Options,
    folder: TempDir,
    port: u16,
    process: Option<Process>,
}

impl Server {
    /// A server with the module and otherwise default options.
    pub fn start() -> Self {
        Options::new().start()
    }

    /// The same, and a connection to it.
    pub fn with_client() -> (Self, Client) {
        let server = Self::start();
        let client = server.connect();
        (server, client)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.port, "").unwrap_or_else(|e| panic!("cannot connect to the server: {e}"))
    }

    pub fn connect_resp3(&self) -> Client {
        Client::connect(self.port, "?protocol=resp3").unwrap_or_else(|e| panic!("no RESP3 connection: {e}"))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_else(|e| format!("(no log: {e})"))
    }

    fn log_path(&self) -> PathBuf {
        self.folder().join("server.log")
    }

    /// Still the same process, and it answers.
    pub fn assert_alive(&self, after: &str) {
        let pid = self.process.as_ref().map(|process| process.child.id());
        let seen = Client::connect(self.port, "").and_then(|mut client| client.process_id());
        assert_eq!(seen.ok(), pid, "the server did not survive {after}");
    }

    /// Shuts the server down with `SHUTDOWN NOSAVE` and waits until its process has ended.
    pub fn shut_down(&mut self) {
        let mut process = self.process.take().expect("the server is not running");
        // The only reply is that the connection closes.
        let _ = self.connect().connection().send_packed_command(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n");
        wait_until("the server to end", || match process.child.try_wait().unwrap() {
            Some(_) => Ok(()),
            None => Err("still running".to_owned()),
        });
    }

    /// Ends the server with `SIGTERM`, and waits until its process has ended.
    pub fn terminate(&mut self) {
        self.signal("TERM");
        let mut process = self.process.take().expect("the server is not running");
        wait_until("the server to end", || match process.child.try_wait().unwrap() {
            Some(_) => Ok(()),
            None => Err("still running".to_owned()),
        });
    }

    /// Kills the server, as a power cut would, and starts it again in the same folder.
    pub fn restart(&mut self) {
        self.process = None;
        self.launch();
    }

    /// The same, on the same port, for the clients and servers that know it.
    pub fn restart_here(&mut self) {
        self.process = None;
        assert!(self.come_up(), "port {} is in use", self.port);
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Replaces the module for the next start.
    pub fn set_module(&mut self, path: Option<PathBuf>) {
        self.options.module = path;
    }

    /// Restarts the server with another value for a setting.
    pub fn restart_with(&mut self, name: &str, value: &str) {
        self.options = self.options.clone().set(name, value);
        self.restart();
    }

    /// Restarts the server without the module.
    pub fn restart_without_module(&mut self) {
        self.process = None;
        self.options.module = None;
        self.launch();
    }

    /// Sends a signal such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let process = self.process.as_ref().expect("the server is not running");
        // The shell's own `kill`: a minimal container has no other.
        let script = format!("kill -{name} {}", process.child.id());
        assert!(Command::new("sh").arg("-c").arg(script).status().unwrap().success());
    }

    /// Tries ports until one is still free when the server binds it.
    fn launch(&mut self) {
        for _ in 0..20 {
            self.port = free_port();
            // A cluster's bus takes the port 10,000 above.
            if self.port > 55_535 {
                continue;
            }
            if self.come_up() {
                return;
            }
        }
        panic!("no free port in twenty attempts");
    }

    /// Starts the server on its port and waits until it answers. Returns false when the port is in use.
    fn come_up(&mut self) -> bool {
        let mut process = Process::spawn(&self.command(), self.folder.path());
        let pid = process.child.id();
        let come_up = wait_until("the server to answer", || {
            if let Some(status) = process.child.try_wait().unwrap() {
                return Ok(Err(status));
            }
            // Another test may have got the port first: its server answers a PING as well, and a listener
            // that says nothing must not keep this look from seeing that the process has ended.
            let client = Client::connect_to(&format!("127.0.0.1:{}", self.port), "", ANSWER);
            match client.and_then(|mut client| client.process_id()) {
                Ok(seen) if seen == pid => Ok(Ok(())),
                Ok(seen) => Err(format!("process {seen} answering on the port of {pid}\n{}", self.log())),
                Err(e) => Err(format!("{e}\n{}", self.log())),
            }
        });
        match come_up {
            Ok(()) => {
                self.process = Some(process);
                true
            }
            Err(_) if self.port_was_taken() => {
                fs::remove_file(self.log_path()).unwrap();
                false
            }
            Err(status) => panic!("the server ended at once ({status}):\n{}", self.log()),
        }
    }

    /// Whether the server says so, in the words of glibc or of musl.
    fn port_was_taken(&self) -> bool {
        let log = self.log();
        log.contains("Address already in use") || log.contains("Address in use")
    }

    fn command(&self) -> ServerCommand {
        let mut words = self.options.wrapper.clone();
        words.push(BINARY.path.clone());
        if self.options.configuration.is_some() {
            words.push(self.folder().join("server.conf").display().to_string());
        }
        words.extend(["--port".to_owned(), self.port.to_string()]);
        words.extend(["--dir".to_owned(), self.folder().display().to_string()]);
        words.extend(self.options.arguments.iter().cloned());
        if let Some(module) = &self.options.module {
            words.extend(["--loadmodule".to_owned(), module.display().to_string()]);
            words.extend(self.options.module_arguments.iter().cloned());
        }
        ServerCommand { words, environment: self.options.environment.clone(), log: self.log_path() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the server on port {} ---\n{}--- end of log ---", self.port, self.log());
        } else if let Some(status) = self.process.as_mut().and_then(|p| p.child.try_wait().unwrap()) {
            panic!("the server died during the test ({status}):\n{}", self.log());
        }
    }
}

struct ServerCommand {
    words: Vec<String>,
    environment: Vec<(String, String)>,
    log: PathBuf,
}

/// A server's process, killed when dropped.
struct Process {
    child: Child,
    /// Dropped after the process has ended.
    _reaper: Reaper,
}

impl Process {
    fn spawn(command: &ServerCommand, folder: &Path) -> Self {
        // Before the server, so that hardly a moment is left in which a killed test leaves a server behind.
        let mut reaper = Reaper::new("kill -9 \"$2\"; rm -rf \"$1\"", &[folder.display().to_string()]);
        let log: File = OpenOptions::new().create(true).append(true).open(&command.log).unwrap();
        let child = Command::new(&command.words[0])
            .args(&command.words[1..])
            .envs(command.environment.iter().cloned())
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {}: {e}", BINARY.path));
        reaper.add(&child.id().to_string());
        Self { child, _reaper: reaper }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
