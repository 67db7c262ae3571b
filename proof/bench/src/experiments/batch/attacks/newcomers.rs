//! Honest clients that connect anew, one after the other: what a connection that is there already does not show.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use spillway_lab::{Host, LabError};

use crate::error::Error;

use super::WAYS;

/// Between two rounds of new connections.
const PAUSE: Duration = Duration::from_millis(100);
/// How long connecting and the reply may take, each.
const PATIENCE: Duration = Duration::from_secs(5);
/// A key that nobody sets, and what memcached says of it.
const REQUEST: &[u8] = b"get nobody-sets-this\r\n";
const REPLY: &[u8] = b"END\r\n";
/// Failures that are kept.
const TROUBLES_MAX: usize = 3;

/// What newcomers saw.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    pub tried: u64,
    pub failed: u64,
    /// The first failures.
    pub troubles: Vec<String>,
}

/// Newcomers on each way, until [`Newcomers::finish`] or until this is dropped.
pub(super) struct Newcomers {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Arrivals, LabError>>>,
}

impl Newcomers {
    /// Begins on a host.
    pub fn start(host: &Host, targets: [SocketAddr; 3]) -> Result<Newcomers, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let thread = host.thread(move || come(&theirs, &targets))?;
        Ok(Newcomers { stop, thread: Some(thread) })
    }

    /// Ends and counts.
    pub fn finish(mut self) -> Result<Arrivals, Error> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().ok_or_else(|| Error::process("newcomers have ended", ""))?;
        let arrivals = thread.join().map_err(|_| Error::process("newcomers panicked", ""))?;
        Ok(arrivals?)
    }
}

impl Drop for Newcomers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn come(stop: &AtomicBool, targets: &[SocketAddr; 3]) -> Arrivals {
    let mut arrivals = Arrivals::default();
    while !stop.load(Ordering::Relaxed) {
        for (way, &target) in WAYS.iter().zip(targets) {
            arrivals.tried += 1;
            if let Err(error) = ask(target) {
                arrivals.failed += 1;
                if arrivals.troubles.len() < TROUBLES_MAX {
                    arrivals.troubles.push(format!("a new connection ({way}): {error}"));
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
    arrivals
}

fn ask(target: SocketAddr) -> Result<(), String> {
    let failed = |e: std::io::Error| e.to_string();
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
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
    fn only_the_right_reply_counts() {
        let answered = |answer: &'static [u8]| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                stream.read_exact(&mut [0; REQUEST.len()]).unwrap();
                stream.write_all(answer).unwrap();
            });
            let asked = ask(address);
            server.join().unwrap();
            asked
        };
        assert_eq!(answered(b"END\r\n"), Ok(()));
        assert!(answered(b"ERROR").unwrap_err().contains("wrong reply"));
        assert!(answered(b"EN").is_err());
    }
}
