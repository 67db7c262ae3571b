//! `spillway sidecar`: a local proxy that gives an unmodified client relief and failover.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use spillway_auth::Key;
use spillway_batch::{AddressRange, Encryption};
use spillway_discovery::{EtcdAccess, EtcdFiles, Source};
use spillway_helper::config::{
    AddressError, listen_address, listen_addresses, parse_duration, parse_size, server_address,
};
use spillway_policy::{ASKED_DEFAULT, Word};
use spillway_sidecar::{Listen, Settings, loopback};

/// Stand beside an unmodified client of a memcached, a redis or any other TCP server: take its connections here, and
/// carry each as a session straight to the server, or through helpers while replies are late.
///
/// When a helper dies, sessions go on through another one, or to the server itself, with their requests in flight: the
/// client notices nothing. The server runs under `spillway run --link ADDR --client-key FILE`; helpers have
/// `--link-listen`, and the same client key.
///
/// SIGTERM: takes no more connections, ends those that are idle, waits for the others; a second one ends at once.
/// SIGUSR1: a status line on stderr.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  spillway sidecar --server 10.0.0.5:11411 --helpers 10.0.0.9:11412,10.0.0.10:11412 \\
      --client-key /etc/spillway/client.key --listen 11211 --protocol memcached
  spillway sidecar --server 10.0.0.5:6411 --helpers dns:helpers.cache.svc:6412 \\
      --client-key /etc/spillway/client.key --listen unix:/run/redis.sock --protocol redis

ADDR is HOST:PORT, :PORT for every address of this host, or PORT for loopback only.")]
pub(crate) struct Args {
    /// The server's own link port (`spillway run --link`): carries sessions while no helper does.
    #[arg(long, value_name = "ADDR", env = "SPILLWAY_SIDECAR_SERVER")]
    server: String,

    /// Link ports of helpers: ADDRESS:PORT,… or dns:NAME:PORT or etcd:…, which are followed as they change [default:
    /// none, so that all goes directly].
    #[arg(long, value_name = "LIST", env = "SPILLWAY_SIDECAR_HELPERS")]
    helpers: Option<Source>,

    /// Certificates (PEM) of the authorities that etcd's certificate may come from. Required for --helpers etcd:https://….
    #[arg(long, value_name = "FILE", env = "SPILLWAY_SIDECAR_ETCD_CA_FILE")]
    etcd_ca_file: Option<PathBuf>,

    /// The client certificate (PEM, with its chain) for an etcd that asks for one.
    #[arg(long, value_name = "FILE", env = "SPILLWAY_SIDECAR_ETCD_CERT_FILE")]
    etcd_cert_file: Option<PathBuf>,

    /// The client certificate's private key (PEM, mode 0600).
    #[arg(long, value_name = "FILE", env = "SPILLWAY_SIDECAR_ETCD_KEY_FILE")]
    etcd_key_file: Option<PathBuf>,

    /// The user, for an etcd with authentication.
    #[arg(long, value_name = "NAME", env = "SPILLWAY_SIDECAR_ETCD_USER")]
    etcd_user: Option<String>,

    /// The user's password, on one line (mode 0600).
    #[arg(long, value_name = "FILE", env = "SPILLWAY_SIDECAR_ETCD_PASSWORD_FILE")]
    etcd_password_file: Option<PathBuf>,

    /// The key that the server and its helpers accept of clients (see `spillway key new`). Not needed where all of them
    /// are on loopback.
    #[arg(long, value_name = "FILE", env = "SPILLWAY_SIDECAR_CLIENT_KEY")]
    client_key: Option<PathBuf>,

    /// Refuse links that would not be encrypted: of a server or helper that is too old for it. Needs --client-key.
    #[arg(long, env = "SPILLWAY_SIDECAR_REQUIRE_ENCRYPTION")]
    require_encryption: bool,

