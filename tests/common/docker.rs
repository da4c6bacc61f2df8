//! Docker containers, removed when the test that started them ends.

use super::{Reaper, wait_until};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Runs a program and returns its standard output without the space around it, or all of its output if it
/// fails.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
    if output.status.success() {
        Ok(stdout)
    } else {
        Err(format!("{program} {arguments:?}: {}\n{stdout}\n{stderr}", output.status))
    }
}

/// Runs `docker`.
pub fn docker(arguments: &[&str]) -> Result<String, String> {
    run("docker", arguments)
}

/// A name that no other test uses.
pub fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("redis-cell-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
}

/// A running container. Dropping it removes it with its anonymous volumes; so does the end of the test
/// program, for containers in a `static`.
pub struct Container {
    name: String,
    _reaper: Reaper,
}

impl Container {
    /// `docker run --detach` with these options, image and command.
    pub fn run(arguments: &[&str]) -> Self {
        let name = unique_name();
        let reaper = Reaper::new("docker rm --force --volumes \"$1\"", std::slice::from_ref(&name));
        let container = Self { name, _reaper: reaper };
        docker(&[&["run", "--detach", "--name", &container.name], arguments].concat()).unwrap();
        container
    }

    /// A container without a network that runs nothing until [`Container::exec`] does.
    pub fn idle(image: &str) -> Self {
        Self::run(&["--init", "--network", "none", image, "sleep", "infinity"])
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a command in the container.
    pub fn exec(&self, command: &[&str]) -> Result<String, String> {
        docker(&[&["exec", &self.name], command].concat())
    }

    /// Runs a shell script in the container.
    pub fn shell(&self, script: &str) -> Result<String, String> {
        self.exec(&["sh", "-c", script])
    }

    /// Starts a command in the container and leaves it running, in the folder `workdir`.
    pub fn spawn(&self, workdir: &str, command: &[&str]) {
        docker(&[&["exec", "--detach", "--workdir", workdir, &self.name], command].concat()).unwrap();
    }

    /// Copies a file, or with `/.` at its end the content of a folder, into the container.
    pub fn copy(&self, from: &str, to: &str) {
        docker(&["cp", from, &format!("{}:{to}", self.name)]).unwrap();
    }

    /// Waits for the health check of the container's image to succeed.
    pub fn wait_until_healthy(&self) {
        wait_until_healthy(&self.name);
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(log) = docker(&["logs", &self.name])
        {
            eprintln!("--- log of container {} ---\n{log}\n--- end of log ---", self.name);
        }
        let _ = docker(&["rm", "--force", "--volumes", &self.name]);
    }
}

/// Waits for the health check of a container to succeed.
pub fn wait_until_healthy(container: &str) {
    let format = "{{.State.Health.Status}}, {{len .State.Health.Log}} checks";
    wait_until(&format!("container {container} to be healthy"), || {
        let seen = docker(&["inspect", "--format", format, container])?;
        if seen.starts_with("healthy") { Ok(()) } else { Err(seen) }
    });
}
