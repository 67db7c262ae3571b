//! Assigns clients to threads by their source port.
//!
//! Before a client connects, it sends a load query: a UDP datagram whose source port has the number that its TCP
//! connection will use. The thread that will serve the connection must answer the query, so both are assigned by the
//! source port: a classic BPF program chooses among the sockets of all threads at one address. It needs no privilege
//! (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libc::sock_filter;

/// A program has two instructions for each thread; the kernel permits 4096.
const THREADS_MAX: usize = 1024;

/// Multiplier of Fibonacci hashing (Knuth, TAOCP 6.4): spreads clients' ports, most of which are even on Linux.
const HASH_MULTIPLIER: u32 = 0x9e37_79b1;

/// The thread, of `threads`, that serves clients with this source port.
#[cfg(test)]
pub fn thread_of(port: u16, threads: u32) -> u32 {
    (u32::from(port).wrapping_mul(HASH_MULTIPLIER) >> 16) % threads
}

/// Why the source port does not determine the thread of a peer: the kernel chooses the threads of connections and of
/// load queries independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteeringFault {
    /// The program would be too long for this number of threads.
    TooManyThreads(usize),
    /// The host has refused the program, with this error number.
    Refused(i32),
}

impl fmt::Display for SteeringFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SteeringFault::TooManyThreads(threads) => {
                write!(f, "{threads} threads share it, and the limit is {THREADS_MAX}: run fewer threads")
            }
            SteeringFault::Refused(error) => {
                let error = io::Error::from_raw_os_error(*error);
                write!(f, "{error} (SO_ATTACH_REUSEPORT_CBPF): use Linux 4.5 or newer, or run one thread")
            }
        }
    }
}

/// The listening sockets of all threads at one address.
#[derive(Debug)]
pub struct Steering {
    is_ipv4: bool,
    threads: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The threads whose sockets listen, in the kernel's order: the kernel appends a new socket, and moves the last
    /// socket to the position of one that closes (`reuseport_detach_sock`).
    listening: Vec<(usize, Arc<OwnedFd>)>,
    /// The outcome of the last attempt to assign peers.
    fault: Option<SteeringFault>,
    /// A fault that [`Steering::take_fault`] has yet to return.
    unreported: Option<SteeringFault>,
}

impl Steering {
    /// Steering for one address on which each of `threads` threads has a listening socket. `datagram_fault`: the
    /// outcome of [`steer_datagrams`] for the same address.
    pub fn new(address: SocketAddr, threads: usize, datagram_fault: Option<SteeringFault>) -> Steering {
        let state = State { fault: datagram_fault, unreported: datagram_fault, ..State::default() };
        Steering { is_ipv4: address.is_ipv4(), threads, state: Mutex::new(state) }
    }

    /// Opens the socket of one thread with `listen`, and includes it in the steering.
    pub fn open(
        &self,
        thread: usize,
        fd: &Arc<OwnedFd>,
        listen: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        listen()?;
        state.listening.push((thread, Arc::clone(fd)));
        self.apply(&mut state);
        Ok(())
    }

    /// Closes the socket of one thread with `close`, and removes it from the steering.
    pub fn close(&self, thread: usize, close: impl FnOnce()) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        close();
        if let Some(index) = state.listening.iter().position(|(other, _)| *other == thread) {
            state.listening.swap_remove(index);
            self.apply(&mut state);
        }
    }

    /// A fault that has not been returned yet. The threads of an address share its faults: one of them gets each.
    pub fn take_fault(&self) -> Option<SteeringFault> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).unreported.take()
    }

    fn apply(&self, state: &mut State) {
        let Some((_, socket)) = state.listening.first() else { return };
        let order: Vec<usize> = state.listening.iter().map(|(thread, _)| *thread).collect();
        let fault = attach(socket, self.is_ipv4, self.threads, &order).err();
        if fault.is_some() && fault != state.fault {
            state.unreported = fault;
        }
        state.fault = fault;
    }
}

/// Assigns datagrams to the sockets of all threads, which must have been bound in the order of the threads.
pub fn steer_datagrams(sockets: &[OwnedFd], address: SocketAddr) -> Result<(), SteeringFault> {
    let order: Vec<usize> = (0..sockets.len()).collect();
    sockets.first().map_or(Ok(()), |first| attach(first, address.is_ipv4(), order.len(), &order))
}

