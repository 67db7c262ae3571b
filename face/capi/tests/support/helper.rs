//! A helper in a process of its own, so that a test can kill it.

use std::io::Read;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use spillway_helper::{Helper, HelperConfig, Service};
use spillway_keys::read_key_file;

use super::Workbench;
use super::process::Process;

/// The name of the test that runs as the helper.
pub const TEST: &str = "helper_process";
/// Environment variable of a helper process: the server's link port, and the directory of the keys.
const TASK: &str = "SPILLWAY_TEST_HELPER";

pub struct HelperProcess {
    process: Process,
    /// The link port, for library clients.
    pub links: String,
    /// The port for plain clients.
    pub plain: String,
}

impl HelperProcess {
    pub fn start(bench: &Workbench, server: &str) -> HelperProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", TEST, "--ignored", "--nocapture"]);
        command.env(TASK, format!("{server} {}", bench.directory().display()));
        let mut process = Process::start(command);
        let line = process.line_with("helper at ");
        let (links, plain) = line.split_once("helper at ").unwrap().1.split_once(" and ").unwrap();
        HelperProcess { links: links.to_owned(), plain: plain.to_owned(), process }
    }

    pub fn kill(self) {
        self.process.kill();
    }
}

/// Runs a helper until the process is killed or its standard input ends; returns at once without [`TASK`].
pub fn run_helper() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (server, keys) = task.split_once(' ').unwrap();
    let server: SocketAddr = server.parse().unwrap();
    let key = |name: &str| read_key_file(format!("{keys}/{name}")).unwrap();
    let mut service = Service::new("echo", server);
    service.listen.push(SocketAddr::new(server.ip(), 0));
    service.link_listen.push(SocketAddr::new(server.ip(), 0));
    service.keys = vec![key("helper.key")];
    service.client_keys = vec![key("client.key")];
    let helper = Helper::start(HelperConfig { threads: 1, ..HelperConfig::new(vec![service]) }).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while helper.status().services[0].links_up() == 0 {
        assert!(Instant::now() < deadline, "the link to the server should be up within 60 s");
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = helper.status();
    println!("helper at {} and {}", status.services[0].link_listen[0], status.services[0].listen[0]);
    let _ = std::io::stdin().read(&mut [0]);
    helper.stop();
}
