//! What a move of a connection costs, and how long it takes (Capybara, Figures 4 and 5).
//!
//! **In memory**: two servers and the switch's rules in one thread, without a driver. **On veth**: two server processes on
//! AF_XDP behind a switch process, and clients on kernel sockets; orders come through the servers' admin sockets. The servers
//! record the time of each step of a move on the machine's monotonic clock, which both read.
//!
//! Quiet connections have a number of bytes in the server's send queue that their clients do not read. Busy clients send the
//! next request as soon as they have the reply to the last one.

mod aead;
mod clients;
mod counts;
mod findings;
mod memory;
mod seal;
mod steps;

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use spillway_stack_server::MoveStepTimes;

use crate::error::Error;
use crate::experiments::common::rounds::{measurement_order, print_line};
use crate::experiments::{Options, selects};
use crate::machine::Machine;
use crate::results::Results;
use crate::scene::Setting;
use crate::stats::median;
use crate::steady::Steady;
use crate::stop;

use super::distribution::Distribution;
use super::site::{ServerTcp, Site, SiteOptions};
use super::thread_cpu;
use clients::{Busy, Span, Unread};
use counts::Counts;
use memory::Rack;
use steps::Joined;

/// The parts that `--only` selects.
pub const PARTS: [&str; 3] = ["memory", "quiet", "busy"];
/// Bytes that each connection has queued.
const STATES: [usize; 5] = [0, 1 << 10, 16 << 10, 64 << 10, 128 << 10];
/// Connections of the servers in memory, and how many of them move at a time: as many as a server moves at a time.
const MEMORY_CONNECTIONS: usize = 64;
const UNDER_WAY: usize = 32;
/// Quiet connections of each size.
const QUIET_CONNECTIONS: usize = 32;
/// Busy clients.
const BUSY_CLIENTS: usize = 2;
/// Moves between two requests for the steps of moves. The servers keep more.
const TRACED_TOGETHER: usize = 1_000;
/// How often an order is repeated that has not moved its connection: the switch or a server may be late on a busy machine.
const ATTEMPTS_MAX: usize = 20;
/// A request that takes this long has waited for a retransmission timeout, of which Linux has none below 200 ms.
const TIMEOUT_US: f64 = 190_000.0;
/// Time of servers without moves, whose use of the CPU is subtracted.
const IDLE_TIME: Duration = Duration::from_millis(500);

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Passes of all connections in memory in a round, for each size.
    pub passes: usize,
    /// Moves one after the other in a round, of quiet connections of each size.
    pub quiet_moves: usize,
    /// How often all quiet connections of a size move together in a round.
    pub quiet_passes: usize,
    /// Moves one after the other in a round, of connections of busy clients.
    pub busy_moves: usize,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published: more than 10,000 quiet and 100,000 busy moves.
    pub fn full() -> Effort {
        Effort { rounds: 7, passes: 200, quiet_moves: 1_500, quiet_passes: 40, busy_moves: 15_000 }
    }

    /// The effort of a quick run: about a minute.
    pub fn quick() -> Effort {
        Effort { rounds: 3, passes: 10, quiet_moves: 150, quiet_passes: 6, busy_moves: 1_000 }
    }
}

/// Figures of a round and a size in memory, in µs.
#[derive(Clone, Debug)]
struct Memory {
    /// One move at a time.
    host: f64,
    /// [`UNDER_WAY`] moves at a time.
    host_together: f64,
    switch: f64,
    seal: f64,
    /// By the libraries of [`aead::LIBRARIES`].
    aead: [f64; aead::LIBRARIES.len()],
    end_to_end: Distribution,
    /// Medians, by the phases of [`steps::PHASES`].
    phases: Vec<f64>,
}

/// Figures of a round on veth, in µs.
#[derive(Clone, Debug)]
struct Moves {
    end_to_end: Distribution,
    blackout: Distribution,
    /// Medians, by the phases of [`steps::PHASES`].
    phases: Vec<f64>,
}

/// CPU time of moves of many connections together.
#[derive(Clone, Copy, Debug)]
struct Together {
    /// Of the threads with the stacks, in µs a move.
    threads: f64,
    /// Of the servers' processes, in µs a move.
    processes: f64,
    moves_per_s: f64,
}

/// Requests of busy clients in a round, in µs.
#[derive(Clone, Copy, Debug)]
struct Requests {
    over_moves: Distribution,
    quiet: Distribution,
}

/// All rounds, by size in the order of [`STATES`].
#[derive(Debug, Default)]
struct Measured {
    memory: [Vec<Memory>; STATES.len()],
    quiet: [Vec<Moves>; STATES.len()],
    together: [Vec<Together>; STATES.len()],
    busy: Vec<Moves>,
    requests: Vec<Requests>,
    counts: Counts,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, &options.only, out)
}

