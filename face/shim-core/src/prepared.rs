//! The configuration of this process, once it is set, and the keys that it names.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, OnceLock};

use spillway_batch::ServerConfig;
use spillway_session::TableLimits;

use crate::config::Config;
use crate::rotation::Keys;

static PREPARED: OnceLock<Prepared> = OnceLock::new();
/// Whether the link port is configured, and the next polled listener is to open it.
static LINK_PORT_PENDING: AtomicBool = AtomicBool::new(false);

struct Prepared {
    config: Config,
    keys: Keys,
}

/// Sets the configuration, unless one is set.
pub(crate) fn prepare(config: Config) {
    let keys = Keys::new(config.server_config(), config.key_files.clone());
    LINK_PORT_PENDING.store(PREPARED.set(Prepared { config, keys }).is_ok(), Ordering::Release);
}

/// Whether the link port is still to be opened, by the next listener that the application polls.
#[inline]
pub(crate) fn is_link_port_pending() -> bool {
    LINK_PORT_PENDING.load(Ordering::Relaxed)
}

/// The link port could not be opened: it is tried again when the application next polls a listener. A port that was
/// open, and was closed with its epoll set, is not opened again.
pub(crate) fn set_link_port_pending() {
    LINK_PORT_PENDING.store(true, Ordering::Release);
}

/// The link port is open, or could not be opened: polling a listener no longer opens it.
pub(crate) fn set_link_port_settled() {
    LINK_PORT_PENDING.store(false, Ordering::Release);
}

/// The configuration; `None` if this process serves no helped clients.
pub(crate) fn config() -> Option<&'static Config> {
    PREPARED.get().map(|prepared| &prepared.config)
}

/// The keys that peers may authenticate with.
pub(crate) fn keys() -> Option<&'static Keys> {
    PREPARED.get().map(|prepared| &prepared.keys)
}

/// Whether this process may serve helped clients.
pub(crate) fn is_configured() -> bool {
    PREPARED.get().is_some()
}

/// The keys and rules for accepting sessions, as last read, and the bounds of sessions.
pub(crate) fn session_config() -> Option<(Arc<ServerConfig>, TableLimits)> {
    PREPARED.get().map(|prepared| (prepared.keys.server(), prepared.config.session_limits()))
}

/// How long the load must be low before helped sessions are released; `None` for never.
pub(crate) fn release_after() -> Option<Duration> {
    config().map(|config| config.release_after).filter(|after| !after.is_zero())
}
