//! Reads the sections of a service: `[service.NAME]` and `[service.NAME.batch]`.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::Key;
use spillway_batch::PolicyKind;
use spillway_config::Texts;
use spillway_discovery::EtcdFiles;
use spillway_values::{is_name, server_address};
use toml::Spanned;

use super::{Reader, registration};
use crate::config::schema::{BatchSection, ServiceSection};
use crate::config::{Protocol, Service, default_max_delay};

impl Reader<'_> {
    /// `None` if the address of the server is missing or has an error.
    pub(super) fn service(
        &mut self,
        name: &Spanned<String>,
        section: &ServiceSection,
        etcd: &EtcdFiles,
    ) -> Option<Service> {
        if !is_name(name.get_ref()) {
            self.values
                .problem(name.span(), "a service's name has 1 to 64 letters, digits, '-', '_' and '.'");
        }
        // A missing address ends the function only after the errors of all other values are collected.
        let server = self.server(name, section);
        let listen = self.ports(&section.listen, "listen");
        let link_listen = self.ports(&section.link_listen, "link_listen");
        if !is_given(&section.listen) && !is_given(&section.link_listen) {
            self.values.problem(
                name.span(),
                "no port for clients: add listen = [\":PORT\"], or link_listen, or both",
            );
        }
        let LinkKeys { keys, client_keys, require_encryption } =
            self.link_keys(section, server, &link_listen);
        let clients = self.values.parsed_list(&section.clients);
        let proxy_protocol_from = self.values.parsed_list(&section.proxy_protocol_from);
        let protocols = [Protocol::Tcp, Protocol::Memcached, Protocol::Redis];
        let protocol = self.values.choice(&section.protocol, &protocols.map(|p| (p.name(), p)));
        let measure_one_in = self.values.number(&section.measure_one_in, 0..=1_000_000);
        let links_per_thread = self.values.number(&section.links_per_thread, 1..=64);
        let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(60));
        let connect_timeout = self.values.time(&section.connect_timeout, shortest..=longest);
        // Linux accepts at most 32,767 seconds.
        let nine_hours = Duration::from_secs(9 * 3_600);
        let client_keepalive = self.values.time(&section.client_keepalive, Duration::ZERO..=nine_hours);
        self.values.choice(&section.when_server_down, &[("refuse", ())]);
        let sla = self.values.time(&section.sla, Duration::from_micros(10)..=Duration::from_secs(4));
        let policy = self.policy(&section.batch, sla);
        let connection_buffer = self.values.size(&section.batch.connection_buffer, 4 << 10..=16 << 20);
        let register = registration::register(&mut self.values, self.reading, section, &link_listen, etcd);
        let default = Service::new(name.get_ref(), server?);
        Some(Service {
            listen,
            link_listen,
            keys,
            client_keys,
            require_encryption,
            clients,
            proxy_protocol_from,
            protocol: protocol.unwrap_or(default.protocol),
            measure_one_in: measure_one_in.unwrap_or(default.measure_one_in),
            links_per_thread: links_per_thread.unwrap_or(default.links_per_thread),
            connect_timeout: connect_timeout.unwrap_or(default.connect_timeout),
            client_keepalive: client_keepalive
                .map_or(default.client_keepalive, |idle| (!idle.is_zero()).then_some(idle)),
            sla,
            policy,
            connection_buffer_bytes: connection_buffer
                .map_or(default.connection_buffer_bytes, |bytes| bytes as u32), // checked against the range
            register,
            ..default
        })
    }

    /// Reads the server's address, and checks whether the engine reaches it.
    fn server(&mut self, name: &Spanned<String>, section: &ServiceSection) -> Option<SocketAddr> {
        if section.server.is_none() {
            self.values.problem(name.span(), "server is missing: give the server's link port, HOST:PORT");
        }
        let (text, span) = self.values.string(&section.server)?;
        let server = self.values.checked(&span, server_address(&text))?;
        self.engine.check_server(&mut self.values, server, &section.server);
        Some(server)
    }

    /// Reads the keys for links to the server and for library clients, and checks that links which need keys have some.
    fn link_keys(
        &mut self,
        section: &ServiceSection,
        server: Option<SocketAddr>,
        link_listen: &[SocketAddr],
    ) -> LinkKeys {
        let keys = self.keys(&section.key_files);
        let client_keys = self.keys(&section.client_key_files);
        if let (Some(setting), Some(server)) = (&section.server, server)
            && !server.ip().to_canonical().is_loopback()
            && !is_given(&section.key_files)
        {
            self.values
                .problem(setting.span(), "a server on another host needs key_files: a key that it accepts");
        }
        if let Some(setting) = &section.link_listen
            && !is_given(&section.client_key_files)
            && let Some(public) = link_listen.iter().find(|address| !address.ip().is_loopback())
        {
            let message = format!("library clients of other hosts at {public} need client_key_files");
            self.values.problem(setting.span(), message);
        }
        let require_encryption = self.values.flag(&section.require_encryption).unwrap_or(false);
        if let Some(setting) = &section.require_encryption
            && require_encryption
            && (!is_given(&section.key_files)
                || is_given(&section.link_listen) && !is_given(&section.client_key_files))
        {
            let message = "links without a key are not encrypted: require_encryption needs key_files, and with \
                        link_listen also client_key_files";
            self.values.problem(setting.span(), message);
        }
        LinkKeys { keys, client_keys, require_encryption }
    }

    fn policy(&mut self, section: &BatchSection, sla: Option<Duration>) -> PolicyKind {
        let delay = self.values.time(&section.max_delay, Duration::ZERO..=Duration::from_secs(1));
        let delay = delay.unwrap_or_else(|| default_max_delay(sla));
        let bytes =
            self.values.size(&section.max_bytes, 1 << 10..=1 << 20).map_or(64 << 10, |bytes| bytes as usize);
        let policies = [
            ("adaptive", PolicyKind::Adaptive { max_delay: delay, max_bytes: bytes }),
            ("algorithm1", PolicyKind::Algorithm1),
            ("fixed", PolicyKind::Fixed { interval: delay, size_bytes: bytes }),
            ("deadline", PolicyKind::Deadline { max_delay: delay, max_bytes: bytes }),
            ("following", PolicyKind::Following { max_delay: delay, max_bytes: bytes }),
        ];
        self.values.choice(&section.policy, &policies).unwrap_or(policies[0].1)
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

/// The keys for a service's links, and whether links without encryption are refused.
struct LinkKeys {
    /// For links to the server.
    keys: Vec<Key>,
    /// For links of library clients.
    client_keys: Vec<Key>,
    require_encryption: bool,
}

fn is_given(texts: &Texts) -> bool {
    texts.as_ref().is_some_and(|list| !list.get_ref().is_empty())
}
