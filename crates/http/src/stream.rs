//! A TCP connection that can neither be held by a client that does not read, nor lose an answer to one that still
//! writes.
//!
//! When a socket is closed while bytes of the client lie unread in it, the kernel answers with a reset, and a reset
//! throws away what the client has not read yet: an early "413" would arrive as "connection reset". So a connection is
//! closed in two steps (what nginx calls `lingering_close`): our side first, then what the client still sends is read
//! and thrown away, for a bounded time and number of bytes.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// The most that is read and thrown away after an early answer.
const LINGER_BYTES: u64 = 512 << 20;
/// How long a client may stay silent after our side was closed.
const LINGER_SILENCE: Duration = Duration::from_secs(1);
/// How long the second step may take in all.
const LINGER_TOTAL: Duration = Duration::from_secs(10);

pub(crate) struct Stream {
    tcp: TcpStream,
    write_time: Duration,
    write_timer: Option<Pin<Box<Sleep>>>,
    linger: Option<Linger>,
}

struct Linger {
    thrown_away: u64,
    end: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Stream {
    pub(crate) fn new(tcp: TcpStream, write_time: Duration) -> Stream {
        Stream { tcp, write_time, write_timer: None, linger: None }
    }

    /// Gives a pending write its time, and ends it when that is over.
    fn bounded<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.write_timer = None;
            return poll;
        }
        let time = self.write_time;
        let timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep(time)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.tcp).poll_write(cx, buf);
        self.bounded(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs);
        self.bounded(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.tcp).poll_shutdown(cx))?;
        }
        let linger = this.linger.get_or_insert_with(|| Linger {
            thrown_away: 0,
            end: Instant::now() + LINGER_TOTAL,
            timer: Box::pin(sleep(LINGER_SILENCE)),
        });
        let mut scratch = [0_u8; 16 << 10];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(&mut this.tcp).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if buf.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => {
                    linger.thrown_away += buf.filled().len() as u64;
                    let now = Instant::now();
                    if linger.thrown_away > LINGER_BYTES || now >= linger.end {
                        return Poll::Ready(Ok(()));
                    }
                    linger.timer = Box::pin(sleep_until(linger.end.min(now + LINGER_SILENCE)));
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => {
                    ready!(linger.timer.as_mut().poll(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}
