//! The echo example as a process, and keys for it.
#![allow(dead_code)] // each test program uses a part of it

pub mod helper;
pub mod port;
pub mod raw;
pub mod streams;
pub mod swarm;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use spillway_client::{Key, LinkTarget};
use spillway_keys::write_new_key_file;

/// A directory with a key for helpers and one for clients, removed when dropped.
pub struct Keys {
    directory: PathBuf,
    pub helper: Key,
    pub client: Key,
}

impl Keys {
    pub fn new() -> Keys {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("spillway-server-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let key = |name| write_new_key_file(directory.join(name)).unwrap();
        Keys { helper: key("helper.key"), client: key("client.key"), directory }
    }

    pub fn helper_file(&self) -> PathBuf {
        self.directory.join("helper.key")
    }

    pub fn client_file(&self) -> PathBuf {
        self.directory.join("client.key")
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The echo example. Examples are built in target/PROFILE/examples, tests in target/PROFILE/deps.
fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(2).unwrap().join("examples/echo")
}

/// A running echo server, which is killed when dropped.
pub struct Echo {
    process: Child,
    pub plain_port: SocketAddr,
    pub link_port: SocketAddr,
}

impl Echo {
    /// Starts the server on free ports of `host`.
    pub fn start(keys: &Keys, host: &str) -> Echo {
        Echo::start_on(keys, &format!("{host}:0"), &format!("{host}:0"))
    }

    pub fn start_on(keys: &Keys, listen: &str, link: &str) -> Echo {
        Echo::run(keys, Command::new(program()).args(["--listen", listen, "--link", link]))
    }

    /// Starts a server with at most this many descriptors of its own. The script adds inherited descriptors
    /// to the limit, because they would take the place of clients: the test's parent may have left some open
    /// (a lock, a pipe of `make`). It opens three itself, so that each run covers the addition.
    pub fn start_limited(keys: &Keys, descriptors: usize) -> Echo {
        let script = format!(
            "exec 7</dev/null 8</dev/null 9</dev/null; inherited=0; \
             for fd in /proc/$$/fd/*; do [ ${{fd##*/}} -gt 2 ] && inherited=$((inherited + 1)); done; \
             ulimit -n $(({descriptors} + inherited)) && exec \"$@\""
        );
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script, "sh"]).arg(program());
        Echo::run(keys, command.args(["--listen", "127.0.0.1:0", "--link", "127.0.0.1:0"]))
    }

    fn run(keys: &Keys, command: &mut Command) -> Echo {
        let mut process = command
            .arg("--key")
            .arg(keys.helper_file())
            .arg("--client-key")
            .arg(keys.client_file())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}; `cargo test` builds it"));
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ports = line.trim().strip_prefix("listening on ").and_then(|rest| rest.split_once(", links on "));
        let (plain, link) =
            ports.unwrap_or_else(|| panic!("the echo server's first line should name its ports: {line:?}"));
        Echo { process, plain_port: plain.parse().unwrap(), link_port: link.parse().unwrap() }
    }

    pub fn target(&self, keys: &Keys) -> LinkTarget {
        LinkTarget {
            address: self.link_port,
            key: keys.client.clone(),
            server: None,
            encryption: Default::default(),
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends bytes that differ for each `seed`, and awaits their echo.
pub fn round_trip(client: &mut (impl Read + Write), length: usize, seed: usize) {
    let request: Vec<u8> = (0..length).map(|i| ((i * 31 + seed * 17) % 253) as u8).collect();
    client.write_all(&request).unwrap();
    let mut reply = vec![0; length];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply, request);
}
