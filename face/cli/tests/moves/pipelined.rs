//! A client sends all of its requests ahead, ends its direction, and reads slowly: connections are handed off with unread
//! requests, with half a request, with replies that the client has no window for, and after the client's FIN.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;

use crate::daemon::terminate;
use crate::scene::Scene;
use crate::servers::{Engines, KERNEL_AND_STACK, KERNELS, STACK_AND_KERNEL, STACKS, Servers};
use crate::{number, support::PATIENCE};

/// Clients that send at the same time.
const CLIENTS: usize = 4;
/// Requests of each client: together they are longer than what a server reads ahead.
const REQUESTS: u64 = 1_500;
/// Receive buffer of a client: its window is often closed.
const RECEIVE_BUFFER_BYTES: usize = 4_096;
/// A client pauses after this number of responses.
const RESPONSES_TO_PAUSE: u64 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// Options of TCP that the clients' kernel does not negotiate, by the names of its settings.
type Without = &'static [&'static str];

macro_rules! cases {
    ($($name:ident: $engines:expr, $without:expr;)+) => {
        $(
            #[test]
            fn $name() {
                requests_that_were_sent_ahead_are_all_answered_in_order($engines, $without);
            }
        )+
    };
}

cases! {
    two_stacks: STACKS, &[];
    two_kernels: KERNELS, &[];
    a_kernel_and_a_stack: KERNEL_AND_STACK, &[];
    a_stack_and_a_kernel: STACK_AND_KERNEL, &[];
    two_kernels_without_sack: KERNELS, &["tcp_sack"];
    two_kernels_without_timestamps: KERNELS, &["tcp_timestamps"];
    two_kernels_without_window_scaling: KERNELS, &["tcp_window_scaling"];
    a_kernel_and_a_stack_without_options: KERNEL_AND_STACK, &["tcp_sack", "tcp_timestamps", "tcp_window_scaling"];
    a_stack_and_a_kernel_without_options: STACK_AND_KERNEL, &["tcp_sack", "tcp_timestamps", "tcp_window_scaling"];
}

/// With `MOVES_REQUESTS=100000` a hundred thousand requests of each client.
fn requests_that_were_sent_ahead_are_all_answered_in_order(engines: Engines, without: Without) {
    let Some(scene) = Scene::start_with(0, false) else { return };
    let daemon = scene.start_daemon();
    let servers = Servers::start_partitioned(&scene, engines);
    let (service, requests) = (scene.service(), number("MOVES_REQUESTS", REQUESTS));
    let set = || {
        for option in without {
            fs::write(format!("/proc/sys/net/ipv4/{option}"), "0").unwrap();
        }
    };
    scene.client.run_inside(set).unwrap();
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| scene.client.thread(move || exchange(service, requests)).unwrap()).collect();
    let outcomes: Vec<Vec<String>> =
        clients.into_iter().map(|client| client.join().unwrap().unwrap()).collect();
    assert!(outcomes.iter().all(|served_by| *served_by == outcomes[0]), "each target has one server");
    let moves = servers.moves();
    println!("{moves} requests of {} were handed off", requests * CLIENTS as u64);
    assert!(moves > requests, "about half of the requests of each client: {moves}");
    assert_eq!(servers.lost(), 0);
    servers.stop();
    terminate(daemon);
    scene.close();
}

/// Sends all requests, and reads the responses slowly. Returns the server of each.
fn exchange(service: SocketAddr, requests: u64) -> Vec<String> {
    let stream = TcpStream::connect_timeout(&service, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    sockopt::set_socket_recv_buffer_size(&stream, RECEIVE_BUFFER_BYTES).unwrap();
    let mut sending = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let requests: String =
            (0..requests).map(|number| format!("GET /{number} HTTP/1.1\r\nHost: x\r\n\r\n")).collect();
        sending.write_all(requests.as_bytes()).unwrap();
        sending.shutdown(Shutdown::Write).unwrap();
    });
    let mut reader = BufReader::with_capacity(1_024, stream);
    let served_by = (0..requests).map(|number| {
        if number % RESPONSES_TO_PAUSE == 0 {
            std::thread::sleep(PAUSE);
        }
        read_response(&mut reader, &format!("/{number}"))
    });
    let served_by = served_by.collect();
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the server ends the connection after the last response");
    sender.join().unwrap();
    served_by
}

/// Reads a response, whose body must be `target`. Returns the server that it names.
fn read_response(reader: &mut impl BufRead, target: &str) -> String {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        assert_ne!(
            reader.read_line(&mut line).unwrap(),
            0,
            "the connection has ended before the response to {target}"
        );
        if line == "\r\n" {
            break;
        }
        head.push(line);
    }
    assert_eq!(head[0], "HTTP/1.1 200 OK\r\n", "{target}: {head:?}");
    let mut body = vec![0; target.len()];
    reader.read_exact(&mut body).unwrap();
    assert_eq!(String::from_utf8_lossy(&body), target, "{head:?}");
    let served_by = head.iter().find_map(|line| line.strip_prefix("Served-By: "));
    served_by.unwrap_or_else(|| panic!("{head:?}")).trim_end().to_owned()
}
