//! Redis forks to save its data. Its children must not keep links or the link port alive.

mod support;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use support::driver::{Driver, WAIT_MAX};
use support::process::{self, Server};
use support::redis::{Redis, ask_text, command_of, connect_local, expect};

/// A redis server with a child that saves the data for minutes.
struct SavingRedis {
    redis: Redis,
    link: Driver,
    child: i32,
}

impl SavingRedis {
    fn start() -> SavingRedis {
        // The delay is in microseconds for each key: 10 s.
        let redis = Redis::start(&["--rdb-key-save-delay", "10000000", "--save", ""]);
        let mut link = redis.link();
        let id = connect_local(&mut link);
        for key in 0..20 {
            expect(&mut link, id, &command_of(&format!("SET key{key} value")), b"+OK\r\n");
        }
        expect(&mut link, id, &command_of("BGSAVE"), b"+Background saving started\r\n");
        let info = ask_text(&mut link, id, "INFO persistence");
        assert!(info.contains("rdb_bgsave_in_progress:1"), "{info}");
        let [child] = redis.server.children()[..] else { panic!("redis should have one child") };
        SavingRedis { redis, link, child }
    }

    fn is_child_running(&self) -> bool {
        std::fs::read_to_string(format!("/proc/{}/stat", self.child)).is_ok_and(|stat| !stat.contains(") Z "))
    }

    /// The paths of a process's open files.
    fn files_of(pid: i32) -> Vec<String> {
        let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
        targets.map(|target| target.display().to_string()).collect()
    }
}

impl Drop for SavingRedis {
    fn drop(&mut self) {
        if self.is_child_running() {
            process::kill(self.child);
        }
    }
}

#[test]
fn child_closes_its_copies_of_links_page_and_port() {
    let saving = SavingRedis::start();
    let is_of_page = |name: &&String| name.contains("spillway-server-") || name.contains("inotify");
    let parent = SavingRedis::files_of(saving.redis.server.pid() as i32);
    assert_eq!(parent.iter().filter(is_of_page).count(), 2, "{parent:?}");
    // Waits, because the child may begin to run after `fork` has returned in the parent.
    let deadline = Instant::now() + WAIT_MAX;
    while SavingRedis::files_of(saving.child).iter().any(|name| is_of_page(&name)) {
        assert!(
            Instant::now() < deadline,
            "the child should close the status page within {WAIT_MAX:?}: {:?}",
            SavingRedis::files_of(saving.child)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // The child lacks two sockets: the link port and the link. The unconnected sockets for helped clients stay.
    let sockets = |names: &[String]| names.iter().filter(|name| name.starts_with("socket:")).count();
    let child = SavingRedis::files_of(saving.child);
    assert!(
        sockets(&child) + 2 <= sockets(&parent),
        "the child should have closed the link and the link port: {child:?} {parent:?}"
    );
}

#[test]
fn link_that_the_server_ends_is_closed_while_a_child_runs() {
    let mut saving = SavingRedis::start();
    saving.link.stream.write_all(&[0xff; 64]).unwrap(); // an invalid frame
    while saving.link.lost.is_none() {
        saving.link.receive(WAIT_MAX);
    }
    assert!(saving.is_child_running());
    let mut link = saving.redis.link();
    let id = connect_local(&mut link);
    expect(&mut link, id, &command_of("PING"), b"+PONG\r\n");
}

#[test]
fn restarted_server_is_helped_while_a_child_of_the_killed_one_runs() {
    let mut saving = SavingRedis::start();
    let link_port = saving.redis.server.link;
    saving.redis.server.kill();
    while saving.link.lost.is_none() {
        saving.link.receive(WAIT_MAX);
    }
    // Redis' child still holds the ordinary port, so the new server gets another.
    let other = spillway_ports::free_address();
    assert!(saving.is_child_running());
    let command = |plain: SocketAddr| {
        let mut command = Command::new("/usr/bin/redis-server");
        command.args(["--port", &plain.port().to_string(), "--save", ""]).stdout(std::process::Stdio::null());
        command
    };
    let restarted =
        Server::start_at(other, link_port, &command, &|server| TcpStream::connect(server.link).is_ok());
    let restarted = restarted.expect("start the server again");
    let mut link = Driver::loopback(restarted.link);
    let id = connect_local(&mut link);
    expect(&mut link, id, &command_of("PING"), b"+PONG\r\n");
}

/// Checks that a link port that is in use when the server starts is opened once it is free.
fn check_opened_once_free(command: impl Fn(SocketAddr) -> Command) {
    let taken = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let link = taken.local_addr().unwrap();
    let plain = spillway_ports::free_address();
    let server =
        Server::start_at(plain, link, &command, &|_| true).expect("start the server on a free ordinary port");
    server.wait_for_log(
        "cannot be opened: the address is in use; the server runs without helpers and tries again",
    );
    // Time for several failed attempts, the first after 50 ms.
    std::thread::sleep(Duration::from_millis(300));
    drop(taken);
    let deadline = Instant::now() + WAIT_MAX;
    while TcpStream::connect(link).is_err() {
        assert!(
            Instant::now() < deadline,
            "the link port should open within {WAIT_MAX:?}:\n{}",
            server.log()
        );
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
    check_opened_once_free(|plain| {
        let mut command = Command::new("/usr/bin/memcached");
        command.args(["-u", "nobody", "-l", "127.0.0.1", "-p", &plain.port().to_string()]);
        command
    });
}

/// A Python server with a thread for each connection, whose main thread blocks in `select`.
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
    check_opened_once_free(|plain| {
        let mut command = Command::new("python3");
        command.args(["-c", THREADS, &plain.port().to_string()]);
        command
    });
}
