//! A panic of any thread of the process is a failure. A separate test program, because the panic hook is process-wide.

use std::sync::mpsc::channel;
use std::time::Duration;

use spillway_daemon::ThreadWatch;

#[test]
fn a_panic_of_an_unwatched_thread_is_a_failure() {
    let (send, ends) = channel();
    let watch = ThreadWatch::new(move || send.send(()).expect("the test should still receive"));
    watch.watch_panics();
    let thread = std::thread::Builder::new().name("unwatched".into());
    let thread = thread.spawn(|| panic!("no such {}", "list")).unwrap(); // the payload is a `String`
    ends.recv_timeout(Duration::from_secs(30)).expect("`on_end` should be called within 30 s");
    assert!(thread.join().is_err());
    let failure = watch.failure().expect("the panic should be recorded as a failure");
    assert!(failure.starts_with("thread unwatched panicked at host/daemon/tests/panics.rs:"), "{failure}");
    assert!(failure.ends_with("no such list") && watch.running() == 0, "{failure}");
}
