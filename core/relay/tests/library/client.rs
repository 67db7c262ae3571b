//! A library client whose steps a test controls, and the small helpers that tests of several subjects share.

use core::time::Duration;

use spillway_auth::Key;
use spillway_batch::{
    Control, Encryption, Id, Limits, LinkError, LinkRandomness, OpenerConfig, OpenerEvent, OpenerLink,
    PolicyKind, Role, Scratch,
};
use spillway_transport::{Application, Conn};

use crate::harness::{Harness, Observed, client_key};

/// The address of a client's host, and a port.
pub const CLIENT: &str = "10.9.0.1:5000";

/// The client's end of its link, and the events and data that the client has received.
pub struct Client {
    pub conn: Conn,
    pub link: OpenerLink,
    pub observed: Vec<String>,
    pub data: Vec<u8>,
}

impl Client {
    pub fn connecting(harness: &mut Harness, key: Key, role: Role, limits: Limits) -> Client {
        Client::connecting_with_encryption(harness, key, role, limits, Encryption::Preferred)
    }

    fn connecting_with_encryption(
        harness: &mut Harness,
        key: Key,
        role: Role,
        limits: Limits,
        encryption: Encryption,
    ) -> Client {
        let conn = harness.client(1, CLIENT);
        let policy = PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 };
        let link = OpenerLink::new(
            &OpenerConfig { role, key, limits, policy, encryption },
            harness.now,
            LinkRandomness::from_random([3; LinkRandomness::BYTES]),
        );
        Client { conn, link, observed: Vec::new(), data: Vec::new() }
    }

    /// A client whose link is up.
    pub fn new(harness: &mut Harness) -> Client {
        let mut client = Client::connecting(harness, client_key(), Role::Client, Limits::default());
        client.exchange(harness).unwrap();
        assert_eq!(client.observed, ["established 1"]);
        client.observed.clear();
        client
    }

    /// A client without encryption, for tests that send their own frames.
    pub fn unencrypted(harness: &mut Harness) -> Client {
        let (key, limits) = (client_key(), Limits::default());
        let mut client =
            Client::connecting_with_encryption(harness, key, Role::Client, limits, Encryption::Off);
        client.exchange(harness).unwrap();
        client.observed.clear();
        client
    }

    pub fn open(&mut self) -> Id {
        self.link.open(CLIENT.parse().unwrap(), None).unwrap()
    }

    /// Sends a request on an open connection, and checks that the relay forwards it to the server.
    #[track_caller]
    pub fn assert_request_is_forwarded(&mut self, harness: &mut Harness, id: Id) {
        self.link.compose(id, b"get x");
        self.exchange(harness).unwrap();
        let is_request =
            |observed: &Observed| matches!(observed, Observed::Data(_, bytes) if bytes == b"get x");
        assert!(harness.exchange().iter().any(is_request), "another client's request should be forwarded");
    }

    /// Exchanges bytes between the client and the relay until neither has output.
    pub fn exchange(&mut self, harness: &mut Harness) -> Result<(), LinkError> {
        loop {
            let batch = self.link.flush(harness.now);
            if let Some(batch) = &batch {
                harness.data(self.conn, batch.as_slice());
            }
            let bytes = harness.transport.take(self.conn);
            if bytes.is_empty() && batch.is_none() {
                return Ok(());
            }
            let mut scratch = Scratch::new();
            let mut input = self.link.unseal(harness.now, &bytes, &mut scratch);
            while let Some(event) = self.link.decompose(harness.now, &mut input)? {
                let event = match event {
                    OpenerEvent::Established { connections_max } => format!("established {connections_max}"),
                    OpenerEvent::Accepted { .. } => "accepted".into(),
                    OpenerEvent::Refused { reason, .. } => format!("refused {reason:?}"),
                    OpenerEvent::Data { bytes, .. } => {
                        self.data.extend_from_slice(bytes);
                        continue;
                    }
                    OpenerEvent::Acknowledged { through, .. } => format!("taken {through}"),
                    OpenerEvent::Finished { .. } => "finished".into(),
                    OpenerEvent::Closed { reason, .. } => format!("closed {reason:?}"),
                    OpenerEvent::Drain { deadline_ms } => format!("drain {deadline_ms}"),
                    OpenerEvent::RelayedData { bytes, .. } => {
                        self.data.extend_from_slice(bytes);
                        continue;
                    }
                    OpenerEvent::RelayedControl { control, .. } => format!("{:?}", control.kind()),
                };
                self.observed.push(event);
            }
        }
    }
}

/// Advances the time in one step, and handles all timeouts at its end.
pub fn jump_ahead(harness: &mut Harness, time: Duration) {
    harness.now = harness.now + time;
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    harness.relay.end_of_turn(harness.now, &mut harness.transport);
}

pub fn connections(harness: &Harness) -> u32 {
    harness.relay.status().services[0].links[0].connections
}

pub fn frames(controls: impl IntoIterator<Item = Control>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for control in controls {
        control.emit(Id(1), &mut bytes);
    }
    bytes
}
