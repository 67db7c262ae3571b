//! Requests to daemons that may take long, or that never answer.

use std::io::{Write, stderr};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use spillway_daemon::REQUEST_TIMEOUT;

/// Time without an answer after which a command says that it waits.
const NOTICE_AFTER: Duration = Duration::from_secs(2);
/// Maximum number of daemons that are queried at one time: bounds the threads.
const QUERIES_MAX: usize = 64;

/// Sends a request to the daemon at `socket` by `ask`, which waits at most [`REQUEST_TIMEOUT`]. If the answer takes longer
/// than [`NOTICE_AFTER`], a line on standard error says so.
pub(super) fn with_notice<T>(socket: &Path, ask: impl FnOnce() -> T) -> T {
    let (answered, wait) = channel::<()>();
    let line = format!(
        "no answer from {} for {} s: still waiting, at most {} s; Ctrl-C cancels the request",
        socket.display(),
        NOTICE_AFTER.as_secs(),
        REQUEST_TIMEOUT.as_secs()
    );
    let notice = move || {
        if is_late(&wait, NOTICE_AFTER) {
            // Ignored: standard error may be closed.
            let _ = writeln!(stderr(), "{line}");
        }
    };
    // If the host has no threads left, only the line is missing.
    let _ = std::thread::Builder::new().name("notice".into()).spawn(notice);
    let answer = ask();
    drop(answered);
    answer
}

/// Waits until the sender is dropped; true if this takes longer than `patience`.
fn is_late(wait: &Receiver<()>, patience: Duration) -> bool {
    wait.recv_timeout(patience) == Err(RecvTimeoutError::Timeout)
}

/// Queries daemons at the same time, so that one that does not answer delays no other. Returns the answers in the order
/// of `sockets`.
pub(super) fn query_all<S: Sync, T: Send>(sockets: &[S], query: impl Fn(&S) -> T + Sync) -> Vec<T> {
    let (mut answers, query) = (Vec::with_capacity(sockets.len()), &query);
    for some in sockets.chunks(QUERIES_MAX) {
        std::thread::scope(|scope| {
            let queries: Vec<_> = some.iter().map(|socket| scope.spawn(move || query(socket))).collect();
            // Panics only if a query has.
            answers.extend(queries.into_iter().map(|query| query.join().expect("a query should not panic")));
        });
    }
    answers
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn daemons_are_queried_at_the_same_time() {
        // Each query waits for all others.
        let together = Barrier::new(QUERIES_MAX);
        let sockets: Vec<usize> = (0..2 * QUERIES_MAX).collect();
        let answers = query_all(&sockets, |socket| {
            together.wait();
            socket + 1
        });
        assert!(answers.into_iter().eq(1..=2 * QUERIES_MAX));
    }

    #[test]
    fn only_late_answers_are_noticed() {
        let (answered, wait) = channel();
        assert!(is_late(&wait, Duration::ZERO));
        drop(answered);
        assert!(!is_late(&wait, Duration::from_secs(60)));
        assert_eq!(with_notice(Path::new("a.sock"), || 7), 7);
    }
}
