//! A load balancer's connection until it has said, by a PROXY header, whose it is.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use spillway_transport::{Conn, Time, Transport};
use spillway_wire::{PROXY_BYTES_MAX, ProxyError, parse_proxy};

use crate::notice::{ProxyFault, Refusal};
use crate::raw::Arrival;
use crate::relay::Relay;
use crate::slots::Holder;

/// A connection whose header is still to come. At most [`PROXY_BYTES_MAX`] bytes are granted to it.
#[derive(Debug)]
pub(crate) struct Announcing {
    pub(crate) service: u16,
    pub(crate) peer: SocketAddr,
    pub(crate) since: Time,
    /// What has come of it.
    pub(crate) bytes: Vec<u8>,
    /// Of their memory, what the relay's counts.
    pub(crate) counted: usize,
}

impl Relay {
    /// Whether this peer is trusted, and obliged, to say who its clients are.
    pub(crate) fn announces(&self, service: u16, peer: SocketAddr) -> bool {
        let trusted = &self.config.services[usize::from(service)].proxy_from;
        trusted.iter().any(|range| range.contains(peer.ip()))
    }

    /// It waits for a header. Whether its client may come in is known after that.
    pub(crate) fn announcing_opened<T: Transport>(
        &mut self,
        conn: Conn,
        service: u16,
        peer: SocketAddr,
        out: &mut T,
    ) {
        if let Err(why) = self.admit_anybody(service) {
            self.refused(service, peer, why);
            return out.abort(conn);
        }
        self.make_room(out);
        let since = self.now;
        let announcing = Announcing { service, peer, since, bytes: Vec::new(), counted: 0 };
        self.put_client(conn, Holder::Announcing(Box::new(announcing)));
        out.grant(conn, PROXY_BYTES_MAX as u32);
        let slots = &self.slots;
        self.announcing.start(since, conn, |conn| matches!(slots.get(conn), Some(Holder::Announcing(_))));
    }

    pub(crate) fn announcing_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(Holder::Announcing(announcing)) = self.slots.get_mut(conn) else { return };
        announcing.bytes.extend_from_slice(bytes);
        let counted = core::mem::replace(&mut announcing.counted, announcing.bytes.capacity());
        self.memory.changed(counted, announcing.counted);
        let (service, peer) = (announcing.service, announcing.peer);
        let received = announcing.bytes.len();
        let header = match parse_proxy(&announcing.bytes) {
            Ok(Some(header)) => header,
            Ok(None) if received < PROXY_BYTES_MAX => return,
            wrong => {
                let fault = ProxyFault::Header(wrong.err().unwrap_or(ProxyError::TooLong));
                return self.refuse_announcing(conn, Refusal::ProxyHeader(fault), out);
            }
        };
        let rest = announcing.bytes[header.bytes..].to_vec();
        // While its service is drained it is refused below, which is not its own doing.
        self.drop_client(conn, true);
        let client = header.client.unwrap_or(peer);
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let via = header.client.map(|_| peer);
        let granted = PROXY_BYTES_MAX.saturating_sub(header.bytes);
        let arrival = Arrival { peer: client, via, granted, before: header.bytes as u16 }; // at most PROXY_BYTES_MAX
        let opened = self
            .admit(service, client)
            .and_then(|()| self.admit_announced(service, client.ip()))
            .and_then(|()| self.open_raw(conn, service, arrival, out));
        match opened {
            Ok(()) => {
                self.services[usize::from(service)].counters.announced += 1;
                if !rest.is_empty() {
                    self.data(now, conn, &rest, out);
                }
            }
            Err(why) => {
                self.refused(service, client, why);
                out.abort(conn);
            }
        }
    }

    /// No header makes a client of what cannot be one, nor of the server itself, which may trust itself.
    fn admit_announced(&self, service: u16, client: IpAddr) -> Result<(), Refusal> {
        let server = self.config.services[usize::from(service)].server.ip().to_canonical();
        let nobody = client.is_unspecified() || client.is_multicast();
        let servers_own = client == server && !server.is_loopback();
        if nobody || servers_own { Err(Refusal::Address) } else { Ok(()) }
    }

    /// The peer sends no more. One that has said nothing at all was looking whether the port is open.
    pub(crate) fn announcing_ended<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let Some(Holder::Announcing(announcing)) = self.slots.get(conn) else { return };
        if announcing.bytes.is_empty() {
            self.drop_client(conn, false);
            return out.finish(conn);
        }
        self.refuse_announcing(conn, Refusal::ProxyHeader(ProxyFault::Ended), out);
    }

    pub(crate) fn announcing_timeout<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        self.refuse_announcing(conn, Refusal::ProxyHeader(ProxyFault::TimedOut), out);
    }

    fn refuse_announcing<T: Transport>(&mut self, conn: Conn, why: Refusal, out: &mut T) {
        let Some(Holder::Announcing(announcing)) = self.slots.get(conn) else { return };
        let (service, peer) = (announcing.service, announcing.peer);
        self.refused(service, peer, why);
        self.drop_client(conn, false);
        out.abort(conn);
    }
}
