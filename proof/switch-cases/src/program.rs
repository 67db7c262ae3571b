//! The XDP program as a [`Switch`].

use std::fmt;

use spillway_bpf::switch::{FlowEntry, Switch as Loaded};
use spillway_rules::Decision;
use spillway_transport::Time;

use crate::mac::Mac;
use crate::rules::{config, outcome, port};
use crate::setup::{EGRESS, Setup};
use crate::switch::{FlowRow, Outcome, OwnerRow, Site, State, Switch};

/// The kernel refuses test runs with shorter frames.
pub const FRAME_BYTES_MIN: usize = 14;

/// The kernel refuses test runs of the egress program with frames that may lack a part of their IP headers.
pub const EGRESS_FRAME_BYTES_MIN: usize = 14 + 40;

/// The program, loaded for test runs.
pub struct Program {
    switch: Loaded,
    setup: Setup,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").finish_non_exhaustive()
    }
}

impl Program {
    /// Loads the program. `None` without the privileges for it; the reason is printed.
    ///
    /// # Panics
    /// The kernel refuses the program.
    pub fn load(setup: &Setup) -> Option<Program> {
        match Loaded::load_for_tests(&config(setup), setup.epoch) {
            Ok(switch) => Some(Program { switch, setup: setup.clone() }),
            Err(error) if error.is_unprivileged() => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl Switch for Program {
    fn name(&self) -> &'static str {
        "host/bpf"
    }

    fn handle(&mut self, ingress: u8, now_ns: u64, frame: &[u8]) -> Outcome {
        let run = match ingress {
            EGRESS => self.switch.test_egress(Time(now_ns), frame),
            ingress => self.switch.test_run(port(ingress), Time(now_ns), frame),
        };
        let run = run.unwrap_or_else(|error| panic!("{} bytes at port {ingress}: {error}", frame.len()));
        let decision = Decision { verdict: run.verdict, action: run.action };
        outcome(&self.setup, ingress, decision, run.frame)
    }

    fn reload(&mut self, setup: &Setup) {
        self.switch
            .configure(&config(setup))
            .unwrap_or_else(|error| panic!("the new setup is refused: {error}"));
        self.setup = setup.clone();
    }

    fn state(&self, now_ns: u64) -> State {
        let flows = self.switch.flows().expect("the map of flows can be read");
        let mut flows: Vec<FlowRow> = flows.map(|flow| row(&flow)).collect();
        flows.sort();
        let owners = self.switch.owners(Time(now_ns)).expect("the map of owners can be read");
        let owners = owners.into_iter().filter(|owner| owner.term != 0).map(|owner| OwnerRow {
            server: owner.server.0,
            term: owner.term,
            control_port: owner.control_port,
            service: owner.service.map_or(u16::MAX, |service| service.0.into()),
            load: owner.load,
            free: owner.free_places,
            weight: owner.weight,
            last_heartbeat_ns: owner.last_heartbeat.as_nanos(),
            is_silent: owner.is_silent,
        });
        State { flows, owners: owners.collect() }
    }
}

fn row(flow: &FlowEntry) -> FlowRow {
    FlowRow {
        client: flow.client.into(),
        service: flow.service.into(),
        state: flow.state as u8,
        generation: flow.generation,
        repeat_generation: flow.repeat_generation,
        owner: site(&flow.owner),
        target: flow.target.as_ref().map(site),
        original: site(&flow.original),
        deadline_ns: flow.deadline.map_or(0, Time::as_nanos),
        last_packet_ns: flow.last_packet.as_nanos(),
        // Claims after the acknowledged one change nothing.
        claim: flow.client_fin_claim.filter(|_| !flow.has_client_fin),
        client_fin: flow.has_client_fin,
        owner_fin: flow.has_owner_fin,
        owner_claim: flow.owner_fin_claim,
        reset_ns: flow.owner_rst.map(Time::as_nanos),
    }
}

fn site(site: &spillway_bpf::switch::Site) -> Site {
    Site { at: site.at.into(), mac: Mac(site.mac.0), server: site.server.0, term: site.term }
}
