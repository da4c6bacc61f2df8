//! The layer in front of a service of tonic, with a client of tonic.

use crate::client;
use crate::common::Server;
use crate::unavailable::{NOBODY, PATIENCE, manager};
use axum::{Router, routing::post};
use bytes::{Buf, BufMut, Bytes};
use redis_cell_client::{Guard, Policy, Rate, RateLimitLayer, WhenUnavailable};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http;
use tonic::server::{Grpc, UnaryService};
use tonic::service::Routes;
use tonic::transport::{Channel, server::TcpIncoming};
use tonic::{Code, Request, Response, Status};

/// Messages are bytes.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}

/// Replies with the message that it is sent.
struct Echo;

impl UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = std::future::Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        std::future::ready(Ok(Response::new(request.into_inner())))
    }
}

/// A client of a service that admits two calls an hour of each client.
async fn serve(redis: u16, when_unavailable: WhenUnavailable) -> tonic::client::Grpc<Channel> {
    let guard = Guard::new(manager(client(redis)), when_unavailable).timeout(PATIENCE);
    let policy = Policy::new("two", Rate::per_hour(2).burst(1)).unwrap();
    let layer = RateLimitLayer::new(guard, policy, |_: &http::Request<Body>| Some("a"));
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let echo = post(async |request: axum::extract::Request| Grpc::new(Raw).unary(Echo, request).await);
    let routes = Routes::from(Router::new().route("/test.Echo/Echo", echo));
    let server = tonic::transport::Server::builder().layer(layer).add_routes(routes);
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    tonic::client::Grpc::new(channel)
}

async fn call(client: &mut tonic::client::Grpc<Channel>) -> Result<Response<Bytes>, Status> {
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/test.Echo/Echo");
    client.unary(Request::new(Bytes::from_static(b"hello")), path, Raw).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_has_the_code_of_an_exhausted_resource() {
    let server = Server::start();
    let mut client = serve(server.port(), WhenUnavailable::FailClosed).await;
    for remaining in ["1", "0"] {
        let response = call(&mut client).await.unwrap();
        assert_eq!(response.metadata().get("x-ratelimit-remaining").unwrap(), remaining);
        assert_eq!(response.into_inner(), "hello");
    }
    let status = call(&mut client).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Too many requests"));
    assert_eq!(status.metadata().get("retry-after").unwrap(), "1800");
    server.connect().call("DEL http:two:a");
    assert!(call(&mut client).await.is_ok());
    server.connect().call("DEL http:two:a");
    server.connect().call("LPUSH http:two:a x");
    let status = call(&mut client).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Internal, "Rate limiter error"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_server_the_choice_decides() {
    let mut open = serve(NOBODY, WhenUnavailable::FailOpen).await;
    assert!(call(&mut open).await.is_ok());
    let mut closed = serve(NOBODY, WhenUnavailable::FailClosed).await;
    let status = call(&mut closed).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "Rate limiter unavailable"));
}
