//! What a server's link port accepts.

use std::ffi::{c_char, c_int};

use spillway_server::{AddressRange, Encryption, Key, RangeError, Role, Settings, Threads};

use crate::argument::{self, milliseconds};
use crate::object::{self, Handle};
use crate::settings::stream_limits;
use crate::status::{Fault, call, done};

/// What a link port accepts, and its bounds. Owned by the caller; ports keep a copy.
pub struct spw_port_settings {
    _opaque: [u8; 0],
}

#[derive(Default)]
pub(crate) struct PortSettings {
    settings: Settings,
    allow: Vec<AddressRange>,
}

impl PortSettings {
    pub(crate) fn resolve(&self) -> Settings {
        let mut settings = self.settings.clone();
        if !self.allow.is_empty() {
            settings.rules.allow = self.allow.clone();
        }
        settings
    }
}

impl Handle for spw_port_settings {
    type Value = PortSettings;
    const TAG: u32 = 0x7370_7073;
    const NAME: &'static str = "spw_port_settings";
}

/// Whose key it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_role {
    /// A helper: it carries the connections of many clients.
    SPW_HELPER = 1,
    /// A client that speaks links itself.
    SPW_CLIENT = 2,
}

fn role(role: c_int) -> Result<Role, Fault> {
    match role {
        1 => Ok(Role::Helper),
        2 => Ok(Role::Client),
        _ => Err(Fault::invalid("a role is SPW_HELPER or SPW_CLIENT")),
    }
}

/// Makes settings with the defaults of everything. Null when there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn spw_port_settings_new() -> *mut spw_port_settings {
    call(|| Ok(object::give(PortSettings::default())))
}

/// Accepts a key of helpers (`SPW_HELPER`) or of clients (`SPW_CLIENT`), from a key file that only its owner can read. May be
/// called several times: all are accepted, so that keys can be exchanged. Without any key only a loopback address can be
/// listened on, and everybody on this machine is accepted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_key_file(
    settings: *mut spw_port_settings,
    role: c_int,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller vouches for both.
    unsafe { accept(settings, role, || argument::key_file(argument::text(path, "path")?)) }
}

/// Whether links that would not be encrypted are refused (0 by default): of helpers and clients that are too old for it.
/// `spw_listen` then fails without a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_require_encryption(
    settings: *mut spw_port_settings,
    require: c_int,
) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for it.
        unsafe {
            object::with(settings, |settings| {
                settings.settings.encryption =
                    if require == 0 { Encryption::Preferred } else { Encryption::Required };
                Ok(())
            })
        }
    })
}

/// The same, as the text of a key file. The library keeps a copy, and wipes it at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_key_text(
    settings: *mut spw_port_settings,
    role: c_int,
    text: *const c_char,
) -> c_int {
    // SAFETY: the caller vouches for both.
    unsafe { accept(settings, role, || argument::key_text(argument::text(text, "text")?)) }
}

/// # Safety
/// As of [`object::with`].
unsafe fn accept(
    settings: *mut spw_port_settings,
    of: c_int,
    key: impl FnOnce() -> Result<Key, Fault>,
) -> c_int {
    let accept_it = |settings: &mut PortSettings| {
        let role = role(of)?;
        settings.settings.ring.accept(role, key()?);
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { object::with(settings, accept_it) })
}

/// Which client addresses helpers may carry: ranges as in `10.0.0.0/8`, separated by commas or white space. They take the
/// place of those before. By default private ranges and loopback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_allow_clients(
    settings: *mut spw_port_settings,
    ranges: *const c_char,
) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            let list = argument::text(ranges, "ranges")?.split(|c: char| c == ',' || c.is_whitespace());
            let read = |text: &str| {
                text.parse().map_err(|error: RangeError| Fault::invalid(format!("range {text:?}: {error}")))
            };
            let allow =
                list.filter(|text| !text.is_empty()).map(read).collect::<Result<Vec<AddressRange>, _>>()?;
            if allow.is_empty() {
                return Err(Fault::invalid("no range is given, so that no helper could carry anybody"));
            }
            object::with(settings, |settings| {
                settings.allow = allow;
                Ok(())
            })
        }
    })
}

/// Links at a time (16384 by default: one for each helper thread and for each client that speaks links itself), and virtual
/// connections on each (65536).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_links(
    settings: *mut spw_port_settings,
    links_max: u32,
    connections_max: u32,
) -> c_int {
    let change = |settings: &mut PortSettings| match usize::try_from(links_max) {
        Ok(links) if links > 0 && connections_max > 0 => {
            settings.settings.links_max = links;
            settings.settings.limits.connections_max = connections_max;
            Ok(())
        }
        _ => Err(Fault::invalid("links, and connections on each: 1 at least")),
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { object::with(settings, change) })
}

/// Sessions at a time (65536 by default); how long one without a carrier waits for its client (60000 ms), and a closed one
/// for its client to have the rest (30000 ms).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_sessions(
    settings: *mut spw_port_settings,
    sessions_max: u32,
    detached_ms: u32,
    linger_ms: u32,
) -> c_int {
    let change = |settings: &mut PortSettings| {
        let sessions = &mut settings.settings.sessions;
        sessions.sessions_max = usize::try_from(sessions_max).unwrap_or(usize::MAX);
        sessions.detached_max = milliseconds(detached_ms);
        sessions.linger = milliseconds(linger_ms);
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { object::with(settings, change) })
}

/// Bytes of memory that all sessions may hold (256 MiB by default): beyond it, those that hold most and do not read are
/// ended, which the application hears of as of a client that never returned. At least 64 KiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_sessions_memory(
    settings: *mut spw_port_settings,
    bytes: u64,
) -> c_int {
    let change = |settings: &mut PortSettings| match usize::try_from(bytes) {
        Ok(bytes) if bytes >= 64 << 10 => {
            settings.settings.sessions.memory_bytes_max = bytes;
            Ok(())
        }
        _ => Err(Fault::invalid("memory of sessions: 65536 bytes at least")),
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { object::with(settings, change) })
}

/// Of each session, and of each other client: bytes that may have come and not been consumed (256 KiB by default), and
/// replies that are kept until they are acknowledged (256 KiB). From 4 KiB to 64 MiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_limits(
    settings: *mut spw_port_settings,
    window_bytes: u32,
    kept_bytes: u32,
) -> c_int {
    let change = |settings: &mut PortSettings| {
        let stream = stream_limits(window_bytes, kept_bytes)?;
        settings.settings.sessions.stream = stream;
        settings.settings.limits.window_bytes = window_bytes;
        settings.settings.limits.kept_bytes_max = stream.kept_bytes_max;
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { object::with(settings, change) })
}

/// Several threads share the address: each calls `spw_listen` with these settings, and has a port and a loop of its own. The
/// kernel spreads links over them, and a session stays with the thread where it began.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_share(settings: *mut spw_port_settings) -> c_int {
    let share = |settings: &mut PortSettings| {
        settings.settings.threads = Some(Threads::default());
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { object::with(settings, share) })
}

/// Frees settings. Ports that were made of them go on. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_free(settings: *mut spw_port_settings) {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::free(settings) });
}
