//! Assigns clients to contexts by their source port.
//!
//! Before a client connects, it queries the load by a datagram from the same port number. The context that will serve
//! the client must answer, so connections and datagrams are assigned by that number: a classic BPF program chooses
//! among the sockets of all contexts at one address. It needs no privilege (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libc::sock_filter;

/// A program has two instructions for each context; the kernel permits 4096.
const CONTEXTS_MAX: usize = 1024;

/// Multiplier of Fibonacci hashing (Knuth, TAOCP 6.4): spreads clients' ports, most of which are even on Linux.
const HASH_MULTIPLIER: u32 = 0x9e37_79b1;

/// The context, of `contexts`, that serves clients with this source port.
#[cfg(test)]
pub fn context_of(port: u16, contexts: u32) -> u32 {
    (u32::from(port).wrapping_mul(HASH_MULTIPLIER) >> 16) % contexts
}

/// The listening sockets of all contexts at one address.
#[derive(Debug)]
pub struct Steering {
    is_ipv4: bool,
    contexts: usize,
    /// The contexts whose sockets listen, in the kernel's order: the kernel appends a new socket, and moves the last
    /// socket to the position of one that closes (`reuseport_detach_sock`).
    listening: Mutex<Vec<(usize, Arc<OwnedFd>)>>,
}

impl Steering {
    /// For an address that `contexts` contexts share.
    pub fn new(address: SocketAddr, contexts: usize) -> Steering {
        Steering { is_ipv4: address.is_ipv4(), contexts, listening: Mutex::default() }
    }

    /// Opens the socket of one context with `listen`, and includes it in the steering.
    pub fn open(
        &self,
        context: usize,
        fd: &Arc<OwnedFd>,
        listen: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        listen()?;
        listening.push((context, Arc::clone(fd)));
        self.apply(&listening);
        Ok(())
    }

    /// Closes the socket of one context with `close`, and removes it from the steering.
    pub fn close(&self, context: usize, close: impl FnOnce()) {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        close();
        if let Some(index) = listening.iter().position(|(other, _)| *other == context) {
            listening.swap_remove(index);
            self.apply(&listening);
        }
    }

    fn apply(&self, listening: &[(usize, Arc<OwnedFd>)]) {
        let Some((_, socket)) = listening.first() else { return };
        let order: Vec<usize> = listening.iter().map(|(context, _)| *context).collect();
        // If the host does not support the program, the kernel chooses the contexts.
        let _ = attach(socket, self.is_ipv4, self.contexts, &order);
    }
}

/// Assigns datagrams to the sockets of all contexts, which must have been bound in the order of the contexts.
pub fn steer_datagrams(sockets: &[OwnedFd], address: SocketAddr) -> io::Result<()> {
    let order: Vec<usize> = (0..sockets.len()).collect();
    sockets.first().map_or(Ok(()), |first| attach(first, address.is_ipv4(), order.len(), &order))
}

fn attach(fd: &OwnedFd, is_ipv4: bool, contexts: usize, order: &[usize]) -> io::Result<()> {
    if contexts > CONTEXTS_MAX {
        return Ok(());
    }
    let mut program = program(is_ipv4, contexts, order);
    let length = libc::c_ushort::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
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
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The program that returns the kernel's index of the context that the source port determines. If that context does not
/// listen, another one takes its place.
fn program(is_ipv4: bool, contexts: usize, order: &[usize]) -> Vec<sock_filter> {
    // Offset 0 of the program is after the transport header; offsets from SKF_NET_OFF on address the network header.
    let network = libc::SKF_NET_OFF as u32; // the kernel interprets it as signed
    let mut program = Vec::with_capacity(2 * contexts + 8);
    if is_ipv4 {
        // The first byte has the header's length in words. The source port is the first field after the header.
        program.push(statement(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, network));
        program.push(statement(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, network));
    } else {
        // With extension headers these bytes are not the port: the context is then arbitrary.
        program.push(statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, network.wrapping_add(40)));
    }
    program.push(statement(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, HASH_MULTIPLIER));
    program.push(statement(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 16));
    program.push(statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, contexts.max(1) as u32));
    for context in 0..contexts {
        let index = order.iter().position(|other| *other == context);
        let index = index.unwrap_or(context % order.len().max(1));
        program.push(sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: context as u32,
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
    use super::*;

    #[test]
    fn even_ports_are_spread_over_the_contexts_within_ten_percent() {
        for contexts in [2, 3, 4, 16] {
            let mut clients = vec![0; contexts as usize];
            let ports = (32_768..60_999).step_by(2);
            let ports_used = ports.len();
            ports.for_each(|port| clients[context_of(port, contexts) as usize] += 1);
            let mean = ports_used / contexts as usize;
            assert!(clients.iter().all(|n| (mean * 9 / 10..mean * 11 / 10).contains(n)), "{clients:?}");
        }
    }
}
