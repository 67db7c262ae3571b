//! Options of a run.

mod engine;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_client::{Encryption, Key, LinkTarget};

pub use self::engine::{EngineKind, XdpOptions};

use crate::arrivals::Spacing;
use crate::control::{Command, ScheduledCommand};
use crate::objects;
use crate::protocol::store::{Space, VERSIONED_VALUE_SIZE_MIN};
use crate::random::mix;

/// Limit of connections of one generator: about the number of local ports that a host has for one server address.
pub const CONNECTIONS_MAX: u32 = 60_000;
/// Maximum number of commands in a schedule.
pub const COMMANDS_MAX: usize = 200;
/// Limit of threads.
pub const THREADS_MAX: u32 = 64;
/// Limit of keys. In each process a key takes up to 24 bytes: 8 for its popularity and 16 for its versions.
pub const KEYS_MAX: u32 = 1 << 26;

/// The protocol of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolKind {
    /// memcached's text protocol, get and set.
    Memcached,
    /// redis's protocol, GET and SET.
    Redis,
    /// Payloads that the server sends back.
    Echo,
    /// HTTP/1.1, GET of targets that the server sends back as the body.
    Http,
}

impl ProtocolKind {
    /// Whether requests read and write keys.
    pub fn has_keys(self) -> bool {
        matches!(self, ProtocolKind::Memcached | ProtocolKind::Redis)
    }
}

impl fmt::Display for ProtocolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProtocolKind::Memcached => "memcached",
            ProtocolKind::Redis => "redis",
            ProtocolKind::Echo => "echo",
            ProtocolKind::Http => "http",
        })
    }
}

/// The trigger of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestLoop {
    /// Arrivals at a given rate trigger requests, independent of replies.
    Open {
        /// Arrivals per second over all connections, until the command `rate` changes this.
        rate_per_s: f64,
        /// Distribution of the gaps between arrivals.
        spacing: Spacing,
    },
    /// On each connection, the previous reply triggers the next request.
    Closed,
}

/// The way in which arrivals are assigned to connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Assignment {
    /// The connections in turn.
    RoundRobin,
    /// A random connection, drawn from the seed.
    Random,
    /// A random connection: connection *n* of a thread, from 1, with a probability proportional to 1 / *n*^`exponent`.
    Skewed {
        /// The exponent, 0 to 10.
        exponent: f64,
    },
}

/// Preparation of the key space before the run (memcached, redis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Set every key, then read all back and compare.
    Set,
    /// Read and compare every key, which another generator has set.
    Verify,
    /// Neither set nor read any key.
    Skip,
}

/// Helpers to which connections can move.
#[derive(Clone, Debug, Default)]
pub struct Helpers {
    /// The helpers' link ports, over which connections are spread in turn.
    pub addresses: Vec<SocketAddr>,
    /// The clients' key. Without a key, the helpers must be on loopback.
    pub key: Option<Key>,
    /// Encryption of links to the helpers.
    pub encryption: Encryption,
}

impl Helpers {
    pub(crate) fn targets(&self) -> Vec<LinkTarget> {
        self.addresses.iter().map(|&address| self.target(address)).collect()
    }

    pub(crate) fn target(&self, address: SocketAddr) -> LinkTarget {
        let key = self.key.clone().unwrap_or_else(Key::loopback_only);
        LinkTarget { address, key, server: None, encryption: self.encryption }
    }
}

/// Connections that are sessions of the client library, which outlive their carriers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    /// The server's link port: each session's last route, or its only one.
    pub server_link: Option<SocketAddr>,
    /// All sessions begin on the first helper; the others are standby. False: sessions are spread over all helpers.
    pub standby: bool,
    /// Sessions begin at the server, and the client library's policy moves them to helpers and back.
    pub relief: Option<PolicySettings>,
}

/// Settings of the client library's policy, which moves sessions to helpers when replies exceed the SLA, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// Number of connections of one simulated client process. Each process has a policy of its own.
    pub group: u32,
    /// Number of helpers that are asked for their load before one is chosen.
    pub helpers_asked: usize,
}

