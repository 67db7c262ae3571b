//! Starts servers and proxies, and sets the servers' keys.

use std::net::SocketAddr;

use spillway_lab::Place;
use spillway_lab::peers::{Memcached, Peer, Proxy, Redis};
use spillway_load::config::ProtocolKind;
use spillway_load::fill::fill;
use spillway_load::protocol::memcached::Text;
use spillway_load::protocol::redis::Resp;
use spillway_load::protocol::store::Space;

use super::Stage;
use super::key_space::{KEYS, space};
use crate::error::Error;
use crate::served::{check_runs, wrapper};

/// Two servers of the same program, without and with the preload library.
#[derive(Debug)]
pub struct Pair {
    /// The servers' protocol.
    pub protocol: ProtocolKind,
    /// The server without the preload library.
    pub plain: Peer,
    /// The server under `spillway run`.
    pub shimmed: Peer,
    /// The link port of `shimmed`.
    pub link: SocketAddr,
}

impl Pair {
    /// Fails if a server has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        for peer in [&mut self.plain, &mut self.shimmed] {
            check_runs(peer.process(), &format!("a {}", self.protocol))?;
        }
        Ok(())
    }
}

impl Stage {
    /// Starts a server program with and without the preload library, and sets [`KEYS`] keys in both servers
    /// for each of `value_sizes`.
    pub fn pair(&self, protocol: ProtocolKind, value_sizes: &[usize]) -> Result<Pair, Error> {
        let place = Place::from(&self.server);
        let link = SocketAddr::new(self.server.address(), place.free_port()?);
        let wrapper = wrapper(&self.programs.spillway, link, &self.keys);
        let (plain, shimmed) = match protocol {
            ProtocolKind::Redis => {
                (Redis::default().start(&place)?, Redis::default().wrapper(wrapper).start(&place)?)
            }
            _ => (Memcached::default().start(&place)?, Memcached::default().wrapper(wrapper).start(&place)?),
        };
        let pair = Pair { protocol, plain, shimmed, link };
        for &size in value_sizes {
            for server in [&pair.plain, &pair.shimmed] {
                self.fill(protocol, server.address(), &space(size, false))?;
            }
        }
        Ok(pair)
    }

    /// Sets every key of a key space.
    pub fn fill(&self, protocol: ProtocolKind, server: SocketAddr, space: &Space) -> Result<(), Error> {
        let filled = self.client.run_inside(|| match protocol {
            ProtocolKind::Redis => fill::<Resp>(server, space, KEYS, true),
            _ => fill::<Text>(server, space, KEYS, true),
        })?;
        filled.map_err(|e| Error::process(e.to_string(), ""))
    }

    /// The `spillway run` command that precedes a server's command line and gives it the link port `link`.
    pub(crate) fn wrapper(&self, link: SocketAddr) -> Vec<String> {
        wrapper(&self.programs.spillway, link, &self.keys)
    }

    /// Starts a proxy on the first host for helpers.
    pub fn proxy(&self, proxy: &Proxy) -> Result<Peer, Error> {
        Ok(proxy.start(&Place::from(&self.middle_host))?)
    }
}
