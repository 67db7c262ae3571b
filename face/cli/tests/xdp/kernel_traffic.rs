//! TCP, UDP, ARP and ping of the kernel at the address that it shares with a helper.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spillway_bpf::attached_program;
use spillway_lab::{Host, Launch, serve_echo};

use crate::scene::{CLIENTS, HELPER, HELPER_END, PEERS_END, PORT, Scene, run};
use crate::support::{Client, PATIENCE, SetOnDrop, eventually};
use crate::{HUP, TERM};

/// The port of echo servers on kernel sockets of the helper's host.
const ECHO_PORT: u16 = 8000;

/// Starts a TCP and a UDP echo server on kernel sockets of the helper's host. They run until the test process exits.
fn start_kernel_echo(host: &Host) {
    let bind = || {
        let address = (HELPER, ECHO_PORT);
        (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap())
    };
    let (listener, datagrams) = host.run_inside(bind).unwrap();
    serve_echo(listener, datagrams);
}

/// Exchanges messages with the TCP echo server until `stop`. Returns their number.
fn exchange(mut stream: &TcpStream, stop: &AtomicBool) -> u64 {
    let (mut messages, mut answer) = (0_u64, [0; 8]);
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&messages.to_be_bytes()).expect("TCP of the kernel");
        stream.read_exact(&mut answer).expect("TCP of the kernel");
        assert_eq!(u64::from_be_bytes(answer), messages);
        messages += 1;
    }
    messages
}

/// Exchanges datagrams with the UDP echo server until `stop`, each under the lock `in_flight`. Returns their number.
fn exchange_datagrams(socket: &UdpSocket, in_flight: &Mutex<()>, stop: &AtomicBool) -> u64 {
    let (mut messages, mut answer) = (0_u64, [0; 8]);
    while !stop.load(Ordering::Relaxed) {
        // Gives `resolve_and_ping` time to take the lock.
        std::thread::sleep(Duration::from_micros(100));
        let _in_flight = in_flight.lock().unwrap();
        socket.send_to(&messages.to_be_bytes(), (HELPER, ECHO_PORT)).unwrap();
        socket.recv(&mut answer).expect("UDP of the kernel lost a datagram");
        assert_eq!(u64::from_be_bytes(answer), messages);
        messages += 1;
    }
    messages
}

/// Flushes the ARP entry of the helper's host and pings the host, in a loop until `stop`. Holds the lock `in_flight`
/// while flushing: flushing a neighbour drops the packets that wait for its resolution. Returns the number of rounds.
fn resolve_and_ping(host: &Host, in_flight: &Mutex<()>, stop: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let no_datagram = in_flight.lock().unwrap();
        run(host, &format!("ip neigh flush dev {PEERS_END}"));
        drop(no_datagram);
        // Ten echo requests; each must be answered.
        let line = format!("ping -c 10 -i 0.005 -W 20 {HELPER}");
        let words: Vec<_> = line.split(' ').collect();
        let mut ping = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
        assert!(ping.wait(PATIENCE).unwrap().success());
        let printed = ping.stdout().unwrap();
        assert!(printed.contains(" 0% packet loss"), "{printed}");
        rounds += 1;
    }
    rounds
}

#[test]
fn the_kernels_traffic_is_undisturbed_while_a_helper_starts_reloads_and_is_killed() {
    let Some(scene) = Scene::start() else { return };
    start_kernel_echo(&scene.helper);
    let connect = || {
        let stream = TcpStream::connect((HELPER, ECHO_PORT)).unwrap();
        let datagrams = UdpSocket::bind((CLIENTS, 0)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
        (stream, datagrams)
    };
    let (stream, datagrams) = scene.peers.run_inside(connect).unwrap();
    let (is_over, in_flight) = (AtomicBool::new(false), Mutex::new(()));
    std::thread::scope(|scope| {
        let tcp = scope.spawn(|| exchange(&stream, &is_over));
        let udp = scope.spawn(|| exchange_datagrams(&datagrams, &in_flight, &is_over));
        let ping = scope.spawn(|| resolve_and_ping(&scene.peers, &in_flight, &is_over));
        let end = SetOnDrop(&is_over);

        scene.configure("threads = 1", "");
        let mut helper = scene.start_helper();
        scene.await_served(&mut helper);
        let load = scene.load(&["-c", "50", "--rate", "1500"]);
        eventually("requests", || scene.messages() > 1_000);

        // Add a listener by a reload, then remove the listener by another reload.
        scene.configure("threads = 1", &format!(", \"{HELPER}:11212\""));
        helper.signal(HUP).unwrap();
        eventually("the new listener serves", || {
            let client = scene.peers.run_inside(|| Client::try_new((HELPER, 11212).into())).unwrap();
            client.is_some_and(|mut client| client.version().is_some())
        });
        scene.configure("threads = 1", "");
        helper.signal(HUP).unwrap();
        eventually("the kernel refuses there again", || {
            let refused = scene.peers.run_inside(|| TcpStream::connect((HELPER, 11212))).unwrap();
            refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });

        helper.kill();
        let program = || scene.helper.run_inside(|| attached_program(HELPER_END).unwrap()).unwrap();
        eventually("the kernel has detached the program", || program().is_none());
        let refused = scene.peers.run_inside(|| TcpStream::connect((HELPER, PORT))).unwrap();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let mut helper = scene.start_helper();
        scene.await_served(&mut helper);
        eventually("requests after the restart", || scene.messages() > 1_000);
        let totals = scene.totals(load);
        assert!(totals["resets"].as_u64().unwrap() >= 50, "{totals}");

        helper.signal(TERM).unwrap();
        assert!(
            helper.wait(PATIENCE).expect("the helper should end").success(),
            "{}",
            helper.stderr().unwrap()
        );
        assert_eq!(program(), None);
        drop(end);
        let [tcp, udp, ping] = [tcp.join(), udp.join(), ping.join()].map(Result::unwrap);
        assert!(tcp > 100 && udp > 100 && ping > 5, "{tcp} by TCP, {udp} by UDP, {ping} rounds of ping");
    });
    scene.close();
}
