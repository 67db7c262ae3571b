//! Reads a configuration file, and reports all errors at once with their lines and columns.

mod engine;

use std::collections::BTreeMap;
use std::env;
use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use spillway_auth::Key;
use spillway_batch::{AddressRange, PolicyKind};
use spillway_daemon::AdminGroup;
use spillway_discovery::{EtcdAccess, EtcdFiles};
use toml::{Spanned, Value};

use super::problem::{Problem, Problems};
use super::schema::{Any, BatchSection, EtcdSection, File, HelperSection, ServiceSection, Texts};
use super::{Engine, HelperConfig, Protocol, Register, SeparateAddress, Service};
use spillway_values::{
    duration_text, listen_address, listen_addresses, parse_duration, parse_rate, parse_size, server_address,
    size_text,
};

const FILE_BYTES_MAX: u64 = 1 << 20;
const NAME_BYTES_MAX: usize = 64;

/// How a file is read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Directory of key files with relative paths; the service manager's credential directory is searched first.
    pub base: PathBuf,
    /// Whether to read key files and check this host's interfaces and ports. False to check a file on a host that
    /// is not the helper's.
    pub reads_host: bool,
}

/// Reads a configuration file, and resolves the host names in it. If `reads_host` is true, also reads the key files
/// that the file names and checks its interfaces. Fails with all errors of the file.
pub fn read_file(path: &Path, reads_host: bool) -> Result<HelperConfig, Problems> {
    let whole_file = |message: String| Problems {
        path: path.to_owned(),
        problems: vec![Problem { line: 0, column: 0, message }],
    };
    let unreadable = |error: &dyn Display| whole_file(format!("cannot be read: {error}"));
    let bytes = read_bounded(path).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let message = format!(
            "has more than {FILE_BYTES_MAX} bytes, the limit for a configuration: is it the right file?"
        );
        return Err(whole_file(message));
    }
    // The length is checked first: reading stops at the limit, possibly inside a multi-byte character.
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is not UTF-8 text"))?;
    let base = path.parent().unwrap_or(Path::new("")).to_owned();
    read_text(&text, &Reading { base, reads_host })
        .map_err(|problems| Problems { path: path.to_owned(), problems })
}

/// Reads at most one byte more than [`FILE_BYTES_MAX`]. Refuses files that are not regular: reading a pipe without
/// a writer would block the helper's reload.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK.union(OFlags::NOCTTY);
    let file = fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the text of a configuration. Fails with all errors of the text, at least one, ordered by line.
pub fn read_text(text: &str, reading: &Reading) -> Result<HelperConfig, Vec<Problem>> {
    let file: File = toml::from_str(text).map_err(|error| {
        // The parser's message may have several lines; a problem is reported on one line.
        let message = error.message().replace('\n', "; ");
        let message = with_suggestion(&message).unwrap_or(message);
        vec![Problem::at(text, error.span().unwrap_or(0..0), message)]
    })?;
    let mut reader = Reader {
        text,
        reading,
        problems: Vec::new(),
        listening: BTreeMap::new(),
        engine: Engine::default(),
        found: None,
        separate: None,
    };
    let config = reader.config(&file);
    let mut problems = reader.problems;
    // If key files are not read, `config.check()` would report missing keys.
    if problems.is_empty()
        && reading.reads_host
        && let Err(error) = config.check()
    {
        problems.push(Problem { line: 0, column: 0, message: error.to_string() });
    }
    problems.sort_by_key(|problem| (problem.line, problem.column));
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

/// Minimal normalized Damerau-Levenshtein similarity (0 to 1) between an unknown key and the key suggested for it.
/// The similarity of `max_delay` and `max_memory`, two different keys, is lower. If one key is a prefix of the other,
/// their similarity counts as 1.
const SIMILAR_MIN: f64 = 0.65;

/// Adds the most similar known key to the parser's message about an unknown key. `None` if no key is similar.
fn with_suggestion(message: &str) -> Option<String> {
    let (unknown, known) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let is_prefix = |key: &str| unknown.len() >= 3 && (key.starts_with(unknown) || unknown.starts_with(key));
    let similarity = |key: &&str| match is_prefix(key) {
        true => 1.0,
        false => strsim::normalized_damerau_levenshtein(unknown, key),
    };
    let best = known.split('`').skip(1).step_by(2).max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(&best) >= SIMILAR_MIN).then(|| format!("unknown field `{unknown}`, did you mean `{best}`?"))
}

