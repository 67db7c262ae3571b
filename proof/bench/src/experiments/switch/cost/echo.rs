//! Round trips of small datagrams between two hosts on one core.

use std::io;
use std::net::UdpSocket;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_lab::{Host, LabError};

use crate::error::Error;

const BYTES: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(10);
/// A datagram of this length stops the echo.
const STOP_BYTES: usize = 1;

/// An echo on a host, and a socket of another host that is connected to it.
pub struct Echo {
    socket: UdpSocket,
    client: Host,
    thread: JoinHandle<Result<io::Result<()>, LabError>>,
}

impl Echo {
    pub fn start(client: &Host, server: &Host) -> Result<Echo, Error> {
        let bind = |host: &Host| -> Result<UdpSocket, Error> {
            let address = host.address();
            let bound = host.run_inside(|| {
                let socket = UdpSocket::bind((address, 0))?;
                socket.set_read_timeout(Some(TIMEOUT))?;
                Ok(socket)
            })?;
            bound.map_err(failed)
        };
        let (socket, echo) = (bind(client)?, bind(server)?);
        // The echo waits through pauses between measurements; a datagram stops it.
        echo.set_read_timeout(None).map_err(failed)?;
        socket.connect(echo.local_addr().map_err(failed)?).map_err(failed)?;
        let thread = server.thread(move || answer(&echo))?;
        Ok(Echo { socket, client: client.clone(), thread })
    }

    /// Times of this number of round trips, in µs.
    pub fn measure(&self, round_trips: usize) -> Result<Vec<f64>, Error> {
        self.client.run_inside(|| (0..round_trips).map(|number| self.round_trip(number)).collect())?
    }

    fn round_trip(&self, number: usize) -> Result<f64, Error> {
        let mut request = [0x3c; BYTES];
        request[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let mut reply = [0; BYTES + 1];
        let started_at = Instant::now();
        self.socket.send(&request).map_err(failed)?;
        let length = self.socket.recv(&mut reply).map_err(failed)?;
        let time = started_at.elapsed();
        if reply[..length] == request {
            Ok(time.as_secs_f64() * 1e6)
        } else {
            Err(Error::process("the echo", format!("datagram {number} came back with other bytes")))
        }
    }

    pub fn stop(self) -> Result<(), Error> {
        self.socket.send(&[0; STOP_BYTES]).map_err(failed)?;
        let ended = self.thread.join().map_err(|_| Error::process("the echo", "it panicked"))?;
        ended?.map_err(failed)
    }
}

fn answer(socket: &UdpSocket) -> io::Result<()> {
    let mut buffer = [0; BYTES + 1];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        if length == STOP_BYTES {
            return Ok(());
        }
        socket.send_to(&buffer[..length], from)?;
    }
}

fn failed(cause: io::Error) -> Error {
    Error::System { what: "a round trip of datagrams".into(), cause }
}
