//! Host mode as far as the table of cases (`core/rules/cases/host`) cannot show it.

use spillway_rules::config::ConfigError;
use spillway_rules::{Action, Decision, Mode, PortId, Verdict};
use spillway_wire::switch::{Kind, Status};

use crate::frames::ACK;
use crate::test_config::{config, host_config, place_of, service};
use crate::world::{Message, World, server_frame};

#[test]
fn a_reload_does_not_change_the_mode() {
    let mut gateway = World::new();
    assert_eq!(gateway.switch.reload(host_config()), Err(ConfigError::ModeChange));
    let mut host = World::empty(host_config());
    assert_eq!(host.switch.reload(config()), Err(ConfigError::ModeChange));
    assert_eq!(host.switch.reload(host_config()), Ok(()));
}

#[test]
fn a_gateway_has_no_egress_rules() {
    let mut world = World::new();
    world.move_flow(1, 2);
    for from in [service(), place_of(1), place_of(2)] {
        let sent = server_frame(1, from, ACK).bytes();
        let mut frame = sent.clone();
        let decision = world.switch.handle_egress(world.now, &mut frame);
        assert_eq!((decision, frame), (Decision { verdict: Verdict::Passed, action: Action::Pass }, sent));
    }
}

/// In gateway mode the number is an ordinary one.
#[test]
fn a_gateway_may_have_a_port_with_the_number_of_the_local_servers() {
    let mut config = config();
    assert_eq!(config.mode, Mode::Gateway);
    let port = spillway_rules::config::Port { id: PortId::LOCAL, ..config.ports[2].clone() };
    config.ports[2] = port;
    config.stations.iter_mut().filter(|station| station.port.number() == 2).for_each(|station| {
        station.port = PortId::LOCAL;
    });
    config.servers[1].port = PortId::LOCAL;
    let mut world = World::empty(config);
    let hello = Message::new(2, Kind::Hello).ingress(PortId::LOCAL.number());
    assert_eq!(world.send(hello).status(), Status::Ok);
    assert_eq!(world.server_sends(2, service(), ACK).0.verdict, Verdict::DropUnknownPort, "the former port");
}
