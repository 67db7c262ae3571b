//! Times of the program's runs on packets and on control messages.
//!
//! Each run gets a fresh frame, because most runs rewrite it, and the result of each run is compared with a frame that was
//! built from scratch. The kernel measures a run from one reading of its clock to the next; so a program that only
//! returns takes some time, too.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use spillway_bpf::{Hub, Pass};
use spillway_parts::Random;
use spillway_rules::{Action, PortId};
use spillway_wire::switch::{FlowState, Request, Status};

use super::bed::{self, Bed, SERVICE, SOURCE, TARGET, client_end, client_port, server_end};
use super::frames::{self, End};
use crate::error::Error;
use crate::stats::median;
use crate::stop;

/// The numbers of owners among which *prepare* chooses. Server ids are 1 to 255; id 0 is the daemon.
pub const OWNERS: [u8; 2] = [8, 255];
/// The numbers of entries that are compared.
pub const ENTRIES: [usize; 2] = [10, 100_000];
/// Room of the table whose entries are compared: the default.
const FLOWS_MAX: usize = 131_072;
/// Each run of the experiment draws the same flows.
const SEED: u64 = 1;
/// Number of runs between two looks for a signal.
const RUNS_UNTIL_STOP_CHECK: usize = 1_000;

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// A program that only returns.
    Return,
    /// The laboratory's program that forwards by Ethernet address.
    Hub,
    /// A datagram between two stations.
    Plain,
    /// A segment to the service whose flow has no entry.
    NoEntry,
    /// A client's segment of a moved flow.
    RewrittenIn,
    /// An owner's segment of a moved flow.
    RewrittenOut,
    /// A datagram to the control endpoint without the magic of messages.
    NoMessage,
    /// A message under another server's key.
    WrongTag,
    Get,
    Heartbeat,
    Hold,
    Own,
    /// A *prepare* that lets the switch choose among this number of owners.
    Prepare(u8),
    /// As `RewrittenIn`, with this number of entries, of which always the same one matches.
    Hot(usize),
    /// As `Hot`, but each packet matches an entry drawn at random.
    Uniform(usize),
    /// As `NoEntry`, with this number of entries of other flows; the client of each packet is drawn at random.
    Strange(usize),
}

impl Work {
    /// All work that is measured, in the order of a round. `Own` is measured together with `Hold`.
    pub fn all() -> Vec<Work> {
        use Work::*;
        let mut all = vec![
            Return,
            Hub,
            Plain,
            NoEntry,
            RewrittenIn,
            RewrittenOut,
            NoMessage,
            WrongTag,
            Get,
            Heartbeat,
            Hold,
        ];
        all.extend(OWNERS.map(Prepare));
        ENTRIES.iter().for_each(|&entries| all.extend([Hot(entries), Uniform(entries), Strange(entries)]));
        all
    }

    /// The kind of the packet or message, as in rows.
    pub fn kind(self) -> &'static str {
        match self {
            Work::Return => "a program that only returns",
            Work::Hub => "the laboratory's hub program",
            Work::Plain => "plain L2",
            Work::NoEntry | Work::Strange(_) => "no entry",
            Work::RewrittenIn | Work::Hot(_) | Work::Uniform(_) => "rewritten in",
            Work::RewrittenOut => "rewritten out",
            Work::NoMessage => "no message",
            Work::WrongTag => "wrong tag",
            Work::Get => "get",
            Work::Heartbeat => "heartbeat",
            Work::Hold => "hold",
            Work::Own => "own",
            Work::Prepare(_) => "prepare",
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Work::Prepare(owners) => write!(f, ", {owners} owners"),
            Work::Hot(entries) => write!(f, ", {entries} entries, one of them used"),
            Work::Uniform(entries) => write!(f, ", {entries} entries, used at random"),
            Work::Strange(entries) => write!(f, " of a flow drawn at random, {entries} entries"),
            _ => Ok(()),
        }
    }
}

/// The loaded programs with their flows.
pub struct Programs {
    pass: Pass,
    hub: Hub,
    /// Two servers, and flows of [`CLIENT`] and [`MOVER`].
    small: Bed,
    /// The owner and the generation of [`MOVER`]'s flow in `small`.
    moved: (u8, u64),
    /// Beds by number of owners, each with the generation of the flow of [`MOVER`].
    choosing: Vec<(u8, Bed, u64)>,
    /// Beds by number of entries.
    filled: BTreeMap<usize, Bed>,
    random: Random,
    /// Number of runs so far.
    runs: u64,
}