/// Runs some parts of the experiment, or all of them if `only` is empty, with a given effort.
pub fn run_with(
    setting: &Setting,
    effort: &Effort,
    only: &[String],
    out: &mut dyn Write,
) -> Result<Results, Error> {
    let steady = Steady::start(setting.idle_cores_poll);
    let mut machine = Machine::held(&steady);
    let mut measured = Measured::default();
    let mut outcome = Ok(());
    if selects(only, "memory") {
        outcome = measure_memory(effort, &mut measured, out);
    }
    let (quiet, busy) = (selects(only, "quiet"), selects(only, "busy"));
    if outcome.is_ok() && (quiet || busy) {
        outcome = measure_veth(setting, effort, (quiet, busy), (&mut measured, &mut machine), out);
    }
    let mut results = Results::new("migration", machine);
    findings::add(&measured, &mut results);
    results.checks = measured.counts.checks();
    Ok(results.with_outcome(outcome))
}

fn measure_memory(effort: &Effort, measured: &mut Measured, out: &mut dyn Write) -> Result<(), Error> {
    measurement_order(effort.rounds, STATES.len()).try_for_each(|(round, index)| {
        stop::check()?;
        let memory = memory_round(STATES[index], effort.passes)
            .map_err(|why| Error::process("moves in memory failed", why))?;
        let Memory { host, switch, seal, end_to_end, .. } = &memory;
        print_line(
            out,
            format_args!(
                "round {}: memory, {} bytes: hosts {host:.2} µs (sealing {seal:.2}), switch {switch:.2}, end to end {:.2}",
                round + 1,
                STATES[index],
                end_to_end.p50
            ),
        );
        measured.memory[index].push(memory);
        Ok(())
    })
}

fn memory_round(queued: usize, passes: usize) -> Result<Memory, String> {
    let mut rack = Rack::new(MEMORY_CONNECTIONS, queued)?;
    for _ in 0..4 {
        rack.pass(UNDER_WAY)?; // allocates the memory of stacks and buffers
    }
    let mut times_of = |under_way: usize| -> Result<Vec<memory::Times>, String> {
        (0..passes).map(|_| rack.pass(under_way)).collect()
    };
    let (alone, together) = (times_of(1)?, times_of(UNDER_WAY)?);
    let mut joined = Vec::new();
    for _ in 0..passes.div_ceil(2) {
        let ends: Vec<_> = rack.traced_pass()?.iter().map(MoveStepTimes::of).collect();
        joined.extend(steps::join(&[ends]));
    }
    let median_of = |values: Vec<f64>| median(&values).unwrap_or(f64::NAN);
    let Moves { end_to_end, phases, .. } = Moves::of(&joined);
    Ok(Memory {
        host: median_of(alone.iter().map(|times| times.host).collect()),
        host_together: median_of(together.iter().map(|times| times.host).collect()),
        switch: median_of(alone.iter().map(|times| times.switch).collect()),
        seal: seal::measure(queued, MEMORY_CONNECTIONS * passes)?,
        aead: aead::measure(queued, MEMORY_CONNECTIONS * passes)?,
        end_to_end,
        phases,
    })
}

fn measure_veth(
    setting: &Setting,
    effort: &Effort,
    (quiet, busy): (bool, bool),
    (measured, machine): (&mut Measured, &mut Machine),
    out: &mut dyn Write,
) -> Result<(), Error> {
    let (first, second) = (setting.placement.server, setting.placement.clients);
    let options = SiteOptions {
        command: "echo",
        tcp: ServerTcp::Xdp,
        is_partitioned: false,
        servers: 2,
        server_cores: [first, second, second],
        clients: 1,
        client_core: second,
        receive_inline: true,
        policy: "none",
        arguments: vec!["--trace-moves".into(), (4 * TRACED_TOGETHER).to_string()],
    };
    let mut site = Site::create("migration", &setting.programs, &options)?;
    site.describe(machine, &options)?;
    let timeouts_before = site.client_timeouts()?;
    for round in 0..effort.rounds {
        for index in if quiet { 0..STATES.len() } else { 0..0 } {
            quiet_round(&mut site, effort, index, measured)?;
            let (moves, together) = (measured.quiet[index].last(), measured.together[index].last());
            if let (Some(moves), Some(together)) = (moves, together) {
                print_line(
                    out,
                    format_args!(
                        "round {}: veth, {} bytes: end to end {:.1} µs, p99 {:.1}; {:.1} µs of CPU in both threads",
                        round + 1,
                        STATES[index],
                        moves.end_to_end.p50,
                        moves.end_to_end.p99,
                        together.threads
                    ),
                );
            }
        }
        if busy {
            busy_round(&mut site, effort, measured)?;
            if let (Some(moves), Some(requests)) = (measured.busy.last(), measured.requests.last()) {
                print_line(
                    out,
                    format_args!(
                        "round {}: veth, busy: blackout {:.1} µs, p99 {:.1}; requests {:.1} µs, over a move {:.1}, p99 {:.1}",
                        round + 1,
                        moves.blackout.p50,
                        moves.blackout.p99,
                        requests.quiet.p50,
                        requests.over_moves.p50,
                        requests.over_moves.p99
                    ),
                );
            }
        }
    }
    measured.counts.timeouts += site.client_timeouts()? - timeouts_before;
    measured.counts.lost += site.sum(|status| status.moves.lost + status.moves.let_go)?;
    site.close()
}

