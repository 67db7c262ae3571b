//! Replies that are sent outside of connections: resets, acknowledgements in TIME-WAIT, ARP, `ping`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::tcp;

use crate::counters::Counters;
use crate::flow::Flow;

/// Maximum number of waiting replies. Only a flood of frames causes more; peers recover from the loss of a reply.
const WAITING_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// A segment without payload.
    Segment { flow: Flow, mac: Option<Mac>, header: tcp::Header },
    /// The reply to an ARP request.
    Arp { mac: Mac, ip: Ipv4Addr },
    /// The reply to an ICMP echo request.
    Echo { mac: Mac, local: Ipv4Addr, ip: Ipv4Addr, ident: u16, sequence: u16, payload: Vec<u8> },
}

#[derive(Debug, Default)]
pub(super) struct Replies {
    waiting: VecDeque<Reply>,
}

impl Replies {
    pub(super) fn push(&mut self, reply: Reply, counters: &mut Counters) {
        if self.waiting.len() >= WAITING_MAX {
            counters.replies_dropped += 1;
        } else {
            self.waiting.push_back(reply);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Reply> {
        self.waiting.pop_front()
    }
}
