//! Moves at a fixed rate, each of which stops its source for a time.

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use spillway_lab::Host;
use spillway_load::config::ProtocolKind;

use super::generators::{Figures, Load, Rates, command};
use super::{Bench, CAPACITY_PER_S, WORK};
use crate::error::Error;
use crate::experiments::moves::site::{NAMES, ServerTcp, Site, SiteOptions};
use crate::machine::Machine;

/// Loads of both servers, in parts of their capacity: the paper's 150,000 and 170,000 requests a second, the larger of which
/// is taken for 85 % of the capacity.
const LOADS: [f64; 2] = [0.75, 0.85];
/// Time between two moves of one server. The other one moves a connection back at the same time.
const INTERVAL: Duration = Duration::from_millis(2);
/// Protocol of clients and servers: the paper's.
const PROTOCOL: ProtocolKind = ProtocolKind::Http;
/// State of an open connection in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Forced {
    /// Requests a second to both servers.
    pub rate_per_s: f64,
    pub delay: Duration,
}

impl fmt::Display for Forced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} requests/s, moves that take {:?} longer", self.rate_per_s, self.delay)
    }
}

impl Forced {
    pub(super) fn all(delays: &[Duration]) -> impl Iterator<Item = Forced> {
        LOADS.into_iter().flat_map(move |load| {
            delays.iter().map(move |delay| Forced { rate_per_s: 2.0 * CAPACITY_PER_S * load, delay: *delay })
        })
    }
}

/// Measures with servers of their own. Returns the reason if the figures are spoilt.
pub(super) fn measure(
    bench: &Bench<'_>,
    forced: Forced,
    seed: u64,
    machine: &mut Machine,
) -> Result<(Figures, Option<String>), Error> {
    let placement = bench.setting.placement;
    let us = |time: Duration| format!("{}us", time.as_micros());
    let options = SiteOptions {
        servers: 2,
        server_cores: [placement.server; 3],
        clients: 2,
        client_core: placement.clients,
        tcp: ServerTcp::Xdp,
        is_partitioned: false,
        receive_inline: true,
        command: command(PROTOCOL),
        policy: "none",
        arguments: ["--work", &us(WORK), "--export-pause", &us(forced.delay)].map(str::to_owned).into(),
    };
    let mut site = Site::create("migration-load", &bench.setting.programs, &options)?;
    site.describe(machine, &options)?;
    let each = Rates { first: forced.rate_per_s / 2.0, later: Vec::new() };
    let length = bench.effort.forced;
    let load = Load::start(bench, &mut site, PROTOCOL, &[each.clone(), each], (None, seed))?;
    let measured = load.run(bench, &mut site, false, length, |site| force(site, length))?;
    site.close()?;
    Ok(measured)
}

/// Moves connections to and fro for this time. Each server keeps half of them: one leaves whenever one comes.
fn force(site: &mut Site, length: Duration) -> Result<(), Error> {
    let mut waiting = Vec::new();
    for client in &site.clients {
        waiting.push(Mutex::new(connections_to(client, site.service())?));
    }
    let exchange = Exchange { site, waiting, barrier: Barrier::new(2), is_over: AtomicBool::new(false) };
    let exchange = &exchange;
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|from| scope.spawn(move || exchange.run(from, length)));
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<(), Error>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.map(join).into_iter().collect()
    })
}

/// Two threads, each of which moves the connections of one server.
struct Exchange<'a> {
    site: &'a Site,
    /// The connections of each server, in the order in which they leave.
    waiting: Vec<Mutex<VecDeque<SocketAddr>>>,
    barrier: Barrier,
    is_over: AtomicBool,
}

impl Exchange<'_> {
    fn run(&self, from: usize, length: Duration) -> Result<(), Error> {
        let (start, mut due, mut result) = (Instant::now(), Duration::ZERO, Ok(()));
        loop {
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            // Moves that were late are not made up for.
            due = due.max(start.elapsed()) + INTERVAL;
            if result.is_err() || start.elapsed() >= length {
                self.is_over.store(true, Ordering::Relaxed);
            }
            // Both threads see the same value between the two barriers, and end in the same turn.
            self.barrier.wait();
            let is_over = self.is_over.load(Ordering::Relaxed);
            self.barrier.wait();
            if is_over {
                return result;
            }
            result = self.move_first(from);
        }
    }

    /// Moves the connection that has been at a server for the longest time.
    fn move_first(&self, from: usize) -> Result<(), Error> {
        let queue = |server: usize| self.waiting[server].lock().unwrap_or_else(PoisonError::into_inner);
        let first = queue(from).pop_front();
        let Some(client) = first else { return Ok(()) };
        let outcome = self.site.servers()[from].migrate(Some(client), NAMES[1 - from])?;
        queue(if outcome.moved == 1 { 1 - from } else { from }).push_back(client);
        Ok(())
    }
}

/// The local ends of a host's open connections to the service, from its kernel's table.
fn connections_to(client: &Host, service: SocketAddr) -> Result<VecDeque<SocketAddr>, Error> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/tcp");
    let table = client
        .run_inside(read)?
        .map_err(|cause| Error::System { what: "cannot read /proc/net/tcp".into(), cause })?;
    Ok(table.lines().filter_map(|line| local_end(line, service)).collect())
}

/// The local end in a line of `/proc/net/tcp`, if it is that of an open connection to this address.
fn local_end(line: &str, remote: SocketAddr) -> Option<SocketAddr> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, to, state) = (end(fields.next()?)?, end(fields.next()?)?, fields.next()?);
    (to == remote && state == ESTABLISHED).then_some(local)
}

/// An address as `0100007F:1F90`: the words of the address are in the machine's byte order.
fn end(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    Some(SocketAddr::new(ip.into(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_found_in_the_kernels_table() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let service = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(service).unwrap();
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let found: Vec<_> = table.lines().filter_map(|line| local_end(line, service)).collect();
        assert_eq!(found, [client.local_addr().unwrap()]);
    }
}
