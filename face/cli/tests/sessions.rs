//! Sessions of `spillway load` at real servers under `spillway run`, while their helpers are killed and stopped.

mod support;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use spillway_lab::peers::{Memcached, Peer, Redis};
use spillway_lab::{Launch, Place, Process};
use spillway_ports::free_port;
use support::{SPILLWAY, Scratch, loopback};

/// Number of faults, one each second.
const FAULTS: usize = 8;

struct Scene {
    helpers: Vec<Process>,
    launches: Vec<Launch>,
    server: Peer,
    place: Place,
    addresses: Vec<String>,
    client_file: String,
    scratch: Scratch,
}

impl Scene {
    fn start(start: impl FnOnce(&Place, Vec<String>) -> Peer) -> Scene {
        let (place, scratch) = (Place::local().unwrap(), Scratch::new());
        let (helper_file, _) = scratch.key("helper.key");
        let (client_file, _) = scratch.key("client.key");
        let link = loopback(free_port()).to_string();
        let wrapper = [SPILLWAY, "run", "--link", &link, "--key", &helper_file, "--client-key", &client_file];
        let wrapper = wrapper.into_iter().chain(["--require", "--"]).map(str::to_owned).collect();
        let server = start(&place, wrapper);
        let addresses: Vec<String> = (0..2).map(|_| loopback(free_port()).to_string()).collect();
        let launches: Vec<Launch> = addresses
            .iter()
            .map(|address| {
                Launch::new(SPILLWAY)
                    .name("helper")
                    .args(["helper", "--service", &format!("service={link}"), "--link-listen", address])
                    .args(["--listen", &loopback(free_port()).to_string(), "--key", &helper_file])
                    .args(["--client-key", &client_file, "--threads", "1"])
            })
            .collect();
        let helpers = launches.iter().map(|launch| place.spawn(launch).unwrap()).collect();
        Scene { helpers, launches, server, place, addresses, client_file, scratch }
    }

    fn load(&self, protocol: &str, report: &str) -> Child {
        let server = self.server.address().to_string();
        let mut command = Command::new(SPILLWAY);
        command.args(["load", "--protocol", protocol, "--server", &server, "--sessions"]);
        command.args(["--client-key", &self.client_file, "--json", report]);
        for address in &self.addresses {
            command.args(["--helper", address]);
        }
        command.args(["-c", "200", "--threads", "2", "--rate", "2000", "-d", &format!("{}s", FAULTS + 1)]);
        command.args(["--get-ratio", "0.8", "--value-size", "3000", "--keys", "2000"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Kills and restarts, or stops and continues, one helper; the other one keeps running.
    fn fail_one_helper(&mut self, fault: usize) {
        let helper = fault % 2;
        if fault % 3 == 2 {
            self.helpers[helper].signal(Signal::STOP.as_raw()).unwrap();
            std::thread::sleep(Duration::from_millis(600));
            self.helpers[helper].signal(Signal::CONT.as_raw()).unwrap();
            std::thread::sleep(Duration::from_millis(400));
        } else {
            self.helpers[helper].kill();
            std::thread::sleep(Duration::from_millis(300));
            self.helpers[helper] = self.place.spawn(&self.launches[helper]).unwrap();
            std::thread::sleep(Duration::from_millis(700));
        }
    }

    fn check_that_no_request_is_lost(mut self, protocol: &str) {
        let report = self.scratch.path("report.json");
        let load = self.load(protocol, &report);
        std::thread::sleep(Duration::from_secs(1));
        (0..FAULTS).for_each(|fault| self.fail_one_helper(fault));
        let output = load.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        let total = |name: &str| {
            report["total"][name].as_u64().unwrap_or_else(|| panic!("{name} should be reported"))
        };
        for failure in ["wrong", "lost", "resets", "unasked"] {
            assert_eq!(total(failure), 0, "{failure}\n{text}");
        }
        assert!(total("answered") > 1_000 && total("answered") == total("helped"), "{text}");
        assert!(total("carried_on") >= 100, "sessions should move when helpers are killed\n{text}");
    }
}

#[test]
fn memcached_loses_no_request_while_helpers_are_killed() {
    Scene::start(|place, wrapper| Memcached::default().wrapper(wrapper).start(place).unwrap())
        .check_that_no_request_is_lost("memcached");
}

#[test]
fn memcached_with_four_threads_loses_no_request_while_helpers_are_killed() {
    Scene::start(|place, wrapper| Memcached::default().threads(4).wrapper(wrapper).start(place).unwrap())
        .check_that_no_request_is_lost("memcached");
}

#[test]
fn redis_loses_no_request_while_helpers_are_killed() {
    Scene::start(|place, wrapper| Redis::default().wrapper(wrapper).start(place).unwrap())
        .check_that_no_request_is_lost("redis");
}
