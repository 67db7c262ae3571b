//! A log that cannot be written stops nobody: a pipe whose reader has gone, one that is full, a disk that is full. With the
//! real programs and the real memcached; clients lose no request meanwhile.

mod support;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spillway_lab::peers::Memcached;
use spillway_lab::{Launch, Place};
use spillway_ports::free_port;
use support::beside::Served;
use support::logs::{self, FullPipe, Reader, Terminal};
use support::{Client, Ending, Options, PATIENCE, SPILLWAY, Scene, Scratch, eventually, loopback};

const TERM: i32 = 15;

/// Clients that ask all the time while something is done. None of them misses a reply; how many they had is returned.
fn busily(address: SocketAddr, work: impl FnOnce()) -> u64 {
    let (is_over, replies) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for me in 0..6 {
            let (is_over, replies) = (&is_over, &replies);
            scope.spawn(move || {
                let (mut client, key) = (Client::new(address), format!("busy{me}"));
                client.set(&key, b"value");
                loop {
                    assert_eq!(client.get(&key), Some(b"value".to_vec()));
                    replies.fetch_add(1, Ordering::Relaxed);
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
        }
        let _ending = Ending(&is_over);
        work();
    });
    replies.into_inner()
}

/// Runs the command, which has to succeed.
fn tell(arguments: &[&str]) -> String {
    let output = Command::new(SPILLWAY).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "spillway {}: {errors}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// Whether clients miss nothing, and all that is asked is answered, in a sidecar that logs there. `break_it` is called when
/// it has started.
fn sidecar_goes_on(served: &Served, log: &str, break_it: impl FnOnce()) -> u64 {
    let arguments = ["--protocol", "memcached", "--sla", "10s", "--name", "cache", "--threads", "2"];
    let mut beside = served.beside_logging_to(Some(log), &arguments);
    break_it();
    let replies = busily(beside.address, || {
        eventually("all are carried", || beside.number("/direct") == 6);
        // Each word is a line of the log, and so are the moves.
        for word in ["on", "off", "on", "auto"] {
            tell(&["relief", "cache", word, "--wait", "--socket", &beside.status_socket]);
        }
        // A status line on standard error.
        beside.process.signal(rustix::process::Signal::USR1.as_raw()).unwrap();
    });
    assert!(replies >= 6 && beside.ended_badly() == 0, "{:#}", beside.status());
    assert!(beside.status()["thread_failure"].is_null());
    let dropped = beside.number("/log_lines_dropped");
    // A connection that has yet to be served when it is told to go.
    let mut last = Client::new(beside.address);
    assert!(last.version().is_some());
    assert_eq!(beside.stop(), Some(0), "it ends in order");
    assert!(last.ended());
    dropped
}

#[test]
fn a_sidecar_goes_on_whatever_becomes_of_its_log() {
    let served = Served::start(1, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    let reader = Reader::new(&served.scratch, "closed");
    let path = reader.path.clone();
    assert!(sidecar_goes_on(&served, &path, || drop(reader)) > 0, "lines without a reader are counted");
    let full = FullPipe::new(&served.scratch, "full");
    sidecar_goes_on(&served, &full.path, || ());
    assert!(sidecar_goes_on(&served, "/dev/full", || ()) > 0, "lines without room are counted");
}

fn helper_goes_on(scene: &mut Scene, is_counted: bool) {
    let socket = scene.status_socket.clone();
    let (raw, direct) = (scene.raw, scene.direct());
    busily(raw, || {
        tell(&["reload", "--socket", &socket]);
        tell(&["relief", "cache", "on", "--socket", &socket]);
        // A word that closes the port; whoever is there stays.
        tell(&["relief", "cache", "off", "--socket", &socket]);
        eventually("the port is closed", || TcpStream::connect(raw).is_err());
        tell(&["relief", "cache", "auto", "--socket", &socket]);
        eventually("the port is open", || TcpStream::connect(raw).is_ok());
        scene.helper.signal(rustix::process::Signal::USR1.as_raw()).unwrap();
        scene.helper.signal(rustix::process::Signal::HUP.as_raw()).unwrap();
        assert!(Client::new(direct).version().is_some());
    });
    if is_counted {
        let dropped = || scene.status()["log_lines_dropped"].as_u64();
        eventually("dropped lines are counted", || dropped().is_some_and(|dropped| dropped > 0));
    }
    let mut last = Client::new(raw);
    last.set("last", b"value");
    scene.helper.signal(TERM).unwrap();
    eventually("no new clients", || TcpStream::connect(raw).is_err());
    assert_eq!(last.get("last"), Some(b"value".to_vec()), "it drains");
    drop(last);
    let ended = scene.helper.wait(PATIENCE).expect("it ends");
    assert_eq!(ended.code(), Some(0), "it ends in order");
}

#[test]
fn a_helper_goes_on_whatever_becomes_of_its_log() {
    let scratch = Scratch::new();
    let reader = Reader::new(&scratch, "closed");
    let full = FullPipe::new(&scratch, "full");
    let start = |log: &str| Scene::with(Options { helper_log: Some(log.to_owned()), ..Options::default() });
    let mut scene = start(&reader.path);
    drop(reader);
    helper_goes_on(&mut scene, true);
    helper_goes_on(&mut start(&full.path), false);
    helper_goes_on(&mut start("/dev/full"), true);
}

#[test]
fn lines_that_were_dropped_are_told_of_when_the_log_works_again() {
    let scratch = Scratch::new();
    // A file that takes nothing more, until it may be longer.
    let log = scratch.path("log");
    let arguments =
        ["helper", "--service", "cache=127.0.0.1:1", "--listen", &loopback(free_port()).to_string()]
            .map(str::to_owned);
    let socket = scratch.path("h.sock");
    let launch = Launch::new(SPILLWAY)
        .name("helper")
        .args(&arguments)
        .args(["--threads", "1", "--status-socket", &socket])
        .wrapper(logs::to(Some(&log)))
        // In 512 bytes; SIGXFSZ is ignored, so that writing fails.
        .wrapper(["sh", "-c", r#"trap "" XFSZ; ulimit -S -f 0; exec "$@""#, "sh"]);
    let place = Place::local().unwrap();
    let mut helper = place.spawn(&launch).unwrap();
    let dropped = || {
        let output = Command::new(SPILLWAY).args(["status", "--json", "--socket", &socket]).output().unwrap();
        let status: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        status.and_then(|status| status["log_lines_dropped"].as_u64()).unwrap_or(0)
    };
    eventually("its first lines are dropped", || dropped() > 0);
    let unlimited = rustix::process::Rlimit { current: None, maximum: None };
    let pid = rustix::process::Pid::from_raw(helper.pid().cast_signed());
    rustix::process::prlimit(pid, rustix::process::Resource::Fsize, unlimited).unwrap();
    tell(&["reload", "--socket", &socket]);
    let told = || fs::read_to_string(&log).unwrap();
    eventually("it is told", || told().contains(" log lines dropped"));
    eventually("what comes next is there", || told().contains("reload: in force"));
    helper.signal(TERM).unwrap();
    assert!(helper.wait(PATIENCE).expect("it ends").success());
}

#[test]
fn a_server_whose_log_nobody_reads_serves_direct_and_helped_clients() {
    let scratch = Scratch::new();
    let full = FullPipe::new(&scratch, "full");
    // Its helper connects, which is a line of the shim's.
    let scene = Scene::with(Options { server_log: Some(full.path.clone()), ..Options::default() });
    for address in [scene.direct(), scene.raw] {
        assert!(busily(address, || scene.await_helped()) >= 6);
    }
    (0..3).for_each(|_| knock(scene.link));
    assert!(Client::new(scene.direct()).version().is_some());
    assert!(Client::new(scene.raw).version().is_some());
}

/// A stranger at the link port, which is a line of the shim's log.
fn knock(link: SocketAddr) {
    let mut stranger = TcpStream::connect(link).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Write::write_all(&mut stranger, &[b'x'; 100]).unwrap();
    std::io::copy(&mut stranger, &mut std::io::sink()).ok();
}

#[test]
fn a_server_on_a_terminal_that_nobody_reads_serves_direct_and_helped_clients() {
    let mut terminal = Terminal::new();
    let scene = Scene::with(Options { server_log: Some(terminal.path.clone()), ..Options::default() });
    let mut read = String::new();
    eventually("lines are written to it", || {
        knock(scene.link);
        read.push_str(&terminal.read(4096));
        read.contains("spillway: link of ") && read.contains(" refused: ")
    });
    // A terminal says that it has room when it has less than a line: some of what was written is read, then nothing.
    terminal.fill();
    terminal.read(1024);
    eventually("there is some room", || terminal.has_room());
    eventually("lines have taken it", || {
        knock(scene.link);
        !terminal.has_room()
    });
    (0..3).for_each(|_| knock(scene.link));
    for address in [scene.direct(), scene.raw] {
        assert!(busily(address, || scene.await_helped()) >= 6);
    }
}

/// Serves memcached's `version` on a port, after it has closed its standard streams and opened something else as
/// descriptor 2: a data file, or one end of a pair of UNIX sockets. Beside it is a file with what came to the other end.
const SERVER: &str = r#"
import os, select, socket, sys
port, kind, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
for fd in range(3):
    os.close(fd)
assert os.open("/dev/null", os.O_RDONLY) == 0 and os.open("/dev/null", os.O_WRONLY) == 1
if kind == "file":
    assert os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600) == 2
    os.write(2, b"RECORD1;")
else:
    one, other = socket.socketpair()
    assert one.fileno() == 2
    other.setblocking(False)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", port))
listener.listen()
poller = select.epoll()
poller.register(listener, select.EPOLLIN)
clients = {}
while True:
    for fd, _ in poller.poll():
        if fd == listener.fileno():
            client, _ = listener.accept()
            clients[client.fileno()] = client
            poller.register(client, select.EPOLLIN)
        elif clients[fd].recv(1000):
            if kind == "socket":
                try:
                    got = other.recv(1000)
                except BlockingIOError:
                    got = b""
                with open(path, "ab") as file:
                    file.write(got + b"|")
            clients[fd].send(b"VERSION 1\r\n")
        else:
            poller.unregister(fd)
            clients.pop(fd).close()
"#;

#[test]
fn nothing_is_logged_to_what_a_server_opens_as_descriptor_2() {
    let (scratch, place) = (Scratch::new(), Place::local().unwrap());
    let script = scratch.path("server.py");
    fs::write(&script, SERVER).unwrap();
    for kind in ["file", "socket"] {
        let (port, link, raw) = (free_port(), loopback(free_port()), loopback(free_port()));
        let data = scratch.path(kind);
        let server = Launch::new("python3").args([&script, &port.to_string(), kind, &data]).wrapper([
            SPILLWAY,
            "run",
            "--link",
            &link.to_string(),
            "--require",
            "--",
        ]);
        let _server = place.spawn(&server).unwrap();
        let helper = Launch::new(SPILLWAY).args([
            "helper",
            "--service",
            &format!("a={link}"),
            "--listen",
            &raw.to_string(),
            "--threads",
            "1",
        ]);
        let _helper = place.spawn(&helper).unwrap();
        eventually("clients are served", || {
            Client::try_new(raw).is_some_and(|mut client| client.version().is_some())
        });
        assert!(Client::new(loopback(port)).version().is_some());
        let written = fs::read_to_string(&data).unwrap();
        match kind {
            "file" => assert_eq!(written, "RECORD1;"),
            _ => assert!(written.chars().all(|c| c == '|') && !written.is_empty(), "{written:?}"),
        }
    }
}

/// Preloaded: a host that has no more random bytes as soon as a file is there. Nonces must not be guessed, so the network
/// thread that needs one panics.
const BROKEN_HOST: &str = r#"
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
ssize_t getrandom(void *bytes, size_t count, unsigned flags) {
    if (access(getenv("BROKEN"), F_OK) == 0) { errno = EIO; return -1; }
    return syscall(SYS_getrandom, bytes, count, flags);
}
"#;

#[test]
fn a_thread_that_panics_ends_the_process_whatever_becomes_of_its_log() {
    let (scratch, place) = (Scratch::new(), Place::local().unwrap());
    let (source, library) = (scratch.path("broken.c"), scratch.path("broken.so"));
    fs::write(&source, BROKEN_HOST).unwrap();
    assert!(
        Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source]).status().unwrap().success()
    );
    let (full, file) = (FullPipe::new(&scratch, "full"), scratch.path("log"));
    for (turn, log) in [&full.path, &file].into_iter().enumerate() {
        let broken = scratch.path(&format!("broken{turn}"));
        let listen = loopback(free_port()).to_string();
        let socket = scratch.path(&format!("{turn}.sock"));
        // Nobody is there: it opens a link again and again, each time with a nonce.
        let launch = Launch::new(SPILLWAY)
            .args(["helper", "--service", "cache=127.0.0.1:1", "--listen", &listen, "--threads", "2"])
            .args(["--status-socket", &socket])
            .env("LD_PRELOAD", &library)
            .env("BROKEN", &broken)
            .wrapper(logs::to(Some(log)));
        let mut helper = place.spawn(&launch).unwrap();
        let asks = ["status", "--socket", &socket];
        eventually("it runs", || Command::new(SPILLWAY).args(asks).output().unwrap().status.success());
        fs::write(&broken, "").unwrap();
        assert_eq!(helper.wait(PATIENCE).expect("it ends").code(), Some(1));
    }
    let told = fs::read_to_string(&file).unwrap();
    assert!(told.contains("panicked at face/helper/src/contexts.rs"), "{told}");
    assert!(told.contains("no more random bytes") && told.contains("; ending, so that"), "{told}");
}
