//! The connections of gRPC clients. Each ends after its time, by GOAWAY, so that no request is lost and
//! clients connect again, perhaps to another instance.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_stream::{Stream, StreamExt, once, pending};
use tonic::transport::server::{Connected, Router};

/// The pause after a connection that the system could not accept, as when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until `ending` changes, and then until their requests are answered. Each connection
/// gets a router of its own, and a GOAWAY when it is as old as `age`, more or less a tenth.
///
/// # Errors
/// Returns an error if the listener has ended.
pub async fn serve<IO>(
    mut incoming: impl Stream<Item = io::Result<IO>> + Unpin,
    router: impl Fn() -> Router,
    age: Option<Duration>,
    ending: watch::Receiver<()>,
) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stopped(ending.clone()));
    loop {
        let next = tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next() => continue,
            next = incoming.next() => next,
        };
        match next {
            Some(Ok(io)) => {
                connections.spawn(connection(io, router(), age, ending.clone()));
            }
            Some(Err(error)) => {
                tracing::warn!("a connection was not accepted: {error}");
                tokio::time::sleep(PAUSE).await;
            }
            None => return Err(io::Error::other("the listener has ended")),
        }
    }
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// Completes when `ending` changes. An error means that the sender was dropped, which also ends the process.
pub async fn stopped(mut ending: watch::Receiver<()>) {
    let _: Result<(), watch::error::RecvError> = ending.changed().await;
}

async fn connection<IO>(io: IO, router: Router, age: Option<Duration>, ending: watch::Receiver<()>)
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let (gone, closed) = oneshot::channel();
    let (hears, heard) = oneshot::channel();
    let incoming = once(Ok::<_, io::Error>(Watched { io, hears: Some(hears), _gone: gone })).chain(pending());
    let end = async {
        tokio::select! {
            () = stopped(ending) => {}
            _ = closed => {}
            () = grows(age, heard) => {}
        }
    };
    if let Err(error) = router.serve_with_incoming_shutdown(incoming, end).await {
        tracing::debug!("a connection has ended: {error}");
    }
}

/// Completes when a connection is as old as `age`. They differ by up to a tenth, so that the clients that
/// came together after a restart do not all come back together. The age begins when the client is `heard`: a
/// connection that has not begun to speak HTTP/2 would be closed without a GOAWAY.
async fn grows(age: Option<Duration>, heard: oneshot::Receiver<()>) {
    let (Some(age), Ok(())) = (age, heard.await) else { return std::future::pending().await };
    let random = RandomState::new().build_hasher().finish().checked_rem(201).unwrap_or_default();
    let thousandths = u32::try_from(random).unwrap_or_default().saturating_add(900);
    let part = age.checked_div(1_000).unwrap_or_default();
    tokio::time::sleep(part.saturating_mul(thousandths)).await;
}

/// A connection that reports its first read and its end.
struct Watched<IO> {
    io: IO,
    hears: Option<oneshot::Sender<()>>,
    _gone: oneshot::Sender<()>,
}

impl<IO: Connected> Connected for Watched<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Watched<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before
            && let Some(hears) = self.hears.take()
        {
            // An error means that the connection has no age.
            let _: Result<(), ()> = hears.send(());
        }
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Watched<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
