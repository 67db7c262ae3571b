//! A server under `spillway run` with its helpers and sidecars, on loopback.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use spillway_lab::peers::Peer;
use spillway_lab::{Launch, Place, Process};
use spillway_ports::free_port;

use super::{PATIENCE, SPILLWAY, Scratch, SetOnDrop, eventually, loopback};

/// A running server with its helpers, to which tests add sidecars.
pub struct Deployment {
    // Fields are dropped in this order: helpers end before the server.
    pub helpers: Vec<Process>,
    launches: Vec<Launch>,
    pub server: Peer,
    pub place: Place,
    /// The server's link port.
    pub link: SocketAddr,
    /// The helpers' link ports.
    pub ports: Vec<SocketAddr>,
    /// Path of the library clients' key.
    client_file: String,
    pub scratch: Scratch,
}

impl Deployment {
    /// Starts a server and helpers. `start_server` gets the arguments to put before the server's own command.
    pub fn start(helpers: usize, start_server: impl FnOnce(&Place, Vec<String>) -> Peer) -> Deployment {
        let (place, scratch) = (Place::local().unwrap(), Scratch::new());
        let (helper_file, _) = scratch.key("helper.key");
        let (client_file, _) = scratch.key("client.key");
        let link = loopback(free_port());
        let address = link.to_string();
        let arguments =
            [SPILLWAY, "run", "--link", &address, "--key", &helper_file, "--client-key", &client_file];
        let arguments = arguments.into_iter().chain(["--require", "--"]).map(str::to_owned).collect();
        let server = start_server(&place, arguments);
        let ports: Vec<SocketAddr> = (0..helpers).map(|_| loopback(free_port())).collect();
        let launch = |port: &SocketAddr| {
            Launch::new(SPILLWAY)
                .name("helper")
                .args(["helper", "--service", &format!("service={link}"), "--link-listen", &port.to_string()])
                .args(["--key", &helper_file, "--client-key", &client_file, "--threads", "1"])
        };
        let launches: Vec<Launch> = ports.iter().map(launch).collect();
        let helpers = launches.iter().map(|launch| place.spawn(launch).unwrap()).collect();
        let deployment = Deployment { helpers, launches, server, place, link, ports, client_file, scratch };
        deployment.ports.iter().for_each(await_open);
        deployment
    }

    pub fn client_file(&self) -> &str {
        &self.client_file
    }

    /// Starts a sidecar with these further arguments, and waits until it answers.
    pub fn sidecar(&self, arguments: &[&str]) -> Sidecar {
        self.sidecar_logging_to(None, arguments)
    }

    /// Like [`sidecar`](Self::sidecar), with standard error to this file.
    pub fn sidecar_logging_to(&self, log: Option<&str>, arguments: &[&str]) -> Sidecar {
        let helpers = self.ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut all_arguments =
            vec!["--link".to_owned(), self.link.to_string(), "--client-key".into(), self.client_file.clone()];
        if !helpers.is_empty() {
            all_arguments.extend(["--helpers".into(), helpers]);
        }
        all_arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        Sidecar::start_logging_to(log, &self.place, &self.scratch, &all_arguments)
    }

    /// Runs `work`, and meanwhile kills and restarts the helpers in turn, about one each second. With two helpers or more,
    /// at least one runs at any time. Returns the result of `work` and the number of kills.
    pub fn while_helpers_are_killed<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> (T, u32) {
        let is_over = AtomicBool::new(false);
        let Deployment { helpers, launches, place, ports, .. } = self;
        std::thread::scope(|scope| {
            let killer = scope.spawn(|| {
                let mut killed = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let index = killed as usize % helpers.len();
                    helpers[index].kill();
                    killed += 1;
                    std::thread::sleep(Duration::from_millis(300));
                    helpers[index] = place.spawn(&launches[index]).unwrap();
                    await_open(&ports[index]);
                    std::thread::sleep(Duration::from_millis(500));
                }
                killed
            });
            let result = {
                let _ending = SetOnDrop(&is_over);
                work()
            };
            (result, killer.join().unwrap())
        })
    }
}

fn await_open(port: &SocketAddr) {
    eventually("a helper accepts library clients", || TcpStream::connect(port).is_ok());
}

pub struct Sidecar {
    pub process: Process,
    pub address: SocketAddr,
    pub status_socket: String,
}

impl Sidecar {
    pub fn start(place: &Place, scratch: &Scratch, arguments: &[String]) -> Sidecar {
        Sidecar::start_logging_to(None, place, scratch, arguments)
    }

    fn start_logging_to(
        log: Option<&str>,
        place: &Place,
        scratch: &Scratch,
        arguments: &[String],
    ) -> Sidecar {
        let address = loopback(free_port());
        let status_socket = scratch.path(&format!("sidecar-{}.sock", address.port()));
        let launch = Launch::new(SPILLWAY)
            .name("sidecar")
            .args(["sidecar", "--listen", &address.to_string(), "--status-socket", &status_socket])
            .args(arguments)
            .wrapper(super::logs::redirect_stderr(log));
        let process = place.spawn(&launch).unwrap();
        let mut sidecar = Sidecar { process, address, status_socket };
        eventually("the sidecar answers", || {
            assert!(
                sidecar.process.exit_status().is_none(),
                "the sidecar ended: {}",
                sidecar.process.last_output()
            );
            sidecar.try_status().is_some()
        });
        sidecar
    }

    fn try_status(&self) -> Option<Value> {
        let output =
            Command::new(SPILLWAY).args(["status", "--json", "--socket", &self.status_socket]).output();
        let output = output.unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    pub fn status(&self) -> Value {
        self.try_status().expect("status of the sidecar")
    }

    /// One number of the status, by its JSON pointer.
    pub fn number(&self, pointer: &str) -> u64 {
        let status = self.status();
        let number = status.pointer(pointer).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("no number {pointer}: {status:#}"))
    }

    /// Connections that ended for another reason than `in_order`.
    pub fn not_ended_in_order(&self) -> u64 {
        let status = self.status();
        let ended = status["ended"].as_object().expect("ended connections by reason");
        ended.iter().filter(|(reason, _)| *reason != "in_order").filter_map(|(_, count)| count.as_u64()).sum()
    }

    /// Sends SIGTERM and waits for the end. Returns the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.process.signal(Signal::TERM.as_raw()).unwrap();
        self.process.wait(PATIENCE).expect("the sidecar should end after SIGTERM").code()
    }
}
