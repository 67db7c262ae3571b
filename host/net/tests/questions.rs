//! Datagrams to the address of a listener are answered by the context that would serve a client from the same port.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_net::{Binding, Clock, Config, Context, Listeners, Remote};
use spillway_transport::{Application, Conn, Event, Time, Transport};

/// Sends the number of its context to each connection, and in the answer to each question.
struct Named {
    number: u8,
    asked: u64,
}

impl Application for Named {
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
        question: &[u8],
        answer: &mut [u8],
    ) -> usize {
        assert_eq!((listener, question.len()), (0, answer.len()));
        self.asked += 1;
        if question.first() != Some(&b'?') {
            return 0;
        }
        answer[0] = self.number;
        answer[1..3].copy_from_slice(&from.port().to_be_bytes());
        3
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

struct Running {
    address: SocketAddr,
    remotes: Vec<Remote<Named>>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    fn start(address: SocketAddr, contexts: usize) -> Running {
        let config = Config::default();
        let bound = Listeners::bind_beside(&[address], contexts, &config, Binding::Questions, &[])
            .expect("an address");
        let (address, clock) = (bound.addresses()[0], Clock::start());
        let mut running = Running { address, remotes: Vec::new(), threads: Vec::new() };
        for (number, listeners) in (0..).zip(bound.into_contexts()) {
            let app = Named { number, asked: 0 };
            let mut context =
                Context::new(config.clone(), listeners, clock, app, |_| ()).expect("descriptors");
            running.remotes.push(context.remote());
            running.threads.push(std::thread::spawn(move || context.run().expect("turns")));
        }
        running.listen(&(0..contexts).collect::<Vec<_>>(), true);
        running
    }

    /// Opens or closes the listeners of these contexts, in this order.
    fn listen(&self, contexts: &[usize], open: bool) {
        for context in contexts {
            self.remotes[*context].ask(move |_, _, out| out.set_listening(0, open)).expect("it runs");
        }
    }

    fn asked(&self) -> u64 {
        self.remotes.iter().map(|remote| remote.ask(|_, app, _| app.asked).expect("it runs")).sum()
    }

    fn stop(self) {
        self.remotes.iter().for_each(Remote::stop);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}

fn ask(socket: &UdpSocket, target: SocketAddr) -> u8 {
    let mut answer = [0; 16];
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    socket.send_to(b"?????", target).expect("loopback");
    let (length, from) = socket.recv_from(&mut answer).expect("an answer");
    assert_eq!(from, target, "from the address that was asked");
    let port = socket.local_addr().expect("bound").port();
    assert_eq!((length, &answer[1..3]), (3, port.to_be_bytes().as_slice()));
    answer[0]
}

/// Connects from this port; `None` if the port is in use.
fn connect_from(port: u16, target: SocketAddr) -> Option<TcpStream> {
    use rustix::net::{AddressFamily, SocketType};
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd: OwnedFd = rustix::net::socket(family, SocketType::STREAM, None).expect("a socket");
    let any: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    rustix::net::bind(&fd, &SocketAddr::new(any, port)).ok()?;
    rustix::net::connect(&fd, &target).expect("it listens");
    Some(TcpStream::from(fd))
}

fn serving(stream: &mut TcpStream) -> u8 {
    let mut number = [0];
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.read_exact(&mut number).expect("its name");
    number[0]
}

/// Connects `count` clients, each of which asks first. Returns how many of them each context serves.
fn clients(running: &Running, target: SocketAddr, count: usize) -> Vec<usize> {
    let mut served = vec![0; running.remotes.len()];
    let any: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let mut done = 0;
    while done < count {
        let socket = UdpSocket::bind((any, 0)).expect("a free port");
        let answered = ask(&socket, target);
        let port = socket.local_addr().expect("bound").port();
        let Some(mut stream) = connect_from(port, target) else { continue };
        let serves = serving(&mut stream);
        assert_eq!(serves, answered, "the context that answers is the one that serves");
        served[usize::from(serves)] += 1;
        done += 1;
    }
    served
}

fn the_context_that_answers_serves(address: SocketAddr) {
    let running = Running::start(address, 4);
    let served = clients(&running, running.address, 60);
    assert!(served.iter().all(|clients| *clients > 0), "{served:?}");
    // The kernel's order of sockets changes when listeners close and open again.
    running.listen(&[0, 2], false);
    running.listen(&[2, 0], true);
    running.listen(&[1], false);
    running.listen(&[1], true);
    let served = clients(&running, running.address, 60);
    assert!(served.iter().all(|clients| *clients > 0), "{served:?}");
    running.stop();
}

#[test]
fn the_context_that_answers_is_the_one_that_serves() {
    the_context_that_answers_serves("127.0.0.1:0".parse().expect("an address"));
}

#[test]
fn the_context_that_answers_is_the_one_that_serves_with_ipv6() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        println!("skipped: this host has no IPv6");
        return;
    }
    the_context_that_answers_serves("[::1]:0".parse().expect("an address"));
}

