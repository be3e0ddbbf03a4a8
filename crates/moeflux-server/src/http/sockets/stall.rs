//! A stream that fails when its reader takes data too slowly.
//!
//! A connection does not notice that by itself: its writes wait, and everything else waits for
//! them. **Invariant:** the bytes that a write offers are taken within the time limit, or a write
//! fails. Taking a few of them does not extend the limit: it applies until all are taken. This
//! module knows no HTTP.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// A stream with a limit on the time that bytes wait to be taken.
#[derive(Debug)]
pub(crate) struct StallLimit<S> {
    inner: S,
    limit: Duration,
    /// Total bytes that were taken.
    n_taken: u64,
    /// Set while offered bytes wait.
    due: Option<Due>,
    /// Wakes a waiting write.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The total number of bytes to be taken by a deadline.
#[derive(Clone, Copy, Debug)]
struct Due {
    n_bytes: u64,
    at: Instant,
}

impl<S: AsyncWrite + Unpin> StallLimit<S> {
    /// Wraps `inner`; its bytes wait for at most `limit`.
    pub(crate) fn new(inner: S, limit: Duration) -> Self {
        Self { inner, limit, n_taken: 0, due: None, timer: None }
    }

    /// Checks the result of writing `n_offered` bytes. Flushing and closing do not wait for the
    /// reader.
    fn check(
        &mut self,
        context: &mut Context<'_>,
        n_offered: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let n_offered_in_all = self.n_taken + n_offered as u64;
        if let Poll::Ready(Ok(n_bytes)) = &written {
            self.n_taken += *n_bytes as u64;
        }
        // All bytes that were offered when the deadline was set have been taken: it starts anew.
        self.due = self.due.filter(|due| self.n_taken < due.n_bytes);
        if self.n_taken < n_offered_in_all && self.due.is_none() {
            self.due = Some(Due { n_bytes: n_offered_in_all, at: Instant::now() + self.limit });
        }
        let Some(due) = self.due else { return written };
        if written.is_ready() {
            let is_over = Instant::now() >= due.at;
            return if is_over { timed_out() } else { written };
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due.at)));
        if timer.deadline() != due.at {
            timer.as_mut().reset(due.at);
        }
        ready!(timer.as_mut().poll(context));
        timed_out()
    }
}

fn timed_out() -> Poll<io::Result<usize>> {
    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
}

impl<S: AsyncRead + Unpin> AsyncRead for StallLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallLimit<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.check(context, bytes.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let n_offered = pieces.iter().map(|piece| piece.len()).sum();
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, pieces);
        self.check(context, n_offered, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::advance;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const N_BYTES: usize = 1 << 10;

    /// Writes through a small pipe whose reader takes `n_bytes` each time, `pause` apart.
    async fn write_to(n_bytes: usize, pause: Duration) -> io::Result<()> {
        let (mut reader, writer) = duplex(16);
        let mut writer = StallLimit::new(writer, LIMIT);
        let writing = tokio::spawn(async move { writer.write_all(&[7; N_BYTES]).await });
        let mut taken = vec![0; n_bytes];
        while !writing.is_finished() {
            advance(pause).await;
            tokio::task::yield_now().await;
            if !writing.is_finished() {
                reader.read_exact(&mut taken).await.ok();
            }
            tokio::task::yield_now().await;
        }
        writing.await.expect("no panic")
    }

    fn run(n_bytes: usize, pause: Duration) -> io::Result<()> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(write_to(n_bytes, pause))
    }

    #[test]
    fn a_reader_that_takes_all_in_time_is_waited_for() {
        run(16, Duration::from_millis(500)).unwrap();
    }

    #[test]
    fn a_reader_that_takes_a_byte_now_and_then_is_not() {
        for seconds in [1, 10, 59, 299] {
            let error = run(1, Duration::from_secs(seconds)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
    }
}
