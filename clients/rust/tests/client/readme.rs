//! README.md, followed by a reader who has nothing else: a project with its dependencies and its program,
//! under load, while the server is stopped and started again. http.rs tests the other choices for that time.

use crate::common::{Server, free_port, wait_until};
use crate::http::{Response, request, try_request};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

/// The text between a line and the next end of a block.
fn block<'t>(readme: &'t str, begins: &str) -> &'t str {
    let (_, behind) = readme.split_once(begins).unwrap_or_else(|| panic!("no {begins:?} in README.md"));
    behind.split_once("\n```\n").unwrap().0
}

/// The program, in a project of its own.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    let readme = std::fs::read_to_string(Path::new(MANIFEST).join("README.md")).unwrap();
    let dependencies = block(&readme, "```toml\n[dependencies]\n");
    let program = block(&readme, "```rust,no_run\nuse axum::");
    let own = dependencies.replace(
        r#"redis-cell-client = { version = "1","#,
        &format!(r#"redis-cell-client = {{ path = "{MANIFEST}","#),
    );
    assert_ne!(own, dependencies);
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
    let project = target.join("readme");
    std::fs::create_dir_all(project.join("src")).unwrap();
    let manifest =
        format!("[package]\nname = \"readme\"\nedition = \"2024\"\n\n[dependencies]\n{own}\n\n[workspace]\n");
    put(project.join("Cargo.toml"), &manifest);
    // The versions that all tests have.
    let locked = std::fs::read_to_string(Path::new(MANIFEST).join("../../Cargo.lock")).unwrap();
    put(project.join("Cargo.lock"), &locked);
    put(project.join("src/main.rs"), &format!("use axum::{program}\n"));
    let built = Command::new("cargo")
        .arg("build")
        .current_dir(&project)
        .env("CARGO_TARGET_DIR", &target)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join("debug/readme")
});

/// Writes a file at once: where each test is a process of its own, another one may be reading it.
fn put(path: PathBuf, text: &str) {
    let written = path.with_extension(std::process::id().to_string());
    std::fs::write(&written, text).unwrap();
    std::fs::rename(written, path).unwrap();
}

/// A program that ends with the test.
struct Service {
    address: SocketAddr,
    program: Child,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = (self.program.kill(), self.program.wait());
    }
}

impl Service {
    fn start(redis: u16) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let program = Command::new(&*PROGRAM)
            .env("REDIS_URL", format!("redis://127.0.0.1:{redis}"))
            .env("LISTEN", address.to_string())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let this = Self { address, program };
        wait_until("the service to listen", || {
            try_request(address, "nobody").map(|_| ()).map_err(|error| error.to_string())
        });
        this
    }

    /// The responses to requests of eight clients at once, which all have the same key.
    fn hammer(&self, key: &'static str) -> Vec<Response> {
        let address = self.address;
        let clients: Vec<_> = (0..8)
            .map(|_| std::thread::spawn(move || (0..5).map(|_| request(address, key)).collect::<Vec<_>>()))
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    }

    /// Three at once, and one every two seconds, are admitted, and all others are told when to come again.
    fn assert_limits(&self, key: &'static str) {
        let start = Instant::now();
        let responses = self.hammer(key);
        let later = usize::try_from(start.elapsed().as_secs() / 2).unwrap() + 1;
        let admitted = responses.iter().filter(|response| response.status == 200).count();
        assert!((3..=3 + later).contains(&admitted), "{admitted} of {}", responses.len());
        for response in &responses {
            let has = |field| response.field(field).is_some();
            assert!(has("ratelimit") && has("ratelimit-policy") && has("x-ratelimit-reset"), "{response:?}");
            let refused = response.status == 429;
            assert!((response.status == 200 || refused) && has("retry-after") == refused, "{response:?}");
        }
    }
}

/// The program limits by itself until there is a server, and while there is none.
#[test]
fn the_limit_before_a_server_with_one_and_during_outages() {
    let mut server = Server::start();
    let mut service = None;
    for [during, after] in [["before", "first"], ["outage", "second"]] {
        server.kill();
        let service = service.get_or_insert_with(|| Service::start(server.port()));
        service.assert_limits(during);
        server.restart_here();
        wait_until("the server to decide", || {
            let response = request(service.address, "again");
            match server.connect().int("EXISTS http:default:again") {
                1 => Ok(()),
                _ => Err(format!("{response:?}")),
            }
        });
        service.assert_limits(after);
        assert_eq!(server.connect().int(&format!("EXISTS http:default:{after}")), 1);
    }
}

/// As README.md shows it.
#[test]
fn the_fields_of_a_response() {
    let server = Server::start();
    let service = Service::start(server.port());
    for (status, remaining, reset, wait) in
        [(200, "2", "2", None), (200, "1", "4", None), (200, "0", "6", None), (429, "0", "6", Some("2"))]
    {
        let response = request(service.address, "a");
        let rest = format!(r#""default";r={remaining};t=2"#);
        let fields = [r#""default";q=3;w=6"#, &rest, "3", remaining, reset].map(Some);
        let [others @ .., retry_after] = response.limits();
        assert_eq!((response.status, &others, retry_after), (status, &fields, wait));
        let refused = "application/problem+json";
        assert_eq!(response.field("content-type") == Some(refused), status == 429, "{response:?}");
        assert_eq!(response.body() == "Hello\n", status == 200, "{response:?}");
    }
    assert_eq!(request(service.address, "b").status, 200); // another client
    assert_eq!(server.connect().int("EXISTS http:default:a"), 1);
}

#[test]
fn the_crates_have_their_license() {
    for package in ["redis-cell-client", "redis-cell-core"] {
        let arguments = ["package", "--list", "--allow-dirty", "--offline", "-p", package];
        let output = Command::new(env!("CARGO")).args(arguments).current_dir(MANIFEST).output().unwrap();
        let files = String::from_utf8(output.stdout).unwrap();
        assert!(files.lines().any(|file| file == "LICENSE"), "{package}: {files}");
    }
}
