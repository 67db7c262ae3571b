//! The link port: helpers connect to it and carry the messages of many clients in batches.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use spillway_auth::KeyRing;
use spillway_batch::{AddressRange, AddressRules, Encryption, Limits, Role, ServerConfig};
use spillway_keys::{fresh_link_randomness, read_key_file};
use spillway_links::{LinkSettings, Linked};
use spillway_moves::Movable;
use tracing::{info, warn};

use crate::error::EngineError;
use crate::interface::LINK_LISTENER;

/// Bytes that a helped client may send before the application has granted them: a helper forwards those of many clients.
const WINDOW_BYTES: u32 = 32 * 1024;
/// Maximum number of links: each thread of a helper has one.
const LINKS_MAX: usize = 1024;
/// Maximum number of helped clients of all links.
const CLIENTS_MAX: usize = 65_536;
/// Maximum number of bytes of helped clients that wait for the application.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Settings of a link port.
#[derive(Clone, Debug)]
pub struct LinkPortSettings {
    /// Its address and port, with the same IP address as the service has here.
    pub address: SocketAddr,
    /// Accepted keys of helpers; at least one.
    pub keys: KeyRing,
    /// Client addresses that helpers may state.
    pub rules: AddressRules,
    /// Whether links are encrypted.
    pub encryption: Encryption,
}

impl LinkPortSettings {
    /// A link port for helpers with the key of this file. `allow`: client addresses that they may state; empty: private ones.
    ///
    /// # Errors
    /// The key file cannot be read.
    pub fn with_key_file(
        address: SocketAddr,
        key_file: &Path,
        allow: Vec<AddressRange>,
    ) -> Result<LinkPortSettings, EngineError> {
        let mut keys = KeyRing::new();
        keys.accept(Role::Helper, read_key_file(key_file).map_err(EngineError::Key)?);
        let rules = if allow.is_empty() { AddressRules::default() } else { AddressRules { allow } };
        Ok(LinkPortSettings { address, keys, rules, encryption: Encryption::default() })
    }
}

/// The application with helped clients. Set [`link`](crate::EngineSettings::link) to the same address.
///
/// # Errors
/// There is no key.
pub fn linked<A: Movable>(application: A, port: LinkPortSettings) -> Result<Linked<A>, EngineError> {
    let LinkPortSettings { address, keys, rules, encryption } = port;
    if keys.is_empty() {
        return Err(EngineError::Settings(format!(
            "link port {address} needs a key: make one with `spillway key new FILE`"
        )));
    }
    let limits = Limits { window_bytes: WINDOW_BYTES, ..Limits::default() };
    let config = ServerConfig { ring: keys, rules, limits, encryption };
    let settings = LinkSettings {
        listener: LINK_LISTENER,
        address,
        config: Arc::new(config),
        links_max: LINKS_MAX,
        clients_max: CLIENTS_MAX,
        waiting_bytes_max: WAITING_BYTES_MAX,
        randomness: Box::new(|| fresh_link_randomness().ok()),
        notices: Box::new(|notice| match notice.is_problem() {
            true => warn!("{notice}"),
            false => info!("{notice}"),
        }),
    };
    Ok(Linked::new(application, settings))
}
