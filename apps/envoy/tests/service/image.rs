//! The image of the service. Its test runs where there is an engine: in the stage `shipping` of
//! scripts/test.sh.

use crate::common::{Container, Server, docker, free_port, run, wait_until};
use crate::harness::{Service, get};
use crate::proxy::example;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[tokio::test(flavor = "multi_thread")]
async fn the_image_decides_and_is_healthy() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    // The image runs as another user.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.path().join("rules.yaml"), example("config/rules.yaml")).unwrap();
    let redis = format!("REDIS_URL=127.0.0.1:{}", server.port());
    let container = Container::run(&[
        // As in the host, which has the server. Ports are free ones of the host.
        "--network=host",
        "--health-interval=1s",
        "--env=GRPC_HOST=127.0.0.1",
        "--env=GRPC_PORT=0",
        "--env=HOST=127.0.0.1",
        &format!("--env=PORT={}", free_port()),
        "--env=LOG_LEVEL=info",
        &format!("--env={redis}"),
        &format!("--volume={}:/srv/runtime_data/current/config:ro", folder.path().display()),
        "redis-cell-test:envoy",
        // The name of the reference's program.
        "/bin/ratelimit",
    ]);
    let logged = |words: &str| {
        wait_until(words, || {
            let log = run("sh", &["-c", "exec docker logs \"$0\" 2>&1", container.name()])?;
            let found = log.lines().find_map(|line| line.split_once(words).map(|(_, rest)| rest.to_owned()));
            found.ok_or(log)
        })
    };
    let http: u16 = logged("HTTP on 127.0.0.1:").parse().unwrap();
    let client = Service::client_at(&logged("gRPC on ")).await.of("shop");
    assert_eq!(client.admitted(11, &["login=eve"]).await, 10);
    container.wait_until_healthy();
    assert_eq!(get(http, "/healthcheck", &[]).0, 200);
    // Neither a shell nor root.
    let process = container.shell("cat /proc/1/cmdline; grep ^Uid: /proc/1/status").unwrap();
    assert!(process.starts_with("/bin/ratelimit") && !process.contains("\t0\t"), "{process}");
    let labels = docker(&["inspect", "--format", "{{json .Config.Labels}}", container.name()]).unwrap();
    assert!(
        labels.contains(&format!("\"org.opencontainers.image.version\":\"{}\"", env!("CARGO_PKG_VERSION")))
    );
    // A signal ends it at once.
    docker(&["stop", "-t", "60", container.name()]).unwrap();
    let code = docker(&["inspect", "--format", "{{.State.ExitCode}}", container.name()]).unwrap();
    assert_eq!(code, "0");
}
