//! CPU time of both hosts for a hand-off.

use std::time::{Duration, Instant};

use super::client::Client;
use super::counts::Counts;
use super::stand::Stand;
use crate::error::Error;
use crate::experiments::moves::site::NAMES;

/// Time of servers without requests, whose use of the CPU is subtracted.
const IDLE_TIME: Duration = Duration::from_millis(500);

/// Figures of a round, in µs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpu {
    /// Of all servers' hosts for a hand-off, without the request.
    pub hand_off: f64,
    /// Of the server's host for a request without hand-off.
    pub request: f64,
    /// Hand-offs a second.
    pub hand_offs_per_s: f64,
}

/// Measures a round with new connections. `requests`: number of each connection, with hand-offs and without.
pub(super) fn round(
    stand: &mut Stand,
    (connections, requests): (usize, usize),
    counts: &mut Counts,
) -> Result<Cpu, Error> {
    let servers = NAMES.len();
    let clients = (0..connections).map(|_| stand.connect()).collect::<Result<Vec<Client>, Error>>()?;
    // Each connection to its first server, and once around.
    let around = move |number: usize, step: usize| (number + step) % servers;
    let (clients, _) = stand.walk_together(clients, servers + 1, around, counts)?;
    let before = spent(stand)?;
    std::thread::sleep(IDLE_TIME);
    let idle = spent(stand)?.as_secs_f64() - before.as_secs_f64();
    let idle_share = idle / IDLE_TIME.as_secs_f64();

    // As many requests at each server as with hand-offs.
    let third = requests.div_ceil(servers);
    let still = move |number: usize, step: usize| (number + step / third) % servers;
    let (clients, quiet) = measure(stand, clients, (requests, idle_share), still, counts)?;
    let (clients, moving) = measure(stand, clients, (requests, idle_share), around, counts)?;
    drop(clients);
    stand.site.wait_until_empty()?;
    let hand_offs = moving.hand_offs.saturating_sub(quiet.hand_offs) as f64;
    Ok(Cpu {
        hand_off: (moving.cpu_us - quiet.cpu_us) / hand_offs,
        request: quiet.cpu_us / (connections * requests) as f64,
        hand_offs_per_s: moving.hand_offs as f64 / moving.passed.as_secs_f64(),
    })
}

/// A run of requests.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// CPU time of all servers' hosts, without that of hosts without requests.
    cpu_us: f64,
    hand_offs: u64,
    passed: Duration,
}

fn measure(
    stand: &mut Stand,
    clients: Vec<Client>,
    (requests, idle_share): (usize, f64),
    server_of: impl Fn(usize, usize) -> usize + Send + 'static,
    counts: &mut Counts,
) -> Result<(Vec<Client>, Run), Error> {
    let (before, start) = (spent(stand)?, Instant::now());
    let (clients, hand_offs) = stand.walk_together(clients, requests, server_of, counts)?;
    let (passed, after) = (start.elapsed(), spent(stand)?);
    let used = after.saturating_sub(before).as_secs_f64() - idle_share * passed.as_secs_f64();
    Ok((clients, Run { cpu_us: used * 1e6, hand_offs, passed }))
}

/// CPU time of the servers' hosts so far: processes and receive threads.
fn spent(stand: &Stand) -> Result<Duration, Error> {
    let of = |host: &spillway_lab::Host| -> Result<Duration, Error> { Ok(host.cpu()?.total()) };
    stand.site.servers().iter().map(|server| of(&server.host)).sum()
}