/// Moves quiet connections one after the other, then all together.
fn quiet_round(site: &mut Site, effort: &Effort, index: usize, measured: &mut Measured) -> Result<(), Error> {
    let size = (QUIET_CONNECTIONS, STATES[index]);
    let connections = Unread::open_all(&site.clients[0], site.service(), size)?;
    let addresses: Vec<SocketAddr> = connections.iter().map(|unread| unread.address).collect();
    let mut joined = Vec::new();
    move_in_turn(site, &addresses, effort.quiet_moves, &mut measured.counts, |some| joined.extend(some))?;
    measured.quiet[index].push(Moves::of(&joined));
    let together = move_together(site, addresses.len(), effort.quiet_passes, &mut measured.counts)?;
    measured.together[index].push(together);
    for unread in connections {
        match unread.read_all() {
            Ok(wrong) => measured.counts.wrong += wrong,
            Err(_) => measured.counts.lost += 1,
        }
    }
    site.wait_until_empty()
}

/// Moves connections one after the other, from the first server to the second one and back. All of them are at the first one
/// afterwards.
fn move_in_turn(
    site: &mut Site,
    clients: &[SocketAddr],
    moves: usize,
    counts: &mut Counts,
    mut take: impl FnMut(Vec<Joined>),
) -> Result<(), Error> {
    // An even number for each connection.
    let moves = moves.next_multiple_of(2 * clients.len());
    for number in 0..moves {
        let client = clients[number % clients.len()];
        let from = (number / clients.len()) % 2;
        move_one(site, client, from, counts)?;
        if (number + 1) % TRACED_TOGETHER == 0 || number + 1 == moves {
            take(take_joined(site, counts)?);
        }
    }
    Ok(())
}

