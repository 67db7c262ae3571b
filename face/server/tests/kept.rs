//! The server keeps replies to a helper's plain client until the client's own TCP has acknowledged them.

mod support;

use std::io::Read;
use std::net::TcpStream;
use std::time::Instant;

use spillway_helper::{Helper, HelperConfig, Service};
use spillway_server::{ClientId, Event, KeyRing, Limits, Role, Settings};
use support::Keys;
use support::port::{Port, Serve, run_until};

const KEPT_BYTES_MAX: usize = 100_000;

/// A server that the test drives, turn by turn.
struct Server {
    port: Port,
    client: Option<ClientId>,
}

impl Server {
    fn start(keys: &Keys) -> Server {
        let mut ring = KeyRing::new();
        ring.accept(Role::Helper, keys.helper.clone());
        let limits = Limits { kept_bytes_max: KEPT_BYTES_MAX, ..Limits::default() };
        let settings = Settings { keys: ring, limits, ..Settings::default() };
        let port = Port::bind(Instant::now(), "127.0.0.1:0".parse().unwrap(), settings);
        Server { port, client: None }
    }

    fn run_until(&mut self, description: &str, done: impl FnMut(&mut Server) -> bool) {
        run_until(self, description, |server| server.turn_at(Instant::now(), &mut [0; 65536]), done);
    }

    /// The offset that the client's TCP has acknowledged, and the bytes that are kept.
    fn kept(&self) -> (u64, Vec<u8>) {
        let unacknowledged = self
            .port
            .links
            .unacknowledged(self.client.unwrap())
            .expect("the helper should report acknowledgements");
        (unacknowledged.acknowledged, [unacknowledged.bytes.0, unacknowledged.bytes.1].concat())
    }
}

impl Serve for Server {
    fn port(&mut self) -> &mut Port {
        &mut self.port
    }

    fn handle(&mut self, event: Event<'_>) {
        if let Event::Connected { client, .. } = event {
            self.client = Some(client);
            self.port.links.accept(client);
        }
    }
}

fn byte(offset: usize) -> u8 {
    (offset * 31 % 251) as u8
}

#[test]
fn replies_are_kept_until_the_clients_tcp_acknowledges_them() {
    let keys = Keys::new();
    let mut server = Server::start(&keys);
    let mut service = Service::new("kept", server.port.links.address());
    service.listen.push("127.0.0.1:0".parse().unwrap());
    service.keys = vec![keys.helper.clone()];
    service.acknowledges_replies = true;
    let helper = Helper::start(HelperConfig { threads: 1, ..HelperConfig::new(vec![service]) }).unwrap();
    let plain = helper.status().services[0].listen[0];
    server.run_until("the link", |_| helper.status().services[0].links_up() == 1);
    let mut client = TcpStream::connect(plain).unwrap();
    server.run_until("the client", |server| server.client.is_some());
    let accepted = server.client.unwrap();
    server.run_until("the helper's first acknowledgement", |server| {
        server.port.links.unacknowledged(accepted).is_some()
    });

    // The client reads nothing: its TCP acknowledges what its buffers hold, and the server keeps at most its bound.
    let mut composed = 0;
    server.run_until("a full buffer", |server| {
        let bytes: Vec<u8> = (composed..composed + 30_000).map(byte).collect();
        composed += server.port.links.compose(accepted, &bytes);
        let (acknowledged, kept) = server.kept();
        assert!(kept.len() <= KEPT_BYTES_MAX);
        assert_eq!(acknowledged as usize + kept.len(), composed);
        assert!(
            kept.iter().enumerate().all(|(offset, actual)| *actual == byte(acknowledged as usize + offset)),
            "the kept bytes should be those after offset {acknowledged}"
        );
        kept.len() == KEPT_BYTES_MAX && acknowledged > 0
    });

    // The client reads, and the server drops all kept replies.
    let reading = std::thread::spawn(move || {
        let mut read = 0;
        let mut buffer = [0; 65536];
        while read < composed {
            let count = client.read(&mut buffer).unwrap();
            assert!(
                count > 0
                    && buffer[..count]
                        .iter()
                        .enumerate()
                        .all(|(offset, actual)| *actual == byte(read + offset))
            );
            read += count;
        }
        client
    });
    server.run_until("the last acknowledgement", |server| server.kept() == (composed as u64, Vec::new()));
    drop(reading.join().unwrap());
    helper.stop();
}
