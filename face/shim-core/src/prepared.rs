//! The configuration of this process, once it is set, and the keys that it names.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, OnceLock};

use spillway_batch::ServerConfig;
use spillway_session::TableLimits;

use crate::config::Config;
use crate::rotation::Keys;

static PREPARED: OnceLock<Prepared> = OnceLock::new();
/// Whether there is a configuration and the link port is not open yet.
static WANTED: AtomicBool = AtomicBool::new(false);

struct Prepared {
    config: Config,
    keys: Keys,
}

/// Sets the configuration, unless one is set.
pub(crate) fn prepare(config: Config) {
    let keys = Keys::new(config.server_config(), config.key_files.clone());
    WANTED.store(PREPARED.set(Prepared { config, keys }).is_ok(), Ordering::Release);
}

/// Whether a listener that the application polls may open the link port.
#[inline]
pub(crate) fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// The link port is closed again; the next listener that is polled opens it.
pub(crate) fn is_to_be_opened() {
    WANTED.store(true, Ordering::Release);
}

/// The link port is open, or will not be opened by a listener that is polled.
pub(crate) fn is_opened() {
    WANTED.store(false, Ordering::Release);
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

/// The configuration by which sessions are accepted now, and their bounds.
pub(crate) fn session_config() -> Option<(Arc<ServerConfig>, TableLimits)> {
    PREPARED.get().map(|prepared| (prepared.keys.server(), prepared.config.session_limits()))
}

/// How long the load must be low before sessions are sent back; `None` for never.
pub(crate) fn release_after() -> Option<Duration> {
    config().map(|config| config.release_after).filter(|after| !after.is_zero())
}
