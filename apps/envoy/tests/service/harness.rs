//! The service as a process, and clients for it.

use crate::common::{Reaper, Server, wait_until};
use axum::http::uri::PathAndQuery;
use redis_cell_envoy::proto::{
    Code, DescriptorStatus, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use tempfile::TempDir;
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

pub use crate::config::descriptor;

/// A process with its log, killed when dropped.
pub struct Process {
    child: Child,
    folder: TempDir,
    _reaper: Reaper,
}

impl Process {
    pub fn start(command: &mut Command, folder: TempDir) -> Self {
        let log = File::create(folder.path().join("log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let reaper = Reaper::new("kill -9 \"$1\"", &[child.id().to_string()]);
        Self { child, folder, _reaper: reaper }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.id());
        assert!(Command::new("sh").arg("-c").arg(script).status().unwrap().success());
    }

    pub fn wait(&mut self) -> ExitStatus {
        wait_until("the process to end", || self.child.try_wait().unwrap().ok_or_else(|| self.log()))
    }

    /// What follows the words in the log.
    pub fn logged(&mut self, words: &str) -> String {
        wait_until(words, || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the process has ended ({status}):\n{}", self.log());
            }
            let log = self.log();
            let found = log.lines().find_map(|line| line.split_once(words).map(|(_, rest)| rest.to_owned()));
            found.ok_or(log)
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of process {} ---\n{}--- end of log ---", self.child.id(), self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The service.
pub struct Service {
    pub process: Process,
    pub grpc: String,
    pub http: u16,
}

/// The command that runs the service with these rules and settings.
pub fn command(folder: &Path, redis: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redis-cell-envoy"));
    command.env_clear();
    for (name, value) in [
        ("RUNTIME_ROOT", folder.to_str().unwrap()),
        ("RUNTIME_APPDIRECTORY", "config"),
        ("REDIS_URL", redis),
        ("REDIS_TIMEOUT", "30s"), // the machine may be busy
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("HOST", "127.0.0.1"),
        ("PORT", "0"),
        ("LOG_LEVEL", "info"),
    ]
    .iter()
    .chain(settings)
    {
        command.env(name, value);
    }
    command
}

impl Service {
    pub fn start(server: &Server, rules: &str) -> Self {
        Self::with(server, rules, &[])
    }

    pub fn with(server: &Server, rules: &str, settings: &[(&str, &str)]) -> Self {
        Self::at(&format!("127.0.0.1:{}", server.port()), rules, settings)
    }

    pub fn at(redis: &str, rules: &str, settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::Builder::new().prefix("redis-cell-envoy-").tempdir().unwrap();
        fs::create_dir(folder.path().join("config")).unwrap();
        fs::write(folder.path().join("config/rules.yaml"), rules).unwrap();
        let mut command = command(folder.path(), redis, settings);
        Self::of(Process::start(&mut command, folder))
    }

    /// The service of a process, as soon as it serves.
    pub fn of(mut process: Process) -> Self {
        let http = process.logged("HTTP on 127.0.0.1:").parse().unwrap();
        let grpc = process.logged("gRPC on ");
        Self { process, grpc, http }
    }

    pub fn grpc_port(&self) -> u16 {
        self.grpc.rsplit(':').next().unwrap().parse().unwrap()
    }

    /// Writes other rules, in one step.
    pub fn write(&self, rules: &str) {
        let folder = self.process.folder();
        fs::write(folder.join("next"), rules).unwrap();
        fs::rename(folder.join("next"), folder.join("config/rules.yaml")).unwrap();
    }

    /// How many configurations were loaded, and how many were not.
    pub fn loads(&self) -> (u64, u64) {
        let metrics = self.get("/metrics").1;
        (
            number(&metrics, "ratelimit_service_config_load_success "),
            number(&metrics, "ratelimit_service_config_load_error "),
        )
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        get(self.http, path, &[])
    }

    /// Fails unless the metrics of the service have all of these lines.
    pub fn assert_counts(&self, lines: &str) {
        let metrics = self.get("/metrics").1;
        for line in lines.trim().lines() {
            let line = format!("ratelimit_service_{}", line.trim());
            assert!(metrics.lines().any(|found| found == line), "no {line} in\n{metrics}");
        }
    }

    /// Sends a body by POST: the status, and the body of the response.
    pub fn post(&self, path: &str, body: &str) -> (u16, String) {
        let (status, text) = exchange(self.http, &format!("POST {path}"), &[], body);
        (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// A client over TLS, perhaps with a certificate and its key.
    pub async fn encrypted_client(
        &self,
        authority: &[u8],
        own: Option<(&[u8], &[u8])>,
    ) -> Result<Client, tonic::transport::Error> {
        let mut tls =
            ClientTlsConfig::new().domain_name("localhost").ca_certificate(Certificate::from_pem(authority));
        if let Some((certificate, key)) = own {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", self.grpc)).unwrap().tls_config(tls)?;
        Ok(Client { channel: endpoint.connect().await?, domain: "d".to_owned() })
    }

    pub async fn client(&self) -> Client {
        Self::client_at(&self.grpc).await
    }

    pub async fn client_at(address: &str) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Client { channel: endpoint.connect().await.unwrap(), domain: "d".to_owned() }
    }
}

/// The number after a name in the metrics.
pub fn number(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")).trim().parse().unwrap()
}

/// A request by HTTP: the status, and the text of the whole response.
pub fn get(port: u16, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    exchange(port, &format!("GET {path}"), headers, "")
}

fn exchange(port: u16, what: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "{what} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n").unwrap();
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n").unwrap();
    }
    write!(stream, "content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).unwrap_or_else(|| panic!("{text:?}")).parse().unwrap();
    (status, text)
}

/// The only method of the service.
const METHOD: PathAndQuery =
    PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");

/// A client by gRPC.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    domain: String,
}

impl Client {
    pub fn of(&self, domain: &str) -> Self {
        Self { channel: self.channel.clone(), domain: domain.to_owned() }
    }

    pub async fn send<R: prost::Message + 'static>(&self, request: R) -> Result<RateLimitResponse, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let codec = ProstCodec::<R, RateLimitResponse>::default();
        let answer = grpc.unary(Request::new(request), METHOD, codec).await;
        answer.map(tonic::Response::into_inner)
    }

    pub async fn ask(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.send(RateLimitRequest { domain: self.domain.clone(), ..request(descriptors) }).await.unwrap()
    }

    /// The error of a request with these descriptors.
    pub async fn error(&self, descriptors: &[&str]) -> Status {
        self.send(request(all(descriptors))).await.unwrap_err()
    }

    /// Whether a request with these descriptors is admitted.
    pub async fn admits(&self, descriptors: &[&str]) -> bool {
        is_ok(&self.ask(all(descriptors)).await)
    }

    /// How many of `requests` are admitted, one after the other.
    pub async fn admitted(&self, requests: usize, descriptors: &[&str]) -> usize {
        let mut admitted = 0;
        for _ in 0..requests {
            admitted += usize::from(self.admits(descriptors).await);
        }
        admitted
    }
}

fn all(descriptors: &[&str]) -> Vec<RateLimitDescriptor> {
    descriptors.iter().map(|text| descriptor(text)).collect()
}

/// Waits until a text has this part.
pub fn until_contains(part: &str, mut text: impl FnMut() -> String) {
    wait_until(part, || {
        let text = text();
        if text.contains(part) { Ok(()) } else { Err(text) }
    });
}

pub fn is_ok(response: &RateLimitResponse) -> bool {
    response.overall_code == i32::from(Code::Ok)
}

/// The rules of a domain `d`.
pub fn rules(lines: &str) -> String {
    format!("domain: d\ndescriptors:\n{lines}")
}

/// Limits of a number of requests a year, written `key => number; key => number`, both perhaps with options.
pub fn limits(text: &str) -> String {
    let line = |rule: &str| {
        let (key, limit) = rule.split_once(" => ").unwrap();
        format!("  - {{key: {key}, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}\n")
    };
    text.split("; ").map(line).collect()
}

/// A server, the service with these rules of the domain `d`, and a client.
pub async fn start(lines: &str, settings: &[(&str, &str)]) -> (Server, Service, Client) {
    let server = Server::start();
    let service = Service::with(&server, &rules(lines), settings);
    let client = service.client().await;
    (server, service, client)
}

/// Whether the status admits, and what remains.
pub fn row(status: &DescriptorStatus) -> (bool, u32) {
    (status.code == i32::from(Code::Ok), status.limit_remaining)
}

/// The same for all descriptors of a request.
pub fn rows(response: &RateLimitResponse) -> Vec<(bool, u32)> {
    response.statuses.iter().map(row).collect()
}

/// A request of the domain `d`.
pub fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend: 0 }
}

/// Hits that a descriptor gives back.
pub fn back(text: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..with_hits(text, hits) }
}

/// A descriptor with hits of its own.
pub fn with_hits(text: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(text) }
}
