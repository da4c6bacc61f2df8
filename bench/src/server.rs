//! Servers on a separate core, each on a free port and in its own directory. They stop when they are dropped.

use std::error::Error;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;

/// The module that a server loads, and what it does with each write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Setup {
    /// No module: the server's own commands.
    Bare,
    BareAof,
    BareReplica,
    Module,
    ModuleAof,
    ModuleReplica,
    /// The module without the record of `CL.TOP`.
    ModuleNoTop,
    /// Another module, for comparison.
    Peer,
}

impl Setup {
    /// Returns the suffix for this server in the names of the table.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Bare | Self::Module => "",
            Self::BareAof | Self::ModuleAof => ", AOF",
            Self::BareReplica | Self::ModuleReplica => ", replica",
            Self::ModuleNoTop => ", top-size 0",
            Self::Peer => ", the peer's",
        }
    }

    fn has_aof(self) -> bool {
        matches!(self, Self::BareAof | Self::ModuleAof)
    }

    fn has_replica(self) -> bool {
        matches!(self, Self::BareReplica | Self::ModuleReplica)
    }
}

/// The files that a run measures.
#[derive(Clone)]
pub struct Binaries {
    pub server: String,
    pub module: PathBuf,
    pub peer: Option<PathBuf>,
}

/// The cores of servers and load. `None` if this process can use only one core.
#[derive(Clone, Copy)]
pub struct Cores {
    pub server: usize,
    pub load: usize,
}

impl Cores {
    /// Chooses the last core for the server, because interrupts prefer the first, and another for the load.
    pub fn choose() -> Option<Self> {
        let all = sched_getaffinity(None).ok()?;
        let mut mine = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core));
        let load = mine.next()?;
        Some(Self { server: mine.next_back()?, load })
    }

    /// Pins this thread to the core for the load.
    pub fn pin_load(self) -> Result<(), Box<dyn Error>> {
        let mut set = CpuSet::new();
        set.set(self.load);
        Ok(sched_setaffinity(None::<Pid>, &set)?)
    }
}

/// Returns the prefix of a command line that pins a program to a core.
pub fn on(core: usize) -> Vec<String> {
    ["taskset", "--cpu-list"].map(str::to_owned).into_iter().chain([core.to_string()]).collect()
}

pub struct Server {
    pub port: u16,
    process: Child,
    _folder: TempDir,
    replica: Option<Box<Server>>,
}

impl Server {
    /// Starts a server on the servers' core, and its replica on the other core.
    pub fn start(setup: Setup, binaries: &Binaries, cores: Option<Cores>) -> Result<Self, Box<dyn Error>> {
        let (mine, others): (Vec<_>, Vec<_>) =
            cores.map(|cores| (on(cores.server), on(cores.load))).unwrap_or_default();
        let mut server = Self::start_under(&mine, setup, binaries, &[])?;
        if setup.has_replica() {
            let port = server.port.to_string();
            let replica = Self::start_under(&others, setup, binaries, &["--replicaof", "127.0.0.1", &port])?;
            server.replica = Some(Box::new(replica));
            server.settle()?;
        }
        Ok(server)
    }

