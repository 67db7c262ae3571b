//! The kernel's diagnosis of a connection (sock_diag(7)): one question in place of many socket options, and the only one that
//! reveals whether segments are signed by TCP-MD5.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto, socket_with,
};

use crate::error::{CaptureError, system};
use crate::info::Info;
use crate::refusal::Refusal;
use crate::system::tcp_info_of;

// Numbers of <linux/netlink.h>, <linux/sock_diag.h> and <linux/inet_diag.h>.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// Length of `struct inet_diag_msg`, which attributes follow.
const MESSAGE_BYTES: usize = 72;
/// Offset of `idiag_rqueue` in an answer; `idiag_wqueue` follows.
const QUEUES_AT: usize = HEADER_BYTES + 56;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const INET_DIAG_SKMEMINFO: u16 = 7;
const INET_DIAG_SHUTDOWN: u16 = 8;
const INET_DIAG_MD5SIG: u16 = 18;
/// Asks for these attributes. Without INET_DIAG_INFO the kernel leaves out those of TCP, too.
const WANTED: u8 = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_CONG - 1) | 1 << (INET_DIAG_SKMEMINFO - 1);
/// Offsets of numbers in INET_DIAG_SKMEMINFO.
const RECEIVE_BUFFER_AT: usize = 4;
const SEND_BUFFER_AT: usize = 12;
/// RCV_SHUTDOWN of the kernel.
const ENDED_READING: u8 = 1;
/// Memory for an answer. MD5 keys of a listening socket could need more, but those of a connection are few.
const ANSWER_BYTES: usize = 8192;
/// Answers to earlier questions that are skipped. There are none unless a question was interrupted.
const SKIPPED_MAX: usize = 16;

/// A socket that asks for diagnoses, in the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    socket: OwnedFd,
    sequence: u32,
    answer: Box<[u8; ANSWER_BYTES]>,
}

/// What the kernel says about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Diagnosed {
    pub info: Info,
    /// Segments are signed by TCP-MD5. Only a process with CAP_NET_ADMIN learns that.
    pub has_md5: bool,
    /// TCP_CONGESTION.
    pub congestion_control: Option<String>,
    /// SO_SNDBUF.
    pub send_buffer: usize,
    /// SO_RCVBUF.
    pub receive_buffer: usize,
    /// The reading direction has ended, by the peer's FIN or by the application.
    pub has_ended_reading: bool,
    /// The longer queue's bytes.
    pub longest_queue: u32,
    /// Sequence numbers of the peer that the application has not read: its bytes, with an urgent one that was read by MSG_OOB
    /// but not passed in the stream, and an unread FIN.
    pub receive_queue: u32,
}

impl Diagnosis {
    /// Opens the socket in the network namespace of the calling thread.
    pub(crate) fn open() -> Result<Diagnosis, CaptureError> {
        let protocol = Some(netlink::SOCK_DIAG);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
            .map_err(|errno| system("open a socket for diagnoses")(errno.into()))?;
        Ok(Diagnosis { socket, sequence: 0, answer: Box::new([0; ANSWER_BYTES]) })
    }

    /// # Errors
    /// The kernel has no diagnosis of TCP, or the connection is not in the socket's network namespace, or is bound to an
    /// interface.
    pub(crate) fn of(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
        cookie: u64,
    ) -> Result<Diagnosed, CaptureError> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = self
            .ask(&request(local, peer, cookie, self.sequence))
            .map_err(system("ask the kernel for the socket's diagnosis"))?;
        let answer = self.answer.get(..length).unwrap_or_default();
        let diagnosed = match u16_at(answer, 4) {
            Some(SOCK_DIAG_BY_FAMILY) => Diagnosed::parse(answer),
            Some(NLMSG_ERROR) => return Err(Refusal::NotFound.into()),
            _ => None,
        };
        let unknown = || io::Error::other("the answer has an unknown form");
        diagnosed.ok_or_else(|| CaptureError::System("read the socket's diagnosis", unknown()))
    }

    /// Returns the answer's length.
    fn ask(&mut self, request: &[u8]) -> io::Result<usize> {
        sendto(&self.socket, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        for _ in 0..=SKIPPED_MAX {
            // The kernel answers within the call of `sendto`.
            let (_, length) = recv(&self.socket, &mut self.answer[..], RecvFlags::DONTWAIT)?;
            if u32_at(&self.answer[..length], 8) == Some(self.sequence) {
                return Ok(length);
            }
        }
        Err(io::Error::other("only answers to earlier questions"))
    }
}