/// The client of a moved flow whose packets are rewritten.
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 2, 0, 1), 5_000);
/// The client of a flow that moves.
const MOVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 2, 0, 2), 5_000);
/// A client without a flow.
const STRANGER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 2, 0, 3), 5_000);

impl Programs {
    /// Loads the programs and makes the entries.
    pub fn load() -> Result<Programs, Error> {
        let failed = |error: spillway_bpf::BpfError| Error::process("an anchor's program", error.to_string());
        let (pass, hub) = (Pass::load().map_err(failed)?, Hub::load().map_err(failed)?);
        // Any interface: a run does not send the frame.
        hub.set_station(server_end(SOURCE).mac.0, 1).map_err(failed)?;
        let mut small = Bed::new(2, 1_024)?;
        small.move_flow(CLIENT)?;
        let generation = small.move_flow(MOVER)?;
        let choosing = OWNERS.map(|owners| Ok((owners, Bed::new(owners, 1_024)?, 0)));
        let filled = ENTRIES.map(|entries| Ok((entries, fill(entries)?)));
        Ok(Programs {
            pass,
            hub,
            small,
            moved: (TARGET, generation),
            choosing: choosing.into_iter().collect::<Result<_, Error>>()?,
            filled: filled.into_iter().collect::<Result<_, Error>>()?,
            random: Random::new(SEED),
            runs: 0,
        })
    }

    /// Number of runs whose result was compared.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Medians of this number of runs, in ns.
    pub fn measure(&mut self, work: Work, runs: usize) -> Result<Vec<(Work, f64)>, Error> {
        let mut times = BTreeMap::<Work, Vec<f64>>::new();
        for run in 0..runs {
            if run % RUNS_UNTIL_STOP_CHECK == 0 {
                stop::check()?;
            }
            for (work, time) in self.run(work)? {
                times.entry(work).or_default().push(time.as_nanos() as f64);
                self.runs += 1;
            }
        }
        Ok(times.into_iter().filter_map(|(work, times)| Some((work, median(&times)?))).collect())
    }

    /// Runs a program once, or twice for two kinds of messages that belong together.
    fn run(&mut self, work: Work) -> Result<Vec<(Work, Duration)>, Error> {
        let small = &mut self.small;
        let time = match work {
            Work::Return | Work::Hub => {
                let frame = frames::datagram(client_end(STRANGER), server_end(SOURCE), &[0; 64]);
                let time = match work {
                    Work::Return => self.pass.time_run(&frame),
                    _ => self.hub.time_run(&frame),
                };
                time.map_err(|error| Error::process("an anchor's program", error.to_string()))?
            }
            Work::Plain => {
                let frame = frames::datagram(client_end(STRANGER), server_end(SOURCE), &[0; 64]);
                forwarded(small, client_port(), &frame, bed::port_of(SOURCE), &frame)?
            }
            Work::NoEntry => {
                let frame = frames::segment(client_end(STRANGER), server_end(SOURCE));
                forwarded(small, client_port(), &frame, bed::port_of(SOURCE), &frame)?
            }
            Work::RewrittenIn => rewritten_in(small, CLIENT)?,
            Work::RewrittenOut => {
                let frame = frames::segment(server_end(TARGET), client_end(CLIENT));
                // What the client expects: the service, at the host that owned the flow at first.
                let expected = frames::segment(server_end(SOURCE), client_end(CLIENT));
                forwarded(small, bed::port_of(TARGET), &frame, client_port(), &expected)?
            }
            Work::NoMessage => {
                let mut frame = small.request(SOURCE, Request::Hello, &bed::key(SOURCE));
                frame[frames::DATAGRAM_HEADER_BYTES] ^= 1;
                dropped(small, &frame)?
            }
            Work::WrongTag => {
                let frame = small.request(SOURCE, Request::Hello, &bed::key(TARGET));
                dropped(small, &frame)?
            }
            Work::Get => {
                let (answer, time) = small.ask(SOURCE, Request::Get { flow: bed::flow(CLIENT) })?;
                bed::expect(answer.status == Status::Ok && answer.state == FlowState::Owned, &answer)?;
                time
            }
            Work::Heartbeat => small.heartbeat(SOURCE)?,
            Work::Hold | Work::Own => {
                let (owner, generation) = self.moved;
                let other = if owner == SOURCE { TARGET } else { SOURCE };
                let (generation, [hold, own]) = small.hold_and_own(MOVER, (owner, other), generation)?;
                self.moved = (other, generation);
                return Ok(vec![(Work::Hold, hold), (Work::Own, own)]);
            }
            Work::Prepare(owners) => {
                let found = self.choosing.iter_mut().find(|(at, ..)| *at == owners);
                let (_, bed, generation) = found.expect("`Programs::load` makes a bed for each of OWNERS");
                let (next, time) = bed.prepare_and_refuse(MOVER, *generation)?;
                *generation = next;
                time
            }
            Work::Hot(entries) => rewritten_in(filled(&mut self.filled, entries), client(entries / 2))?,
            Work::Uniform(entries) => {
                let number = below(&mut self.random, entries);
                rewritten_in(filled(&mut self.filled, entries), client(number))?
            }
            Work::Strange(entries) => {
                // Clients above the numbers of those that have entries.
                let client = client(FLOWS_MAX + below(&mut self.random, FLOWS_MAX));
                let frame = frames::segment(client_end(client), server_end(SOURCE));
                let bed = filled(&mut self.filled, entries);
                forwarded(bed, client_port(), &frame, bed::port_of(SOURCE), &frame)?
            }
        };
        Ok(vec![(work, time)])
    }
}