/// All options of a run except its inputs and outputs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server's ordinary port, or a helper's port for plain clients.
    pub server: SocketAddr,
    /// Helpers to which connections move; with sessions, helpers on their routes.
    pub helpers: Helpers,
    /// Connections are sessions. `None`: they are plain, or those of `spillway-moving-client` if there are helpers.
    pub sessions: Option<Sessions>,
    /// What carries the connections.
    pub engine: EngineKind,
    /// The protocol of requests.
    pub protocol: ProtocolKind,
    /// Number of connections, 1 to [`CONNECTIONS_MAX`].
    pub connections: u32,
    /// Number of threads, 1 to [`THREADS_MAX`], at most one for each connection.
    pub threads: u32,
    /// Open or closed loop.
    pub request_loop: RequestLoop,
    /// Assignment of arrivals to connections.
    pub assignment: Assignment,
    /// Time from time zero to the last arrival. `None` runs until the command `stop`.
    pub duration: Option<Duration>,
    /// Period from time zero on that the totals omit.
    pub warmup: Duration,
    /// Time after the end of the run until unanswered requests count as lost.
    pub drain: Duration,
    /// Number of keys, 1 to [`KEYS_MAX`].
    pub keys: u32,
    /// Length of a key, 8 to 250 bytes.
    pub key_size: usize,
    /// Length of a value or payload, 1 byte to 1 MiB.
    pub value_size: usize,
    /// Size of the objects that HTTP requests name; `None`: they name none, and the server returns their targets.
    pub object_size: Option<u32>,
    /// Exponent of the Zipf distribution, at most 10. `None` makes all keys equally likely.
    pub zipf: Option<f64>,
    /// Fraction of gets; the others are sets.
    pub get_ratio: f64,
    /// This is generator number `share.0` of the `share.1` generators that set keys of the same space at the same time.
    pub share: (u32, u32),
    /// Preparation of the key space before the run.
    pub fill: Fill,
    /// Seed of all random draws.
    pub seed: u64,
    /// Replies that take longer are late.
    pub sla: Duration,
    /// Width of the bins: 1 ms to 1 s, and a divisor of 1 s.
    pub bin: Duration,
    /// Limit of requests that wait in the client, over all connections.
    pub queue: u32,
    /// Default time between the moves of two connections.
    pub move_pace: Duration,
    /// Scheduled commands.
    pub schedule: Vec<ScheduledCommand>,
    /// Lost connections do not make the run a failure.
    pub allow_resets: bool,
    /// Waits for the command `start` when all connections are open.
    pub hold: bool,
}

impl Config {
    /// A run against `server` with defaults: memcached, 50 connections, an open loop of 1,000 requests a second, 10 s.
    pub fn new(server: SocketAddr) -> Config {
        Config {
            server,
            helpers: Helpers::default(),
            sessions: None,
            engine: EngineKind::Sockets,
            protocol: ProtocolKind::Memcached,
            connections: 50,
            threads: 1,
            request_loop: RequestLoop::Open { rate_per_s: 1000.0, spacing: Spacing::Poisson },
            assignment: Assignment::RoundRobin,
            duration: Some(Duration::from_secs(10)),
            warmup: Duration::ZERO,
            drain: Duration::from_secs(5),
            keys: 100_000,
            key_size: 32,
            value_size: 64,
            object_size: None,
            zipf: Some(0.99),
            get_ratio: 1.0,
            share: (0, 1),
            fill: Fill::Set,
            seed: 1,
            sla: Duration::from_millis(1),
            bin: Duration::from_millis(100),
            queue: 1 << 18,
            move_pace: Duration::from_micros(100),
            schedule: Vec::new(),
            allow_resets: false,
            hold: false,
        }
    }

    /// The routes of session `number` in the order of attempts; empty without sessions.
    pub(crate) fn routes(&self, number: usize) -> Vec<LinkTarget> {
        let Some(Sessions { server_link: link, standby, .. }) = self.sessions else { return Vec::new() };
        let mut routes = self.helpers.targets();
        let helpers = routes.len().max(1);
        routes.rotate_left(if standby { 0 } else { number % helpers });
        routes.extend(link.map(|link| self.helpers.target(link)));
        routes
    }

