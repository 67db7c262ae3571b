//! Datagrams to the address of a listener are answered by the thread that would serve a client from the same port.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_net::{Binding, Clock, Config, Context, Listeners, Remote};
use spillway_transport::{Application, Conn, Event, Time, Transport};

/// Sends the number of its thread to each connection, and in the answer to each load query.
struct Numbered {
    number: u8,
    queries: u64,
}

impl Application for Numbered {
    fn handle<T: Transport>(&mut self, _: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        if let Event::Opened { .. } = event {
            out.send(conn, &[self.number]);
            out.finish(conn);
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn handle_datagram(
        &mut self,
        _: Time,
        listener: u16,
        from: SocketAddr,
        query: &[u8],
        reply: &mut [u8],
    ) -> usize {
        assert_eq!((listener, query.len()), (0, reply.len()));
        self.queries += 1;
        if query.first() != Some(&b'?') {
            return 0;
        }
        reply[0] = self.number;
        reply[1..3].copy_from_slice(&from.port().to_be_bytes());
        3
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

struct Running {
    address: SocketAddr,
    remotes: Vec<Remote<Numbered>>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    fn start(address: SocketAddr, threads: usize) -> Running {
        let config = Config::default();
        let bound = Listeners::bind_beside(&[address], threads, &config, Binding::LoadQueries, &[]).unwrap();
        let (address, clock) = (bound.addresses()[0], Clock::start());
        let mut running = Running { address, remotes: Vec::new(), threads: Vec::new() };
        for (number, listeners) in (0..).zip(bound.into_contexts()) {
            let app = Numbered { number, queries: 0 };
            let mut context = Context::new(config.clone(), listeners, clock, app, |_| ()).unwrap();
            running.remotes.push(context.remote());
            running.threads.push(std::thread::spawn(move || context.run().unwrap()));
        }
        running.listen(&(0..threads).collect::<Vec<_>>(), true);
        running
    }

    /// Opens or closes the listeners of these threads, in this order.
    fn listen(&self, threads: &[usize], open: bool) {
        for thread in threads {
            self.remotes[*thread].run_and_wait(move |_, _, out| out.set_listening(0, open)).unwrap();
        }
    }

    fn queries(&self) -> u64 {
        self.remotes.iter().map(|remote| remote.run_and_wait(|_, app, _| app.queries).unwrap()).sum()
    }

    fn stop(self) {
        self.remotes.iter().for_each(Remote::stop);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn query(socket: &UdpSocket, target: SocketAddr) -> u8 {
    let mut answer = [0; 16];
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.send_to(b"?????", target).unwrap();
    let (length, from) = socket.recv_from(&mut answer).unwrap();
    assert_eq!(from, target, "the answer should come from the address that received the query");
    let port = socket.local_addr().unwrap().port();
    assert_eq!((length, &answer[1..3]), (3, port.to_be_bytes().as_slice()));
    answer[0]
}

/// Connects from this port; `None` if the port is in use.
fn connect_from(port: u16, target: SocketAddr) -> Option<TcpStream> {
    use rustix::net::{AddressFamily, SocketType};
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd: OwnedFd = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
    let unspecified: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    rustix::net::bind(&fd, &SocketAddr::new(unspecified, port)).ok()?;
    rustix::net::connect(&fd, &target).expect("the listener should accept a connection");
    Some(TcpStream::from(fd))
}

fn read_number(stream: &mut TcpStream) -> u8 {
    let mut number = [0];
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.read_exact(&mut number).unwrap();
    number[0]
}

/// Connects `count` clients that send a load query first. Returns the number of clients of each thread.
fn connect_clients(running: &Running, target: SocketAddr, count: usize) -> Vec<usize> {
    let mut served = vec![0; running.remotes.len()];
    let unspecified: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let mut done = 0;
    while done < count {
        let socket = UdpSocket::bind((unspecified, 0)).unwrap();
        let answering_thread = query(&socket, target);
        let port = socket.local_addr().unwrap().port();
        let Some(mut stream) = connect_from(port, target) else { continue };
        let serving_thread = read_number(&mut stream);
        assert_eq!(serving_thread, answering_thread, "the answering thread should serve");
        served[usize::from(serving_thread)] += 1;
        done += 1;
    }
    served
}

fn check_that_the_answering_thread_serves(address: SocketAddr) {
    let running = Running::start(address, 4);
    let served = connect_clients(&running, running.address, 60);
    assert!(served.iter().all(|count| *count > 0), "each thread should serve clients: {served:?}");
    // The kernel's order of sockets changes when listeners close and open again.
    running.listen(&[0, 2], false);
    running.listen(&[2, 0], true);
    running.listen(&[1], false);
    running.listen(&[1], true);
    let served = connect_clients(&running, running.address, 60);
    assert!(served.iter().all(|count| *count > 0), "each thread should serve clients: {served:?}");
    running.stop();
}

#[test]
fn thread_that_answers_a_query_serves_clients_of_the_same_port() {
    check_that_the_answering_thread_serves("127.0.0.1:0".parse().unwrap());
}

#[test]
fn thread_that_answers_a_query_serves_clients_of_the_same_port_over_ipv6() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        println!("skipped: this host has no IPv6");
        return;
    }
    check_that_the_answering_thread_serves("[::1]:0".parse().unwrap());
}

#[test]
fn another_thread_serves_the_clients_of_a_closed_listener() {
    let running = Running::start("127.0.0.1:0".parse().unwrap(), 3);
    running.listen(&[1], false);
    let mut served_by_others = 0;
    for _ in 0..60 {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let answering_thread = query(&socket, running.address);
        let port = socket.local_addr().unwrap().port();
        let Some(mut stream) = connect_from(port, running.address) else { continue };
        let serving_thread = read_number(&mut stream);
        assert!(
            serving_thread == answering_thread || answering_thread == 1,
            "thread {answering_thread} should serve instead of {serving_thread}"
        );
        assert_ne!(serving_thread, 1, "a closed thread should not serve");
        served_by_others += u32::from(answering_thread == 1);
    }
    assert!(served_by_others > 0, "a closed thread should still answer load queries");
    running.stop();
}

#[test]
fn answer_comes_from_the_address_that_received_the_query() {
    for (bound, queries) in [("0.0.0.0:0", ["127.0.0.1", "127.0.0.7"]), ("[::]:0", ["::1", "::1"])] {
        if UdpSocket::bind(bound).is_err() {
            println!("skipped: {bound}");
            continue;
        }
        let running = Running::start(bound.parse().unwrap(), 2);
        for ip in queries {
            let target = SocketAddr::new(ip.parse().unwrap(), running.address.port());
            connect_clients(&running, target, 5);
        }
        running.stop();
    }
}

#[test]
fn flood_of_invalid_datagrams_is_ignored_and_clients_are_served() {
    let running = Running::start("127.0.0.1:0".parse().unwrap(), 1);
    let flooder = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut sent = 0_u64;
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(500) {
        // Datagrams that do not fit into the socket's buffer are lost; those that are too long are ignored.
        for bytes in [&b"not a load query"[..], &[b'?'; 300]] {
            sent += u64::from(flooder.send_to(bytes, running.address).is_ok());
        }
        if sent.is_multiple_of(1000) {
            let mut stream =
                TcpStream::connect(running.address).expect("the listener should accept a connection");
            assert_eq!(read_number(&mut stream), 0);
        }
    }
    flooder.set_nonblocking(true).unwrap();
    assert!(flooder.recv_from(&mut [0; 16]).is_err(), "an invalid datagram should not be answered");
    let queries = running.queries() as f64;
    let seconds = started.elapsed().as_secs_f64();
    assert!(
        queries <= 1_001.0 + 10_000.0 * seconds,
        "{queries} of {sent} in {seconds:.2} s should be at most 1000 and 10,000 a second"
    );
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    // Repeated, because datagrams that still wait in the buffer may displace load queries.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        socket.send_to(b"?????", running.address).unwrap();
        if socket.recv_from(&mut [0; 16]).is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "load queries should be answered again within 20 s");
    }
    running.stop();
}

#[test]
fn bind_reports_a_datagram_port_in_use() {
    let bind =
        |address, binding| Listeners::bind_beside(&[address], 2, &Config::default(), binding, &[]).map(drop);
    // Another program may use the TCP port of the same number: then another port is tried.
    let error = (0..100).find_map(|_| {
        let busy = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = busy.local_addr().unwrap();
        bind(address, Binding::BySourcePort).ok()?;
        let error = bind(address, Binding::LoadQueries).unwrap_err().to_string();
        error.contains("UDP").then_some(error)
    });
    let error = error.expect("TCP port and UDP port of one number should be independent");
    assert!(error.contains("ss -lunp"), "{error}");
}
