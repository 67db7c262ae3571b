//! Honest clients that open new connections one after the other: they show failures that existing connections do not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use spillway_lab::{Host, LabError};

use crate::error::Error;

use super::PATHS;

const PAUSE: Duration = Duration::from_millis(100);
/// Timeout for connecting, and for the reply.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A request for a missing key, and memcached's reply.
const REQUEST: &[u8] = b"get nobody-sets-this\r\n";
const REPLY: &[u8] = b"END\r\n";
const PROBLEMS_MAX: usize = 3;

#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    pub total: u64,
    pub failed: u64,
    pub problems: Vec<String>,
}

/// A thread that opens new connections on each path, until [`NewConnections::finish`] or drop.
pub(super) struct NewConnections {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Attempts, LabError>>>,
}

impl NewConnections {
    pub fn start(host: &Host, targets: [SocketAddr; 3]) -> Result<NewConnections, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_flag = Arc::clone(&stop);
        let thread = host.thread(move || open_repeatedly(&stop_flag, &targets))?;
        Ok(NewConnections { stop, thread: Some(thread) })
    }

    pub fn finish(mut self) -> Result<Attempts, Error> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self
            .thread
            .take()
            .ok_or_else(|| Error::process("the thread of new connections has ended", ""))?;
        let attempts =
            thread.join().map_err(|_| Error::process("the thread of new connections panicked", ""))?;
        Ok(attempts?)
    }
}

impl Drop for NewConnections {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn open_repeatedly(stop: &AtomicBool, targets: &[SocketAddr; 3]) -> Attempts {
    let mut attempts = Attempts::default();
    while !stop.load(Ordering::Relaxed) {
        for (path, &target) in PATHS.iter().zip(targets) {
            attempts.total += 1;
            if let Err(error) = request(target) {
                attempts.failed += 1;
                if attempts.problems.len() < PROBLEMS_MAX {
                    attempts.problems.push(format!("a new connection ({path}): {error}"));
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
    attempts
}

fn request(target: SocketAddr) -> Result<(), String> {
    let failed = |e: std::io::Error| e.to_string();
    let mut stream = TcpStream::connect_timeout(&target, TIMEOUT).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    stream.write_all(REQUEST).map_err(failed)?;
    let mut reply = [0; REPLY.len()];
    stream.read_exact(&mut reply).map_err(failed)?;
    if reply == *REPLY {
        Ok(())
    } else {
        Err(format!("a wrong reply: {:?}", reply.escape_ascii().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_wrong_or_short_reply_is_an_error() {
        let request_with_reply = |reply: &'static [u8]| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                stream.read_exact(&mut [0; REQUEST.len()]).unwrap();
                stream.write_all(reply).unwrap();
            });
            let result = request(address);
            server.join().unwrap();
            result
        };
        assert_eq!(request_with_reply(b"END\r\n"), Ok(()));
        assert!(request_with_reply(b"ERROR").unwrap_err().contains("wrong reply"));
        assert!(request_with_reply(b"EN").is_err());
    }
}