    /// The server's link port and the policy's options, for sessions that the client library's policy moves.
    pub(crate) fn self_relief(&self) -> Option<(SocketAddr, PolicySettings)> {
        let sessions = self.sessions?;
        sessions.server_link.zip(sessions.relief)
    }

    /// The key space that follows from the seed and the sizes.
    pub fn space(&self) -> Space {
        Space { seed: mix(self.seed), key_size: self.key_size, value_size: self.value_size }
    }

    /// Checks that the options fit together. The error names the option and a value to give instead.
    pub fn check(&self) -> Result<(), String> {
        let within = |what: &str, value: f64, low: f64, high: f64| match (low..=high).contains(&value) {
            true => Ok(()),
            false => Err(format!("{what} is {value}; give a value from {low} to {high}")),
        };
        within("--connections", self.connections.into(), 1.0, CONNECTIONS_MAX.into())?;
        within("--threads", self.threads.into(), 1.0, THREADS_MAX.min(self.connections).into())?;
        within("--keys", self.keys.into(), 1.0, KEYS_MAX.into())?;
        within("--key-size", self.key_size as f64, 8.0, 250.0)?;
        within("--value-size", self.value_size as f64, 1.0, 1_048_576.0)?;
        if let Some(bytes) = self.object_size {
            within("--object-size", bytes.into(), 0.0, objects::BYTES_MAX.into())?;
            if self.protocol != ProtocolKind::Http {
                return Err("--object-size is for HTTP: give --protocol http, or omit it".into());
            }
        }
        within("--get-ratio", self.get_ratio, 0.0, 1.0)?;
        within("--zipf", self.zipf.unwrap_or(0.99), 0.0, 10.0)?;
        if let Assignment::Skewed { exponent } = self.assignment {
            within("--skew", exponent, 0.0, 10.0)?;
        }
        // Each thread has an equal share of the queue, of at least one request.
        within("--queue", self.queue.into(), self.threads.into(), f64::from(1 << 26))?;
        if let RequestLoop::Open { rate_per_s, .. } = self.request_loop {
            within("--rate", rate_per_s, 0.0, 1e8)?;
        }
        within("the number of commands in --at", self.schedule.len() as f64, 0.0, COMMANDS_MAX as f64)?;
        let bin_ns = self.bin.as_nanos();
        if !(1_000_000..=1_000_000_000).contains(&bin_ns)
            || !bin_ns.is_multiple_of(1_000_000)
            || !1_000_000_000u128.is_multiple_of(bin_ns)
        {
            return Err(format!(
                "--bin is {:?}; give whole milliseconds that divide 1 s, like 100ms",
                self.bin
            ));
        }
        let (index, shares) = self.share;
        if index >= shares || u64::from(shares) * u64::from(self.threads) > u64::from(self.keys) {
            return Err(format!(
                "--share is {index}/{shares}; count from 0, and give --keys at least one key for each thread"
            ));
        }
        if self.protocol.has_keys() && self.get_ratio < 1.0 && self.value_size < VERSIONED_VALUE_SIZE_MIN {
            return Err(format!(
                "--value-size is {}, too short to check sets: give at least {VERSIONED_VALUE_SIZE_MIN}",
                self.value_size
            ));
        }
        let targets = std::iter::once(&self.server).chain(&self.helpers.addresses);
        self.engine.check(self.sessions.is_some(), targets)?;
        let moves_to_helper = self.schedule.iter().any(|scheduled| scheduled.command.needs_helper());
        if moves_to_helper && self.helpers.addresses.is_empty() {
            return Err(
                "the schedule moves connections to a helper: give the helper's link port with --helper"
                    .into(),
            );
        }
        let server_link = self.sessions.and_then(|sessions| sessions.server_link);
        if self.sessions.is_some() && server_link.is_none() {
            if self.helpers.addresses.is_empty() {
                return Err("--sessions need link ports: give --helper, or --link, or both".into());
            }
            if self.schedule.iter().any(|scheduled| scheduled.command.needs_server()) {
                return Err(
                    "the schedule moves sessions to the server: give the server's link port with --link"
                        .into(),
                );
            }
        }
        if let Some(relief) = self.sessions.and_then(|sessions| sessions.relief) {
            within("--group", relief.group.into(), 1.0, CONNECTIONS_MAX.into())?;
            if server_link.is_none() {
                return Err(
                    "--relief starts sessions at the server: give the server's link port with --link".into(),
                );
            }
            if self.schedule.iter().any(|scheduled| matches!(scheduled.command, Command::Move { .. })) {
                return Err("--relief moves the sessions: schedule `relief:on` instead of `move`".into());
            }
        } else if self.schedule.iter().any(|scheduled| matches!(scheduled.command, Command::Relief(_))) {
            return Err(
                "the schedule contains `relief`, which needs sessions with a policy: give --relief".into()
            );
        }
        let mut link_ports = self.helpers.addresses.iter().chain(&server_link);
        if self.helpers.key.is_none() && !link_ports.all(|address| address.ip().is_loopback()) {
            return Err(
                "a --helper or --link that is not on loopback needs the clients' key: --client-key FILE"
                    .into(),
            );
        }
        if self.request_loop == RequestLoop::Closed
            && self.schedule.iter().any(|scheduled| scheduled.command.needs_open_loop())
        {
            return Err("a closed loop has no rate: omit --closed, or `rate` in the schedule".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_errors_name_the_option() {
        let config = Config::new("127.0.0.1:11211".parse().unwrap());
        assert_eq!(config.check(), Ok(()));
        let error = |change: fn(&mut Config)| {
            let mut config = config.clone();
            change(&mut config);
            config.check().unwrap_err()
        };
        assert!(error(|config| config.connections = 0).contains("--connections"));
        assert!(error(|config| config.threads = 51).contains("--threads"));
        assert!(error(|config| (config.threads, config.queue) = (4, 3)).contains("--queue"));
        assert!(error(|config| config.bin = Duration::from_millis(300)).contains("--bin"));
        assert!(error(|config| config.share = (2, 2)).contains("--share"));
        assert!(error(|config| (config.get_ratio, config.value_size) = (0.9, 7)).contains("--value-size"));
        assert!(
            error(|config| config.schedule = ScheduledCommand::parse("1s=move:helper").unwrap())
                .contains("--helper")
        );
        let remote = |config: &mut Config| config.helpers.addresses.push("10.0.0.9:11411".parse().unwrap());
        assert!(error(remote).contains("--client-key"));
        assert!(error(|config| config.sessions = Some(Sessions::default())).contains("--helper, or --link"));
        let remote = |config: &mut Config| {
            config.sessions = Some(Sessions {
                server_link: Some("10.0.0.9:11411".parse().unwrap()),
                ..Sessions::default()
            });
        };
        assert!(error(remote).contains("--client-key"));
        let without_link = |config: &mut Config| {
            config.helpers.addresses.push("127.0.0.1:11411".parse().unwrap());
            config.sessions = Some(Sessions::default());
            config.schedule = ScheduledCommand::parse("1s=move:direct").unwrap();
        };
        assert!(error(without_link).contains("--link"));
    }

    #[test]
    fn routes_are_spread_over_helpers_and_end_with_the_servers_link_port() {
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let mut config = Config::new(address(1));
        assert!(config.routes(0).is_empty());
        config.helpers.addresses = vec![address(2), address(3)];
        config.sessions = Some(Sessions { server_link: Some(address(4)), ..Sessions::default() });
        let ports = |config: &Config, n| {
            config.routes(n).iter().map(|route| route.address.port()).collect::<Vec<_>>()
        };
        assert_eq!(
            [ports(&config, 0), ports(&config, 1), ports(&config, 2)],
            [[2, 3, 4], [3, 2, 4], [2, 3, 4]]
        );
        config.sessions = Some(Sessions { standby: true, ..Sessions::default() });
        assert_eq!([ports(&config, 0), ports(&config, 1)], [[2, 3], [2, 3]]);
        config.helpers.addresses.clear();
        config.sessions = Some(Sessions { server_link: Some(address(4)), ..Sessions::default() });
        assert_eq!(ports(&config, 7), [4]);
    }
}
