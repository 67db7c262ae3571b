//! Settings in force, in the format of a configuration file.

use std::fmt;
use std::fmt::{Display, Write};
use std::time::Duration;

use spillway_auth::Key;
use spillway_batch::PolicyKind;
use spillway_discovery::EtcdFiles;

use super::{HelperConfig, SeparateAddress, Service, XdpConfig};
use spillway_values::{duration_text, rate_text, size_text};

/// TOML with every setting. Keys are secret: comments show their ids instead.
impl Display for HelperConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_etcd(&self.etcd, f)?;
        writeln!(f, "[helper]")?;
        writeln!(f, "name = \"{}\"", self.name)?;
        writeln!(f, "engine = \"{}\"", self.engine.name())?;
        match &self.interface {
            Some(interface) => writeln!(f, "interface = {interface:?}")?,
            None => writeln!(f, "# no interface")?,
        }
        writeln!(f, "threads = {}", self.threads)?;
        match &self.socket {
            Some(path) => writeln!(f, "socket = {:?}", path.display().to_string())?,
            None => writeln!(f, "# no admin socket")?,
        }
        match &self.admin_group {
            Some(group) => writeln!(f, "admin_group = \"{group}\"")?,
            None => writeln!(f, "# no admin_group")?,
        }
        match &self.metrics {
            Some(address) => writeln!(f, "metrics = \"{address}\"")?,
            None => writeln!(f, "# no metrics")?,
        }
        writeln!(f, "max_connections = {}", self.max_connections)?;
        writeln!(f, "max_memory = \"{}\"", size_text(self.max_memory_bytes as u64))?;
        writeln!(f, "drain_deadline = \"{}\"", duration_text(self.drain_deadline))?;
        writeln!(f, "load_answers = {}", self.load_answers)?;
        match self.network_bits {
            Some(bits) => writeln!(f, "network = \"{}\"", rate_text(bits))?,
            None => writeln!(f, "# no network bound")?,
        }
        writeln!(f, "shed_above = {}", self.shed_above)?;
        writeln!(f, "shed_until = {}", self.shed_until)?;
        let XdpConfig { separate, ports, frames, busy_poll, defer_interrupts, configure_interface } =
            &self.xdp;
        match separate {
            Some(SeparateAddress { ip, prefix, gateway }) => {
                writeln!(f, "xdp.address = \"{ip}/{prefix}\"")?;
                match gateway {
                    Some(gateway) => writeln!(f, "xdp.gateway = \"{gateway}\"")?,
                    None => writeln!(f, "# no xdp.gateway")?,
                }
            }
            None => writeln!(f, "# no xdp.address and xdp.gateway: addresses are shared with the kernel")?,
        }
        writeln!(f, "xdp.ports = \"{}-{}\"", ports.start(), ports.end())?;
        writeln!(f, "xdp.frames = {frames}")?;
        writeln!(f, "xdp.busy_poll = \"{}\"", duration_text(*busy_poll))?;
        writeln!(f, "xdp.defer_interrupts = \"{}\"", duration_text(*defer_interrupts))?;
        writeln!(f, "xdp.configure_interface = {configure_interface}")?;
        self.services.iter().try_for_each(|service| write!(f, "\n{service}"))
    }
}

/// Writes the given settings as dotted keys, such as `etcd.ca_file`, which must precede the first section.
fn show_etcd(etcd: &EtcdFiles, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let EtcdFiles { ca_file, cert_file, key_file, user, password_file } = etcd;
    let files = [
        ("ca_file", ca_file),
        ("cert_file", cert_file),
        ("key_file", key_file),
        ("password_file", password_file),
    ];
    for (key, path) in files.iter().filter_map(|(key, path)| Some((key, path.as_ref()?))) {
        writeln!(f, "etcd.{key} = {:?}", path.display().to_string())?;
    }
    user.iter().try_for_each(|user| writeln!(f, "etcd.user = {user:?}"))
}

impl Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[service.\"{}\"]", self.name)?;
        writeln!(f, "server = \"{}\"", self.server)?;
        writeln!(f, "listen = {}", list(&self.listen)?)?;
        writeln!(f, "link_listen = {}", list(&self.link_listen)?)?;
        writeln!(f, "# key_files: {}", key_ids(&self.keys)?)?;
        writeln!(f, "# client_key_files: {}", key_ids(&self.client_keys)?)?;
        writeln!(f, "require_encryption = {}", self.require_encryption)?;
        writeln!(f, "clients = {}", list(&self.client_ranges())?)?;
        writeln!(f, "proxy_protocol_from = {}", list(&self.proxy_protocol_from)?)?;
        if let Some(register) = &self.register {
            writeln!(f, "register = \"{}\"", register.prefix)?;
            writeln!(f, "advertise = \"{}\"", register.link)?;
        }
        writeln!(f, "protocol = \"{}\"", self.protocol.name())?;
        writeln!(f, "measure_one_in = {}", self.measure_one_in)?;
        writeln!(f, "links_per_thread = {}", self.links_per_thread)?;
        writeln!(f, "connect_timeout = \"{}\"", duration_text(self.connect_timeout))?;
        writeln!(f, "client_keepalive = \"{}\"", duration_text(self.client_keepalive.unwrap_or_default()))?;
        writeln!(f, "when_server_down = \"refuse\"")?;
        match self.sla {
            Some(sla) => writeln!(f, "sla = \"{}\"", duration_text(sla))?,
            None => writeln!(f, "# no sla")?,
        }
        writeln!(f, "\n[service.\"{}\".batch]", self.name)?;
        let settings = |delay: Duration, bytes: usize| {
            format!("max_delay = \"{}\"\nmax_bytes = \"{}\"", duration_text(delay), size_text(bytes as u64))
        };
        match self.policy {
            PolicyKind::Adaptive { max_delay, max_bytes } => {
                writeln!(f, "policy = \"adaptive\"\n{}", settings(max_delay, max_bytes))?;
            }
            PolicyKind::Deadline { max_delay, max_bytes } => {
                writeln!(f, "policy = \"deadline\"\n{}", settings(max_delay, max_bytes))?;
            }
            PolicyKind::Following { max_delay, max_bytes } => {
                writeln!(f, "policy = \"following\"\n{}", settings(max_delay, max_bytes))?;
            }
            PolicyKind::Algorithm1 => writeln!(f, "policy = \"algorithm1\"")?,
            PolicyKind::Fixed { interval: delay, size_bytes: bytes } => {
                writeln!(f, "policy = \"fixed\"\n{}", settings(delay, bytes))?;
            }
        }
        writeln!(f, "connection_buffer = \"{}\"", size_text(self.connection_buffer_bytes.into()))
    }
}

fn list(items: &[impl Display]) -> Result<String, fmt::Error> {
    let mut text = String::from("[");
    for (index, item) in items.iter().enumerate() {
        write!(text, "{}\"{item}\"", if index > 0 { ", " } else { "" })?;
    }
    Ok(text + "]")
}

fn key_ids(keys: &[Key]) -> Result<String, fmt::Error> {
    let mut text = String::new();
    for key in keys {
        write!(text, "{}key {}", if text.is_empty() { "" } else { ", " }, key.id())?;
    }
    Ok(if text.is_empty() { "none".to_owned() } else { text })
}
