//! Starts the programs under test: servers under `spillway run`, and helpers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use spillway_lab::{Host, Launch, Process};

use crate::error::Error;
use crate::measure::BatchCount;

/// The entry `links` of [`crate::machine::Machine::lab`].
pub(crate) const LINKS_TEXT: &str = "encrypted (link version 4, AES-256-GCM), unless a row says otherwise";
/// Addresses of clients: the laboratory's whole network.
pub(crate) const CLIENTS: &str = "10.77.0.0/24";
/// Timeout for a helper's start, up to its link.
const LINK_TIMEOUT: Duration = Duration::from_secs(30);
/// A helper that has not ended by this time is killed.
const STOP_GRACE: Duration = Duration::from_secs(2);
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The helper's key, which the server accepts.
    pub helper: PathBuf,
    /// The key of library clients, which helpers and the server accept.
    pub client: PathBuf,
}

impl Keys {
    pub(crate) fn make(directory: &Path) -> Result<Keys, Error> {
        let file = |name: &str| -> Result<PathBuf, Error> {
            let file = directory.join(name);
            spillway_keys::write_new_key_file(&file).map_err(|e| Error::Usage(e.to_string()))?;
            Ok(file)
        };
        Ok(Keys { helper: file("helper.key")?, client: file("client.key")? })
    }

    /// Arguments of `spillway run` and `spillway helper`.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let file = |path: &Path| path.display().to_string();
        vec!["--key".into(), file(&self.helper), "--client-key".into(), file(&self.client)]
    }
}

/// The `spillway run` command that precedes a server's command line and gives it the link port `link`.
pub(crate) fn wrapper(program: &Path, link: SocketAddr, keys: &Keys) -> Vec<String> {
    let mut command = vec![program.display().to_string(), "run".into(), "--link".into(), link.to_string()];
    command.extend(keys.arguments());
    command.extend(["--allow-clients", CLIENTS, "--require", "--"].map(String::from));
    command
}

/// Fails if a process has ended, with the last lines of its output.
pub(crate) fn check_runs(process: &mut Process, name: &str) -> Result<(), Error> {
    match process.exit_status() {
        Some(status) => Err(Error::process(format!("{name} ended with {status}"), process.last_output())),
        None => Ok(()),
    }
}

/// A running helper. Dropping it kills it.
#[derive(Debug)]
pub struct Helper {
    process: Process,
    status_socket: PathBuf,
    /// The port for plain clients or for library clients.
    pub address: SocketAddr,
}

pub(crate) struct HelperPlan<'a> {
    pub program: &'a Path,
    /// The interface of the engine xdp; `None`: kernel sockets.
    pub interface: Option<String>,
    /// Interval of the polls that replace interrupts on the engine xdp under load; zero: interrupts only.
    pub defer_interrupts: Duration,
    /// The server's link port.
    pub server: SocketAddr,
    /// The port for clients.
    pub address: SocketAddr,
    /// Clients are library clients instead of plain ones.
    pub library: bool,
    pub keys: &'a Keys,
    /// Name of the batch policy.
    pub batch: &'static str,
    pub max_delay: Duration,
    /// Number of services without clients beside the measured one; each has a port and a link to the same server.
    pub idle_services: u16,
    /// N: the helper measures the requests of one memcached client in N. `None`: it measures no requests.
    pub measure_one_in: Option<u32>,
    /// Must not be the socket of a running helper.
    pub status_socket: PathBuf,
}

impl HelperPlan<'_> {
    fn arguments(&self) -> Result<Vec<String>, Error> {
        if self.idle_services > 0 || self.measure_one_in.is_some() {
            let file = self.status_socket.with_extension("toml");
            std::fs::write(&file, self.configuration()).map_err(Error::writing(&file))?;
            return Ok(vec!["helper".into(), "--config".into(), file.display().to_string()]);
        }
        let listen = if self.library { "--link-listen" } else { "--listen" };
        let mut arguments = vec![
            "helper".into(),
            "--service".into(),
            format!("server={}", self.server),
            listen.into(),
            self.address.to_string(),
            "--threads".into(),
            "1".into(),
            "--batch".into(),
            self.batch.into(),
            "--max-delay".into(),
            format!("{}us", self.max_delay.as_micros()),
        ];
        if let Some(interface) = &self.interface {
            arguments.extend(["--engine", "xdp", "--interface", interface].map(String::from));
            arguments.push("--defer-interrupts".into());
            arguments.push(format!("{}us", self.defer_interrupts.as_micros()));
        }
        arguments.extend(self.keys.arguments());
        arguments.extend(["--status-socket".into(), self.status_socket.display().to_string()]);
        Ok(arguments)
    }

    /// A configuration file with the same settings and the idle services, whose ports the kernel chooses.
    fn configuration(&self) -> String {
        let listen = if self.library { "link_listen" } else { "listen" };
        let mut text = format!("[helper]\nthreads = 1\nsocket = {:?}\n", self.status_socket);
        let anywhere = SocketAddr::new(self.address.ip(), 0);
        let idle = (1..=self.idle_services).map(|number| (format!("idle-{number}"), anywhere));
        let measured = self
            .measure_one_in
            .map_or(String::new(), |one_in| format!("protocol = \"memcached\"\nmeasure_one_in = {one_in}\n"));
        for (name, address) in std::iter::once(("server".into(), self.address)).chain(idle) {
            text += &format!(
                "[service.{name}]\nserver = \"{}\"\n{listen} = [\"{address}\"]\nkey_files = [{:?}]\n\
                 client_key_files = [{:?}]\n{measured}[service.{name}.batch]\npolicy = \"{}\"\nmax_delay = \"{}us\"\n",
                self.server,
                self.keys.helper,
                self.keys.client,
                self.batch,
                self.max_delay.as_micros(),
            );
        }
        text
    }
}

