//! A server for tests: echoes on an ordinary port and on a link port, one thread per connection.
#![allow(dead_code)] // each test program uses a part of it

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{Limits, Role, ServerConfig, ServerEvent, ServerLink};
use spillway_client::LinkTarget;
use spillway_transport::Time;

pub struct Server {
    pub plain: SocketAddr,
    pub link: SocketAddr,
    pub client_key: Key,
}

impl Server {
    /// `host` is a loopback address of either family. Its threads end with the test's process.
    pub fn start(host: &str, limits: Limits) -> Server {
        let bind = || TcpListener::bind((host, 0)).unwrap();
        let (plain, link) = (bind(), bind());
        let client_key = Key::from_secret([7; 32]);
        let server = Server {
            plain: plain.local_addr().unwrap(),
            link: link.local_addr().unwrap(),
            client_key: client_key.clone(),
        };
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, client_key);
        let config = Arc::new(ServerConfig { ring, limits, ..ServerConfig::default() });
        serve(plain, echo_plain);
        serve(link, move |stream| echo_link(stream, &config));
        server
    }

    pub fn target(&self) -> LinkTarget {
        LinkTarget { address: self.link, key: self.client_key.clone(), server: None }
    }
}

/// Serves each connection on a thread of its own.
pub fn serve(listener: TcpListener, serve: impl Fn(TcpStream) + Clone + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
}

pub fn echo_plain(mut stream: TcpStream) {
    let mut buffer = [0; 65536];
    while let Ok(received @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..received]).is_err() {
            return;
        }
    }
}

pub fn echo_link(mut stream: TcpStream, config: &Arc<ServerConfig>) {
    let start = Instant::now();
    let now = || Time::ZERO + start.elapsed();
    let (peer, local) = (stream.peer_addr().unwrap(), stream.local_addr().unwrap());
    let nonce = spillway_keys::fresh_nonce().unwrap();
    let mut link = ServerLink::new(config.clone(), now(), peer, local, nonce);
    let mut buffer = [0; 65536];
    let mut waiting = Vec::new();
    while let Ok(received @ 1..) = stream.read(&mut buffer) {
        let mut input = &buffer[..received];
        let goes_on = loop {
            match link.decompose(now(), &mut input) {
                Ok(Some(ServerEvent::Connect { id, .. })) => link.accept(id),
                Ok(Some(ServerEvent::Data { id, bytes })) => {
                    waiting.extend_from_slice(bytes);
                    link.consumed(id, bytes.len());
                    let sent = link.compose(id, &waiting);
                    waiting.drain(..sent);
                }
                Ok(Some(ServerEvent::Finished { id })) => link.finish(id),
                Ok(Some(ServerEvent::Closed { id, reason })) => link.close(id, reason),
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        while let Some(id) = link.poll_room() {
            let sent = link.compose(id, &waiting);
            waiting.drain(..sent);
        }
        while let Some(batch) = link.flush(now()) {
            if stream.write_all(batch.as_slice()).is_err() {
                return;
            }
            link.recycle(batch);
        }
        if !goes_on {
            return;
        }
    }
}
