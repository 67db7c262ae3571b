//! Echo servers on kernel sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};

/// Longer than the messages and datagrams of the tests.
const BUFFER_BYTES: usize = 4096;

/// Returns the bytes of all connections and all datagrams to their senders, on threads that end with the process.
pub fn serve_echo(listener: TcpListener, datagrams: UdpSocket) {
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; BUFFER_BYTES];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; BUFFER_BYTES];
        while let Ok((length, from)) = datagrams.recv_from(&mut buffer) {
            let _ = datagrams.send_to(&buffer[..length], from);
        }
    });
}
