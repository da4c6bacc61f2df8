//! The images `redis-cell` (docker/Dockerfile) and `redis-cell:alpine` (docker/Dockerfile.alpine), the latter
//! on a stand-in for Alpine, which docker/alpine.sh makes.

use crate::FIRST_REPLY;
use crate::common::{Container, docker, run};

fn start(image: &str) -> Container {
    let options = ["--network", "none", "--health-interval", "1s"];
    let container = Container::run(&[&options[..], &[image, "--maxmemory", "64mb"]].concat());
    container.wait_until_healthy();
    container
}

fn cli(container: &Container, command: &str) -> String {
    let words: Vec<&str> = ["redis-cli", "-e"].into_iter().chain(command.split(' ')).collect();
    container.exec(&words).unwrap()
}

fn does_not_run_as_root(container: &Container) {
    assert_ne!(container.exec(&["id", "-u"]).unwrap(), "0");
    // PID 1 is the server, not a shell or a supervisor.
    let server = container.shell("tr '\\0' ' ' </proc/1/cmdline; grep ^Uid: /proc/1/status").unwrap();
    assert!(server.starts_with("redis-server ") && !server.contains("\t0\t"), "{server}");
}

fn keeps_limits_across_a_restart(container: &Container) {
    assert_eq!(cli(container, "CL.THROTTLE visitor 15 30 3600 4"), FIRST_REPLY);
    let state = cli(container, "GET visitor");
    assert!(!state.is_empty());
    docker(&["restart", container.name()]).unwrap();
    container.wait_until_healthy();
    assert_eq!(cli(container, "GET visitor"), state);
}

/// In a checkout without git it names no commit.
fn is_labelled_with_its_version_and_commit(container: &Container) {
    let format = "{{range $name, $value := .Config.Labels}}{{$name}}={{$value}}\n{{end}}";
    let labels = docker(&["inspect", "--format", format, container.name()]).unwrap();
    let revision = run("git", &["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "HEAD"]).ok();
    let mut expected = vec![
        "title=".to_owned(),
        "description=".to_owned(),
        "licenses=MIT\n".to_owned(),
        format!("version={}", env!("CARGO_PKG_VERSION")),
    ];
    expected.extend(revision.map(|revision| format!("revision={revision}")));
    for label in expected {
        assert!(labels.contains(&format!("org.opencontainers.image.{label}")), "no {label} in {labels}");
    }
}

/// The tests of an image.
macro_rules! image {
    ($name:ident, $image:expr) => {
        mod $name {
            use super::{Container, FIRST_REPLY, cli};
            use std::sync::LazyLock;

            /// The container of all tests that do not restart it.
            static SHARED: LazyLock<Container> = LazyLock::new(|| super::start($image));

            #[test]
            fn gets_healthy() {
                SHARED.wait_until_healthy();
            }

            #[test]
            fn does_not_run_as_root() {
                super::does_not_run_as_root(&SHARED);
            }

            #[test]
            fn answers_as_the_readme_says() {
                assert_eq!(cli(&SHARED, "CL.THROTTLE visitor 15 30 3600 4"), FIRST_REPLY);
            }

            #[test]
            fn takes_options_after_its_name() {
                assert_eq!(cli(&SHARED, "CONFIG GET maxmemory"), "maxmemory\n67108864");
            }

            #[test]
            fn keeps_limits_across_a_restart() {
                super::keeps_limits_across_a_restart(&super::start($image));
            }

            #[test]
            fn is_labelled_with_its_version_and_commit() {
                super::is_labelled_with_its_version_and_commit(&SHARED);
            }
        }
    };
}

image!(debian, "redis-cell");
image!(alpine, "redis-cell-test:alpine");
