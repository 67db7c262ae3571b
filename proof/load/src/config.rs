//! What a run is to do.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_client::{Encryption, Key, LinkTarget};

use crate::arrivals::Spacing;
use crate::control::{Command, Order};
use crate::protocol::store::{Space, VERSIONED_VALUE_SIZE_MIN};
use crate::random::mix;

/// The most connections of one generator: a client host has no more ports for one server.
pub const CONNECTIONS_MAX: u32 = 60_000;
/// The most threads.
pub const THREADS_MAX: u32 = 64;
/// The most keys: their table takes 8 bytes each.
pub const KEYS_MAX: u32 = 1 << 26;

/// What requests look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// memcached's text protocol, get and set.
    Memcached,
    /// redis's protocol, GET and SET.
    Redis,
    /// Payloads that come back.
    Echo,
}

impl Speech {
    /// Whether it is about keys and their values.
    pub fn has_keys(self) -> bool {
        self != Speech::Echo
    }
}

impl fmt::Display for Speech {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Speech::Memcached => "memcached",
            Speech::Redis => "redis",
            Speech::Echo => "echo",
        })
    }
}

/// What makes a request be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loop {
    /// Time: arrivals at `rate_per_s`, whatever the replies do.
    Open {
        /// Arrivals a second over all connections, until a command changes it.
        rate_per_s: f64,
        /// Their spacing.
        spacing: Spacing,
    },
    /// The reply to the request before, on each connection.
    Closed,
}

/// Which connection an arrival goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// Each in turn.
    RoundRobin,
    /// Any, by the seed.
    Random,
}

/// What is done about the key space before the run (memcached, redis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Every key is set, then read back and compared.
    Set,
    /// Every key is read and compared; another generator set them.
    Verify,
    /// Nothing.
    Skip,
}

/// Helpers that connections can be moved to between two requests.
#[derive(Clone, Debug, Default)]
pub struct Helpers {
    /// Their link ports; connections are spread over them in turn.
    pub addresses: Vec<SocketAddr>,
    /// The key that they accept of clients. Without one, they must be on loopback.
    pub key: Option<Key>,
    /// Whether links to them are encrypted.
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

/// Connections that are sessions of the client library: they outlive the link ports that carry them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    /// The server's own link port: each session's last way, or its only one.
    pub link: Option<SocketAddr>,
    /// All begin on the first helper, and the others stand by; otherwise they are spread over all helpers.
    pub standby: bool,
    /// They begin at the server, and go to helpers and back by themselves.
    pub relief: Option<SelfRelief>,
}

/// Sessions that go to helpers when replies are later than the SLA, and come back, as the client library decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfRelief {
    /// So many connections are those of one process, which decides for itself.
    pub group: u32,
    /// So many helpers are asked for their load before one is chosen.
    pub asked: usize,
}

/// Everything about a run but where its output goes.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server's ordinary port, or a helper's raw port.
    pub server: SocketAddr,
    /// For moves; for sessions, their ways.
    pub helpers: Helpers,
    /// Connections are sessions; plain, or moved as a whole, without it.
    pub sessions: Option<Sessions>,
    /// The protocol.
    pub speech: Speech,
    /// 1 to [`CONNECTIONS_MAX`].
    pub connections: u32,
    /// 1 to [`THREADS_MAX`], and no more than connections.
    pub threads: u32,
    /// Open or closed loop.
    pub pacing: Loop,
    /// Of arrivals to connections.
    pub assignment: Assignment,
    /// From time zero to the last arrival; without it, until a `stop`.
    pub duration: Option<Duration>,
    /// Left out of the totals.
    pub warmup: Duration,
    /// How long sent requests may remain unanswered after the end before they count as lost.
    pub drain: Duration,
    /// Number of keys, 1 to [`KEYS_MAX`].
    pub keys: u32,
    /// Length of a key, 8 to 250 bytes.
    pub key_size: usize,
    /// Length of a value or payload, 1 byte to 1 MiB.
    pub value_size: usize,
    /// Exponent of the Zipf law, below 10; without it all keys are equally likely.
    pub zipf: Option<f64>,
    /// Fraction of gets; the others are sets.
    pub get_ratio: f64,
    /// This generator is number `share.0` of `share.1` that set keys of the same space at the same time.
    pub share: (u32, u32),
    /// Before the run.
    pub fill: Fill,
    /// Of everything random.
    pub seed: u64,
    /// Later replies are late.
    pub sla: Duration,
    /// Width of the bins: 1 ms to 1 s, and a divisor of 1 s.
    pub bin: Duration,
    /// Requests that may wait in the client, over all connections.
    pub queue: u32,
    /// Time between two connections' moves, where a command does not say.
    pub pace: Duration,
    /// Commands by time.
    pub schedule: Vec<Order>,
    /// Connections that go away are no failure of the run.
    pub allow_resets: bool,
    /// Wait for the command `start` once everything is connected.
    pub hold: bool,
}

