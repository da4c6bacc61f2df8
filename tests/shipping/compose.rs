//! The compose files: docker/compose.yaml has a primary and its replica, whose data survive `down` and `up`;
//! the file of apps/envoy has Envoy with the rate limit service. The tests use ports and volumes of their
//! own.

use crate::common::{Reaper, requires, run, unique_name, wait_until, wait_until_healthy};
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
static SHARED: LazyLock<Project> = LazyLock::new(Project::of_servers);

struct Project {
    /// `docker compose` with its environment, the project's name and its file.
    words: Vec<String>,
    /// The services that have a health check.
    services: &'static [&'static str],
    _reaper: Reaper,
}

impl Project {
    fn of_servers() -> Self {
        let volumes = format!("REDIS_CELL_VOLUMES={}", unique_name());
        let environment = ["REDIS_CELL_PORT=0", "REDIS_CELL_REPLICA_PORT=0", &volumes];
        Self::start("docker/compose.yaml", &environment, &["primary", "replica"])
    }

    /// Port 0 of an environment is a free port.
    fn start(file: &str, environment: &[&str], services: &'static [&'static str]) -> Self {
        let (name, file) = (unique_name(), path(file));
        let options = ["--project-name", &name, "--file", &file];
        let words = [environment, &PROGRAM, &options].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let down = [&words[..], &["down", "--volumes"].map(str::to_owned)].concat();
        let project = Self { words, services, _reaper: Reaper::new("env \"$@\"", &down) };
        project.up();
        project
    }

    fn compose(&self, command: &[&str]) -> Result<String, String> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).chain(command.iter().copied()).collect();
        run("env", &words)
    }

    fn up(&self) {
        self.compose(&["up", "--detach"]).unwrap();
        for service in self.services {
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
    let project = Project::of_servers();
    let state = project.throttle("visitor");
    project.compose(&["down"]).unwrap();
    project.up();
    for service in ["primary", "replica"] {
        assert_eq!(project.cli(service, "GET visitor"), state, "{service}");
    }
}

/// The example of apps/envoy, with images that are made here for Envoy and the upstream. All the rest is as a
/// user has it: the configuration of Envoy, the rules, the service in its image, and the server in its own.
#[test]
fn envoy_and_the_rate_limit_service_decide_together() {
    requires!(!PROGRAM.is_empty(), NO_COMPOSE);
    let environment = [
        "ENVOY_PORT=0",
        "ENVOY_IMAGE=redis-cell-test:proxy",
        "UPSTREAM_IMAGE=redis-cell-test:proxy",
        "RATELIMIT_IMAGE=redis-cell-test:envoy",
    ];
    let project = Project::start("apps/envoy/example/compose.yaml", &environment, &["redis", "ratelimit"]);
    let address = project.compose(&["port", "envoy", "8000"]).unwrap();
    let status = |path: &str| {
        let url = format!("http://{address}{path}");
        let words =
            ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--header", "x-user: ann"];
        run("curl", &[&words[..], &[&url]].concat())
    };
    wait_until("Envoy to answer", || match status("/orders/1") {
        Ok(status) if status == "200" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let statuses: Vec<String> = (0..6).map(|n| status(&format!("/orders/{n}")).unwrap()).collect();
    assert_eq!(statuses, ["200", "200", "200", "200", "429", "429"]);
    let keys = project.compose(&["exec", "-T", "redis", "redis-cli", "DBSIZE"]).unwrap();
    assert_eq!(keys, "2", "the limits of the user and of its orders");
}
