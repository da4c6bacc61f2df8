//! The crates of others that send CL.THROTTLE, `redis-cell-rs` and `tower-redis-cell`, exactly as published:
//! their own tests and examples, which start containers of their own and find the module in them.
//!
//! Cargo has unpacked the crates, because clients/rust uses them. The copies here are built with the
//! `Cargo.lock` that each was published with.

use crate::common::{Container, Reaper, docker, run, wait_until};
use crate::path;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The image of a Valkey server with the module.
const VALKEY: &str = "redis-cell-test:valkey-cell";

/// A copy of a published crate, below target/.
struct Package(String);

impl Package {
    fn of(name: &str) -> Self {
        let metadata = run("cargo", &["metadata", "--locked", "--format-version=1"]).unwrap();
        let manifest = metadata
            .split('"')
            .find(|text| text.contains(&format!("/{name}-")) && text.ends_with("/Cargo.toml"))
            .unwrap_or_else(|| panic!("no package {name}"));
        let (source, _) = manifest.rsplit_once('/').unwrap();
        let copy = path(&format!("target/crates/{name}"));
        run("rm", &["-rf", &copy]).unwrap();
        run("mkdir", &["-p", &path("target/crates")]).unwrap();
        run("cp", &["-r", source, &copy]).unwrap();
        Self(copy)
    }

    /// `cargo` in the copy, with a separate target folder: an example of clients/rust has the name of one of
    /// their examples.
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.args(arguments).arg("--locked").current_dir(&self.0);
        cargo.env("CARGO_TARGET_DIR", path("target/crates/build"));
        // These builds are not debugged, and take less time without debug information.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "false").env("CARGO_INCREMENTAL", "0");
        cargo
    }

    /// Runs the tests of the crate, and returns what they print.
    fn test(&self) -> String {
        let output = self.cargo(&["test"]).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{text}");
        text
    }

    /// The names of the images that the sources of the crate start.
    fn images(&self) -> Vec<String> {
        let sources = run("grep", &["-rhE", r#"(GenericImage::new|it_works_with)\(""#, &self.0]).unwrap();
        let mut names: Vec<String> =
            sources.lines().filter_map(|line| Some(line.split('"').nth(1)?.to_owned())).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// A name for an image, which ends with the test. So do the containers of the image: the example, which is
/// killed, leaves one behind.
struct Tag(String);

/// Removes the containers of an image, and its name.
const REMOVE: &str = "docker ps --all --quiet --filter ancestor=\"$1\" | xargs -r docker rm --force --volumes; docker image rm \"$1\"";

impl Tag {
    /// The image [`VALKEY`] under another name, which must not belong to an image of others.
    fn new(name: String) -> Self {
        let label = "{{index .Config.Labels \"redis-cell-test\"}}";
        if let Ok(there) = docker(&["image", "inspect", "--format", label, &name]) {
            assert_eq!(there, "yes", "an image {name} that is not ours is in the way");
        }
        docker(&["tag", VALKEY, &name]).unwrap();
        Self(name)
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        let _ = run("sh", &["-c", REMOVE, "remove", &self.0]);
    }
}

/// Makes the image [`VALKEY`].
fn make_valkey_image() {
    let container = Container::idle("redis-cell-test:valkey-8.1");
    container.copy(&path("target/dist/libredis_cell.so"), "/usr/lib/libredis_cell.so");
    let command = "CMD [\"valkey-server\", \"--protected-mode\", \"no\", \"--loadmodule\", \"/usr/lib/libredis_cell.so\"]";
    let changes = ["--change", command, "--change", "EXPOSE 6379", "--change", "LABEL redis-cell-test=yes"];
    docker(&[&["commit"], &changes[..], &[container.name(), VALKEY]].concat()).unwrap();
}

/// The images that the tests have tagged, until one of them ends.
struct Images {
    _tags: Vec<Tag>,
    _reaper: Reaper,
    _alone: MutexGuard<'static, ()>,
}

/// The tests share their images and the folder of cargo: one after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// Gives our images the names that a crate needs. The image `redis-cell` has the right one.
fn provide(images: &[String]) -> Images {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    make_valkey_image();
    let others = images.iter().filter(|name| *name != "redis-cell");
    let names: Vec<String> = others.map(|name| format!("{name}:latest")).collect();
    assert!(
        names.iter().all(|name| name.ends_with("valkey-cell:latest")),
        "another kind of image: {names:?}"
    );
    let reaper = Reaper::new(&format!("for name; do set -- \"$name\"; {REMOVE}; done"), &names);
    Images { _tags: names.into_iter().map(Tag::new).collect(), _reaper: reaper, _alone: alone }
}

#[test]
fn redis_cell_rs_passes_its_own_tests() {
    let package = Package::of("redis-cell-rs");
    let images = package.images();
    assert_eq!(images, ["redis-cell", "valkey-cell"]);
    let _images = provide(&images);
    let text = package.test();
    for test in ["it_works_with_redis", "it_works_with_valkey"] {
        assert!(text.contains(&format!("test tests::{test} ... ok")), "{text}");
    }
}

/// A program that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a request to the example. Returns the head of the response.
fn request(method_and_path: &str, fields: &str) -> Result<String, String> {
    let mut stream = TcpStream::connect(("127.0.0.1", EXAMPLE)).map_err(|error| error.to_string())?;
    let request =
        format!("{method_and_path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text.split("\r\n\r\n").next().unwrap_or_default().to_lowercase())
}

/// The port of the example, which is a constant in its source.
const EXAMPLE: u16 = 3000;

/// Its only tests are in its documentation, so its example replaces them.
#[test]
fn tower_redis_cell_passes_its_own_tests_and_its_example_limits_requests() {
    let package = Package::of("tower-redis-cell");
    let images = package.images();
    assert_eq!(images.len(), 1, "{images:?}");
    let _images = provide(&images);
    assert!(package.test().contains("test src/lib.rs - (line "));

    for features in ["tokio-comp", "deadpool"] {
        drop(TcpListener::bind(("0.0.0.0", EXAMPLE)).expect("the port of the example is in use"));
        let built = package.cargo(&["build", "--example", "axum", "--features", features]).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let example = path("target/crates/build/debug/examples/axum");
        let example = Command::new("setpriv").args(["--pdeathsig", "TERM", &example]).spawn().unwrap();
        let _example = Program(example);
        wait_until("the example to listen", || request("GET /", ""));
        assert!(request("GET /", "").unwrap().starts_with("http/1.1 401 "));
        let key = "x-api-key: a\r\n";
        assert!(request("POST /articles", key).unwrap().starts_with("http/1.1 200 "), "{features}");
        let refused = request("POST /articles", key).unwrap();
        // Five an hour, evenly spaced.
        assert!(refused.starts_with("http/1.1 429 ") && refused.contains("retry-after: 7"), "{refused}");
        assert!(request("POST /articles", "x-api-key: b\r\n").unwrap().starts_with("http/1.1 200 "));
    }
}
