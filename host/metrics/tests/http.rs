//! The HTTP server on real connections: answers, errors and bounds.

#[path = "support/strict.rs"]
mod strict;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spillway_metrics::{CONTENT_TYPE, Exposition, HttpServer, REQUEST_BYTES_MAX, Request, Response, process};

const PEER_CONNECTIONS_MAX: usize = 8; // as in src/places.rs
const TIMEOUT: Duration = Duration::from_secs(30);

fn start_server(handler: impl Fn(&Request) -> Response + Send + Sync + 'static) -> HttpServer {
    let listener = HttpServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    HttpServer::serve(listener, handler).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn read_all(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    read_all(&mut stream)
}

fn echo(request: &Request) -> Response {
    match request.path.as_str() {
        "/none" => Response::text(404, "none\n"),
        path => Response::ok("text/plain", format!("you asked for {path}\n")),
    }
}

#[test]
fn get_and_head_are_answered() {
    let server = start_server(echo);
    let answer = exchange(server.address(), b"GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Content-Length: 17"), "{head}");
    assert!(head.contains("Connection: close") && head.contains("nosniff"), "{head}");
    assert_eq!(body, "you asked for /a\n");
    let answer = exchange(server.address(), b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.contains("Content-Length: 17\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(exchange(server.address(), b"GET /none HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404 "));
}

#[test]
fn other_methods_and_malformed_requests_are_errors() {
    let server = start_server(echo);
    for (request, status) in [
        (b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".to_vec(), "405"),
        (b"PUT / HTTP/1.1\r\n\r\n".to_vec(), "405"),
        (b"nonsense\r\n\r\n".to_vec(), "400"),
        (b"\x16\x03\x01\x02\x00".to_vec(), "400"),
        ([b"GET /".as_slice(), &[b'x'; REQUEST_BYTES_MAX]].concat(), "431"),
    ] {
        let answer = exchange(server.address(), &request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(answer.contains("Allow: GET, HEAD"), status == "405", "{answer}");
    }
    // The peer closes its direction within the request.
    let mut stream = connect(server.address());
    stream.write_all(b"GET / HT").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut stream).starts_with("HTTP/1.1 400 "));
    assert!(exchange(server.address(), b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
}

#[test]
fn incomplete_request_is_refused_with_status_408() {
    let server = start_server(echo);
    let mut stream = connect(server.address());
    stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    assert!(read_all(&mut stream).starts_with("HTTP/1.1 408 "));
}

/// Releases the requests of a handler that waits.
struct Gate {
    entered: Receiver<()>,
    release: SyncSender<()>,
}

fn gated_server() -> (HttpServer, Gate) {
    let (enter, entered) = sync_channel(100);
    let (release, wait) = sync_channel(100);
    let wait = Arc::new(Mutex::new(wait));
    let handler = move |_: &Request| {
        enter.send(()).unwrap();
        wait.lock().unwrap().recv().unwrap();
        Response::text(200, "at last\n")
    };
    (start_server(handler), Gate { entered, release })
}

#[test]
fn connections_of_a_peer_are_bounded_and_more_get_status_503() {
    let (server, gate) = gated_server();
    let mut open_streams: Vec<TcpStream> = Vec::new();
    for _ in 0..PEER_CONNECTIONS_MAX {
        let mut stream = connect(server.address());
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        gate.entered.recv_timeout(TIMEOUT).unwrap();
        open_streams.push(stream);
    }
    let mut refused = connect(server.address());
    let answer = read_all(&mut refused);
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After"), "{answer}");
    (0..PEER_CONNECTIONS_MAX).for_each(|_| gate.release.send(()).unwrap());
    for stream in &mut open_streams {
        assert!(read_all(stream).ends_with("at last\n"));
    }
}

#[test]
fn panic_of_a_handler_closes_only_its_own_connection() {
    let server = start_server(|request| {
        assert!(request.path != "/panic", "the test asks for a panic");
        Response::text(200, "fine\n")
    });
    for _ in 0..20 {
        assert_eq!(exchange(server.address(), b"GET /panic HTTP/1.1\r\n\r\n"), "");
    }
    // Connections of the handlers that panicked no longer count towards the limit.
    let deadline = std::time::Instant::now() + TIMEOUT;
    while !exchange(server.address(), b"GET / HTTP/1.1\r\n\r\n").ends_with("fine\n") {
        assert!(std::time::Instant::now() < deadline, "a request should be answered within {TIMEOUT:?}");
    }
}

#[test]
fn dropped_server_frees_its_port() {
    let server = start_server(echo);
    let address = server.address();
    drop(server);
    assert!(TcpStream::connect(address).is_err());
    let again = HttpServer::bind(address).expect("the port should be free");
    assert!(HttpServer::bind(again.local_addr().unwrap()).is_err(), "a bound port should be refused");
}

#[test]
fn process_metrics_are_exposed() {
    let server = start_server(|_| {
        let mut exposition = Exposition::new();
        process::expose(&mut exposition, 1.5e9);
        Response::ok(CONTENT_TYPE, exposition.into_text())
    });
    let answer = exchange(server.address(), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    let metrics = strict::read(body);
    assert!(process::METRICS.iter().all(|metric| metrics.contains_key(metric.name)));
    assert!(metrics["process_resident_memory_bytes"].sum(&[]) > 1e5);
    assert!(
        metrics["process_open_fds"].sum(&[]) > 2.0 && metrics["process_cpu_seconds_total"].sum(&[]) > 0.0
    );
    assert_eq!(metrics["process_start_time_seconds"].sum(&[]), 1.5e9);
}
