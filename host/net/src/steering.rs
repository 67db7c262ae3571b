//! Which context gets a client: the one that its source port says.
//!
//! A client asks by datagram, from the port number that it will connect from, how loaded the context is that would serve
//! it. So the sockets of all contexts at one address choose by that number, for datagrams and for connections alike, with a
//! classic BPF program, which needs no privilege (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libc::sock_filter;

/// Programs have two instructions for each context, and at most 4096.
const CONTEXTS_MAX: usize = 1024;

/// Fibonacci hashing (Knuth, TAOCP 6.4): clients' ports are not spread evenly, Linux prefers even ones.
const SPREAD: u32 = 0x9e37_79b1;

/// Which of so many contexts serves a client from this port.
#[cfg(test)]
pub fn context_of(port: u16, contexts: u32) -> u32 {
    (u32::from(port).wrapping_mul(SPREAD) >> 16) % contexts
}

/// The listening sockets of all contexts at one address.
#[derive(Debug)]
pub struct Steering {
    is_ipv4: bool,
    contexts: usize,
    /// The contexts whose sockets listen, in the order that the kernel has them in: it puts a new one last, and the last
    /// one in the place of one that goes (`reuseport_detach_sock`).
    listening: Mutex<Vec<(usize, Arc<OwnedFd>)>>,
}

impl Steering {
    /// For an address that so many contexts share.
    pub fn new(address: SocketAddr, contexts: usize) -> Steering {
        Steering { is_ipv4: address.is_ipv4(), contexts, listening: Mutex::default() }
    }

    /// Opens the socket of one context: all of them are told apart from then on.
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

    /// Closes it.
    pub fn close(&self, context: usize, close: impl FnOnce()) {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        close();
        if let Some(place) = listening.iter().position(|(listens, _)| *listens == context) {
            listening.swap_remove(place);
            self.apply(&listening);
        }
    }

    fn apply(&self, listening: &[(usize, Arc<OwnedFd>)]) {
        let Some((_, any)) = listening.first() else { return };
        let order: Vec<usize> = listening.iter().map(|(context, _)| *context).collect();
        // Where the host does not take it, the kernel spreads connections by itself.
        let _ = attach(any, self.is_ipv4, self.contexts, &order);
    }
}

/// Has datagrams spread over the sockets of all contexts, which were bound in their order.
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
    let whole = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    let size = libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).unwrap_or(0);
    // SAFETY: the option takes a `sock_fprog` of this size, whose instructions live through the call; the kernel copies and
    // checks them.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const whole).cast(),
            size,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Answers with the index, in the kernel's order, of the context that the source port says. A context that does not listen
/// has another one stand in.
fn program(is_ipv4: bool, contexts: usize, order: &[usize]) -> Vec<sock_filter> {
    // The program sees what follows the transport's header; the network header is at a place of its own.
    let network = libc::SKF_NET_OFF as u32; // the kernel takes it as signed
    let mut program = Vec::with_capacity(2 * contexts + 8);
    if is_ipv4 {
        // The header's length is in its first byte, in words; the source port comes first in what follows.
        program.push(statement(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, network));
        program.push(statement(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, network));
    } else {
        // With extension headers this is not the port: such clients are spread somehow.
        program.push(statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, network.wrapping_add(40)));
    }
    program.push(statement(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, SPREAD));
    program.push(statement(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 16));
    program.push(statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, contexts.max(1) as u32));
    for context in 0..contexts {
        let index = order.iter().position(|listens| *listens == context);
        let index = index.unwrap_or(context % order.len().max(1));
        program.push(sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: context as u32,
        });
        program.push(statement(libc::BPF_RET | libc::BPF_K, index as u32));
    }
    // No index: the kernel chooses.
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
    fn ports_are_spread_also_where_only_even_ones_are_used() {
        for contexts in [2, 3, 4, 16] {
            let mut clients = vec![0; contexts as usize];
            let ports = (32_768..60_999).step_by(2);
            let all = ports.len();
            ports.for_each(|port| clients[context_of(port, contexts) as usize] += 1);
            let mean = all / contexts as usize;
            assert!(clients.iter().all(|n| (mean * 9 / 10..mean * 11 / 10).contains(n)), "{clients:?}");
        }
    }
}
