//! The switch's program in the kernel: loading, privileges, concurrency, pins. core/rules and its cases test the rules.

mod changes;
mod host;
mod moved;
mod pins;
mod race;
mod scene;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use scene::*;
use spillway_bpf::switch::Switch;
use spillway_rules::{FlowState, PortId, Verdict};
use spillway_transport::Time;
use spillway_wire::switch::{Kind, Status};

const NOW: Time = Time(5_000_000_000);

#[test]
fn the_program_loads() {
    let Some(switch) = loaded(Switch::load(&config(3), EPOCH)) else { return };
    println!(
        "gateway: {} instructions; the verifier has checked {:?}",
        switch.instructions(),
        verified("spillway_switch")
    );
    assert!(!verified("spillway_switch").is_empty());
}

/// The program for the egress loads, too: a switch that was loaded for tests has it.
#[test]
fn the_programs_of_host_mode_load() {
    let Some(switch) = loaded(Switch::load_for_tests(&host_config(3), EPOCH)) else { return };
    println!(
        "host: {} instructions; the verifier has checked {:?}, and for the egress {:?}",
        switch.instructions(),
        verified("spillway_switch"),
        verified("spillway_egress")
    );
    assert!(!verified("spillway_egress").is_empty());
}

/// Numbers of instructions that the verifier has checked in the loaded programs of this name, one for each state in which the
/// program reaches an instruction.
fn verified(name: &str) -> Vec<u32> {
    libbpf_rs::query::ProgInfoIter::default()
        .filter(|program| program.name.as_encoded_bytes() == name.as_bytes())
        .map(|program| program.verified_insns)
        .collect()
}

/// The local server's messages reach the program only as runs that name its port.
#[test]
fn the_local_server_is_answered_at_its_own_port() {
    let Some(switch) = loaded(Switch::load(&host_config(3), EPOCH)) else { return };
    let status_at = |port, sender, sequence| {
        let hello = control_frame(sender, message(Kind::Hello, sender, sequence, 0));
        let answer = switch.control_at(port, &hello).unwrap().expect("the program answers");
        answer_of(sender, &answer).status()
    };
    assert_eq!(status_at(PortId::LOCAL, 1, 1), Ok(Status::Ok));
    assert_eq!(status_at(PortId::DAEMON, 1, 2), Ok(Status::Forbidden));
    assert_eq!(status_at(PortId::LOCAL, 2, 1), Ok(Status::Forbidden));
    assert_eq!(status_at(PortId::DAEMON, 0, 1), Ok(Status::Ok));
    assert_eq!(
        switch.control_at(PortId::LOCAL, &tcp_frame((mac(1), mac(1)), client(1), service(), 0x10)).unwrap(),
        None
    );
    let mut gateway = Switch::load(&config(3), EPOCH).unwrap();
    assert!(gateway.configure(&host_config(3)).is_err(), "a reload does not change the mode");
}

#[test]
fn two_capabilities_suffice_to_load_and_configure_the_program() {
    if loaded(Switch::load(&config(3), EPOCH)).is_none() {
        return;
    }
    let work = || {
        let kept = CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).unwrap();
        let mut switch = Switch::load(&config(3), EPOCH)
            .unwrap_or_else(|error| panic!("CAP_NET_ADMIN and CAP_BPF should suffice: {error}"));
        switch.configure(&config(2)).unwrap();
        switch.counters().unwrap();
        assert_eq!(switch.flows().unwrap().count(), 0);
        let request = control_frame(0, message(Kind::Get, 0, 1, 0));
        let answer = switch.control(&request).unwrap().expect("the program answers its daemon");
        assert_eq!(answer_of(0, &answer).status(), Ok(Status::NoEntry));
        for load in [Switch::load, Switch::load_for_tests] {
            load(&host_config(3), EPOCH)
                .unwrap_or_else(|error| panic!("the same should suffice for host mode: {error}"));
        }
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
}