impl Config {
    /// A run against `server` with everything else at its default: memcached, 50 connections, open loop, 1000
    /// requests a second for 10 seconds.
    pub fn new(server: SocketAddr) -> Config {
        Config {
            server,
            helpers: Helpers::default(),
            sessions: None,
            speech: Speech::Memcached,
            connections: 50,
            threads: 1,
            pacing: Loop::Open { rate_per_s: 1000.0, spacing: Spacing::Poisson },
            assignment: Assignment::RoundRobin,
            duration: Some(Duration::from_secs(10)),
            warmup: Duration::ZERO,
            drain: Duration::from_secs(5),
            keys: 100_000,
            key_size: 32,
            value_size: 64,
            zipf: Some(0.99),
            get_ratio: 1.0,
            share: (0, 1),
            fill: Fill::Set,
            seed: 1,
            sla: Duration::from_millis(1),
            bin: Duration::from_millis(100),
            queue: 1 << 18,
            pace: Duration::from_micros(100),
            schedule: Vec::new(),
            allow_resets: false,
            hold: false,
        }
    }

    /// The link ports of session `number`, in the order in which it tries them. None where there are no sessions.
    pub(crate) fn routes(&self, number: usize) -> Vec<LinkTarget> {
        let Some(Sessions { link, standby, .. }) = self.sessions else { return Vec::new() };
        let mut routes = self.helpers.targets();
        let helpers = routes.len().max(1);
        routes.rotate_left(if standby { 0 } else { number % helpers });
        routes.extend(link.map(|link| self.helpers.target(link)));
        routes
    }

    /// Where sessions are direct that go to helpers by themselves, and how they do; none where they do not.
    pub(crate) fn self_relief(&self) -> Option<(SocketAddr, SelfRelief)> {
        let sessions = self.sessions?;
        sessions.link.zip(sessions.relief)
    }

    /// Its keys and values.
    pub fn space(&self) -> Space {
        Space { seed: mix(self.seed), key_size: self.key_size, value_size: self.value_size }
    }

