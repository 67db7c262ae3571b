//! Requests at the admin socket that come too late.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use serde_json::json;

use super::*;

/// A daemon whose requests are numbers. Numbers above 9 change something.
struct Numbers(Mutex<Sender<u32>>);

impl Answers for Numbers {
    type Request = u32;
    const NOT_A_REQUEST: &'static str = "not a number";

    fn needs(request: &u32) -> Rights {
        if *request > 9 { Rights::Operate } else { Rights::Read }
    }

    fn answer(&self, request: u32) -> Result<Value, String> {
        self.0.lock().unwrap().send(request).unwrap();
        Ok(json!(request))
    }

    fn metrics(&self, _out: &mut Exposition) {}

    fn status_json(&self) -> String {
        String::new()
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn changes_whose_client_has_gone_are_not_carried_out() {
    let path = std::env::temp_dir().join(format!("spillway-late-{}.sock", std::process::id()));
    let ports = ControlPorts::bind(Some(&path), None, None).unwrap();
    // Not served yet, as in a daemon that is stopped: requests wait in the accept queue.
    for request in ["10\n", "1\n"] {
        UnixStream::connect(&path).unwrap().write_all(request.as_bytes()).unwrap();
    }
    let (sender, received) = channel();
    let answers = Arc::new(Numbers(Mutex::new(sender)));
    let served = ports.serve(&answers).unwrap();
    let timeout = Duration::from_secs(30);
    assert_eq!(received.recv_timeout(timeout), Ok(1), "a late request that only reads is harmless");
    let answer: u32 = crate::send_json_request(&path, &11, timeout).unwrap();
    assert_eq!((answer, received.recv_timeout(timeout)), (11, Ok(11)));
    // Connections hold the answers until their threads end: all requests have then been handled.
    drop(served);
    while Arc::strong_count(&answers) > 1 {
        std::thread::yield_now();
    }
    assert!(received.try_recv().is_err(), "the cancelled change should not be carried out");
}
