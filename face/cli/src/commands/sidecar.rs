//! `spillway sidecar`: runs a local proxy that gives an unmodified client relief and failover.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::json;
use spillway_auth::Key;
use spillway_batch::{AddressRange, Encryption};
use spillway_daemon::AdminGroup;
use spillway_daemon::deprecated::warn_renamed;
use spillway_discovery::{EtcdAccess, EtcdFiles, Source};
use spillway_policy::{HELPERS_ASKED_DEFAULT, Override};
use spillway_sidecar::{Listen, Settings, loopback};
use spillway_values::{
    AddressError, listen_address, listen_addresses, parse_duration, parse_size, server_address,
};
use tracing::warn;

use super::doctor::link_problem;
use super::output::Report;

/// Maximum number of helpers that are probed at the start.
const PROBED_MAX: usize = 16;

/// Run a sidecar beside an unmodified client
///
/// Clients connect to the sidecar. Each connection becomes a session, which goes directly to the server, and through
/// helpers while replies are late. When a helper dies, its sessions continue through another one or directly, with
/// their requests in flight.
///
/// The server runs under `spillway run --link ADDR --client-key FILE`; helpers have `--link-listen` and the same client
/// key.
///
/// SIGTERM drains: no new connections, idle ones close, and --drain-deadline for the others; another SIGTERM, at
/// least 1 s after the first, ends the process at once. SIGUSR1 logs a status line.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  spillway sidecar --link 10.0.0.5:11411 --helpers 10.0.0.9:11412,10.0.0.10:11412 \\
      --client-key /etc/spillway/client.key --listen 11211 --protocol memcached
  spillway sidecar --link 10.0.0.5:6411 --helpers dns:helpers.cache.svc:6412 \\
      --client-key /etc/spillway/client.key --listen unix:/run/redis.sock --protocol redis

ADDR is HOST:PORT, :PORT for every address of this host, or PORT for loopback only.")]
pub(crate) struct Args {
    /// The server's own link port (`spillway run --link`), which carries sessions while no helper does
    #[arg(long, value_name = "ADDR", env = "SPILLWAY_SIDECAR_LINK", required_unless_present = "server")]
    link: Option<String>,

    /// The name of --link in older versions
    #[arg(long, value_name = "ADDR", env = "SPILLWAY_SIDECAR_SERVER", hide = true)]
    server: Option<String>,

    /// Link ports of helpers: ADDRESS:PORT,… or dns:NAME:PORT or etcd:…, which are followed as they change [default:
    /// none, all sessions are direct]
    #[arg(long, value_name = "LIST", env = "SPILLWAY_SIDECAR_HELPERS")]
    helpers: Option<Source>,

    /// Certificates (PEM) of the authorities for etcd's certificate. Required for --helpers etcd:https://…
    #[arg(long, value_name = "FILE", env = "SPILLWAY_SIDECAR_ETCD_CA_FILE")]
    etcd_ca_file: Option<PathBuf>,

    /// Client certificate (PEM, with its chain) for an etcd that requires one
    #[arg(long, value_name = "FILE", env = "SPILLWAY_SIDECAR_ETCD_CERT_FILE")]
    etcd_cert_file: Option<PathBuf>,

    /// Private key of the client certificate (PEM, mode 0600)
    #[arg(long, value_name = "FILE", env = "SPILLWAY_SIDECAR_ETCD_KEY_FILE")]
    etcd_key_file: Option<PathBuf>,

    /// User, for an etcd with authentication
    #[arg(long, value_name = "NAME", env = "SPILLWAY_SIDECAR_ETCD_USER")]
    etcd_user: Option<String>,

    /// Password of the user, on one line (mode 0600)
    #[arg(long, value_name = "FILE", env = "SPILLWAY_SIDECAR_ETCD_PASSWORD_FILE")]
    etcd_password_file: Option<PathBuf>,

    /// Key of library clients at the server and its helpers (`spillway key new`). Not needed if all of them are on
    /// loopback
    #[arg(long, value_name = "FILE", env = "SPILLWAY_SIDECAR_CLIENT_KEY")]
    client_key: Option<PathBuf>,

    /// Refuse links that would not be encrypted (older servers or helpers). Needs --client-key
    #[arg(long, env = "SPILLWAY_SIDECAR_REQUIRE_ENCRYPTION")]
    require_encryption: bool,