    /// Says what cannot be, and what to do about it.
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
        within("--get-ratio", self.get_ratio, 0.0, 1.0)?;
        within("--zipf", self.zipf.unwrap_or(0.99), 0.0, 10.0)?;
        within("--queue", self.queue.into(), 1.0, f64::from(1 << 26))?;
        if let Loop::Open { rate_per_s, .. } = self.pacing {
            within("--rate", rate_per_s, 0.0, 1e8)?;
        }
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
        let (index, of) = self.share;
        if index >= of || u64::from(of) * u64::from(self.threads) > u64::from(self.keys) {
            return Err(format!(
                "--share is {index}/{of}; count from 0, and give at least a key to each thread"
            ));
        }
        if self.speech.has_keys() && self.get_ratio < 1.0 && self.value_size < VERSIONED_VALUE_SIZE_MIN {
            return Err(format!(
                "--value-size is {}, too short to check sets: give at least {VERSIONED_VALUE_SIZE_MIN}",
                self.value_size
            ));
        }
        let moves_to_helper = self.schedule.iter().any(|order| order.command.needs_helper());
        if moves_to_helper && self.helpers.addresses.is_empty() {
            return Err("the schedule moves connections to a helper: give its link port with --helper".into());
        }
        let own_link = self.sessions.and_then(|sessions| sessions.link);
        if self.sessions.is_some() && own_link.is_none() {
            if self.helpers.addresses.is_empty() {
                return Err("--sessions need link ports: give --helper, or --link, or both".into());
            }
            if self.schedule.iter().any(|order| order.command.needs_server()) {
                return Err(
                    "the schedule moves sessions to the server: give its link port with --link".into()
                );
            }
        }
        if let Some(relief) = self.sessions.and_then(|sessions| sessions.relief) {
            within("--group", relief.group.into(), 1.0, CONNECTIONS_MAX.into())?;
            if own_link.is_none() {
                return Err(
                    "sessions that decide for themselves begin at the server: give its link port with --link"
                        .into(),
                );
            }
            if self.schedule.iter().any(|order| matches!(order.command, Command::Move { .. })) {
                return Err("the schedule moves sessions that decide for themselves: use `relief on` and `relief off`".into());
            }
        } else if self.schedule.iter().any(|order| matches!(order.command, Command::Relief(_))) {
            return Err("`relief` is for sessions that decide for themselves: give --relief".into());
        }
        let mut link_ports = self.helpers.addresses.iter().chain(&own_link);
        if self.helpers.key.is_none() && !link_ports.all(|address| address.ip().is_loopback()) {
            return Err(
                "a --helper or --link that is not on loopback needs the clients' key: --client-key FILE"
                    .into(),
            );
        }
        if self.pacing == Loop::Closed && self.schedule.iter().any(|o| o.command.needs_open_loop()) {
            return Err("a closed loop has no rate: leave --closed out, or `rate` out of the schedule".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_allowed_and_errors_name_the_option() {
        let config = Config::new("127.0.0.1:11211".parse().unwrap());
        assert_eq!(config.check(), Ok(()));
        let complaint = |change: fn(&mut Config)| {
            let mut config = config.clone();
            change(&mut config);
            config.check().unwrap_err()
        };
        assert!(complaint(|c| c.connections = 0).contains("--connections"));
        assert!(complaint(|c| c.threads = 51).contains("--threads"));
        assert!(complaint(|c| c.bin = Duration::from_millis(300)).contains("--bin"));
        assert!(complaint(|c| c.share = (2, 2)).contains("--share"));
        assert!(complaint(|c| (c.get_ratio, c.value_size) = (0.9, 7)).contains("--value-size"));
        assert!(complaint(|c| c.schedule = Order::parse("1s=move:helper").unwrap()).contains("--helper"));
        let remote = |c: &mut Config| c.helpers.addresses.push("10.0.0.9:11411".parse().unwrap());
        assert!(complaint(remote).contains("--client-key"));
        assert!(complaint(|c| c.sessions = Some(Sessions::default())).contains("--helper, or --link"));
        let remote = |c: &mut Config| {
            c.sessions =
                Some(Sessions { link: Some("10.0.0.9:11411".parse().unwrap()), ..Sessions::default() });
        };
        assert!(complaint(remote).contains("--client-key"));
        let nowhere = |c: &mut Config| {
            c.helpers.addresses.push("127.0.0.1:11411".parse().unwrap());
            c.sessions = Some(Sessions::default());
            c.schedule = Order::parse("1s=move:direct").unwrap();
        };
        assert!(complaint(nowhere).contains("--link"));
    }

    #[test]
    fn sessions_are_spread_over_helpers_and_have_the_server_last() {
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let mut config = Config::new(address(1));
        assert!(config.routes(0).is_empty());
        config.helpers.addresses = vec![address(2), address(3)];
        config.sessions = Some(Sessions { link: Some(address(4)), ..Sessions::default() });
        let ports =
            |config: &Config, n| config.routes(n).iter().map(|way| way.address.port()).collect::<Vec<_>>();
        assert_eq!(
            [ports(&config, 0), ports(&config, 1), ports(&config, 2)],
            [[2, 3, 4], [3, 2, 4], [2, 3, 4]]
        );
        config.sessions = Some(Sessions { standby: true, ..Sessions::default() });
        assert_eq!([ports(&config, 0), ports(&config, 1)], [[2, 3], [2, 3]]);
        config.helpers.addresses.clear();
        config.sessions = Some(Sessions { link: Some(address(4)), ..Sessions::default() });
        assert_eq!(ports(&config, 7), [4]);
    }
}