/// One flow from *prepare* to *release*, with a packet in each direction at each step.
#[test]
fn a_flow_moves_from_one_server_to_another_and_back() {
    let Some(switch) = loaded(Switch::load_for_tests(&config(3), EPOCH)) else { return };
    register(&switch, 3, NOW);
    let flow = 9;
    let inbound = tcp_frame((mac(1), mac(0)), client(flow), service(), 0x10);
    let inbound = |switch: &Switch| switch.test_run(port(0), NOW, &inbound).unwrap();
    let outbound = |server: u8, from| {
        let frame = tcp_frame((mac(0), mac(server)), from, client(flow), 0x10);
        switch.test_run(port(server), NOW, &frame).unwrap()
    };
    assert_eq!(inbound(&switch).verdict, Verdict::Switched);
    assert_eq!(outbound(1, service()).verdict, Verdict::Switched);
    assert_eq!(outbound(2, place_of(2)).verdict, Verdict::DropNotOwner, "before the move");

    let prepare = control_frame(1, message(Kind::Prepare, 1, 10, flow));
    let relayed = switch.test_run(port(1), NOW, &prepare).unwrap();
    assert_eq!(relayed.verdict, Verdict::Relayed);
    let relayed = answer_of(2, &relayed.frame);
    assert_eq!(relayed.kind(), Ok(Kind::Prepare));
    assert_eq!(relayed.owner(), site(2), "server 2 is the least loaded of 2 and 3");
    assert_eq!(inbound(&switch).verdict, Verdict::ToOwner, "asked");

    let mut prepared = message(Kind::Prepared, 2, 10, flow);
    prepared.set_generation(relayed.generation());
    prepared.set_owner(spillway_wire::switch::Site::new(place_of(2), mac(2)));
    let relayed = switch.test_run(port(2), NOW, &control_frame(2, prepared)).unwrap();
    assert_eq!(relayed.verdict, Verdict::Relayed);
    assert_eq!(answer_of(1, &relayed.frame).state(), Ok(FlowState::Held));
    let run = inbound(&switch);
    assert_eq!(run.verdict, Verdict::ToTarget);
    assert_eq!(run.frame, tcp_frame((mac(2), mac(0)), client(flow), place_of(2), 0x10), "rewritten");
    assert_eq!(outbound(2, place_of(2)).verdict, Verdict::DropNotOwner, "held");
    assert_eq!(outbound(1, service()).verdict, Verdict::FromOwner, "held");

    let mut own = message(Kind::Own, 2, 11, flow);
    own.set_generation(answer_of(1, &relayed.frame).generation());
    let owned = ask(&switch, 2, NOW, own);
    assert_eq!((owned.status(), owned.state()), (Ok(Status::Ok), Ok(FlowState::Owned)));
    let run = outbound(2, place_of(2));
    assert_eq!(run.verdict, Verdict::FromOwner);
    assert_eq!(run.frame, tcp_frame((mac(0), mac(1)), service(), client(flow), 0x10), "rewritten");
    assert_eq!(outbound(1, service()).verdict, Verdict::DropNotOwner, "moved away");
    let flows: Vec<_> = switch.flows().unwrap().collect();
    assert_eq!(flows.len(), 1);
    assert_eq!((flows[0].client, flows[0].owner.at, flows[0].target), (client(flow), place_of(2), None));

    let mut release = message(Kind::Release, 2, 12, flow);
    release.set_generation(owned.generation());
    assert_eq!(ask(&switch, 2, NOW, release).status(), Ok(Status::Ok));
    assert_eq!(switch.flows().unwrap().count(), 0);
    assert_eq!(inbound(&switch).verdict, Verdict::Switched);
}

#[test]
fn frames_from_no_port_are_dropped() {
    let Some(switch) = loaded(Switch::load_for_tests(&config(1), EPOCH)) else { return };
    let frame = tcp_frame((mac(1), mac(0)), client(1), service(), 0x10);
    let run = |port| switch.test_run(port, NOW, &frame).unwrap().verdict;
    assert_eq!(run(port(9)), Verdict::DropUnknownPort);
    assert_eq!(run(PortId::DAEMON), Verdict::DropUnknownPort, "only control messages");
    assert_eq!(run(port(0)), Verdict::Switched);
    assert_eq!(switch.counters().unwrap().of(Verdict::DropUnknownPort), 2);
}
