//! A stream of datagrams between two hosts, in which no datagram is repeated: those that are missing at the end were
//! lost on the way.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_lab::{Host, LabError};

/// One datagram in this time: few enough for the queues of cables and sockets, also if a host pauses for 100 ms.
const INTERVAL: Duration = Duration::from_millis(1);

/// Numbers of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub sent: u64,
    pub received: u64,
}

pub struct Stream {
    is_over: Arc<AtomicBool>,
    sender: JoinHandle<Result<u64, LabError>>,
    receiver: JoinHandle<Result<u64, LabError>>,
}

impl Stream {
    pub fn start(from: &Host, to: &Host) -> Stream {
        let socket = to.run_inside(|| UdpSocket::bind((to.address(), 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let target = socket.local_addr().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let receive = move || {
            let (mut received, mut datagram) = (0, [0; 64]);
            // Ends when nothing has arrived for three seconds.
            while socket.recv(&mut datagram).is_ok() {
                received += 1;
            }
            received
        };
        let receiver = to.thread(receive).unwrap();
        let source = from.address();
        let over = Arc::clone(&is_over);
        let send = move || {
            let socket = UdpSocket::bind((source, 0)).unwrap();
            socket.connect(target).unwrap();
            let (mut sent, mut next) = (0, Instant::now());
            while !over.load(Ordering::Relaxed) {
                socket.send(b"a datagram of the stream").unwrap();
                sent += 1;
                // A late thread does not make up for lost time: bursts would fill queues.
                next = (next + INTERVAL).max(Instant::now());
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            sent
        };
        let sender = from.thread(send).unwrap();
        Stream { is_over, sender, receiver }
    }

    /// Ends the stream, and waits for the last datagrams.
    pub fn stop(self) -> Counts {
        self.is_over.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap().unwrap();
        let received = self.receiver.join().unwrap().unwrap();
        Counts { sent, received }
    }
}