    /// Starts a server under another program, with more options.
    pub fn start_under(
        program: &[String],
        setup: Setup,
        binaries: &Binaries,
        more: &[&str],
    ) -> Result<Self, Box<dyn Error>> {
        let mut options = vec!["--databases", "64", "--client-output-buffer-limit", "replica 0 0 0"];
        match setup {
            Setup::Bare | Setup::BareAof | Setup::BareReplica => {}
            Setup::Module | Setup::ModuleAof | Setup::ModuleReplica => {
                options.extend(["--loadmodule", utf8(&binaries.module)?]);
            }
            Setup::ModuleNoTop => options.extend(["--loadmodule", utf8(&binaries.module)?, "top-size", "0"]),
            Setup::Peer => {
                let peer = binaries.peer.as_ref().ok_or("PEER names no module")?;
                options.extend(["--loadmodule", utf8(peer)?]);
            }
        }
        if setup.has_aof() {
            options.extend(["--appendonly", "yes", "--appendfsync", "everysec"]);
            options.extend(["--auto-aof-rewrite-percentage", "0"]);
        }
        options.extend(more);
        // Tries another port if another process has taken this one in the meantime.
        loop {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let folder = tempfile::Builder::new().prefix("redis-cell-bench-").tempdir()?;
            let log = folder.path().join("log");
            // The server ends with this process, however this process ends.
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL"]).args(program).arg(&binaries.server);
            command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"]);
            command.arg(folder.path()).args(&options);
            let process = command.stdin(Stdio::null()).stdout(fs::File::create(&log)?).spawn()?;
            let mut server = Self { port, process, _folder: folder, replica: None };
            match server.await_answer() {
                Ok(()) => return Ok(server),
                Err(error) => {
                    let log = fs::read_to_string(&log)?;
                    // The messages of glibc and musl.
                    if !log.contains("Address already in use") && !log.contains("Address in use") {
                        return Err(format!("{error}\n{log}").into());
                    }
                }
            }
        }
    }

    fn await_answer(&mut self) -> Result<(), Box<dyn Error>> {
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Err(format!("the server ended at once: {status}").into());
            }
            // Another server could answer on this port.
            if let Ok(mut connection) = self.connect()
                && info(&mut connection, "process_id")? == self.process.id().to_string()
            {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn connect(&self) -> redis::RedisResult<redis::Connection> {
        self.database(0)
    }

    pub fn database(&self, number: usize) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(format!("redis://127.0.0.1:{}/{number}", self.port))?.get_connection()
    }

    pub fn stream(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(stream)
    }

    /// Returns the processor time of the thread that runs commands, in nanoseconds.
    pub fn cpu(&self) -> Result<f64, Box<dyn Error>> {
        cpu(&self.schedstat())
    }

    /// Returns the file with the processor time of the thread that runs commands.
    pub fn schedstat(&self) -> PathBuf {
        format!("/proc/{0}/task/{0}/schedstat", self.process.id()).into()
    }

    pub fn info(&self, field: &str) -> Result<String, Box<dyn Error>> {
        info(&mut self.connect()?, field)
    }

    /// Waits until the replica is in sync, so that no round includes the work of an earlier one.
    pub fn settle(&self) -> Result<(), Box<dyn Error>> {
        let Some(replica) = &self.replica else { return Ok(()) };
        let there = |offset: &str| replica.info("slave_repl_offset").is_ok_and(|at| at == offset);
        while replica.info("master_link_status")? != "up" || !there(&self.info("master_repl_offset")?) {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors do not matter here, because the process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the processor time of a thread, in nanoseconds.
pub fn cpu(schedstat: &Path) -> Result<f64, Box<dyn Error>> {
    Ok(fs::read_to_string(schedstat)?.split(' ').next().unwrap_or_default().parse()?)
}

/// Returns a field of `INFO`.
fn info(connection: &mut redis::Connection, field: &str) -> Result<String, Box<dyn Error>> {
    let text: String = redis::cmd("INFO").arg("everything").query(connection)?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.ok_or_else(|| format!("INFO has no {field}"))?.to_owned())
}

fn utf8(path: &Path) -> Result<&str, Box<dyn Error>> {
    Ok(path.to_str().ok_or("the path of a module is not UTF-8")?)
}

/// Compiles a C source into a shared library in the folder.
pub fn compile(source: &str, folder: &Path, name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let (text, library) = (folder.join(name).with_extension("c"), folder.join(name).with_extension("so"));
    fs::write(&text, source)?;
    output(Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&text))?;
    Ok(library)
}

/// Returns the output of a program, or its error.
pub fn output(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(
            format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