impl Helper {
    /// Starts a helper with one thread, and waits until its links are up.
    pub(crate) fn start(host: &Host, plan: HelperPlan<'_>) -> Result<Helper, Error> {
        let launch = Launch::new(plan.program).name("helper").args(plan.arguments()?);
        let (status_socket, address, on_xdp) = (plan.status_socket, plan.address, plan.interface.is_some());
        let mut helper = Helper { process: host.spawn(&launch)?, status_socket, address };
        helper.wait_for_link()?;
        if on_xdp {
            // Attaching the helper's XDP program has replaced the interface's threads.
            host.pin_and_account_interface()?;
        }
        Ok(helper)
    }

    /// Batches and messages sent so far.
    pub fn batches(&self) -> Result<BatchCount, String> {
        Ok(self.status()?.batches())
    }

    /// Present number of clients on all links.
    pub(crate) fn connections(&self) -> Result<u64, String> {
        let status = self.status()?;
        Ok(status.services.iter().flat_map(|service| &service.links).map(|link| link.connections).sum())
    }

    pub(crate) fn signal(&mut self, number: i32) -> Result<(), Error> {
        Ok(self.process.signal(number)?)
    }

    pub(crate) fn check(&mut self) -> Result<(), Error> {
        check_runs(&mut self.process, "the helper")
    }

    /// Stops the helper; kills it after [`STOP_GRACE`].
    pub(crate) fn stop(&mut self) {
        self.process.stop(STOP_GRACE);
    }

    fn status(&self) -> Result<Status, String> {
        #[derive(Deserialize)]
        struct Answer {
            ok: Status,
        }
        let text =
            spillway_daemon::send_request(&self.status_socket, r#"{"command":"status"}"#, STATUS_TIMEOUT)
                .map_err(|e| format!("cannot read the status at {}: {e}", self.status_socket.display()))?;
        let answer = serde_json::from_str::<Answer>(&text);
        answer.map(|answer| answer.ok).map_err(|e| format!("cannot parse the helper's status: {e}"))
    }

    /// Waits until all links to the server are up and encrypted.
    pub(crate) fn wait_for_link(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + LINK_TIMEOUT;
        loop {
            self.check()?;
            let problem = match self.status() {
                Ok(status) if status.links_are_up() => return Ok(()),
                Ok(_) => "a link to the server is not up, or not encrypted".to_owned(),
                Err(e) => e,
            };
            if Instant::now() >= deadline {
                let what = format!("the helper is not ready: {problem}");
                return Err(Error::process(what, self.process.last_output()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The part of a helper's status that experiments use.
#[derive(Clone, Debug, Default, Deserialize)]
struct Status {
    services: Vec<Service>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Service {
    batches_sent: u64,
    messages_sent: u64,
    links: Vec<Link>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Link {
    state: String,
    #[serde(default)]
    encrypted: bool,
    #[serde(default)]
    connections: u64,
}

impl Status {
    /// Whether all links are up and encrypted: links without encryption would give better figures than users get.
    fn links_are_up(&self) -> bool {
        let mut links = self.services.iter().flat_map(|service| &service.links).peekable();
        links.peek().is_some() && links.all(|link| link.state == "up" && link.encrypted)
    }

    fn batches(&self) -> BatchCount {
        let sum = |count: fn(&Service) -> u64| self.services.iter().map(count).sum();
        BatchCount {
            batches: sum(|service| service.batches_sent),
            messages: sum(|service| service.messages_sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_parsed_despite_unknown_fields() {
        let text = r#"{"version":"0.1.0","services":[
            {"name":"cache","batches_sent":10,"messages_sent":250,
                "links":[{"state":"up","encrypted":true,"connections":3}]},
            {"name":"other","batches_sent":1,"messages_sent":2,"links":[]}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert!(status.links_are_up() && status.services[0].links[0].connections == 3);
        assert_eq!(status.batches(), BatchCount { batches: 11, messages: 252 });
        assert!(!Status::default().links_are_up());
        let unencrypted = text.replace(r#""encrypted":true,"#, "");
        assert!(
            !serde_json::from_str::<Status>(&unencrypted).unwrap().links_are_up(),
            "a link that is not encrypted should not count as up"
        );
    }
}
