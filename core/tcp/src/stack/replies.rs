//! Replies that are sent outside of connections: resets, acknowledgements in TIME-WAIT, ARP, `ping`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use spillway_transport::Time;
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
    /// A segment without payload whose next hop is being resolved; it is dropped at this time.
    Resolving { flow: Flow, header: tcp::Header, until: Time },
    /// The reply to an ARP request.
    Arp { mac: Mac, ip: Ipv4Addr },
    /// The reply to an ICMP echo request.
    Echo { mac: Mac, local: Ipv4Addr, ip: Ipv4Addr, ident: u16, sequence: u16, payload: Vec<u8> },
}

#[derive(Debug, Default)]
pub(super) struct Replies {
    waiting: VecDeque<Reply>,
    /// Segments that wait until their next hop is resolved. A connection that was imported and ended before it received a
    /// segment knows no Ethernet address, but its peer needs the acknowledgement of its FIN.
    resolving: VecDeque<Reply>,
}

impl Replies {
    pub(super) fn push(&mut self, reply: Reply, counters: &mut Counters) {
        if self.waiting.len() >= WAITING_MAX {
            counters.replies_dropped += 1;
        } else {
            self.waiting.push_back(reply);
        }
    }

    /// The next hop of a segment is being resolved. The segment waits for [`retry`](Self::retry); it is of no use after `until`.
    pub(super) fn resolve(
        &mut self,
        (flow, header): (Flow, tcp::Header),
        until: Time,
        counters: &mut Counters,
    ) {
        if self.resolving.len() >= WAITING_MAX {
            counters.replies_dropped += 1;
        } else {
            self.resolving.push_back(Reply::Resolving { flow, header, until });
        }
    }

    /// Next hops may be resolved now: the segments that wait for them are sent, or wait again.
    pub(super) fn retry(&mut self) {
        self.waiting.append(&mut self.resolving);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Reply> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Addresses;

    #[test]
    fn segments_without_a_next_hop_are_bounded_in_number() {
        let (mut replies, mut counters) = (Replies::default(), Counters::default());
        let ip = Ipv4Addr::new(10, 0, 0, 1);
        let segment = || (Flow::between(Addresses::V4 { local: ip, peer: ip }, 1, 2), tcp::Header::default());
        for _ in 0..=WAITING_MAX {
            replies.resolve(segment(), Time(5), &mut counters);
        }
        assert_eq!((replies.resolving.len(), counters.replies_dropped), (WAITING_MAX, 1));
        assert!(replies.is_empty(), "a segment is not looked at before its next hop may be known");
        replies.retry();
        assert_eq!(core::iter::from_fn(|| replies.pop()).count(), WAITING_MAX);
    }
}
