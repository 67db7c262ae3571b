//! Configuration that `spillway run` passes to the preload library in the environment.

use core::ffi::{CStr, c_int};
use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::KeyRing;
use spillway_batch::{AddressRange, AddressRules, Encryption, Limits, Role, ServerConfig};
use spillway_session::{StreamLimits, TableLimits};

pub use crate::address::LinkAddress;
use crate::environment::variable;
use crate::rotation;
use crate::status::reader::page_directories;

/// The link port: `HOST:PORT`, or `:PORT` for all addresses.
pub const LINK: &CStr = c"SPILLWAY_LINK";
/// Key files of helpers, one per line.
pub const KEYS: &CStr = c"SPILLWAY_KEYS";
/// Key files of library clients, one per line.
pub const CLIENT_KEYS: &CStr = c"SPILLWAY_CLIENT_KEYS";
/// Ranges of client addresses that helpers may carry, separated by commas.
pub const ALLOW_CLIENTS: &CStr = c"SPILLWAY_ALLOW_CLIENTS";
/// The application's port for helped clients. If not set: the first port that the application polls.
pub const PORT: &CStr = c"SPILLWAY_PORT";
/// Maximum number of sessions at the same time.
pub const SESSIONS_MAX: &CStr = c"SPILLWAY_SESSIONS_MAX";
/// Bytes of memory that all sessions together may hold.
pub const SESSIONS_MEMORY: &CStr = c"SPILLWAY_SESSIONS_MEMORY";
/// Milliseconds of low load after which helped sessions are sent back to the server's port; 0 for never.
pub const RELEASE_AFTER: &CStr = c"SPILLWAY_RELEASE_AFTER_MS";
/// `1`: end the server if it cannot accept links.
pub const REQUIRE: &CStr = c"SPILLWAY_REQUIRE";
/// `1`: refuse links that would not be encrypted.
pub const REQUIRE_ENCRYPTION: &CStr = c"SPILLWAY_REQUIRE_ENCRYPTION";
/// Identifies one start by `spillway run`; all processes of the start have the same value.
pub const LAUNCH: &CStr = c"SPILLWAY_LAUNCH";
/// The process id of the program that `spillway run` became.
pub const STARTED_PID: &CStr = c"SPILLWAY_STARTED";
/// `1`: the preload library does nothing.
pub const SWITCHED_OFF: &CStr = c"SPILLWAY_OFF";

/// Maximum number of received and unread bytes of each connection.
const WINDOW_BYTES: u32 = 64 * 1024;

/// Default of [`SESSIONS_MAX`]. Each session keeps at most 256 KiB for its client, and as many unread bytes as a
/// connection.
pub const SESSIONS_MAX_DEFAULT: usize = 65_536;

/// Default of [`SESSIONS_MEMORY`], in bytes.
pub const SESSIONS_MEMORY_DEFAULT: usize = 256 << 20;
/// Minimum of [`SESSIONS_MEMORY`]. 16 tables share the memory; with less, a table would end sessions that are within
/// the bounds of a single session.
pub const SESSIONS_MEMORY_MIN: usize = 16 << 20;

/// Default of [`RELEASE_AFTER`], in milliseconds.
pub const RELEASE_AFTER_DEFAULT_MS: u32 = 10_000;

/// The configuration of one server process.
#[derive(Debug)]
pub struct Config {
    /// The address of the link port.
    pub link: LinkAddress,
    /// Keys of helpers and clients.
    pub ring: KeyRing,
    /// The files that the keys were read from.
    pub key_files: Vec<(Role, String)>,
    /// Client addresses that helpers may carry; `None` for the usual private ranges.
    pub allow: Option<Vec<AddressRange>>,
    /// The application's port for helped clients; see [`PORT`].
    pub port: Option<u16>,
    /// Maximum number of sessions at the same time; 0 refuses sessions.
    pub sessions_max: usize,
    /// Bytes of memory that all sessions together may hold.
    pub sessions_memory: usize,
    /// How long the load must be low before helped sessions are sent back; zero for never.
    pub release_after: Duration,
    /// Whether to end the server if it cannot accept links.
    pub require: bool,
    /// Whether links are encrypted.
    pub encryption: Encryption,
    /// Identifies the start of this process by `spillway run`; see [`LAUNCH`].
    pub launch: Option<String>,
    /// The process id of the program that `spillway run` became; see [`STARTED_PID`].
    pub started: Option<c_int>,
    /// Directories in which the status page may be created.
    pub status_directories: Vec<String>,
}

/// The configuration is invalid.
#[derive(Debug)]
pub struct ConfigError {
    /// What is wrong and what to do.
    pub what: String,
    /// Whether to end the server if it cannot accept links.
    pub require: bool,
}

impl Config {
    pub(crate) fn session_limits(&self) -> TableLimits {
        let stream = StreamLimits { window_bytes: WINDOW_BYTES, ..StreamLimits::default() };
        let (sessions_max, memory_bytes_max) = (self.sessions_max, self.sessions_memory);
        TableLimits { sessions_max, memory_bytes_max, stream, ..TableLimits::default() }
    }

    pub(crate) fn server_config(&self) -> ServerConfig {
        ServerConfig {
            ring: self.ring.clone(),
            rules: self.allow.clone().map_or_else(AddressRules::default, |allow| AddressRules { allow }),
            limits: Limits { window_bytes: WINDOW_BYTES, ..Limits::default() },
            encryption: self.encryption,
        }
    }
}