fn move_one(site: &mut Site, client: SocketAddr, from: usize, counts: &mut Counts) -> Result<(), Error> {
    let to = super::site::NAMES[1 - from];
    for _ in 0..ATTEMPTS_MAX {
        let outcome = site.servers()[from].migrate(Some(client), to)?;
        if outcome.moved == 1 {
            counts.moves += 1;
            counts.traced += 1;
            return Ok(());
        }
        counts.repeated += 1;
        site.check()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(Error::process(format!("the connection of {client} does not move to {to}"), ""))
}

/// Moves all connections of a server together, back and forth.
fn move_together(
    site: &mut Site,
    connections: usize,
    passes: usize,
    counts: &mut Counts,
) -> Result<Together, Error> {
    let cpu = |site: &Site| -> Result<(Duration, Duration), Error> {
        let mut sums = (Duration::ZERO, Duration::ZERO);
        for server in site.servers() {
            let times = thread_cpu::of(server.pid())?;
            sums = (sums.0 + times.stack, sums.1 + times.all);
        }
        Ok(sums)
    };
    let idle = cpu(site)?;
    std::thread::sleep(IDLE_TIME);
    let (before, start) = (cpu(site)?, Instant::now());
    let mut moves = 0;
    for pass in 0..passes.next_multiple_of(2) {
        moves += move_all(site, pass % 2, connections, counts)?;
    }
    let (after, passed) = (cpu(site)?, start.elapsed());
    take_joined(site, counts)?; // of moves that are not among those one after the other
    // `take_joined` has counted them, but `traced` has not.
    counts.traced += moves as u64;
    let each = |after: Duration, before: Duration, idle: Duration| {
        let idle_share = (before - idle).as_secs_f64() / IDLE_TIME.as_secs_f64();
        ((after - before).as_secs_f64() - idle_share * passed.as_secs_f64()) * 1e6 / moves as f64
    };
    Ok(Together {
        threads: each(after.0, before.0, idle.0),
        processes: each(after.1, before.1, idle.1),
        moves_per_s: moves as f64 / passed.as_secs_f64(),
    })
}

fn move_all(site: &mut Site, from: usize, connections: usize, counts: &mut Counts) -> Result<usize, Error> {
    let (to, mut moved) = (super::site::NAMES[1 - from], 0);
    for _ in 0..ATTEMPTS_MAX {
        site.check()?;
        let outcome = site.servers()[from].migrate(None, to)?;
        moved += outcome.moved;
        counts.moves += outcome.moved as u64;
        counts.repeated += outcome.failed.len() as u64;
        if moved == connections {
            return Ok(moved);
        }
    }
    Err(Error::process(format!("{moved} of {connections} connections have moved to {to}"), ""))
}

fn take_joined(site: &mut Site, counts: &mut Counts) -> Result<Vec<Joined>, Error> {
    site.check()?;
    let joined = steps::join(&site.take_steps()?);
    counts.joined += joined.len() as u64;
    Ok(joined)
}

/// Moves the connections of busy clients one after the other.
fn busy_round(site: &mut Site, effort: &Effort, measured: &mut Measured) -> Result<(), Error> {
    let start = |number| Busy::start(&site.clients[0], site.service(), number as u64);
    let busy = (0..BUSY_CLIENTS).map(start).collect::<Result<Vec<_>, _>>()?;
    let addresses: Vec<SocketAddr> = busy.iter().map(|client| client.address).collect();
    let (mut all, mut over_moves, mut quiet) = (Vec::new(), Vec::new(), Vec::new());
    let moves_before = measured.counts.moves;
    let moved = move_in_turn(site, &addresses, effort.busy_moves, &mut measured.counts, |joined| {
        for client in &busy {
            let spans = client.take_spans();
            let moves = joined.iter().filter(|joined| joined.client == client.address);
            let moves: Vec<Span> = moves.map(Joined::span_ns).collect();
            let (moving, others) = split(&spans, &moves);
            over_moves.extend(moving);
            quiet.extend(others);
        }
        all.extend(joined);
    });
    let counts = &mut measured.counts;
    counts.busy_moves += counts.moves - moves_before;
    for client in busy {
        match client.stop() {
            Ok(clients::Counts { replies, wrong }) => {
                counts.replies += replies;
                counts.wrong += wrong;
            }
            Err(_) => counts.lost += 1,
        }
    }
    moved?;
    let late = over_moves.iter().chain(&quiet).filter(|us| **us >= TIMEOUT_US).count();
    counts.late += late as u64;
    measured.busy.push(Moves::of(&all));
    measured
        .requests
        .push(Requests { over_moves: Distribution::of(over_moves), quiet: Distribution::of(quiet) });
    site.wait_until_empty()
}

/// The longest request during each move, and all requests that no move has touched; in µs. All spans are in order.
fn split(requests: &[Span], moves: &[Span]) -> (Vec<f64>, Vec<f64>) {
    let us = |(begin, end): &Span| end.saturating_sub(*begin) as f64 / 1000.0;
    let (mut during, mut quiet) = (vec![0.0_f64; moves.len()], Vec::new());
    let mut first = 0;
    for request in requests {
        while moves.get(first).is_some_and(|(_, end)| *end < request.0) {
            first += 1;
        }
        let touched = moves[first..].iter().take_while(|(begin, _)| *begin <= request.1).count();
        if touched == 0 {
            quiet.push(us(request));
        }
        for longest in &mut during[first..first + touched] {
            *longest = longest.max(us(request));
        }
    }
    during.retain(|longest| *longest > 0.0);
    (during, quiet)
}

impl Moves {
    fn of(joined: &[Joined]) -> Moves {
        let distribution = |value: fn(&Joined) -> f64| Distribution::of(joined.iter().map(value).collect());
        let phase =
            |phase| Distribution::of(joined.iter().map(|joined| joined.phase_us(phase)).collect()).p50;
        Moves {
            end_to_end: distribution(Joined::end_to_end_us),
            blackout: distribution(Joined::blackout_us),
            phases: (0..steps::PHASES.len() - 1).map(phase).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_move_has_its_longest_request_and_others_are_quiet() {
        let requests = [(0, 1_000), (1_000, 3_000), (3_000, 9_000), (9_000, 10_000), (20_000, 24_000)];
        let (during, quiet) = split(&requests, &[(2_000, 4_000), (15_000, 16_000), (21_000, 22_000)]);
        assert_eq!((during, quiet), (vec![6.0, 4.0], vec![1.0, 1.0]));
        assert_eq!(split(&requests, &[]).1.len(), 5);
        assert_eq!(split(&[(0, 100_000)], &[(1, 2), (3, 4)]).0, [100.0, 100.0]);
    }

    #[test]
    fn wrong_bytes_losses_and_timeouts_fail_their_checks() {
        let good = Counts { moves: 100, joined: 99, traced: 100, ..Counts::default() };
        assert!(good.checks().iter().all(|check| check.ok));
        let bad = Counts { joined: 98, wrong: 1, lost: 1, late: 1, ..good };
        assert!(bad.checks().iter().all(|check| !check.ok));
        assert_eq!(Counts::default().checks().len(), 0, "nothing was moved");
    }
}
