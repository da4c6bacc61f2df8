//! Servers that are reached over TLS. A certificate that must be replaced is an error, whatever the choice.

use crate::common::{Options, Server, certificate, free_port};
use crate::unavailable::{KEY, PATIENCE, choices, limit, manager};
use redis::{Client, TlsCertificates};
use redis_cell_client::{BlockingGuard, DecidedBy, Guard, Units, is_unavailable};
use std::fs;
use std::path::Path;

/// A server with a certificate, and its port for TLS.
fn server(folder: &Path, name: &str) -> (Server, u16) {
    let port = free_port();
    let file = |kind: &str| folder.join(format!("{name}.{kind}")).display().to_string();
    let server = Options::new()
        .set("tls-port", &port.to_string())
        .set("tls-cert-file", &file("pem"))
        .set("tls-key-file", &file("key"))
        .set("tls-ca-cert-file", &file("pem"))
        .set("tls-auth-clients", "no")
        .start();
    (server, port)
}

#[tokio::test]
async fn a_certificate_that_must_be_replaced_is_an_error_in_every_choice() {
    let folder = tempfile::tempdir().unwrap();
    for (name, hosts, days) in
        [("good", "DNS:localhost", 2), ("expired", "DNS:localhost", -1), ("other", "DNS:elsewhere", 2)]
    {
        certificate(folder.path(), name, hosts, days);
    }
    // The server's certificate, and the authority that the client trusts.
    for (name, trusted, expected) in [
        ("good", "good", None),
        ("expired", "expired", Some("Expired")),
        ("other", "other", Some("not valid for name")),
        ("good", "other", Some("UnknownIssuer")),
    ] {
        let (_server, port) = server(folder.path(), name);
        let authority = fs::read(folder.path().join(format!("{trusted}.pem"))).unwrap();
        let certificates = TlsCertificates { client_tls: None, root_cert: Some(authority) };
        let client = Client::build_with_tls(format!("rediss://localhost:{port}"), certificates).unwrap();
        for choice in choices() {
            let guard = Guard::new(manager(client.clone()), choice.clone()).timeout(PATIENCE);
            let blocking = BlockingGuard::new(client.clone(), choice).timeout(PATIENCE);
            for _ in 0..2 {
                for outcome in
                    [guard.take(KEY, limit(), Units(0)).await, blocking.take(KEY, limit(), Units(0))]
                {
                    match (outcome, expected) {
                        (Ok(DecidedBy::Server(_)), None) => {}
                        (Err(error), Some(expected)) => {
                            assert!(format!("{error:?}").contains(expected), "{expected}: {error:?}");
                            assert!(!is_unavailable(&error), "{error}");
                        }
                        (seen, expected) => panic!("{name}, {trusted}: {seen:?}, {expected:?}"),
                    }
                }
            }
        }
    }
}
