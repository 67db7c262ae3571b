//! Servers that end, or whose links end, while clients are helped: the clients' connections end soon.

mod support;

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use spillway_lab::peers::{Memcached, Redis};
use spillway_lab::{Launch, Place};
use spillway_ports::free_port;
use support::sidecar::{Deployment, Sidecar};
use support::{Client, PATIENCE, SPILLWAY, Scratch, eventually, loopback};

fn helped_memcached() -> Deployment {
    Deployment::start(2, |place, run| Memcached::default().wrapper(run).start(place).unwrap())
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

#[track_caller]
fn await_end(client: &mut Client) {
    let began = Instant::now();
    assert!(client.ended() && began.elapsed() < PATIENCE, "the connection should end");
}

#[test]
fn orderly_end_of_a_server_ends_connections_of_sidecars() {
    let deployment = helped_memcached();
    let mut sidecars: Vec<(Sidecar, Client)> = ["on", "off"]
        .into_iter()
        .map(|relief| {
            let sidecar = deployment.sidecar(&["--protocol", "memcached", "--relief", relief]);
            let mut client = Client::new(sidecar.address);
            client.set("key", b"value");
            (sidecar, client)
        })
        .collect();
    assert_eq!((sidecars[0].0.number("/helped"), sidecars[1].0.number("/direct")), (1, 1));
    signal(deployment.server.pid(), Signal::TERM);
    for (sidecar, client) in &mut sidecars {
        await_end(client);
        eventually("the end is counted", || sidecar.number("/ended/in_order") == 1);
        let mut late = Client::new(sidecar.address);
        await_end(&mut late);
        eventually("the late connection is counted", || sidecar.number("/ended/refused") == 1);
    }
}

#[test]
fn killed_server_is_counted_as_gone() {
    let deployment = helped_memcached();
    let sidecar = deployment.sidecar(&["--protocol", "memcached", "--relief", "off"]);
    let mut client = Client::new(sidecar.address);
    client.set("key", b"value");
    signal(deployment.server.pid(), Signal::KILL);
    await_end(&mut client);
    assert_eq!(sidecar.number("/ended/gone"), 1, "{:#}", sidecar.status());
    let mut late = Client::new(sidecar.address);
    await_end(&mut late);
    eventually("the late connection is counted", || sidecar.number("/ended/refused") == 1);
}

/// Sends an inline command to redis and reads one line. `None`: the connection has ended.
fn send_line(stream: &mut TcpStream, request: &str) -> Option<String> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{request}\r\n").as_bytes()).ok()?;
    let mut line = String::new();
    match BufReader::new(&*stream).read_line(&mut line) {
        Ok(0) => None,
        Ok(_) => Some(line),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
        Err(error) => panic!("{request} hangs: {error}"),
    }
}

/// A child process that saves redis' data inherits the parent's sockets for minutes. `server off` must still work.
#[test]
fn server_off_and_on_work_while_redis_saves_its_data() {
    let (place, scratch) = (Place::local().unwrap(), Scratch::new());
    let [link, plain_port] = [(); 2].map(|()| loopback(free_port()));
    let run = [SPILLWAY, "run", "--link", &link.to_string(), "--require", "--"].map(str::to_owned);
    let server = Redis::default()
        .wrapper(run)
        .args(["--rdb-key-save-delay", "10000000", "--dir", &scratch.path(".")])
        .start(&place)
        .unwrap();
    let launch = Launch::new(SPILLWAY)
        .name("helper")
        .args(["helper", "--service", &format!("service={link}"), "--listen", &plain_port.to_string()])
        .args(["--threads", "1", "--status-socket", &scratch.path("helper.sock")]);
    let _helper = place.spawn(&launch).unwrap();
    let helped = || TcpStream::connect(plain_port).ok().and_then(|mut stream| send_line(&mut stream, "PING"));
    let is_helped = || helped().as_deref() == Some("+PONG\r\n");
    eventually("the helper serves", is_helped);
    let mut direct = TcpStream::connect(server.address()).unwrap();
    for key in 0..20 {
        assert_eq!(send_line(&mut direct, &format!("SET key{key} value")).as_deref(), Some("+OK\r\n"));
    }
    let mut clients: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(plain_port).unwrap()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(send_line(client, "PING").as_deref(), Some("+PONG\r\n")));
    assert!(send_line(&mut direct, "BGSAVE").unwrap().contains("started"));

    let pid = server.pid().to_string();
    let spillway = |arguments: &[&str]| {
        let output = Command::new(SPILLWAY).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    spillway(&["server", "off", &pid, "--within", "1", "--wait"]);
    for client in &mut clients {
        assert_eq!(send_line(client, "PING"), None, "the helper should reset its clients after --within");
    }
    spillway(&["server", "on", &pid]);
    eventually("the helper serves again", is_helped);
    let child = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let child: u32 = child.trim().parse().expect("one child, which saves");
    signal(child, Signal::KILL);
}
