//! The `spillway helper` command as a process: start, signals, status, and errors at the start.

#[path = "../../helper/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::{EchoServer, connect, echo, helper_key, wait};

fn spillway(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spillway")).args(arguments).output().expect("run spillway")
}

/// A directory of one test, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("spillway-cli-helper-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("create directory");
        Directory(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }

    fn key(&self) -> String {
        let path = self.file("server.key");
        std::fs::write(&path, helper_key().to_text().as_bytes()).expect("file");
        set_mode(&path, 0o600);
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn set_mode(path: &str, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set permissions");
}

struct HelperProcess {
    child: Child,
    socket: String,
    lines: Receiver<String>,
}

impl HelperProcess {
    fn start(directory: &Directory, server: SocketAddr, extra: &[&str]) -> HelperProcess {
        HelperProcess::start_as(|program| Command::new(program), directory, server, extra)
    }

    /// `command` returns the command that runs the given program.
    fn start_as(
        command: impl Fn(&str) -> Command,
        directory: &Directory,
        server: SocketAddr,
        extra: &[&str],
    ) -> HelperProcess {
        let socket = directory.file("helper.sock");
        let service = format!("cache={server}");
        let mut child = command(env!("CARGO_BIN_EXE_spillway"))
            .args(["helper", "--service", &service, "--listen", "127.0.0.1:0", "--threads", "2"])
            .args(["--key", &directory.key(), "--status-socket", &socket])
            .args(extra)
            .stderr(Stdio::piped())
            .spawn()
            .expect("run spillway");
        let (send, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().expect("piped standard error"));
        std::thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .take_while(|line| send.send(line.clone()).is_ok())
                .for_each(drop);
        });
        HelperProcess { child, socket, lines }
    }

    fn status(&self) -> Option<serde_json::Value> {
        let output = spillway(&["status", "--json", "--socket", &self.socket]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    /// Waits until both threads listen; returns the address for clients.
    fn port(&self) -> SocketAddr {
        let mut port = None;
        wait("the links", || {
            let Some(status) = self.status() else { return false };
            let service = &status["services"][0];
            port = service["listen"][0].as_str().and_then(|address| address.parse().ok());
            service["threads_listening"] == 2
        });
        port.expect("address for clients")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signal the helper");
    }

    fn line(&self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(30));
            let line = line.unwrap_or_else(|_| panic!("no log line contains {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    fn end(&mut self) -> ExitStatus {
        let mut status = None;
        wait("the end of the helper", || {
            status = self.child.try_wait().expect("status of the child");
            status.is_some()
        });
        status.expect("exit status")
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn helper_serves_clients_and_drains_after_sigterm() {
    let (directory, server) = (Directory::new("life"), EchoServer::start());
    let mut helper = HelperProcess::start(&directory, server.address, &[]);
    helper.line("opening links");
    let port = helper.port();
    helper.line("link up");
    let mut client = connect(port);
    echo(&mut client, 1, 10_000);

    helper.signal(Signal::USR1);
    let line = helper.line("cache at");
    assert!(line.contains("2 of 2 links up") && line.contains("1 plain"), "{line}");
    let text = spillway(&["status", "--socket", &helper.socket]);
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    assert!(text.contains("cache at") && text.contains("2 of 2 links up"), "{text}");

    helper.signal(Signal::TERM);
    helper.line("draining: no new");
    wait("no new clients", || TcpStream::connect(port).is_err());
    echo(&mut client, 2, 10_000);
    client.shutdown(std::net::Shutdown::Write).expect("shut down the open connection");
    assert_eq!(client.read(&mut [0; 1]).expect("end of stream"), 0);
    assert!(helper.end().success());
    assert!(!Path::new(&helper.socket).exists());
    let text = spillway(&["status", "--socket", &helper.socket]);
    let error = String::from_utf8(text.stderr).expect("UTF-8");
    assert!(!text.status.success() && error.contains("--status-socket"), "{error}");
}

#[test]
fn a_second_signal_ends_the_helper_at_once() {
    let (directory, server) = (Directory::new("twice"), EchoServer::start());
    let mut helper = HelperProcess::start(&directory, server.address, &[]);
    let mut client = connect(helper.port());
    echo(&mut client, 1, 100);
    helper.signal(Signal::TERM);
    helper.line("draining: no new");
    // Programs that signal a process and its group send two signals at once: the second one must not count.
    helper.signal(Signal::TERM);
    echo(&mut client, 2, 100);
    // A signal a second later ends the process.
    wait("a second request to end", || {
        helper.signal(Signal::TERM);
        helper.lines.try_iter().any(|line| line.contains("second time"))
    });
    assert!(helper.end().success());
    assert!(matches!(client.read(&mut [0; 1]), Ok(0) | Err(_)));
}

#[test]
fn a_restarted_server_gets_links_again() {
    let (directory, server) = (Directory::new("away"), EchoServer::start());
    let address = server.address;
    let helper = HelperProcess::start(&directory, address, &["--max-delay", "0", "--batch", "fixed"]);
    let port = helper.port();
    drop(server);
    helper.line("link down");
    wait("refused connections", || TcpStream::connect(port).is_err());
    let _server = EchoServer::start_at(address);
    helper.line("link up");
    echo(&mut connect(helper.port()), 1, 100);
}

#[test]
fn running_out_of_descriptors_is_logged_and_does_not_affect_present_clients() {
    let (directory, server) = (Directory::new("descriptors"), EchoServer::start());
    let command = |program: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 60; exec \"$0\" \"$@\"", program]);
        command
    };
    let metrics = ["--metrics", "127.0.0.1:0"];
    let helper = HelperProcess::start_as(command, &directory, server.address, &metrics);
    helper.line("raise the hard limit");
    let metrics = helper.line("metrics and status page at http://");
    let port = helper.port();
    let (mut served, mut refused) = (Vec::new(), 0);
    for _ in 0..100 {
        match served_or_refused(port) {
            Some(stream) => served.push(stream),
            None => refused += 1,
        }
    }
    assert!(served.len() >= 20 && refused >= 40, "{} served, {refused} refused", served.len());
    helper.line("out of file descriptors");
    for (index, stream) in served.iter_mut().enumerate() {
        echo(stream, index, 500);
    }
    served.truncate(10);
    wait("a free descriptor", || support::is_served(port));

    let counted = helper.status().expect("status of the helper")["services"][0]["refused"].clone();
    let descriptors = counted["descriptors"].as_u64().expect("number");
    assert!(descriptors > 0 && counted["total"] == descriptors, "{counted}");
    let (_, metrics) = metrics.split_once("http://").expect("metrics address in the log line");
    let mut stream = connect(metrics.trim_end_matches('/').parse().expect("address"));
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("send the request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("UTF-8");
    let reported: u64 = text
        .lines()
        .filter(|line| line.starts_with("spillway_helper_clients_refused_total{"))
        .filter_map(|line| line.split_once("reason=\"descriptors\"} "))
        .map(|(_, number)| number.parse::<u64>().expect("number"))
        .sum();
    assert_eq!(reported, descriptors);
}

/// Connects a client: `Some` if it is served, `None` if it is refused. Panics if the client is left waiting.
fn served_or_refused(port: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(port).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set timeout");
    let answer = stream.write_all(b"hi").and_then(|()| stream.read_exact(&mut [0; 2]));
    if let Err(error) = &answer {
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "a client should be served or refused");
    }
    answer.is_ok().then_some(stream)
}

#[test]
fn errors_at_the_start_name_their_cause() {
    let directory = Directory::new("errors");
    let key = directory.key();
    let readable_by_all = directory.file("open.key");
    std::fs::copy(&key, &readable_by_all).expect("copy the key");
    set_mode(&readable_by_all, 0o644);
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen on loopback");
    let used_address = listener.local_addr().expect("local address").to_string();
    let listen = ["--listen", "127.0.0.1:0"];
    for (arguments, text) in [
        (&["--key", &readable_by_all][..], "chmod"),
        (&["--key", "/no/such/file"], "/no/such/file"),
        (&["--listen", &used_address], "another program listens there"),
        (&["--link-listen", "0.0.0.0:0"], "--client-key"),
        (&["--listen", "b=1"], "no --service b="),
        (&["--max-delay", "5"], "with its unit"),
        (&["--allow-clients", "10.0.0.1/8"], "after the prefix"),
        (&["--status-socket", "/no/such/directory/socket"], "create its directory"),
        (&["--service", "far=192.0.2.5:11411", "--listen", "far=0"], "no key"),
        (&["--service", "mute=127.0.0.1:1"], "has no port for clients"),
    ] {
        let output =
            spillway(&[&["helper", "--service", "cache=127.0.0.1:1"], &listen[..], arguments].concat());
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(!output.status.success() && error.contains(text), "{arguments:?}: {error}");
    }
}

#[test]
fn new_keys_are_readable_for_their_owner_only_and_never_overwritten() {
    let directory = Directory::new("keys");
    let path = directory.file("new.key");
    assert!(spillway(&["key", "new", &path]).status.success());
    let key = std::fs::read(&path).expect("key file");
    assert_eq!(std::fs::metadata(&path).expect("file").permissions().mode() & 0o777, 0o600);
    let again = spillway(&["key", "new", &path]);
    let error = String::from_utf8(again.stderr).expect("UTF-8");
    assert!(!again.status.success() && error.contains("exists"), "{error}");
    assert_eq!(std::fs::read(&path).expect("key file"), key);
}
