//! `redis-cell-envoy`: Envoy's rate limit service on redis-cell. README.md is the manual.

use redis_cell_envoy::config::Config;
use redis_cell_envoy::connections::stopped;
use redis_cell_envoy::decide::Decider;
use redis_cell_envoy::http::{self, Health};
use redis_cell_envoy::metrics::Metrics;
use redis_cell_envoy::proto::FILES;
use redis_cell_envoy::proto::rate_limit_service_server::{RateLimitServiceServer, SERVICE_NAME};
use redis_cell_envoy::service::Service;
use redis_cell_envoy::settings::{self, Address, Settings, Tls};
use redis_cell_envoy::{connections, lock, server, watch, xds};
use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, fs};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch as channel;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The time for which requests may still be decided after a signal to end.
const GRACE: Duration = Duration::from_secs(10);

const USAGE: &str = "\
Envoy's rate limit service on redis-cell.

    redis-cell-envoy                 serves, with the settings of its environment variables
    redis-cell-envoy check FOLDER    reads the rules of a folder, and says what is wrong with them
    redis-cell-envoy --version";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        [] => serve(),
        ["check", folder] => check(Path::new(folder)),
        ["--version"] => {
            println!("redis-cell-envoy {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        ["--help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn check(folder: &Path) -> Result<(), Box<dyn Error>> {
    let merge = env::var("MERGE_DOMAIN_CONFIG").is_ok_and(|text| settings::flag(&text) == Some(true));
    let files = watch::read(folder)?;
    if files.is_empty() {
        return Err(format!("{}: has no file whose name ends in .yaml or .yml", folder.display()).into());
    }
    let config = load(&files, merge)?;
    println!("domains: {}, rules: {}", config.domains(), config.rules().count());
    Ok(())
}

/// Reads the rules. The error has one line for each problem.
fn load(files: &[(String, String)], merge: bool) -> Result<Config, String> {
    Config::read(files, merge)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

fn serve() -> Result<(), Box<dyn Error>> {
    let settings = Settings::read(|name| env::var(name).ok()).map_err(|errors| errors.join("\n"))?;
    // The messages of the libraries about frames would hide the decisions.
    let of_libraries = LevelFilter::from_level(settings.log_level).min(LevelFilter::INFO);
    let levels =
        Targets::new().with_target("redis_cell_envoy", settings.log_level).with_default(of_libraries);
    let log = tracing_subscriber::fmt().with_max_level(settings.log_level).with_writer(io::stderr);
    if settings.log_json {
        log.json().finish().with(levels).init();
    } else {
        log.with_ansi(false).finish().with(levels).init();
    }
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    // An error means that a provider is already installed.
    let _: Result<(), _> = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(settings))
}

/// Reads the certificates for gRPC.
fn certificates(tls: &Tls) -> io::Result<ServerTlsConfig> {
    let pems = tls.read()?;
    let mut config = ServerTlsConfig::new();
    if let Some((certificate, key)) = pems.own {
        config = config.identity(Identity::from_pem(certificate, key));
    }
    if let Some(authority) = pems.authority {
        config = config.client_ca_root(Certificate::from_pem(authority));
    }
    Ok(config)
}

/// Returns a server without services. It cuts connections that have not ended within their time and the
/// grace.
fn server_of(settings: &Settings) -> Result<Server, Box<dyn Error>> {
    let mut server = Server::builder().max_connection_age_grace(settings.max_connection_age_grace);
    if let Some(tls) = &settings.grpc_tls {
        let wrong = |error| format!("GRPC_SERVER_USE_TLS: {}", settings::with_causes(&error));
        server = server.tls_config(certificates(tls)?).map_err(wrong)?;
    }
    if let Some(age) = settings.max_connection_age {
        server = server.max_connection_age(age);
    }
    Ok(server)
}

/// The signals that end the service.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> io::Result<Self> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [terminate, interrupt, hangup] = kinds.map(signal);
        Ok(Self([terminate?, interrupt?, hangup?]))
    }

    /// Completes with the next of them.
    async fn any(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

async fn bind(address: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(settings::named(address))
}

fn socket(path: &Path) -> io::Result<UnixListener> {
    // An earlier process may have left its socket.
    let bound = match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(path),
    };
    bound.map_err(settings::named(path.display()))
}

async fn run(settings: Settings) -> Result<(), Box<dyn Error>> {
    let mut signals = Signals::new()?;
    let metrics = Arc::new(Metrics::default());
    let of_plane = settings.xds.as_ref().and_then(|xds| xds.tls.as_ref());
    let tls = [settings.grpc_tls.as_ref(), settings.servers.tls.as_ref(), of_plane];
    tls.into_iter().flatten().try_for_each(|tls| tls.read().map(drop))?;
    let connection = server::connect(&settings.servers, &metrics)?;
    let decider = Arc::new(Decider::new(connection, settings.clone(), metrics));
    let merge = settings.merge_domains;
    if let Some(xds) = &settings.xds {
        let (loads, mut loaded) = channel::channel(xds.is_optional);
        tokio::spawn(xds::watch(Arc::clone(&decider), xds.clone(), merge, loads));
        tokio::select! {
            ready = loaded.wait_for(|loaded| *loaded) => drop(ready?),
            () = signals.any() => return Ok(()),
        }
    } else {
        let files = watch::read(&settings.folder)?;
        watch::replace(&decider, load(&files, merge)?);
        tokio::spawn(watch::watch(Arc::clone(&decider), settings.folder.clone(), merge, files));
    }
    let health = Arc::new(Health {
        needs_domain: settings.healthy_with_a_domain,
        needs_server: settings.healthy_with_server,
        ..Health::default()
    });

    let (ends, ending) = channel::channel(());
    let mut tasks = tokio::task::JoinSet::new();
    let mut pages = vec![("HTTP", &settings.http, http::routes(&decider, &health))];
    if let Some((address, path)) = &settings.prometheus {
        pages.push(("Prometheus", address, http::metrics(&decider, path)));
    }
    for (name, address, routes) in pages {
        let listener = bind(address).await?;
        tracing::info!("{name} on {}", listener.local_addr()?);
        let served = axum::serve(listener, routes).with_graceful_shutdown(stopped(ending.clone()));
        tasks.spawn(async move { served.await.map_err(boxed) });
    }

    let (reporter, health_service) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILES)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let routes = Routes::new(RateLimitServiceServer::new(Service(Arc::clone(&decider))))
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    let last = Mutex::new(server_of(&settings)?);
    let (age, of) = (settings.max_connection_age, settings.clone());
    let router = move || {
        let mut last = lock(&last);
        // Each connection has the certificates as they are now.
        match server_of(&of) {
            Ok(server) => *last = server,
            Err(error) => tracing::error!("the former certificates are still used: {error}"),
        }
        last.clone().add_routes(routes.clone())
    };
    match &settings.grpc {
        Address::Tcp(address) => {
            let listener = bind(address).await?;
            tracing::info!("gRPC on {}", listener.local_addr()?);
            // Otherwise a reply of several frames waits for the client's acknowledgement, up to 40 ms.
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            tasks
                .spawn(async move { connections::serve(incoming, router, age, ending).await.map_err(boxed) });
        }
        Address::Unix(path) => {
            let incoming = UnixListenerStream::new(socket(path)?);
            tracing::info!("gRPC on {}", path.display());
            tasks
                .spawn(async move { connections::serve(incoming, router, age, ending).await.map_err(boxed) });
        }
    }
    tokio::spawn(report(Arc::clone(&decider), Arc::clone(&health), reporter.clone()));

    tokio::select! {
        () = signals.any() => {}
        Some(ended) = tasks.join_next() => return Err(ended?.err().unwrap_or_else(|| "a listener has ended".into())),
    }
    tracing::info!("ending");
    health.is_ending.store(true, Relaxed);
    set_health(&reporter, false).await;
    tokio::select! {
        () = tokio::time::sleep(settings.drain) => {}
        () = signals.any() => {}
    }
    ends.send_replace(());
    let ended = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, ended).await.is_err() {
        tracing::warn!("requests were still being decided");
    }
    if tokio::time::timeout(GRACE, decider.give_back()).await.is_err() {
        tracing::warn!("units are not given back: the server has not answered in time");
    }
    Ok(())
}

type Boxed = Box<dyn Error + Send + Sync>;

fn boxed(error: impl Error + Send + Sync + 'static) -> Boxed {
    error.into()
}

/// Reports the health to gRPC clients every second.
async fn report(decider: Arc<Decider>, health: Arc<Health>, reporter: HealthReporter) {
    let mut former = None;
    loop {
        let present = Some(health.is_healthy(&decider).await);
        if present != former {
            set_health(&reporter, present == Some(true)).await;
            former = present;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn set_health(reporter: &HealthReporter, is_healthy: bool) {
    let status = if is_healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
    // `ratelimit` is the name that the reference gives itself.
    for service in ["", "ratelimit", SERVICE_NAME] {
        reporter.set_service_status(service, status).await;
    }
}
