//! docker/compose.yaml: a primary and its replica, whose data survive `down` and `up`. The tests use ports
//! and volumes of their own.

use crate::common::{Reaper, requires, run, unique_name, wait_until_healthy};
use crate::{FIRST_REPLY, path};
use std::sync::LazyLock;

const NO_COMPOSE: &str = "there is no docker compose";

/// `docker compose` as a plugin, or as a program of its own; none in CI is an error.
static PROGRAM: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let found = [vec!["docker", "compose"], vec!["docker-compose"]]
        .into_iter()
        .find(|words| run(words[0], &[&words[1..], &["version"]].concat()).is_ok());
    assert!(found.is_some() || std::env::var("CI").as_deref() != Ok("true"), "{NO_COMPOSE}");
    found.unwrap_or_default()
});

/// The project of all tests that do not stop it.
static SHARED: LazyLock<Project> = LazyLock::new(Project::start);

struct Project {
    name: String,
    _reaper: Reaper,
}

impl Project {
    fn start() -> Self {
        let name = unique_name();
        let file = path("docker/compose.yaml");
        let down: Vec<String> = environment(&name)
            .into_iter()
            .chain(PROGRAM.iter().map(|&word| word.to_owned()))
            .chain(["--project-name", &name, "--file", &file, "down", "--volumes"].map(str::to_owned))
            .collect();
        let project = Self { name, _reaper: Reaper::new("env \"$@\"", &down) };
        project.up();
        project
    }

    fn compose(&self, command: &[&str]) -> Result<String, String> {
        let environment = environment(&self.name);
        let mut words: Vec<&str> = environment.iter().map(String::as_str).collect();
        words.extend(PROGRAM.iter());
        let file = path("docker/compose.yaml");
        words.extend(["--project-name", &self.name, "--file", &file]);
        words.extend(command);
        run("env", &words)
    }

    fn up(&self) {
        self.compose(&["up", "--detach"]).unwrap();
        for service in ["primary", "replica"] {
            wait_until_healthy(&self.compose(&["ps", "--quiet", service]).unwrap());
        }
    }

    fn try_cli(&self, service: &str, command: &str) -> Result<String, String> {
        let words = ["exec", "-T", service, "redis-cli", "-e"].into_iter().chain(command.split(' '));
        self.compose(&words.collect::<Vec<_>>())
    }

    fn cli(&self, service: &str, command: &str) -> String {
        self.try_cli(service, command).unwrap()
    }

    /// Takes 4 of 16 units of a key, and returns its state once the replica has it.
    fn throttle(&self, key: &str) -> String {
        assert_eq!(self.cli("primary", &format!("CL.THROTTLE {key} 15 30 3600 4")), FIRST_REPLY);
        assert_eq!(self.cli("primary", "WAIT 1 30000"), "1");
        let state = self.cli("primary", &format!("GET {key}"));
        assert!(!state.is_empty());
        state
    }
}

/// Port 0 is a free port.
fn environment(name: &str) -> Vec<String> {
    vec![
        "REDIS_CELL_PORT=0".to_owned(),
        "REDIS_CELL_REPLICA_PORT=0".to_owned(),
        format!("REDIS_CELL_VOLUMES={name}"),
    ]
}

impl Drop for Project {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(log) = self.compose(&["logs"])
        {
            eprintln!("{log}");
        }
        let _ = self.compose(&["down", "--volumes"]);
    }
}

#[test]
fn both_services_get_healthy() {
    requires!(!PROGRAM.is_empty(), NO_COMPOSE);
    SHARED.up();
}

#[test]
fn the_primary_answers_as_the_readme_says() {
    requires!(!PROGRAM.is_empty(), NO_COMPOSE);
    SHARED.throttle("visitor");
}

#[test]
fn the_replica_has_the_same_state() {
    requires!(!PROGRAM.is_empty(), NO_COMPOSE);
    let state = SHARED.throttle("same-state");
    assert_eq!(SHARED.cli("replica", "GET same-state"), state);
}

#[test]
fn the_replica_shows_limits_and_rejects_writes() {
    requires!(!PROGRAM.is_empty(), NO_COMPOSE);
    SHARED.throttle("read-only");
    let seen = SHARED.cli("replica", "CL.PEEK read-only 15 30 3600");
    assert!(seen.starts_with("0\n16\n12\n-1\n"), "{seen}");
    let error = SHARED.try_cli("replica", "CL.THROTTLE read-only 15 30 3600").unwrap_err();
    assert!(error.contains("READONLY"), "{error}");
}

#[test]
fn data_survive_down_and_up() {
    requires!(!PROGRAM.is_empty(), NO_COMPOSE);
    let project = Project::start();
    let state = project.throttle("visitor");
    project.compose(&["down"]).unwrap();
    project.up();
    for service in ["primary", "replica"] {
        assert_eq!(project.cli(service, "GET visitor"), state, "{service}");
    }
}
