//! Reads the sections of a service: `[service.NAME]` and `[service.NAME.batch]`.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::Key;
use spillway_batch::PolicyKind;
use spillway_discovery::EtcdFiles;
use toml::Spanned;

use super::{Reader, registration};
use crate::config::name::is_name;
use crate::config::schema::{BatchSection, ServiceSection, Texts};
use crate::config::{Protocol, Service, default_max_delay};

impl Reader<'_> {
    pub(super) fn service(
        &mut self,
        name: &Spanned<String>,
        section: &ServiceSection,
        etcd: &EtcdFiles,
    ) -> Service {
        if !is_name(name.get_ref()) {
            self.values
                .problem(name.span(), "a service's name has 1 to 64 letters, digits, '-', '_' and '.'");
        }
        let server = match &section.server {
            Some(_) => self.values.address(&section.server),
            None => {
                self.values.problem(name.span(), "server is missing: give the server's link port, HOST:PORT");
                None
            }
        };
        if let Some(server) = server {
            self.engine.check_server(&mut self.values, server, &section.server);
        }
        // The placeholder is never used: without an address the configuration is refused.
        let placeholder = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut service = Service::new(name.get_ref(), server.unwrap_or(placeholder));
        service.listen = self.ports(&section.listen, "listen");
        service.link_listen = self.ports(&section.link_listen, "link_listen");
        if !is_given(&section.listen) && !is_given(&section.link_listen) {
            self.values.problem(
                name.span(),
                "no port for clients: add listen = [\":PORT\"], or link_listen, or both",
            );
        }
        self.link_keys(section, server, &mut service);
        service.clients = self.values.ranges(&section.clients);
        service.proxy_protocol_from = self.values.ranges(&section.proxy_protocol_from);
        let protocols = [Protocol::Tcp, Protocol::Memcached, Protocol::Redis];
        service.protocol =
            self.values.choice(&section.protocol, &protocols.map(|p| (p.name(), p))).unwrap_or_default();
        service.measure_one_in = self
            .values
            .number(&section.measure_one_in, 0..=1_000_000)
            .map_or(service.measure_one_in, |n| n as u32);
        if let Some(links) = self.values.number(&section.links_per_thread, 1..=64) {
            service.links_per_thread = links as u16; // checked against the range
        }
        let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(60));
        if let Some(timeout) = self.values.time(&section.connect_timeout, shortest..=longest) {
            service.connect_timeout = timeout;
        }
        // Linux accepts at most 32,767 seconds.
        let nine_hours = Duration::from_secs(9 * 3_600);
        if let Some(idle) = self.values.time(&section.client_keepalive, Duration::ZERO..=nine_hours) {
            service.client_keepalive = (!idle.is_zero()).then_some(idle);
        }
        self.values.choice(&section.when_server_down, &[("refuse", ())]);
        service.sla = self.values.time(&section.sla, Duration::from_micros(10)..=Duration::from_secs(4));
        self.batch(&section.batch, &mut service);
        service.register =
            registration::register(&mut self.values, self.reading, section, &service.link_listen, etcd);
        service
    }

    /// Reads the keys for links to the server and for library clients, and checks that links which need keys have some.
    fn link_keys(&mut self, section: &ServiceSection, server: Option<SocketAddr>, service: &mut Service) {
        service.keys = self.keys(&section.key_files);
        service.client_keys = self.keys(&section.client_key_files);
        if let (Some(setting), Some(server)) = (&section.server, server)
            && !server.ip().to_canonical().is_loopback()
            && !is_given(&section.key_files)
        {
            self.values
                .problem(setting.span(), "a server on another host needs key_files: a key that it accepts");
        }
        if let Some(setting) = &section.link_listen
            && !is_given(&section.client_key_files)
            && let Some(public) = service.link_listen.iter().find(|address| !address.ip().is_loopback())
        {
            let message = format!("library clients of other hosts at {public} need client_key_files");
            self.values.problem(setting.span(), message);
        }
        service.require_encryption = self.values.flag(&section.require_encryption).unwrap_or(false);
        if let Some(setting) = &section.require_encryption
            && service.require_encryption
            && (!is_given(&section.key_files)
                || is_given(&section.link_listen) && !is_given(&section.client_key_files))
        {
            let message = "links without a key are not encrypted: require_encryption needs key_files, and with \
                        link_listen also client_key_files";
            self.values.problem(setting.span(), message);
        }
    }

    fn batch(&mut self, section: &BatchSection, service: &mut Service) {
        let delay = self.values.time(&section.max_delay, Duration::ZERO..=Duration::from_secs(1));
        let delay = delay.unwrap_or_else(|| default_max_delay(service.sla));
        let bytes =
            self.values.size(&section.max_bytes, 1 << 10..=1 << 20).map_or(64 << 10, |bytes| bytes as usize);
        let policies = [
            ("adaptive", PolicyKind::Adaptive { max_delay: delay, max_bytes: bytes }),
            ("algorithm1", PolicyKind::Algorithm1),
            ("fixed", PolicyKind::Fixed { interval: delay, size_bytes: bytes }),
            ("deadline", PolicyKind::Deadline { max_delay: delay, max_bytes: bytes }),
            ("following", PolicyKind::Following { max_delay: delay, max_bytes: bytes }),
        ];
        service.policy = self.values.choice(&section.policy, &policies).unwrap_or(policies[0].1);
        if let Some(bytes) = self.values.size(&section.connection_buffer, 4 << 10..=16 << 20) {
            service.connection_buffer_bytes = bytes as u32; // checked against the range
        }
    }

    /// Reads the addresses of ports for clients. `key` is the setting's name.
    fn ports(&mut self, texts: &Texts, key: &str) -> Vec<SocketAddr> {
        self.listening.clients(&mut self.values, &self.engine, texts, key)
    }

    fn keys(&mut self, texts: &Texts) -> Vec<Key> {
        let mut keys = Vec::new();
        if !self.reading.reads_host {
            return keys;
        }
        for text in texts.iter().flat_map(|list| list.get_ref()) {
            let path = self.reading.key_file(text.get_ref());
            keys.extend(self.values.checked(&text.span(), spillway_keys::read_key_file(path)));
        }
        keys
    }
}

fn is_given(texts: &Texts) -> bool {
    texts.as_ref().is_some_and(|list| !list.get_ref().is_empty())
}
