//! The work of a turn does not depend on the number of services.

mod world;

use core::time::Duration;

use spillway_batch::{PolicyKind, Scratch, ServerEvent, ServerLink};
use spillway_relay::{Config, Relay, ServiceConfig};
use spillway_transport::{Application, Conn, Event, Time};
use world::{RecordingTransport, config, new_server};

const DELAY: Duration = Duration::from_millis(1);

/// A relay with many services, whose links are up.
struct Many {
    relay: Relay,
    transport: RecordingTransport,
    now: Time,
    links: Vec<(Conn, ServerLink)>,
}

impl Many {
    fn new(services: u16) -> Many {
        let template = config().services.remove(0);
        let service = |place: u16| ServiceConfig {
            name: format!("cache-{place}"),
            plain_listeners: vec![place],
            link_listeners: Vec::new(),
            policy: PolicyKind::Fixed { delay: DELAY, bytes: 1 << 20 },
            ..template.clone()
        };
        let config = Config::new((0..services).map(service).collect());
        let relay =
            Relay::new(config, Box::new(|bytes: &mut [u8]| bytes.fill(3))).expect("a valid configuration");
        let mut many =
            Many { relay, transport: RecordingTransport::default(), now: Time(1_000), links: Vec::new() };
        many.timeout();
        for (link, target) in core::mem::take(&mut many.transport.connects) {
            many.links.push((link, new_server(Default::default())));
            many.event(link, Event::Opened { peer: target, listener: None });
        }
        assert_eq!(many.links.len(), usize::from(services));
        (0..many.links.len()).for_each(|place| drop(many.exchange(place)));
        many
    }

    fn event(&mut self, conn: Conn, event: Event<'_>) {
        self.relay.handle(self.now, conn, event, &mut self.transport);
        self.relay.end_of_turn(self.now, &mut self.transport);
    }

    fn timeout(&mut self) {
        self.relay.handle_timeout(self.now, &mut self.transport);
        self.relay.end_of_turn(self.now, &mut self.transport);
    }

    /// Exchanges bytes with a server that echoes requests. Returns the requests.
    fn exchange(&mut self, place: usize) -> Vec<Vec<u8>> {
        let mut requests = Vec::new();
        loop {
            let (link, server) = &mut self.links[place];
            let bytes = self.transport.take(*link);
            let mut scratch = Scratch::new();
            let mut input = server.unseal(self.now, &bytes, &mut scratch);
            while let Some(event) = server.decompose(self.now, &mut input).expect("a healthy link") {
                match event {
                    ServerEvent::Data { id, bytes } => {
                        requests.push(bytes.to_vec());
                        server.consumed(id, bytes.len()).expect("they were received");
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
    fn work_of_a_request(&mut self, client: Conn) -> u64 {
        let before = self.relay.looks();
        assert_eq!(self.relay.poll_timeout(), None, "no timeout is due");
        self.event(client, Event::Data { end: 0, bytes: b"get a" });
        let due = self.relay.poll_timeout().expect("a batch waits");
        assert!(due > self.now && due <= self.now + DELAY, "{due:?}");
        self.now = due;
        self.timeout();
        assert_eq!(self.exchange(0), [b"get a"]);
        assert_eq!(core::mem::take(&mut self.transport.record(client).sent), b"get a");
        self.relay.looks() - before
    }
}

fn work_with(services: u16) -> u64 {
    let mut many = Many::new(services);
    let client = many.transport.accept();
    let peer = "10.0.0.9:1000".parse().expect("an address");
    many.event(client, Event::Opened { peer, listener: Some(0) });
    assert_eq!(many.relay.clients(), 1);
    many.event(client, Event::Data { end: 0, bytes: b"get the first" });
    many.now = many.now + DELAY;
    many.timeout();
    assert_eq!(many.exchange(0), [b"get the first"]);
    many.transport.record(client).sent.clear();
    let first = many.work_of_a_request(client);
    assert_eq!(many.work_of_a_request(client), first, "each request causes the same work");
    first
}

#[test]
fn a_turn_costs_as_much_with_a_thousand_services_as_with_one() {
    let alone = work_with(1);
    assert!(alone > 0, "this test needs a build with assertions");
    assert_eq!(work_with(1_000), alone);
}