    /// Accept clients here: ADDR, or unix:PATH; repeat for more
    #[arg(
        long,
        value_name = "ADDR|unix:PATH",
        required = true,
        value_delimiter = ',',
        env = "SPILLWAY_SIDECAR_LISTEN"
    )]
    listen: Vec<String>,

    /// Permissions of UNIX sockets, octal
    #[arg(long, value_name = "MODE", default_value = "660", value_parser = octal, env = "SPILLWAY_SIDECAR_SOCKET_MODE")]
    socket_mode: u32,

    /// Protocol of the clients, for measuring latency; bytes are never changed
    #[arg(long, value_enum, default_value_t = Protocol::Tcp, env = "SPILLWAY_SIDECAR_PROTOCOL")]
    protocol: Protocol,

    /// The latency that 99 of 100 replies should stay below, such as 1ms
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_duration, env = "SPILLWAY_SIDECAR_SLA")]
    sla: Duration,

    /// When helpers are used: `auto` while replies are later than --sla and helpers improve them; `on` always; `off`
    /// only if the server cannot be reached directly. `spillway relief NAME` overrides it at run time
    #[arg(long, value_name = "auto|on|off", default_value_t = Override::Auto, env = "SPILLWAY_SIDECAR_RELIEF")]
    relief: Override,

    /// Name of the service for `spillway relief`
    #[arg(long, value_name = "NAME", default_value = "service", env = "SPILLWAY_SIDECAR_NAME")]
    name: String,

    /// Helpers, chosen at random, that are asked for their load before one is used
    #[arg(long, value_name = "N", default_value_t = HELPERS_ASKED_DEFAULT, env = "SPILLWAY_SIDECAR_ASK")]
    ask: usize,

    /// Addresses that may connect by TCP, as CIDR; repeat for more [default: loopback]
    #[arg(long, value_name = "CIDR", value_delimiter = ',', env = "SPILLWAY_SIDECAR_ALLOW_CLIENTS")]
    allow_clients: Vec<AddressRange>,

    /// Load balancers, as CIDR, that must send the PROXY protocol (version 1 or 2); repeat for more. The client
    /// addresses that they send are subject to --allow-clients and appear in the log; the server sees the address of
    /// this host
    #[arg(long, value_name = "CIDR", value_delimiter = ',', env = "SPILLWAY_SIDECAR_PROXY_PROTOCOL_FROM")]
    proxy_protocol_from: Vec<AddressRange>,

    /// Network threads. Connections are spread over them, and each thread decides on relief for its own
    #[arg(long, value_name = "N", default_value_t = 1, env = "SPILLWAY_SIDECAR_THREADS")]
    threads: usize,

    /// Time that a client waits for a helper or the server before it is reset
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration, env = "SPILLWAY_SIDECAR_CONNECT_TIMEOUT")]
    connect_timeout: Duration,

    /// Largest number of connections; more are refused
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), env = "SPILLWAY_SIDECAR_MAX_CONNECTIONS")]
    max_connections: u32,

    /// Memory for buffered bytes of all connections. Above three quarters, clients that do not read their replies are
    /// paused; at the limit, those that hold most are reset
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size, env = "SPILLWAY_SIDECAR_MAX_MEMORY")]
    max_memory: u64,

    /// Time that connections have to become idle after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration, env = "SPILLWAY_SIDECAR_DRAIN_DEADLINE")]
    drain_deadline: Duration,

    /// Admin socket for `spillway status` and `relief`; its owner and group may use it
    /// [default: sidecar.sock in /run/spillway or $XDG_RUNTIME_DIR/spillway, if one of them can be used]
    #[arg(long, value_name = "PATH", visible_alias = "socket", env = "SPILLWAY_SIDECAR_STATUS_SOCKET")]
    status_socket: Option<PathBuf>,

    /// Group, by name or number, whose members may override relief over the admin socket; every other user may read
    /// [default: owner and group of the socket may do both]
    #[arg(long, value_name = "GROUP", env = "SPILLWAY_SIDECAR_ADMIN_GROUP")]
    admin_group: Option<AdminGroup>,

    /// Serve Prometheus (/metrics), programs (/status) and health checks (/health) on this address. Without a password
    #[arg(long, value_name = "ADDR", env = "SPILLWAY_SIDECAR_METRICS")]
    metrics: Option<String>,

    /// Check options, key files and names, print the result, and end. The exit code is 1 when something is wrong
    #[arg(long)]
    check: bool,

    /// Print JSON: for --check
    #[arg(long, requires = "check")]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Protocol {
    /// Text, meta and binary
    Memcached,
    /// RESP2 and RESP3
    Redis,
    /// Any protocol in which a client sends a request and waits for its reply
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
        if self.server.is_some() {
            warn_renamed("sidecar --server", "--link");
        }
        let server = server_address(self.link.or(self.server).as_deref().unwrap_or_default())?;
        // Canonical, because an IPv4 loopback address may be written in IPv6 notation.
        if self.client_key.is_none() && !server.ip().to_canonical().is_loopback() {
            return Err(format!("--link {server} is on another host: give --client-key FILE").into());
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
            Some(Source::Etcd(location)) => {
                let files = EtcdFiles {
                    ca_file: self.etcd_ca_file,
                    cert_file: self.etcd_cert_file,
                    key_file: self.etcd_key_file,
                    user: self.etcd_user,
                    password_file: self.etcd_password_file,
                };
                EtcdAccess::read(&files, location)?
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
            manual_override: self.relief,
            helpers_asked: self.ask,
            sla: self.sla,
            threads: self.threads,
            connect_timeout: self.connect_timeout,
            max_connections: self.max_connections,
            max_memory: self.max_memory,
            drain_deadline: self.drain_deadline,
            admin_group: self.admin_group,
            socket: self.status_socket.or_else(|| spillway_daemon::free_default_socket("sidecar")),
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

/// Warns, from a separate thread, about configured addresses that are not link ports. Without these warnings
/// the only symptom is a timeout for each session.
fn probe_link_ports(settings: &Settings, client_key: Option<PathBuf>) {
    let mut ports = vec![("--link", settings.server)];
    if let Some(Source::Static(helpers)) = &settings.helpers {
        ports.extend(helpers.iter().take(PROBED_MAX).map(|helper| ("--helpers", *helper)));
    }
    let probe = move || {
        for (option, address) in ports {
            if let Some(problem) = link_problem(&address.to_string(), client_key.as_deref()) {
                warn!(option, %address, "no link: {problem}");
            }
        }
    };
    // A failure to start the thread is ignored: the sidecar works without these warnings.
    let _ = std::thread::Builder::new().name("probe".into()).spawn(probe);
}

pub(crate) fn run(args: Args) -> ExitCode {
    let client_key = args.client_key.clone();
    if args.check {
        let as_json = args.json;
        let checked =
            args.settings().and_then(|settings| settings.check().map(|()| settings).map_err(Into::into));
        let report = match checked {
            Ok(settings) => Report {
                lines: vec![summary(&settings)],
                result: json!({
                    "name": settings.name,
                    "listen": settings.listen.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "link": settings.server.to_string(),
                }),
                ..Report::default()
            },
            Err(error) => Report::failed(error),
        };
        return report.print("sidecar", as_json);
    }
    let outcome = args
        .settings()
        .inspect(|settings| probe_link_ports(settings, client_key))
        .and_then(|settings| spillway_sidecar::run(settings).map_err(Box::<dyn std::error::Error>::from));
    outcome.unwrap_or_else(|error| failed(&*error))
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    spillway_daemon::log_line(&format!("spillway: {error}"));
    ExitCode::FAILURE
}

/// One line about a sidecar's settings, for `--check`.
fn summary(settings: &Settings) -> String {
    let listeners: Vec<String> = settings.listen.iter().map(ToString::to_string).collect();
    let helpers = match &settings.helpers {
        None => "no helpers".to_owned(),
        Some(Source::Static(helpers)) => format!("{} helpers", helpers.len()),
        Some(_) => "helpers by name".to_owned(),
    };
    format!("OK: clients at {}, link port {}, {helpers}", listeners.join(", "), settings.server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_loopback_needs_no_client_key() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: Args,
        }
        let settings = |link: &str| {
            let command: Command =
                clap::Parser::parse_from(["sidecar", "--link", link, "--listen", "1", "--protocol", "tcp"]);
            command.args.settings().map(drop).map_err(|error| error.to_string())
        };
        for loopback in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(settings(loopback), Ok(()), "{loopback}");
        }
        assert!(settings("[::ffff:10.0.0.5]:1").unwrap_err().contains("--client-key"));
    }

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