fn attach(fd: &OwnedFd, is_ipv4: bool, threads: usize, order: &[usize]) -> Result<(), SteeringFault> {
    if threads > THREADS_MAX {
        return Err(SteeringFault::TooManyThreads(threads));
    }
    let mut program = program(is_ipv4, threads, order);
    let length =
        libc::c_ushort::try_from(program.len()).map_err(|_| SteeringFault::TooManyThreads(threads))?;
    let filter_program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    let size = libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).unwrap_or(0);
    // SAFETY: the option takes a `sock_fprog` of this size, whose instructions outlive the call; the kernel copies and
    // verifies them.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter_program).cast(),
            size,
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(SteeringFault::Refused(io::Error::last_os_error().raw_os_error().unwrap_or(0)))
}

/// Builds the program that maps a source port to a thread, and returns the index of the thread's socket in the kernel's
/// list. If that thread does not listen, the program returns the index of another one's socket.
fn program(is_ipv4: bool, threads: usize, order: &[usize]) -> Vec<sock_filter> {
    // The program's loads count from the first byte after the transport header; loads from SKF_NET_OFF on count from
    // the network header.
    let network = libc::SKF_NET_OFF as u32; // the kernel interprets it as signed
    let mut program = Vec::with_capacity(2 * threads + 8);
    if is_ipv4 {
        // The first byte has the header's length in words. The source port is the first field after the header.
        program.push(statement(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, network));
        program.push(statement(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, network));
    } else {
        // With extension headers these bytes are not the port: the thread is then arbitrary.
        program.push(statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, network.wrapping_add(40)));
    }
    program.push(statement(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, HASH_MULTIPLIER));
    program.push(statement(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 16));
    program.push(statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, threads.max(1) as u32));
    for thread in 0..threads {
        let index = order.iter().position(|other| *other == thread);
        let index = index.unwrap_or(thread % order.len().max(1));
        program.push(sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: thread as u32,
        });
        program.push(statement(libc::BPF_RET | libc::BPF_K, index as u32));
    }
    // Not a valid index: the kernel chooses.
    program.push(statement(libc::BPF_RET | libc::BPF_K, u32::MAX));
    program
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt;

    use super::*;
    use crate::listen::new_socket;

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    fn open(steering: &Steering, thread: usize, reuse_port: bool) {
        let socket = Arc::new(new_socket(LOOPBACK).unwrap());
        sockopt::set_socket_reuseport(&socket, reuse_port).unwrap();
        let listen =
            || Ok(rustix::net::bind(&socket, &LOOPBACK).and_then(|()| rustix::net::listen(&socket, 1))?);
        steering.open(thread, &socket, listen).unwrap();
    }

    #[test]
    fn more_threads_than_a_program_can_have_are_reported_once() {
        let steering = Steering::new(LOOPBACK, THREADS_MAX, None);
        open(&steering, 0, true);
        assert_eq!(steering.take_fault(), None, "{THREADS_MAX} threads should be possible");
        let steering = Steering::new(LOOPBACK, THREADS_MAX + 1, None);
        open(&steering, 0, true);
        open(&steering, 1, true);
        let fault = steering.take_fault().unwrap();
        assert_eq!(fault, SteeringFault::TooManyThreads(1_025));
        assert!(fault.to_string().contains("1025 threads"), "{fault}");
        assert_eq!(steering.take_fault(), None);
    }

    #[test]
    fn a_refusal_by_the_host_is_reported_and_that_of_datagrams_too() {
        let steering = Steering::new(LOOPBACK, 2, None);
        // Linux refuses programs for sockets without SO_REUSEPORT.
        open(&steering, 0, false);
        assert_eq!(steering.take_fault(), Some(SteeringFault::Refused(libc::EINVAL)));
        let steering = Steering::new(LOOPBACK, 2, Some(SteeringFault::Refused(libc::EPERM)));
        open(&steering, 0, true);
        assert_eq!(steering.take_fault(), Some(SteeringFault::Refused(libc::EPERM)));
    }

    #[test]
    fn even_ports_are_spread_over_the_threads_within_ten_percent() {
        for threads in [2, 3, 4, 16] {
            let mut clients = vec![0; threads as usize];
            let ports = (32_768..60_999).step_by(2);
            let ports_used = ports.len();
            ports.for_each(|port| clients[thread_of(port, threads) as usize] += 1);
            let mean = ports_used / threads as usize;
            assert!(clients.iter().all(|n| (mean * 9 / 10..mean * 11 / 10).contains(n)), "{clients:?}");
        }
    }
}
