//! Threads that a daemon depends on. If one fails, the process ends and the service manager restarts it, because a
//! process that does only a part of its work would look healthy.

use std::any::Any;
use std::fmt::Display;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Starts threads, and records the first failure among them. Copies share their state.
#[derive(Clone)]
pub struct ThreadWatch {
    shared: Arc<Shared>,
}

struct Shared {
    running: AtomicUsize,
    failure: OnceLock<String>,
    on_end: Box<dyn Fn() + Send + Sync>,
}

impl ThreadWatch {
    /// Each thread calls `on_end` at its end, whether it has failed or not. [`failure`](Self::failure)
    /// returns the failure, if there was one.
    pub fn new(on_end: impl Fn() + Send + Sync + 'static) -> ThreadWatch {
        let shared =
            Shared { running: AtomicUsize::new(0), failure: OnceLock::new(), on_end: Box::new(on_end) };
        ThreadWatch { shared: Arc::new(shared) }
    }

    /// Starts a thread. It fails if `work` returns an error or panics.
    ///
    /// # Errors
    /// The host has no threads left.
    pub fn spawn<E: Display>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let (shared, thread) = (Arc::clone(&self.shared), name.to_owned());
        let run = move || {
            // Unwind safety: `work` is consumed, so its state is not used after a panic.
            match catch_unwind(AssertUnwindSafe(work)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => shared.fail(format!("thread {thread} failed: {error}")),
                Err(panic) => shared.fail(format!("thread {thread} panicked: {}", panic_message(&*panic))),
            }
            shared.running.fetch_sub(1, Ordering::AcqRel);
            (shared.on_end)();
        };
        self.shared.running.fetch_add(1, Ordering::AcqRel);
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        if started.is_err() {
            self.shared.running.fetch_sub(1, Ordering::AcqRel);
        }
        started
    }

    /// Threads that have not ended.
    pub fn running(&self) -> usize {
        self.shared.running.load(Ordering::Acquire)
    }

    /// Name of the first thread that failed, and the reason.
    pub fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// Treats a panic of any thread of this process as a failure. Sets a panic hook, which calls the previous hook
    /// first. For programs that consist of this daemon only.
    pub fn watch_panics(&self) {
        let (shared, previous_hook) = (Arc::clone(&self.shared), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            previous_hook(panic);
            let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
            let location = panic.location().map_or_else(String::new, |location| format!(" at {location}"));
            shared.fail(format!("thread {thread} panicked{location}: {}", panic_message(panic.payload())));
            (shared.on_end)();
        }));
    }
}

impl Shared {
    fn fail(&self, failure: String) {
        // Keeps the first failure: later ones are often its consequences.
        let _ = self.failure.set(failure);
    }
}

/// The message of a panic's payload: `panic!` produces a `String` or a `&str`.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;

    fn watch() -> (ThreadWatch, Receiver<()>) {
        let (send, ends) = channel();
        (ThreadWatch::new(move || send.send(()).expect("the test should still receive")), ends)
    }

    #[test]
    fn a_thread_that_returns_ok_has_not_failed() {
        let (watch, ends) = watch();
        let (go, wait) = channel::<()>();
        let thread = watch.spawn("one", move || wait.recv()).unwrap();
        assert_eq!(watch.running(), 1);
        go.send(()).unwrap();
        ends.recv_timeout(Duration::from_secs(30)).expect("`on_end` should be called within 30 s");
        assert_eq!((watch.running(), watch.failure()), (0, None));
        thread.join().unwrap();
    }

    #[test]
    fn error_or_panic_is_a_failure_and_the_first_is_kept() {
        let (watch, ends) = watch();
        let end =
            || ends.recv_timeout(Duration::from_secs(30)).expect("`on_end` should be called within 30 s");
        watch.spawn("one", || Err("no more descriptors")).unwrap();
        end();
        assert_eq!(watch.failure(), Some("thread one failed: no more descriptors"));
        let copy = watch.clone();
        watch.spawn::<String>("two", || panic!("out of {}", "range")).unwrap();
        end();
        assert_eq!((copy.running(), copy.failure()), (0, Some("thread one failed: no more descriptors")));
    }

    #[test]
    fn a_panic_is_reported_with_its_message() {
        let (watch, ends) = watch();
        watch.spawn::<String>("two", || panic!("out of {}", "range")).unwrap();
        ends.recv_timeout(Duration::from_secs(30)).expect("`on_end` should be called within 30 s");
        assert_eq!(watch.failure(), Some("thread two panicked: out of range"));
    }
}
