//! A link port whose server echoes: the server end of links (`spillway-batch`) on blocking sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{Role, Scratch, ServerConfig, ServerEvent, ServerLink};
use spillway_transport::Time;

/// The TCP streams of a port's links, for tests that close links.
pub type Streams = Arc<Mutex<Vec<TcpStream>>>;

/// Serves links of clients with `key`. Returns the port's address and its links' streams.
pub fn link_port(key: Key) -> (SocketAddr, Streams) {
    link_port_on("127.0.0.1:0", key)
}

/// As [`link_port`], on another address.
pub fn link_port_on(address: &str, key: Key) -> (SocketAddr, Streams) {
    let mut ring = KeyRing::new();
    ring.accept(Role::Client, key);
    let config = Arc::new(ServerConfig { ring, ..ServerConfig::default() });
    let streams = Streams::default();
    let added_streams = streams.clone();
    let serve = move |stream: TcpStream| {
        added_streams.lock().unwrap().push(stream.try_clone().unwrap());
        // An error just ends the link: the tests check the client.
        let _ = echo(stream, &config);
    };
    (super::server(address, serve).unwrap(), streams)
}

fn echo(mut stream: TcpStream, config: &Arc<ServerConfig>) -> std::io::Result<()> {
    let start = Instant::now();
    let now = || Time::ZERO + start.elapsed();
    stream.set_nodelay(true)?;
    let randomness = spillway_keys::fresh_link_randomness()?;
    let mut link =
        ServerLink::new(config.clone(), now(), stream.peer_addr()?, stream.local_addr()?, randomness);
    let mut buffer = vec![0; 1 << 16];
    // Each client of the load generator has a link of its own, so that one buffer is enough.
    let mut to_send = Vec::new();
    let mut scratch = Scratch::new();
    loop {
        let count = stream.read(&mut buffer)?;
        let mut input = link.unseal(now(), &buffer[..count], &mut scratch);
        let mut has_ended = count == 0;
        loop {
            match link.decompose(now(), &mut input) {
                Ok(Some(ServerEvent::Connect { id, .. })) => link.accept(id),
                Ok(Some(ServerEvent::Data { id, bytes })) => {
                    to_send.extend_from_slice(bytes);
                    link.consumed(id, bytes.len()).unwrap();
                    let accepted = link.compose(id, &to_send);
                    to_send.drain(..accepted);
                }
                Ok(Some(ServerEvent::Finished { id })) => link.finish(id),
                Ok(Some(ServerEvent::Closed { id, reason })) => link.close(id, reason),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    has_ended = true;
                    break;
                }
            }
        }
        while let Some(id) = link.poll_room() {
            let accepted = link.compose(id, &to_send);
            to_send.drain(..accepted);
        }
        while let Some(batch) = link.flush(now()) {
            stream.write_all(batch.as_slice())?;
            link.recycle(batch);
        }
        if has_ended {
            return Ok(());
        }
    }
}