fn filled(beds: &mut BTreeMap<usize, Bed>, entries: usize) -> &mut Bed {
    beds.get_mut(&entries).expect("`Programs::load` makes a bed for each of ENTRIES")
}

/// A program with this number of moved flows.
fn fill(entries: usize) -> Result<Bed, Error> {
    let mut bed = Bed::new(2, FLOWS_MAX)?;
    for number in 0..entries {
        if number % RUNS_UNTIL_STOP_CHECK == 0 {
            stop::check()?;
        }
        bed.move_flow(client(number))?;
    }
    Ok(bed)
}

/// The client of the flow with this number, below 2²⁴.
fn client(number: usize) -> SocketAddrV4 {
    let [.., high, middle, low] = number.to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(10, 3, high, middle), 10_000 + u16::from(low))
}

fn rewritten_in(bed: &mut Bed, client: SocketAddrV4) -> Result<Duration, Error> {
    let service = End { mac: server_end(SOURCE).mac, address: SERVICE };
    let frame = frames::segment(client_end(client), service);
    let expected = frames::segment(client_end(client), server_end(TARGET));
    forwarded(bed, client_port(), &frame, bed::port_of(TARGET), &expected)
}

/// Runs the program on a frame that should leave through a port as `expected`.
fn forwarded(
    bed: &mut Bed,
    ingress: PortId,
    frame: &[u8],
    egress: PortId,
    expected: &[u8],
) -> Result<Duration, Error> {
    let (run, time) = bed.run(ingress, frame)?;
    if run.action == Action::To(egress) && run.frame == expected {
        return Ok(time);
    }
    let why = format!("{:?}, {:?}: {:02x?} instead of {expected:02x?}", run.verdict, run.action, run.frame);
    Err(Error::process("the switch forwarded a frame wrongly", why))
}

fn dropped(bed: &mut Bed, frame: &[u8]) -> Result<Duration, Error> {
    let (run, time) = bed.run(bed::port_of(SOURCE), frame)?;
    bed::expect(run.action == Action::Drop, &run.verdict)?;
    Ok(time)
}

/// A random number below `limit`.
fn below(random: &mut Random, limit: usize) -> usize {
    usize::try_from(random.below(limit as u64)).expect("it is below a usize")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn clients_of_flows_differ() {
        let most = ENTRIES[1];
        let clients: BTreeSet<_> = (0..most).map(client).collect();
        assert_eq!(clients.len(), most);
        assert!(most < FLOWS_MAX);
    }

    #[test]
    fn random_numbers_are_below_their_limit_and_reach_all_numbers() {
        let mut random = Random::new(1);
        let drawn: BTreeSet<_> = (0..1_000).map(|_| below(&mut random, 10)).collect();
        assert_eq!(drawn, (0..10).collect());
    }
}