/// Converts the parsed file and collects its errors. A value with an error is replaced by its default.
struct Reader<'a> {
    text: &'a str,
    reading: &'a Reading,
    problems: Vec<Problem>,
    /// The configuration key that gave each listening address, to report an address that is given twice.
    listening: BTreeMap<SocketAddr, String>,
    engine: Engine,
    /// The interface of the engine `xdp`, if it was looked up.
    found: Option<engine::Found>,
    /// The helper's own address on the engine `xdp`.
    separate: Option<SeparateAddress>,
}

impl Reader<'_> {
    fn config(&mut self, file: &File) -> HelperConfig {
        let helper = &file.helper;
        let default = HelperConfig::new(Vec::new());
        let socket = self.path(&helper.socket).unwrap_or_else(crate::default_socket);
        let mut config = HelperConfig {
            name: self.name(&helper.name).unwrap_or(default.name),
            engine: self.engine(helper),
            interface: self.interface(&helper.interface),
            xdp: self.xdp(&helper.xdp),
            threads: self.number(&helper.threads, 0..=1024).map_or(default.threads, |n| n as usize),
            socket: Some(socket),
            admin_group: self.group(&helper.admin_group),
            metrics: self.metrics(&helper.metrics),
            max_connections: self
                .number(&helper.max_connections, 1..=10_000_000)
                .map_or(default.max_connections, |n| n as u32),
            max_memory_bytes: self
                .size(&helper.max_memory, 1 << 20..=1 << 46)
                .map_or(default.max_memory_bytes, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            drain_deadline: self
                .time(&helper.drain_deadline, Duration::ZERO..=Duration::from_secs(86_400))
                .unwrap_or(default.drain_deadline),
            load_answers: self.flag(&helper.load_answers).unwrap_or(default.load_answers),
            network_bits: self.rate(&helper.network),
            shed_above: default.shed_above,
            shed_until: default.shed_until,
            etcd: self.etcd(&file.etcd),
            services: Vec::new(),
        };
        self.shedding(helper, &mut config);
        if file.service.is_empty() {
            self.problem(
                0..0,
                "no service to relay for: add a section [service.NAME] with server and listen",
            );
        }
        for (name, section) in &file.service {
            let service = self.service(name, section, &config.etcd);
            config.services.push(service);
        }
        config
    }

    fn service(&mut self, name: &Spanned<String>, section: &ServiceSection, etcd: &EtcdFiles) -> Service {
        if !is_name(name.get_ref()) {
            self.problem(name.span(), "a service's name has 1 to 64 letters, digits, '-', '_' and '.'");
        }
        let server = match &section.server {
            Some(_) => self.address(&section.server),
            None => {
                self.problem(name.span(), "server is missing: give the server's link port, HOST:PORT");
                None
            }
        };
        if let Some(server) = server {
            self.check_server(server, &section.server);
        }
        // The placeholder is never used: without an address the configuration is refused.
        let placeholder = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut service = Service::new(name.get_ref(), server.unwrap_or(placeholder));
        service.listen = self.listeners(&section.listen, "listen");
        service.link_listen = self.listeners(&section.link_listen, "link_listen");
        let is_given = |texts: &Texts| texts.as_ref().is_some_and(|list| !list.get_ref().is_empty());
        if !is_given(&section.listen) && !is_given(&section.link_listen) {
            self.problem(
                name.span(),
                "no port for clients: add listen = [\":PORT\"], or link_listen, or both",
            );
        }
        service.keys = self.keys(&section.key_files);
        service.client_keys = self.keys(&section.client_key_files);
        if let (Some(setting), Some(server)) = (&section.server, server)
            && !server.ip().to_canonical().is_loopback()
            && !is_given(&section.key_files)
        {
            self.problem(setting.span(), "a server on another host needs key_files: a key that it accepts");
        }
        if let Some(setting) = &section.link_listen
            && !is_given(&section.client_key_files)
            && let Some(public) = service.link_listen.iter().find(|address| !address.ip().is_loopback())
        {
            let message = format!("library clients of other hosts at {public} need client_key_files");
            self.problem(setting.span(), message);
        }
        service.require_encryption = self.flag(&section.require_encryption).unwrap_or(false);
        if let Some(setting) = &section.require_encryption
            && service.require_encryption
            && (!is_given(&section.key_files)
                || is_given(&section.link_listen) && !is_given(&section.client_key_files))
        {
            let message = "links without a key are not encrypted: require_encryption needs key_files, and with \
                        link_listen also client_key_files";
            self.problem(setting.span(), message);
        }
        service.clients = self.ranges(&section.clients);
        service.proxy_protocol_from = self.ranges(&section.proxy_protocol_from);
        let protocols = [Protocol::Tcp, Protocol::Memcached, Protocol::Redis];
        service.protocol =
            self.choice(&section.protocol, &protocols.map(|p| (p.name(), p))).unwrap_or_default();
        service.measure_one_in =
            self.number(&section.measure_one_in, 0..=1_000_000).map_or(service.measure_one_in, |n| n as u32);
        if let Some(links) = self.number(&section.links_per_thread, 1..=64) {
            service.links_per_thread = links as u16; // checked against the range
        }
        let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(60));
        if let Some(timeout) = self.time(&section.connect_timeout, shortest..=longest) {
            service.connect_timeout = timeout;
        }
        // Linux accepts at most 32,767 seconds.
        let nine_hours = Duration::from_secs(9 * 3_600);
        if let Some(idle) = self.time(&section.client_keepalive, Duration::ZERO..=nine_hours) {
            service.client_keepalive = (!idle.is_zero()).then_some(idle);
        }
        self.choice(&section.when_server_down, &[("refuse", ())]);
        service.sla = self.time(&section.sla, Duration::from_micros(10)..=Duration::from_secs(4));
        self.batch(&section.batch, &mut service);
        service.register = self.register(section, &service.link_listen, etcd);
        service
    }

    fn etcd(&mut self, section: &EtcdSection) -> EtcdFiles {
        let base = &self.reading.base;
        let mut file = |setting| self.string(setting).map(|(text, _)| find_key_file(&text, base));
        EtcdFiles {
            ca_file: file(&section.ca_file),
            cert_file: file(&section.cert_file),
            key_file: file(&section.key_file),
            password_file: file(&section.password_file),
            user: self.string(&section.user).map(|(user, _)| user),
        }
    }

    fn register(
        &mut self,
        section: &ServiceSection,
        listens: &[SocketAddr],
        etcd: &EtcdFiles,
    ) -> Option<Register> {
        let Some((text, span)) = self.string(&section.register) else {
            if let Some(advertise) = &section.advertise {
                self.problem(
                    advertise.span(),
                    "advertise needs register: give register, or remove advertise",
                );
            }
            return None;
        };
        let prefix = self.checked(&span, text.parse())?;
        let access = if self.reading.reads_host {
            self.checked(&span, EtcdAccess::read(etcd, &prefix))?
        } else {
            EtcdAccess::default()
        };
        let is_wildcard = |address: &SocketAddr| address.ip().is_unspecified() || address.port() == 0;
        if let Some(setting) = &section.advertise {
            let link = self.address(&section.advertise)?;
            if is_wildcard(&link) {
                self.problem(
                    setting.span(),
                    "clients cannot connect to this: give an ADDRESS:PORT that they reach",
                );
            }
            return Some(Register { prefix, access, link });
        }
        match listens {
            [link] if !is_wildcard(link) => return Some(Register { prefix, access, link: *link }),
            [] => self.problem(span, "register needs link_listen, to which clients connect: add it"),
            _ => self.problem(span, "advertise is missing: give the ADDRESS:PORT that clients connect to"),
        }
        None
    }

    fn batch(&mut self, section: &BatchSection, service: &mut Service) {
        let delay = self.time(&section.max_delay, Duration::ZERO..=Duration::from_secs(1));
        let delay = delay.unwrap_or_else(|| super::default_max_delay(service.sla));
        let bytes = self.size(&section.max_bytes, 1 << 10..=1 << 20).map_or(64 << 10, |bytes| bytes as usize);
        let policies = [
            ("adaptive", PolicyKind::Adaptive { max_delay: delay, max_bytes: bytes }),
            ("algorithm1", PolicyKind::Algorithm1),
            ("fixed", PolicyKind::Fixed { interval: delay, size_bytes: bytes }),
            ("deadline", PolicyKind::Deadline { max_delay: delay, max_bytes: bytes }),
            ("following", PolicyKind::Following { max_delay: delay, max_bytes: bytes }),
        ];
        service.policy = self.choice(&section.policy, &policies).unwrap_or(policies[0].1);
        if let Some(bytes) = self.size(&section.connection_buffer, 4 << 10..=16 << 20) {
            service.connection_buffer_bytes = bytes as u32; // checked against the range
        }
    }

    fn shedding(&mut self, helper: &HelperSection, config: &mut HelperConfig) {
        match self.number(&helper.shed_above, 0..=100) {
            Some(percent @ 1..50) => {
                if let Some(setting) = &helper.shed_above {
                    let message = format!("{percent} % is not an overload: give 50 to 100, or 0 for never");
                    self.problem(setting.span(), message);
                }
            }
            Some(percent) => config.shed_above = percent as u8, // checked against the range
            None => {}
        }
        config.shed_until = config.shed_above.saturating_sub(10);
        if let Some(percent) = self.number(&helper.shed_until, 1..=99) {
            config.shed_until = percent as u8; // checked against the range
            if let Some(setting) = &helper.shed_until
                && config.shed_above > 0
                && config.shed_until >= config.shed_above
            {
                let message = format!("give less than shed_above, which is {}", config.shed_above);
                self.problem(setting.span(), message);
            }
        }
    }

    fn flag(&mut self, setting: &Any) -> Option<bool> {
        let value = setting.as_ref()?;
        let found = value.get_ref().as_bool();
        if found.is_none() {
            self.problem(value.span(), "give true or false");
        }
        found
    }

    fn rate(&mut self, setting: &Any) -> Option<u64> {
        let (text, span) = self.string(setting)?;
        let bits = self.checked(&span, parse_rate(&text))?;
        if bits == 0 {
            self.problem(span, "give a rate above 0, or leave the key out");
            return None;
        }
        Some(bits)
    }

    fn metrics(&mut self, setting: &Any) -> Option<SocketAddr> {
        let (text, span) = self.string(setting)?;
        let found = self.checked(&span, listen_address(&text))?;
        self.use_address(found, "metrics", &span);
        Some(found)
    }

    fn name(&mut self, setting: &Any) -> Option<String> {
        let (text, span) = self.string(setting)?;
        if is_name(&text) {
            return Some(text);
        }
        self.problem(span, "a name has 1 to 64 letters, digits, '-', '_' and '.'");
        None
    }

    fn path(&mut self, setting: &Any) -> Option<PathBuf> {
        let (text, span) = self.string(setting)?;
        if Path::new(&text).is_absolute() {
            return Some(text.into());
        }
        self.problem(span, "give an absolute path");
        None
    }

    fn group(&mut self, setting: &Any) -> Option<AdminGroup> {
        let (text, span) = self.string(setting)?;
        self.checked(&span, text.parse())
    }

    fn address(&mut self, setting: &Any) -> Option<SocketAddr> {
        let (text, span) = self.string(setting)?;
        self.checked(&span, server_address(&text))
    }

    fn listeners(&mut self, texts: &Texts, key: &str) -> Vec<SocketAddr> {
        let mut all = Vec::new();
        for text in texts.iter().flat_map(|list| list.get_ref()) {
            let found = self.checked(&text.span(), listen_addresses(text.get_ref())).unwrap_or_default();
            for address in found {
                self.use_address(address, key, &text.span());
                self.check_listener(address, &text.span());
                all.push(address);
            }
        }
        all
    }

    fn use_address(&mut self, address: SocketAddr, key: &str, span: &Range<usize>) {
        if address.port() == 0 {
            return;
        }
        if let Some(other_key) = self.listening.insert(address, key.to_owned()) {
            self.problem(
                span.clone(),
                format!("{address} is already used by {other_key}: give each its own address"),
            );
        }
    }

    fn ranges(&mut self, texts: &Texts) -> Vec<AddressRange> {
        let texts = texts.iter().flat_map(|list| list.get_ref());
        texts.filter_map(|text| self.checked(&text.span(), text.get_ref().parse())).collect()
    }

    fn keys(&mut self, texts: &Texts) -> Vec<Key> {
        let mut keys = Vec::new();
        for text in texts.iter().flat_map(|list| list.get_ref()) {
            if !self.reading.reads_host {
                continue;
            }
            let path = find_key_file(text.get_ref(), &self.reading.base);
            keys.extend(self.checked(&text.span(), spillway_keys::read_key_file(path)));
        }
        keys
    }

    fn number(&mut self, setting: &Any, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        let value = setting.as_ref()?;
        match value.get_ref() {
            Value::Integer(number) if range.contains(number) => Some(*number),
            _ => {
                let message = format!("give a whole number from {} to {}", range.start(), range.end());
                self.problem(value.span(), message);
                None
            }
        }
    }

    fn time(&mut self, setting: &Any, range: std::ops::RangeInclusive<Duration>) -> Option<Duration> {
        let (text, span) = self.string(setting)?;
        let time = self.checked(&span, parse_duration(&text))?;
        if range.contains(&time) {
            return Some(time);
        }
        let (min, max) = (duration_text(*range.start()), duration_text(*range.end()));
        self.problem(span, format!("give a time from {min} to {max}"));
        None
    }

    fn size(&mut self, setting: &Any, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let (text, span) = self.string(setting)?;
        let size = self.checked(&span, parse_size(&text))?;
        if range.contains(&size) {
            return Some(size);
        }
        let (min, max) = (size_text(*range.start()), size_text(*range.end()));
        self.problem(span, format!("give a size from {min} to {max}"));
        None
    }

    fn choice<T: Copy>(&mut self, setting: &Any, choices: &[(&str, T)]) -> Option<T> {
        let (text, span) = self.string(setting)?;
        let found = choices.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            self.problem(span, format!("give {}", names.join(" or ")));
        }
        found.map(|(_, choice)| *choice)
    }

    fn string(&mut self, setting: &Any) -> Option<(String, Range<usize>)> {
        let value = setting.as_ref()?;
        match value.get_ref() {
            Value::String(text) => Some((text.clone(), value.span())),
            // This case includes a number without a unit (`max_delay = 5`): the message therefore mentions units.
            other => {
                let message =
                    format!("give a text in quotes, with its unit if it has one, not {}", kind_of(other));
                self.problem(value.span(), message);
                None
            }
        }
    }

    fn checked<T, E: Display>(&mut self, span: &Range<usize>, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.problem(span.clone(), error.to_string())).ok()
    }

    fn problem(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.problems.push(Problem::at(self.text, span, message.into()));
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

/// Whether `text` is a valid name. Names become metric labels and command arguments: only letters, digits, `-`, `_`
/// and `.` are allowed.
fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// A key file's path. A relative path names a file in `CREDENTIALS_DIRECTORY` (systemd's credentials) if that file
/// exists, otherwise a file in `base`.
fn find_key_file(text: &str, base: &Path) -> PathBuf {
    let credential = env::var_os("CREDENTIALS_DIRECTORY").map(|directory| Path::new(&directory).join(text));
    credential.filter(|path| path.exists()).unwrap_or_else(|| base.join(text))
}

/// The host's name, or `helper` if the host's name is not a valid name of a helper.
pub fn host_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_str().unwrap_or_default();
    if is_name(name) { name.to_owned() } else { "helper".to_owned() }
}

#[cfg(test)]
mod tests;
