//! Acknowledgements to plain clients behind a gate: their bytes are acknowledged when the server has taken them, so that a
//! helper that dies has acknowledged nothing that is lost (PostMan §4.2). Kernel sockets have no gates, and acknowledge by
//! themselves.

use spillway_batch::Id;
use spillway_transport::{Conn, Transport};

use crate::relay::Relay;
use crate::slots::Holder;
use crate::upstream::Member;

/// Where nobody tells what the server has taken, or where it takes no more.
pub(crate) fn open_for_good<T: Transport>(conn: Conn, out: &mut T) {
    out.release(conn, u64::MAX);
}

impl Relay {
    /// The server has taken requests of a client up to this offset.
    pub(crate) fn requests_taken<T: Transport>(
        &mut self,
        upstream: usize,
        id: Id,
        through: u64,
        is_finished: bool,
        out: &mut T,
    ) {
        let Some(linked) = self.upstreams[upstream].linked() else { return };
        let Member::Client(conn) = linked.member(id) else { return };
        if let Some(Holder::Raw(client)) = self.slots.get(conn) {
            // The end of the stream counts one, as it does in TCP.
            out.release(conn, client.stream_offset(through) + u64::from(is_finished));
        }
    }
}