#[test]
fn where_a_context_does_not_listen_another_stands_in_and_answers_stay() {
    let running = Running::start("127.0.0.1:0".parse().expect("an address"), 3);
    running.listen(&[1], false);
    let mut stood_in = 0;
    for _ in 0..60 {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
        let answered = ask(&socket, running.address);
        let port = socket.local_addr().expect("bound").port();
        let Some(mut stream) = connect_from(port, running.address) else { continue };
        let serves = serving(&mut stream);
        assert!(serves == answered || answered == 1, "{serves} instead of {answered}");
        assert_ne!(serves, 1, "it does not listen");
        stood_in += u32::from(answered == 1);
    }
    assert!(stood_in > 0, "one that does not listen answers, too");
    running.stop();
}

#[test]
fn at_all_addresses_the_one_that_was_asked_answers() {
    for (bound, asked) in [("0.0.0.0:0", ["127.0.0.1", "127.0.0.7"]), ("[::]:0", ["::1", "::1"])] {
        if UdpSocket::bind(bound).is_err() {
            println!("skipped: {bound}");
            continue;
        }
        let running = Running::start(bound.parse().expect("an address"), 2);
        for ip in asked {
            let target = SocketAddr::new(ip.parse().expect("an address"), running.address.port());
            clients(&running, target, 5);
        }
        running.stop();
    }
}

#[test]
fn what_is_no_question_gets_no_answer_and_a_flood_starves_nobody() {
    let running = Running::start("127.0.0.1:0".parse().expect("an address"), 1);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let mut sent = 0_u64;
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(500) {
        // Datagrams that do not fit into the socket's buffer are lost; those that are too long are ignored.
        for bytes in [&b"what is no question"[..], &[b'?'; 300]] {
            sent += u64::from(stranger.send_to(bytes, running.address).is_ok());
        }
        if sent.is_multiple_of(1000) {
            let mut stream = TcpStream::connect(running.address).expect("it listens");
            assert_eq!(serving(&mut stream), 0);
        }
    }
    stranger.set_nonblocking(true).expect("a socket");
    assert!(stranger.recv_from(&mut [0; 16]).is_err(), "no answer");
    let asked = running.asked() as f64;
    let seconds = started.elapsed().as_secs_f64();
    assert!(asked <= 1_001.0 + 10_000.0 * seconds, "{asked} looked at of {sent}, in {seconds:.2} s");
    // After the flood it answers again. The rest of the flood may still displace some of these questions.
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        socket.send_to(b"?????", running.address).expect("loopback");
        if socket.recv_from(&mut [0; 16]).is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "it answers again");
    }
    running.stop();
}

#[test]
fn a_datagram_port_in_use_is_told_at_start() {
    let bind =
        |address, binding| Listeners::bind_beside(&[address], 2, &Config::default(), binding, &[]).map(drop);
    // Another program may use the TCP port of the same number: then another port is tried.
    let error = (0..100).find_map(|_| {
        let taken = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let address = taken.local_addr().expect("bound");
        bind(address, Binding::BySourcePort).ok()?;
        let error = bind(address, Binding::Questions).expect_err("taken").to_string();
        error.contains("UDP").then_some(error)
    });
    let error = error.expect("connections have ports of their own");
    assert!(error.contains("ss -lunp"), "{error}");
}
