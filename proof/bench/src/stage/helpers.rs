//! Starts helpers on the hosts between clients and server.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_lab::{Host, Place};

use super::Stage;
use crate::error::Error;
use crate::generator::Engine;
use crate::served::{Helper, HelperPlan};

/// Options of a helper that differ between experiments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HelperKind {
    /// True: for library clients; false: for plain clients.
    pub library: bool,
    /// Name of the batch policy.
    pub batch: &'static str,
    /// Longest batch delay.
    pub max_delay: Duration,
}

impl Stage {
    /// Starts a helper with one thread for plain clients of the server at `link`, and waits until the link to
    /// the server is up.
    pub fn helper(&self, link: SocketAddr, max_delay: Duration) -> Result<Helper, Error> {
        let port = Place::from(&self.middle_host).free_port()?;
        self.helper_on(
            (&self.middle_host, port),
            link,
            &HelperKind { library: false, batch: "adaptive", max_delay },
        )
    }

    /// Starts a helper of any kind on the given host and port.
    pub(crate) fn helper_on(
        &self,
        address: (&Host, u16),
        link: SocketAddr,
        kind: &HelperKind,
    ) -> Result<Helper, Error> {
        self.helper_with(address, link, kind, (0, None))
    }

    /// Starts a helper with `idle_services` further services, each with a link to the same server and without
    /// clients.
    pub(crate) fn helper_with(
        &self,
        (host, port): (&Host, u16),
        link: SocketAddr,
        kind: &HelperKind,
        (idle_services, measure_one_in): (u16, Option<u32>),
    ) -> Result<Helper, Error> {
        Helper::start(host, self.plan((host, port), link, kind, (idle_services, measure_one_in)))
    }

    /// Starts a helper for plain clients on the user-level TCP stack. No other program runs on the helper's host, because
    /// the helper's XDP program would also process that program's packets. The laboratory must be
    /// [made with checksums](Self::create_with_checksums). `host_index` is the number of the helper host, from 0.
    pub(crate) fn helper_on_xdp(
        &self,
        host_index: usize,
        link: SocketAddr,
        (max_delay, defer_interrupts): (Duration, Duration),
    ) -> Result<Helper, Error> {
        let Some(host) = self.middle_hosts().nth(host_index) else {
            return Err(Error::Usage(format!(
                "the laboratory has fewer hosts for helpers than {}",
                host_index + 1
            )));
        };
        let kind = HelperKind { library: false, batch: "adaptive", max_delay };
        let port = Place::from(host).free_port()?;
        let plan = self.plan((host, port), link, &kind, (0, None));
        Helper::start(
            host,
            HelperPlan { interface: Some(host.interface().to_owned()), defer_interrupts, ..plan },
        )
    }

    /// Starts a helper on kernel sockets on each host for helpers.
    pub(crate) fn helpers(&self, link: SocketAddr, kind: &HelperKind) -> Result<Vec<Helper>, Error> {
        let engines: Vec<Engine> = self.middle_hosts().map(|_| Engine::Sockets).collect();
        self.helpers_on(link, kind, &engines)
    }

    /// Starts one helper for each of `engines`, on the helper hosts in order.
    pub(crate) fn helpers_on(
        &self,
        link: SocketAddr,
        kind: &HelperKind,
        engines: &[Engine],
    ) -> Result<Vec<Helper>, Error> {
        let start = |(host, engine): (&Host, &Engine)| {
            let port = Place::from(host).free_port()?;
            let interface = (*engine == Engine::Xdp).then(|| host.interface().to_owned());
            let plan = self.plan((host, port), link, kind, (0, None));
            Helper::start(host, HelperPlan { interface, ..plan })
        };
        self.middle_hosts().zip(engines).map(start).collect()
    }

    fn plan(
        &self,
        (host, port): (&Host, u16),
        link: SocketAddr,
        kind: &HelperKind,
        (idle_services, measure_one_in): (u16, Option<u32>),
    ) -> HelperPlan<'_> {
        HelperPlan {
            program: &self.programs.spillway,
            interface: None,
            defer_interrupts: Duration::ZERO,
            server: link,
            address: SocketAddr::new(host.address(), port),
            library: kind.library,
            keys: &self.keys,
            batch: kind.batch,
            max_delay: kind.max_delay,
            idle_services,
            measure_one_in,
            status_socket: self.keys.helper.with_file_name(format!("{}-{port}.sock", host.name())),
        }
    }
}
