//! Explores all interleavings of the end of a connection, with lost segments and forged ones: while one end may still have
//! to repeat its last bytes, nothing that a host without the sequence numbers sends ends the entry.

use std::collections::HashSet;

use spillway_rules::Verdict;

use crate::frames::{ACK, FIN, Frame, RST, SYN};
use crate::test_config::place_of;
use crate::world::{World, client_frame, server_frame};

/// First sequence numbers behind the data of each end; each FIN has the number.
const CLIENT: u32 = 500;
const OWNER: u32 = 900;

/// What happens next. A segment that arrives has passed the switch, and so has one that is lost behind it.
#[derive(Clone, Copy, Debug)]
enum Event {
    ClientFin { arrives: bool },
    OwnerFin { arrives: bool },
    ClientAck { arrives: bool },
    OwnerAck { arrives: bool },
    ForgedSyn,
    ForgedFin,
    ForgedAck,
    ForgedRst,
}

const EVENTS: [Event; 12] = [
    Event::ClientFin { arrives: true },
    Event::ClientFin { arrives: false },
    Event::OwnerFin { arrives: true },
    Event::OwnerFin { arrives: false },
    Event::ClientAck { arrives: true },
    Event::ClientAck { arrives: false },
    Event::OwnerAck { arrives: true },
    Event::OwnerAck { arrives: false },
    Event::ForgedSyn,
    Event::ForgedFin,
    Event::ForgedAck,
    Event::ForgedRst,
];

/// What one end has sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct End {
    has_sent_fin: bool,
    has_fin_of_other: bool,
    is_acknowledged: bool,
}

impl End {
    /// The acknowledgement number of its segments; `first` is the other end's FIN.
    fn acknowledges(self, first: u32) -> u32 {
        first + u32::from(self.has_fin_of_other)
    }

    /// A segment of the other end arrives.
    fn receive(&mut self, is_fin: bool, acknowledges_fin: bool) {
        self.has_fin_of_other |= is_fin;
        self.is_acknowledged |= acknowledges_fin;
    }
}

#[derive(Clone, Debug)]
struct Run {
    world: World,
    client: End,
    owner: End,
}

impl Run {
    fn new() -> Run {
        let mut world = World::new();
        world.move_flow(1, 2);
        Run { world, client: End::default(), owner: End::default() }
    }

    fn happen(&mut self, event: Event) {
        let forged = |flags, sequence, acknowledged| client_frame(flags).numbered(sequence, acknowledged);
        match event {
            Event::ClientFin { arrives } => self.client_sends(true, arrives),
            Event::ClientAck { arrives } => self.client_sends(false, arrives),
            Event::OwnerFin { arrives } => self.owner_sends(true, arrives),
            Event::OwnerAck { arrives } => self.owner_sends(false, arrives),
            Event::ForgedSyn => self.forge(&forged(SYN, 7, 0)),
            Event::ForgedFin => self.forge(&forged(FIN | ACK, 7, 7)),
            Event::ForgedAck => self.forge(&forged(ACK, 7, OWNER)),
            Event::ForgedRst => self.forge(&forged(RST | ACK, 7, 7)),
        }
    }

    fn client_sends(&mut self, is_fin: bool, arrives: bool) {
        let sequence = CLIENT + u32::from(!is_fin && self.client.has_sent_fin);
        let flags = if is_fin { FIN | ACK } else { ACK };
        let frame = client_frame(flags).numbered(sequence, self.client.acknowledges(OWNER));
        let (decision, _) = self.world.client_sends_frame(&frame);
        self.client.has_sent_fin |= is_fin;
        assert!(matches!(decision.verdict, Verdict::ToOwner | Verdict::Switched));
        if arrives && decision.verdict == Verdict::ToOwner {
            self.owner.receive(is_fin, self.client.has_fin_of_other);
        }
    }

    fn owner_sends(&mut self, is_fin: bool, arrives: bool) {
        let sequence = OWNER + u32::from(!is_fin && self.owner.has_sent_fin);
        let flags = if is_fin { FIN | ACK } else { ACK };
        let frame = server_frame(2, place_of(2), flags).numbered(sequence, self.owner.acknowledges(CLIENT));
        let (decision, _) = self.world.server_sends_frame(2, &frame);
        self.owner.has_sent_fin |= is_fin;
        if arrives && decision.verdict == Verdict::FromOwner {
            self.client.receive(is_fin, self.owner.has_fin_of_other);
        }
    }

    fn forge(&mut self, frame: &Frame) {
        self.world.client_sends_frame(frame);
    }

    fn has_entry(&self) -> bool {
        self.world.entry().is_some()
    }

    /// Whether each end has got all that the other one has sent.
    fn is_closed(&self) -> bool {
        self.client.has_fin_of_other && self.owner.has_fin_of_other
    }
}

#[test]
fn a_forger_never_ends_the_entry_before_both_ends_have_everything() {
    let mut seen = HashSet::new();
    let mut runs = vec![Run::new()];
    let mut ended = 0;
    for _ in 0..9 {
        let mut next = Vec::new();
        for run in &runs {
            for event in EVENTS {
                let mut run = run.clone();
                run.happen(event);
                if !run.has_entry() {
                    assert!(run.is_closed(), "{event:?} has ended the entry too early: {run:#?}");
                    ended += 1;
                    continue;
                }
                let key = format!("{:?} {:?} {:?}", run.world.switch.flows(), run.client, run.owner);
                if seen.insert(key) {
                    next.push(run);
                }
            }
        }
        runs = next;
    }
    assert!(seen.len() > 30 && ended > 0, "{} runs, {ended} ends", seen.len());
}
