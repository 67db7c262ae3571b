//! Logs that cannot be written (a closed pipe, a full pipe, a full disk) stop no program: with the real programs and
//! the real memcached, clients lose no request.

mod support;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spillway_lab::peers::Memcached;
use spillway_lab::{Launch, Place};
use spillway_ports::free_port;
use support::logs::{self, FullPipe, LogTerminal, Reader};
use support::sidecar::Deployment;
use support::{Client, Options, PATIENCE, SPILLWAY, Scene, Scratch, SetOnDrop, eventually, loopback};

const TERM: i32 = 15;

/// Runs `work` while clients send requests; each request must be answered. Returns the number of replies.
fn while_clients_send_requests(address: SocketAddr, work: impl FnOnce()) -> u64 {
    let (is_over, replies) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (is_over, replies) = (&is_over, &replies);
            scope.spawn(move || {
                let (mut client, key) = (Client::new(address), format!("busy{number}"));
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
        let _ending = SetOnDrop(&is_over);
        work();
    });
    replies.into_inner()
}

fn spillway(arguments: &[&str]) -> String {
    let output = Command::new(SPILLWAY).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "spillway {}: {errors}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// Checks a sidecar with this log: clients lose no request, and admin commands are answered. `break_log` is called once
/// the sidecar has started. Returns the number of dropped log lines.
fn check_sidecar_with_log(deployment: &Deployment, log: &str, break_log: impl FnOnce()) -> u64 {
    let arguments = ["--protocol", "memcached", "--sla", "10s", "--name", "cache", "--threads", "2"];
    let mut sidecar = deployment.sidecar_logging_to(Some(log), &arguments);
    break_log();
    let replies = while_clients_send_requests(sidecar.address, || {
        eventually("all are carried", || sidecar.number("/direct") == 6);
        // Each override and each move is a line of the log.
        for relief_override in ["on", "off", "on", "auto"] {
            spillway(&["relief", "cache", relief_override, "--wait", "--socket", &sidecar.status_socket]);
        }
        // A status line on standard error.
        sidecar.process.signal(rustix::process::Signal::USR1.as_raw()).unwrap();
    });
    assert!(replies >= 6 && sidecar.not_ended_in_order() == 0, "{:#}", sidecar.status());
    assert!(sidecar.status()["thread_failure"].is_null());
    let dropped = sidecar.number("/log_lines_dropped");
    let mut last = Client::new(sidecar.address);
    assert!(last.version().is_some());
    assert_eq!(sidecar.stop(), Some(0), "the process should end in order");
    assert!(last.ended());
    dropped
}

#[test]
fn a_sidecar_works_without_a_writable_log() {
    let deployment =
        Deployment::start(1, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    let reader = Reader::new(&deployment.scratch, "closed");
    let path = reader.path.clone();
    assert!(
        check_sidecar_with_log(&deployment, &path, || drop(reader)) > 0,
        "lines for a closed pipe should be counted as dropped"
    );
    let full = FullPipe::new(&deployment.scratch, "full");
    check_sidecar_with_log(&deployment, &full.path, || ());
    assert!(
        check_sidecar_with_log(&deployment, "/dev/full", || ()) > 0,
        "lines for a full disk should be counted as dropped"
    );
}

fn check_helper_with_log(scene: &mut Scene, is_counted: bool) {
    let socket = scene.status_socket.clone();
    let (plain_port, direct) = (scene.plain_port, scene.direct());
    while_clients_send_requests(plain_port, || {
        spillway(&["reload", "--socket", &socket]);
        spillway(&["relief", "cache", "on", "--socket", &socket]);
        // `off` closes the port; present clients stay.
        spillway(&["relief", "cache", "off", "--socket", &socket]);
        eventually("the port is closed", || TcpStream::connect(plain_port).is_err());
        spillway(&["relief", "cache", "auto", "--socket", &socket]);
        eventually("the port is open", || TcpStream::connect(plain_port).is_ok());
        scene.helper.signal(rustix::process::Signal::USR1.as_raw()).unwrap();
        scene.helper.signal(rustix::process::Signal::HUP.as_raw()).unwrap();
        assert!(Client::new(direct).version().is_some());
    });
    if is_counted {
        let dropped = || scene.status()["log_lines_dropped"].as_u64();
        eventually("dropped lines are counted", || dropped().is_some_and(|dropped| dropped > 0));
    }
    let mut last = Client::new(plain_port);
    last.set("last", b"value");
    scene.helper.signal(TERM).unwrap();
    eventually("no new clients", || TcpStream::connect(plain_port).is_err());
    assert_eq!(last.get("last"), Some(b"value".to_vec()), "present clients should be served while draining");
    drop(last);
    let ended = scene.helper.wait(PATIENCE).expect("exit status of the helper");
    assert_eq!(ended.code(), Some(0), "the process should end in order");
}

#[test]
fn a_helper_works_without_a_writable_log() {
    let scratch = Scratch::new();
    let reader = Reader::new(&scratch, "closed");
    let full = FullPipe::new(&scratch, "full");
    let start = |log: &str| Scene::with(Options { helper_log: Some(log.to_owned()), ..Options::default() });
    let mut scene = start(&reader.path);
    drop(reader);
    check_helper_with_log(&mut scene, true);
    check_helper_with_log(&mut start(&full.path), false);
    check_helper_with_log(&mut start("/dev/full"), true);
}

#[test]
fn dropped_lines_are_logged_when_the_log_works_again() {
    let scratch = Scratch::new();
    // A file-size limit of 0 makes writing fail until the test raises the limit.
    let log = scratch.path("log");
    let arguments =
        ["helper", "--service", "cache=127.0.0.1:1", "--listen", &loopback(free_port()).to_string()]
            .map(str::to_owned);
    let socket = scratch.path("h.sock");
    let launch = Launch::new(SPILLWAY)
        .name("helper")
        .args(&arguments)
        .args(["--threads", "1", "--status-socket", &socket])
        .wrapper(logs::redirect_stderr(Some(&log)))
        // SIGXFSZ is ignored, so that writing fails instead of killing the process.
        .wrapper(["sh", "-c", r#"trap "" XFSZ; ulimit -S -f 0; exec "$@""#, "sh"]);
    let place = Place::local().unwrap();
    let mut helper = place.spawn(&launch).unwrap();
    let dropped = || {
        let output = Command::new(SPILLWAY).args(["status", "--json", "--socket", &socket]).output().unwrap();
        let status: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        status.and_then(|status| status["log_lines_dropped"].as_u64()).unwrap_or(0)
    };
    eventually("the first lines are dropped", || dropped() > 0);
    let unlimited = rustix::process::Rlimit { current: None, maximum: None };
    let pid = rustix::process::Pid::from_raw(helper.pid().cast_signed());
    rustix::process::prlimit(pid, rustix::process::Resource::Fsize, unlimited).unwrap();
    spillway(&["reload", "--socket", &socket]);
    let log_text = || fs::read_to_string(&log).unwrap();
    eventually("the number of dropped lines is logged", || log_text().contains(" log lines dropped"));
    eventually("later lines are logged", || log_text().contains("reload: in force"));
    helper.signal(TERM).unwrap();
    assert!(helper.wait(PATIENCE).expect("exit status of the helper").success());
}

#[test]
fn a_server_with_a_full_log_pipe_serves_direct_and_helped_clients() {
    let scratch = Scratch::new();
    let full = FullPipe::new(&scratch, "full");
    // The preload library logs the helper's link.
    let scene = Scene::with(Options { server_log: Some(full.path.clone()), ..Options::default() });
    for address in [scene.direct(), scene.plain_port] {
        assert!(while_clients_send_requests(address, || scene.await_helped()) >= 6);
    }
    (0..3).for_each(|_| send_garbage(scene.link));
    assert!(Client::new(scene.direct()).version().is_some());
    assert!(Client::new(scene.plain_port).version().is_some());
}

/// Sends garbage to the link port; the preload library logs it.
fn send_garbage(link: SocketAddr) {
    let mut stream = TcpStream::connect(link).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Write::write_all(&mut stream, &[b'x'; 100]).unwrap();
    std::io::copy(&mut stream, &mut std::io::sink()).ok();
}

#[test]
fn a_server_on_an_unread_terminal_serves_direct_and_helped_clients() {
    let mut terminal = LogTerminal::new();
    let scene = Scene::with(Options { server_log: Some(terminal.path().to_owned()), ..Options::default() });
    let mut output = String::new();
    eventually("log lines appear on the terminal", || {
        send_garbage(scene.link);
        output.push_str(&terminal.read(4096));
        output.contains("spillway: link of ") && output.contains(" refused: ")
    });
    // A terminal reports room for writing even if a line does not fit: read a part of what was written, then stop
    // reading.
    terminal.fill();
    terminal.read(1024);
    eventually("there is some room", || terminal.has_room());
    eventually("log lines fill the room", || {
        send_garbage(scene.link);
        !terminal.has_room()
    });
    (0..3).for_each(|_| send_garbage(scene.link));
    for address in [scene.direct(), scene.plain_port] {
        assert!(while_clients_send_requests(address, || scene.await_helped()) >= 6);
    }
}

/// A server that answers memcached's `version`. It closes its standard streams and opens something else as
/// descriptor 2: a data file, or one end of a UNIX socket pair, whose other end it copies into a file.
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
fn library_does_not_log_to_a_file_that_the_server_opens_as_descriptor_2() {
    let (scratch, place) = (Scratch::new(), Place::local().unwrap());
    let script = scratch.path("server.py");
    fs::write(&script, SERVER).unwrap();
    for kind in ["file", "socket"] {
        let (port, link, plain_port) = (free_port(), loopback(free_port()), loopback(free_port()));
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
            &plain_port.to_string(),
            "--threads",
            "1",
        ]);
        let _helper = place.spawn(&helper).unwrap();
        eventually("clients are served", || {
            Client::try_new(plain_port).is_some_and(|mut client| client.version().is_some())
        });
        assert!(Client::new(loopback(port)).version().is_some());
        let written = fs::read_to_string(&data).unwrap();
        match kind {
            "file" => assert_eq!(written, "RECORD1;"),
            _ => assert!(written.chars().all(|c| c == '|') && !written.is_empty(), "{written:?}"),
        }
    }
}

/// A preloaded library in which `getrandom` fails once a file exists. Nonces must be unpredictable, so the network
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
fn a_thread_that_panics_ends_the_process_even_if_its_log_is_blocked() {
    let (scratch, place) = (Scratch::new(), Place::local().unwrap());
    let (source, library) = (scratch.path("broken.c"), scratch.path("broken.so"));
    fs::write(&source, BROKEN_HOST).unwrap();
    assert!(
        Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source]).status().unwrap().success()
    );
    let (full, file) = (FullPipe::new(&scratch, "full"), scratch.path("log"));
    for (index, log) in [&full.path, &file].into_iter().enumerate() {
        let broken = scratch.path(&format!("broken{index}"));
        let listen = loopback(free_port()).to_string();
        let socket = scratch.path(&format!("{index}.sock"));
        // No server listens: the helper retries its link, each time with a new nonce.
        let launch = Launch::new(SPILLWAY)
            .args(["helper", "--service", "cache=127.0.0.1:1", "--listen", &listen, "--threads", "2"])
            .args(["--status-socket", &socket])
            .env("LD_PRELOAD", &library)
            .env("BROKEN", &broken)
            .wrapper(logs::redirect_stderr(Some(log)));
        let mut helper = place.spawn(&launch).unwrap();
        let status = ["status", "--socket", &socket];
        eventually("the helper answers", || {
            Command::new(SPILLWAY).args(status).output().unwrap().status.success()
        });
        fs::write(&broken, "").unwrap();
        assert_eq!(helper.wait(PATIENCE).expect("exit status of the helper").code(), Some(1));
    }
    let log_text = fs::read_to_string(&file).unwrap();
    assert!(log_text.contains("panicked at face/helper/src/threads.rs"), "{log_text}");
    assert!(
        log_text.contains("no more random bytes") && log_text.contains("; ending, so that"),
        "{log_text}"
    );
}