/// Reads the environment and the key files, before the process drops the rights to read them. `None` if the library
/// is switched off or no link port is configured.
pub fn from_environment() -> Result<Option<Config>, ConfigError> {
    let is_on = |name| variable(name).is_some_and(|value| value == "1");
    if is_on(SWITCHED_OFF) {
        return Ok(None);
    }
    let Some(link) = variable(LINK) else { return Ok(None) };
    let require = is_on(REQUIRE);
    read(&link, require).map(Some).map_err(|what| ConfigError { what, require })
}

fn read(link: &str, require: bool) -> Result<Config, String> {
    let mut key_files = Vec::new();
    for (name, role) in [(KEYS, Role::Helper), (CLIENT_KEYS, Role::Client)] {
        let files = variable(name).unwrap_or_default();
        key_files.extend(files.lines().filter(|line| !line.is_empty()).map(|path| (role, path.to_owned())));
    }
    let mut ring = rotation::read(&key_files)?;
    let link = link_address(link, !ring.is_empty())?;
    if ring.is_empty() {
        ring = KeyRing::loopback_only();
    }
    let allow = match variable(ALLOW_CLIENTS).filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(ranges(&text)?),
    };
    let port = match variable(PORT).filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| format!("SPILLWAY_PORT={text} is not a port number"))?),
    };
    let sessions_max = match variable(SESSIONS_MAX).filter(|text| !text.is_empty()) {
        None => SESSIONS_MAX_DEFAULT,
        Some(text) => text.parse().map_err(|_| format!("SPILLWAY_SESSIONS_MAX={text} is not a number"))?,
    };
    let sessions_memory = match variable(SESSIONS_MEMORY).filter(|text| !text.is_empty()) {
        None => SESSIONS_MEMORY_DEFAULT,
        Some(text) => {
            let bytes = text.parse().ok().filter(|bytes| *bytes >= SESSIONS_MEMORY_MIN);
            bytes.ok_or_else(|| format!("SPILLWAY_SESSIONS_MEMORY={text}: give bytes, at least 16777216"))?
        }
    };
    let release_after = match variable(RELEASE_AFTER).filter(|text| !text.is_empty()) {
        None => RELEASE_AFTER_DEFAULT_MS,
        Some(text) => text
            .parse()
            .map_err(|_| format!("SPILLWAY_RELEASE_AFTER_MS={text} is not a number of milliseconds"))?,
    };
    let release_after = Duration::from_millis(release_after.into());
    let encryption = match variable(REQUIRE_ENCRYPTION).as_deref() {
        Some("1") => Encryption::Required,
        _ => Encryption::Preferred,
    };
    let launch = variable(LAUNCH).filter(|id| is_launch(id));
    let status_directories = page_directories();
    Ok(Config {
        link,
        ring,
        key_files,
        allow,
        port,
        sessions_max,
        sessions_memory,
        release_after,
        require,
        encryption,
        launch,
        started: variable(STARTED_PID).and_then(|id| id.parse().ok()),
        status_directories,
    })
}

/// Whether a launch's id is safe as a part of a file name.
fn is_launch(id: &str) -> bool {
    (1..=32).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Reads `HOST:PORT` or `:PORT`. Without a key, only a loopback host is accepted. The error says what to do.
pub fn link_address(text: &str, has_key: bool) -> Result<LinkAddress, String> {
    let malformed = || format!("the link address {text} is not HOST:PORT (an IP address) or :PORT");
    let link = match text.strip_prefix(':') {
        Some(port) => LinkAddress { host: None, port: port.parse().map_err(|_| malformed())? },
        None => {
            let address: SocketAddr = text.parse().map_err(|_| malformed())?;
            let host = Some(address.ip()).filter(|ip| !ip.is_unspecified() || ip.is_ipv4());
            LinkAddress { host, port: address.port() }
        }
    };
    if !has_key && !link.host.is_some_and(|host| host.is_loopback()) {
        return Err(format!(
            "the link address {text} can be reached from other machines, which needs a key: make one with \
             `spillway key new FILE` and give it to both sides with --key, or use 127.0.0.1:{}",
            link.port
        ));
    }
    Ok(link)
}

fn ranges(text: &str) -> Result<Vec<AddressRange>, String> {
    text.split(',')
        .map(|range| range.parse().map_err(|error| format!("client range {range}: {error}")))
        .collect()
}

/// The version of the C library that this process runs with, such as 2 and 36.
pub fn glibc_version() -> Option<(u32, u32)> {
    // SAFETY: returns a constant string of the library.
    let text = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    let mut parts = text.to_str().ok()?.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_address_beyond_loopback_needs_a_key() {
        assert_eq!(link_address(":11411", true).unwrap(), LinkAddress { host: None, port: 11411 });
        for text in [":11411", "0.0.0.0:11411", "[::]:1", "10.0.0.5:11411"] {
            assert!(link_address(text, false).unwrap_err().contains("key"), "{text}");
            assert!(link_address(text, true).is_ok(), "{text}");
        }
        assert!(link_address("127.0.0.1:11411", false).is_ok());
        assert!(link_address("[::1]:11411", false).is_ok());
        for text in ["", "11411", "cache:11411", ":0x", "127.0.0.1"] {
            assert!(link_address(text, true).unwrap_err().contains("HOST:PORT"), "{text}");
        }
    }
}
