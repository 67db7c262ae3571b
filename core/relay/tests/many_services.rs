//! The work of a turn does not depend on the number of services.

mod harness;

use core::time::Duration;

use harness::{RecordingTransport, config, new_server};
use spillway_batch::{PolicyKind, Scratch, ServerEvent, ServerLink};
use spillway_relay::{Config, Relay, ServiceConfig};
use spillway_transport::{Application, Conn, Event, Time};

const DELAY: Duration = Duration::from_millis(1);

/// A relay with several services, whose links are up.
struct ManyServices {
    relay: Relay,
    transport: RecordingTransport,
    now: Time,
    links: Vec<(Conn, ServerLink)>,
}

impl ManyServices {
    fn new(services: u16) -> ManyServices {
        let template = config().services.remove(0);
        let service = |index: u16| ServiceConfig {
            name: format!("cache-{index}"),
            plain_listeners: vec![index],
            link_listeners: Vec::new(),
            policy: PolicyKind::Fixed { interval: DELAY, size_bytes: 1 << 20 },
            ..template.clone()
        };
        let config = Config::new((0..services).map(service).collect());
        let relay = Relay::new(config, Box::new(|bytes: &mut [u8]| bytes.fill(3)))
            .expect("the configuration should be valid");
        let mut harness = ManyServices {
            relay,
            transport: RecordingTransport::default(),
            now: Time(1_000),
            links: Vec::new(),
        };
        harness.handle_timeout();
        for (link, target) in core::mem::take(&mut harness.transport.connects) {
            harness.links.push((link, new_server(Default::default())));
            harness.event(link, Event::Opened { peer: target, listener: None });
        }
        assert_eq!(harness.links.len(), usize::from(services));
        (0..harness.links.len()).for_each(|index| drop(harness.exchange(index)));
        harness
    }

    fn event(&mut self, conn: Conn, event: Event<'_>) {
        self.relay.handle(self.now, conn, event, &mut self.transport);
        self.relay.end_of_turn(self.now, &mut self.transport);
    }

    fn handle_timeout(&mut self) {
        self.relay.handle_timeout(self.now, &mut self.transport);
        self.relay.end_of_turn(self.now, &mut self.transport);
    }

    /// Exchanges bytes with a server that echoes requests. Returns the requests.
    fn exchange(&mut self, index: usize) -> Vec<Vec<u8>> {
        let mut requests = Vec::new();
        loop {
            let (link, server) = &mut self.links[index];
            let bytes = self.transport.take(*link);
            let mut scratch = Scratch::new();
            let mut input = server.unseal(self.now, &bytes, &mut scratch);
            while let Some(event) =
                server.decompose(self.now, &mut input).expect("the relay should send valid frames")
            {
                match event {
                    ServerEvent::Data { id, bytes } => {
                        requests.push(bytes.to_vec());
                        server.consumed(id, bytes.len()).expect("the bytes were received");
                        let echo = bytes.to_vec();
                        assert_eq!(server.compose(id, &echo), echo.len());
                    }
                    ServerEvent::Connect { id, .. } => server.accept(id),
                    _ => {}
                }
            }
            let Some(batch) = server.flush(self.now) else { return requests };
            let link = *link;
            self.event(link, Event::Data { end: 0, bytes: batch.as_slice() });
        }
    }

    /// Number of accesses to links and services for a request, its batch and its reply.
    fn accesses_of_a_request(&mut self, client: Conn) -> u64 {
        let before = self.relay.accesses();
        assert_eq!(self.relay.poll_timeout(), None, "no timer should run between requests");
        self.event(client, Event::Data { end: 0, bytes: b"get a" });
        let due = self.relay.poll_timeout().expect("the waiting batch should have a timeout");
        assert!(
            due > self.now && due <= self.now + DELAY,
            "a batch should be due within the batch delay: {due:?}"
        );
        self.now = due;
        self.handle_timeout();
        assert_eq!(self.exchange(0), [b"get a"]);
        assert_eq!(core::mem::take(&mut self.transport.record(client).sent), b"get a");
        self.relay.accesses() - before
    }
}

fn accesses_with(services: u16) -> u64 {
    let mut harness = ManyServices::new(services);
    let client = harness.transport.accept();
    let peer = "10.0.0.9:1000".parse().expect("valid address");
    harness.event(client, Event::Opened { peer, listener: Some(0) });
    assert_eq!(harness.relay.clients(), 1);
    harness.event(client, Event::Data { end: 0, bytes: b"get the first" });
    harness.now = harness.now + DELAY;
    harness.handle_timeout();
    assert_eq!(harness.exchange(0), [b"get the first"]);
    harness.transport.record(client).sent.clear();
    let first = harness.accesses_of_a_request(client);
    assert_eq!(
        harness.accesses_of_a_request(client),
        first,
        "each request should cause the same number of accesses"
    );
    first
}

#[test]
fn turn_accesses_do_not_depend_on_the_number_of_services() {
    let with_one = accesses_with(1);
    assert!(with_one > 0, "accesses should be counted: this test needs a build with assertions");
    assert_eq!(accesses_with(1_000), with_one);
}
