//! Redis forks to save its data. Its children must not keep links, or the link port, alive.

mod support;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use support::driver::{Driver, PATIENCE};
use support::process::{self, Server};
use support::redis::{Redis, ask_text, expect, local, words};

/// A redis whose child saves for minutes.
struct Saving {
    redis: Redis,
    link: Driver,
    child: i32,
}

impl Saving {
    fn start() -> Saving {
        // The delay is in microseconds for each key.
        let redis = Redis::start(&["--rdb-key-save-delay", "10000000", "--save", ""]);
        let mut link = redis.link();
        let id = local(&mut link);
        for key in 0..20 {
            expect(&mut link, id, &words(&format!("SET key{key} value")), b"+OK\r\n");
        }
        expect(&mut link, id, &words("BGSAVE"), b"+Background saving started\r\n");
        let info = ask_text(&mut link, id, "INFO persistence");
        assert!(info.contains("rdb_bgsave_in_progress:1"), "{info}");
        let [child] = redis.server.children()[..] else { panic!("one child") };
        Saving { redis, link, child }
    }

    fn child_lives(&self) -> bool {
        std::fs::read_to_string(format!("/proc/{}/stat", self.child)).is_ok_and(|stat| !stat.contains(") Z "))
    }

    /// The files that a process has open.
    fn files_of(pid: i32) -> Vec<String> {
        let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
        targets.map(|target| target.display().to_string()).collect()
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if self.child_lives() {
            process::kill(self.child);
        }
    }
}

#[test]
fn a_child_gives_up_its_copies_of_links_page_and_port() {
    let saving = Saving::start();
    let ours = |name: &&String| name.contains("spillway-server-") || name.contains("inotify");
    let parent = Saving::files_of(saving.redis.server.pid() as i32);
    assert_eq!(parent.iter().filter(ours).count(), 2, "{parent:?}");
    // The child may begin to run some time after `fork` has returned in its parent.
    let deadline = Instant::now() + PATIENCE;
    while Saving::files_of(saving.child).iter().any(|name| ours(&name)) {
        assert!(Instant::now() < deadline, "{:?}", Saving::files_of(saving.child));
        std::thread::sleep(Duration::from_millis(5));
    }
    // Without the link port and the link; the sockets that stand for helped clients stay, and carry nothing.
    let sockets = |names: &[String]| names.iter().filter(|name| name.starts_with("socket:")).count();
    let child = Saving::files_of(saving.child);
    assert!(sockets(&child) + 2 <= sockets(&parent), "{child:?} {parent:?}");
}

#[test]
fn a_link_that_the_server_ends_is_over_while_a_child_lives() {
    let mut saving = Saving::start();
    saving.link.stream.write_all(&[0xff; 64]).unwrap(); // an invalid frame
    while saving.link.lost.is_none() {
        saving.link.receive(PATIENCE);
    }
    assert!(saving.child_lives());
    let mut link = saving.redis.link();
    let id = local(&mut link);
    expect(&mut link, id, &words("PING"), b"+PONG\r\n");
}

#[test]
fn a_server_that_was_killed_is_helped_again_while_its_child_lives() {
    let mut saving = Saving::start();
    let port = saving.redis.server.link;
    saving.redis.server.kill();
    while saving.link.lost.is_none() {
        saving.link.receive(PATIENCE);
    }
    // Redis' child still holds the ordinary port.
    let other = spillway_ports::free_address();
    assert!(saving.child_lives());
    let command = |plain: SocketAddr| {
        let mut command = Command::new("/usr/bin/redis-server");
        command.args(["--port", &plain.port().to_string(), "--save", ""]).stdout(std::process::Stdio::null());
        command
    };
    let again = Server::start_at(other, port, &command, &|server| TcpStream::connect(server.link).is_ok());
    let again = again.expect("it starts");
    let mut link = Driver::loopback(again.link);
    let id = local(&mut link);
    expect(&mut link, id, &words("PING"), b"+PONG\r\n");
}

/// The link port is in use when the server starts, and free later.
fn opens_later(command: impl Fn(SocketAddr) -> Command) {
    let taken = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let link = taken.local_addr().unwrap();
    let plain = spillway_ports::free_address();
    let server = Server::start_at(plain, link, &command, &|_| true).expect("its own port is free");
    server.wait_for_log(
        "cannot be opened: the address is in use; the server runs without helpers and tries again",
    );
    // Time for some attempts that fail.
    std::thread::sleep(Duration::from_millis(300));
    drop(taken);
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(link).is_err() {
        assert!(Instant::now() < deadline, "the port does not open:\n{}", server.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    server.wait_for_log("helpers of port");
    assert_eq!(server.log().matches("cannot be opened").count(), 1, "{}", server.log());
    let mut driver = Driver::loopback(link);
    let id = driver.connect();
    driver.send(id, b"version\r\n");
    driver.run(|driver| driver.connections[&id].received.ends_with(b"\r\n"));
}

#[test]
fn a_port_in_use_is_opened_once_it_is_free() {
    opens_later(|plain| {
        let mut command = Command::new("/usr/bin/memcached");
        command.args(["-u", "nobody", "-l", "127.0.0.1", "-p", &plain.port().to_string()]);
        command
    });
}

/// A thread for each connection; the main thread blocks in `select`.
const THREADS: &str = r#"
import socketserver, sys

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)

class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True

Server(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"#;

#[test]
fn a_port_in_use_is_opened_once_it_is_free_where_threads_block() {
    opens_later(|plain| {
        let mut command = Command::new("python3");
        command.args(["-c", THREADS, &plain.port().to_string()]);
        command
    });
}