impl Diagnosed {
    fn parse(answer: &[u8]) -> Option<Diagnosed> {
        let queues = [u32_at(answer, QUEUES_AT)?, u32_at(answer, QUEUES_AT + 4)?];
        let mut info = None;
        let mut diagnosed = Diagnosed {
            info: Info::default(),
            has_md5: false,
            congestion_control: None,
            send_buffer: 0,
            receive_buffer: 0,
            has_ended_reading: false,
            longest_queue: queues[0].max(queues[1]),
            receive_queue: queues[0],
        };
        for (kind, value) in attributes(answer) {
            match kind {
                INET_DIAG_INFO => info = Some(Info::from(&tcp_info_of(value))),
                INET_DIAG_CONG => {
                    let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                    diagnosed.congestion_control = std::str::from_utf8(name).ok().map(str::to_owned);
                }
                INET_DIAG_SKMEMINFO => {
                    diagnosed.receive_buffer = u32_at(value, RECEIVE_BUFFER_AT)? as usize;
                    diagnosed.send_buffer = u32_at(value, SEND_BUFFER_AT)? as usize;
                }
                INET_DIAG_SHUTDOWN => {
                    diagnosed.has_ended_reading =
                        value.first().is_some_and(|ended| ended & ENDED_READING != 0);
                }
                INET_DIAG_MD5SIG => diagnosed.has_md5 = true,
                _ => {}
            }
        }
        Some(Diagnosed { info: info?, ..diagnosed })
    }
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`: the headers in the host's order, ports and addresses in the network's.
fn request(local: SocketAddr, peer: SocketAddr, cookie: u64, sequence: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(REQUEST_BYTES);
    out.extend_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    out.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    out.extend_from_slice(&sequence.to_ne_bytes());
    out.extend_from_slice(&[0; 4]); // port
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    out.extend_from_slice(&[family as u8, libc::IPPROTO_TCP as u8, WANTED, 0]);
    out.extend_from_slice(&u32::MAX.to_ne_bytes()); // any state
    out.extend_from_slice(&local.port().to_be_bytes());
    out.extend_from_slice(&peer.port().to_be_bytes());
    for address in [local.ip(), peer.ip()] {
        match address {
            IpAddr::V4(address) => {
                out.extend_from_slice(&address.octets());
                out.extend_from_slice(&[0; 12]);
            }
            IpAddr::V6(address) => out.extend_from_slice(&address.octets()),
        }
    }
    out.extend_from_slice(&[0; 4]); // interface
    out.extend_from_slice(&(cookie as u32).to_ne_bytes());
    out.extend_from_slice(&((cookie >> 32) as u32).to_ne_bytes());
    debug_assert_eq!(out.len(), REQUEST_BYTES, "the request has the kernel's length");
    out
}

/// Kinds and values of the attributes of an answer.
fn attributes(answer: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut at = HEADER_BYTES + MESSAGE_BYTES;
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(answer, at)?), u16_at(answer, at + 2)?);
        // A length below that of the attribute's header ends the walk, and so does one beyond the answer.
        let value = answer.get(at + 4..at + length)?;
        // Attributes begin at multiples of four bytes.
        at += length.next_multiple_of(4);
        Some((kind, value))
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut answer = vec![0; HEADER_BYTES + MESSAGE_BYTES];
        for (kind, value) in attributes {
            answer.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
            answer.extend_from_slice(&kind.to_ne_bytes());
            answer.extend_from_slice(value);
            answer.resize(answer.len().next_multiple_of(4), 0);
        }
        answer
    }

    #[test]
    fn attributes_are_walked_and_damaged_ones_end_the_walk() {
        let mut answer = answer(&[(8, &[1]), (INET_DIAG_MD5SIG, &[])]);
        assert_eq!(attributes(&answer).collect::<Vec<_>>(), [(8, &[1][..]), (INET_DIAG_MD5SIG, &[])]);
        answer.extend_from_slice(&[0; 4]);
        assert_eq!(attributes(&answer).count(), 2);
        assert_eq!(attributes(&answer[..answer.len() - 5]).count(), 1);
        assert_eq!(attributes(&[]).count(), 0);
    }

    #[test]
    fn an_answer_has_what_several_options_have() {
        let memory: Vec<u8> = (1_u32..=9).flat_map(u32::to_ne_bytes).collect();
        let info = [1; 200];
        let mut full = answer(&[
            (INET_DIAG_SHUTDOWN, &[3]),
            (INET_DIAG_SKMEMINFO, &memory),
            (INET_DIAG_INFO, &info),
            (INET_DIAG_CONG, b"reno\0"),
        ]);
        full[QUEUES_AT..QUEUES_AT + 4].copy_from_slice(&70_u32.to_ne_bytes());
        full[QUEUES_AT + 4..QUEUES_AT + 8].copy_from_slice(&90_u32.to_ne_bytes());
        let diagnosed = Diagnosed::parse(&full).unwrap();
        assert_eq!(diagnosed.congestion_control.as_deref(), Some("reno"));
        assert_eq!((diagnosed.receive_buffer, diagnosed.send_buffer), (2, 4));
        assert_eq!((diagnosed.receive_queue, diagnosed.longest_queue), (70, 90));
        assert!(diagnosed.has_ended_reading && !diagnosed.has_md5);
        // Without TCP_INFO nothing is known of the connection.
        assert_eq!(Diagnosed::parse(&answer(&[(INET_DIAG_MD5SIG, &[])])), None);
        assert_eq!(Diagnosed::parse(&full[..QUEUES_AT]), None);
    }
}