    /// Take clients here: ADDR, or unix:PATH; give it again for more.
    #[arg(
        long,
        value_name = "ADDR|unix:PATH",
        required = true,
        value_delimiter = ',',
        env = "SPILLWAY_SIDECAR_LISTEN"
    )]
    listen: Vec<String>,

    /// Permissions of UNIX sockets, octal.
    #[arg(long, value_name = "MODE", default_value = "660", value_parser = octal, env = "SPILLWAY_SIDECAR_SOCKET_MODE")]
    socket_mode: u32,

    /// What clients speak, so that latency can be measured; bytes are never changed.
    #[arg(long, value_enum, default_value_t = Protocol::Tcp, env = "SPILLWAY_SIDECAR_PROTOCOL")]
    protocol: Protocol,

    /// The p99 of replies that is wanted, such as 1ms: later ones call for relief.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_duration, env = "SPILLWAY_SIDECAR_SLA")]
    sla: Duration,

    /// Whether helpers are used: `auto` when replies are later than --sla and helpers are of use; `on` always; `off` only
    /// while the server is not to be had otherwise. `spillway relief NAME …` says otherwise while it runs.
    #[arg(long, value_name = "auto|on|off", default_value_t = Word::Auto, env = "SPILLWAY_SIDECAR_RELIEF")]
    relief: Word,

    /// What `spillway relief` calls the service here.
    #[arg(long, value_name = "NAME", default_value = "service", env = "SPILLWAY_SIDECAR_NAME")]
    name: String,

    /// So many helpers, at random, are asked for their load before one is chosen.
    #[arg(long, value_name = "N", default_value_t = ASKED_DEFAULT, env = "SPILLWAY_SIDECAR_ASK")]
    ask: usize,

    /// Who may connect by TCP, as CIDR; give it again for more [default: this host].
    #[arg(long, value_name = "CIDR", value_delimiter = ',', env = "SPILLWAY_SIDECAR_ALLOW_CLIENTS")]
    allow_clients: Vec<AddressRange>,

    /// Load balancers, as CIDR, that must say who their clients are by the PROXY protocol, version 1 or 2; give it again
    /// for more. Whom they announce is subject to --allow-clients, and appears in the log; the server sees this host.
    #[arg(long, value_name = "CIDR", value_delimiter = ',', env = "SPILLWAY_SIDECAR_PROXY_PROTOCOL_FROM")]
    proxy_protocol_from: Vec<AddressRange>,

    /// Network threads. Connections are spread over them; each decides on relief for its own.
    #[arg(long, value_name = "N", default_value_t = 1, env = "SPILLWAY_SIDECAR_THREADS")]
    threads: usize,

    /// How long a client waits until a helper or the server has answered; then it is reset.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration, env = "SPILLWAY_SIDECAR_CONNECT_TIMEOUT")]
    connect_timeout: Duration,

    /// Connections at one time; more are refused.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), env = "SPILLWAY_SIDECAR_MAX_CONNECTIONS")]
    max_connections: u32,

    /// Memory for bytes that wait, of all connections. Above three quarters of it clients that do not read their replies
    /// are paused; at the limit those that hold most are reset.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size, env = "SPILLWAY_SIDECAR_MAX_MEMORY")]
    max_memory: u64,

    /// How long connections may take to become idle after SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration, env = "SPILLWAY_SIDECAR_DRAIN_DEADLINE")]
    drain_deadline: Duration,

    /// Answer `spillway status` on this UNIX socket, for owner and group.
    #[arg(long, value_name = "PATH", visible_alias = "socket", env = "SPILLWAY_SIDECAR_STATUS_SOCKET")]
    status_socket: Option<PathBuf>,

    /// Answer Prometheus (/metrics), programs (/status) and health checks (/health) on this address. It asks for no
    /// password.
    #[arg(long, value_name = "ADDR", env = "SPILLWAY_SIDECAR_METRICS")]
    metrics: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Protocol {
    /// Text, meta and binary.
    Memcached,
    /// RESP2 and RESP3.
    Redis,
    /// Anything in which a client asks and awaits the answer.
    Tcp,
}

fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "permissions as three octal digits, such as 660".to_owned())
}

impl Args {
    fn settings(self) -> Result<Settings, Box<dyn std::error::Error>> {
        let key = match &self.client_key {
            Some(path) => spillway_keys::read_key_file(Path::new(path))?,
            None => Key::loopback_only(),
        };
        let server = server_address(&self.server)?;
        if self.client_key.is_none() && !server.ip().is_loopback() {
            return Err(format!("--server {server} is on another host: give --client-key FILE").into());
        }
        if self.require_encryption && self.client_key.is_none() {
            return Err(
                "--require-encryption needs --client-key: links without a key are not encrypted".into()
            );
        }
        let encryption = if self.require_encryption { Encryption::Required } else { Encryption::Preferred };
        let mut listen = Vec::new();
        for text in &self.listen {
            listen.extend(listen_on(text, self.socket_mode)?);
        }
        let etcd = match &self.helpers {
            Some(Source::Etcd(place)) => {
                let files = EtcdFiles {
                    ca_file: self.etcd_ca_file,
                    cert_file: self.etcd_cert_file,
                    key_file: self.etcd_key_file,
                    user: self.etcd_user,
                    password_file: self.etcd_password_file,
                };
                EtcdAccess::read(&files, place)?
            }
            _ => EtcdAccess::default(),
        };
        let allow_clients = if self.allow_clients.is_empty() { loopback() } else { self.allow_clients };
        Ok(Settings {
            helpers: self.helpers,
            etcd,
            listen,
            allow_clients,
            proxy_protocol_from: self.proxy_protocol_from,
            protocol: match self.protocol {
                Protocol::Memcached => spillway_requests::Protocol::Memcached,
                Protocol::Redis => spillway_requests::Protocol::Redis,
                Protocol::Tcp => spillway_requests::Protocol::Tcp,
            },
            name: self.name,
            word: self.relief,
            asked: self.ask,
            sla: self.sla,
            threads: self.threads,
            connect_timeout: self.connect_timeout,
            max_connections: self.max_connections,
            max_memory: self.max_memory,
            drain_deadline: self.drain_deadline,
            socket: self.status_socket,
            metrics: self.metrics.as_deref().map(listen_address).transpose()?,
            encryption,
            ..Settings::new(server, key)
        })
    }
}

fn listen_on(text: &str, mode: u32) -> Result<Vec<Listen>, AddressError> {
    match text.strip_prefix("unix:") {
        Some(path) => Ok(vec![Listen::Unix { path: path.into(), mode }]),
        None => Ok(listen_addresses(text)?.into_iter().map(Listen::Tcp).collect()),
    }
}

pub(crate) fn run(args: Args) -> ExitCode {
    let ended = args
        .settings()
        .and_then(|settings| spillway_sidecar::run(settings).map_err(Box::<dyn std::error::Error>::from));
    ended.unwrap_or_else(|error| {
        spillway_daemon::say(&format!("spillway: {error}"));
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_addresses_or_files() {
        let unix = Listen::Unix { path: "/run/a.sock".into(), mode: 0o600 };
        assert_eq!(listen_on("unix:/run/a.sock", 0o600).unwrap(), [unix]);
        assert_eq!(listen_on("11211", 0o600).unwrap(), [Listen::Tcp(([127, 0, 0, 1], 11211).into())]);
        assert!(listen_on("nonsense", 0o600).is_err());
        assert_eq!((octal("660"), octal("777").is_ok(), octal("8").is_err()), (Ok(0o660), true, true));
        assert!(octal("1777").is_err());
    }
}
