//! Draining: a drain of the whole helper, and the override `off` of one service.

use core::time::Duration;

use spillway_policy::Override;
use spillway_transport::{Application, Event, LostReason};

use crate::client::Client;
use crate::harness::{Harness, config};

#[test]
fn drain_is_sent_to_clients_and_new_connections_are_refused() {
    let mut harness = Harness::new(config());
    let mut client = Client::new(&mut harness);
    harness.relay.drain(harness.now, Duration::from_secs(30), &mut harness.transport);
    client.open();
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.observed, ["drain 30000", "refused Unavailable"]);
    assert_eq!(harness.relay.status().services[0].counters.refused.draining, 1);
    harness.event(client.conn, Event::Finished);
    harness.event(client.conn, Event::Lost(LostReason::Closed));
    assert!(harness.relay.is_drained(), "the relay should be drained");
}

#[test]
fn override_off_drains_library_clients_and_keeps_plain_ones() {
    let mut harness = Harness::new(config());
    let (mut client, mut late) = (Client::new(&mut harness), Client::new(&mut harness));
    client.open();
    client.exchange(&mut harness).unwrap();
    let (second, off) = (Duration::from_secs(1), (Override::Off, Some(Duration::from_secs(60))));
    assert!(
        !harness.relay.set_override(harness.now, "no such service", off, second, &mut harness.transport),
        "an unknown service should not take the override"
    );
    assert!(
        harness.relay.set_override(harness.now, "cache", off, second, &mut harness.transport),
        "the known service should take the override"
    );
    late.open();
    late.exchange(&mut harness).unwrap();
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.observed, ["drain 1000"]);
    assert_eq!(late.observed, ["drain 1000", "refused Unavailable"]);
    let status = harness.relay.status();
    assert_eq!((status.services[0].counters.refused.off, status.services[0].listening), (1, false));
    assert!(
        !harness.relay.is_draining() && harness.relay.poll_timeout() <= Some(harness.now + 60 * second),
        "the override should end within a minute, without a drain"
    );

    harness.now = harness.now + 60 * second;
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    assert!(
        harness.relay.status().services[0].listening,
        "the service should listen again when the override ends"
    );
    late.open();
    late.exchange(&mut harness).unwrap();
    assert_eq!(harness.relay.status().services[0].counters.refused.off, 1);
}
