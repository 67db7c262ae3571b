//! Settings of servers' link ports.

use std::ffi::{c_char, c_int};

use spillway_server::{AddressRange, Encryption, Key, RangeError, Role, Settings, Threads};

use crate::argument::{self, milliseconds};
use crate::object::{self, Handle};
use crate::settings::stream_limits;
use crate::status::{Fault, guarded, guarded_status};

/// Settings of link ports: keys, bounds and timeouts. Owned by the caller; ports keep a copy.
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

/// Roles of peers at a link port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_role {
    /// A helper, which carries the connections of many clients.
    SPW_HELPER = 1,
    /// A library client.
    SPW_CLIENT = 2,
}

fn role(number: c_int) -> Result<Role, Fault> {
    match number {
        1 => Ok(Role::Helper),
        2 => Ok(Role::Client),
        _ => Err(Fault::invalid("a role is SPW_HELPER or SPW_CLIENT")),
    }
}

/// Makes settings with default values. Null after a fault inside the library.
#[unsafe(no_mangle)]
pub extern "C" fn spw_port_settings_new() -> *mut spw_port_settings {
    guarded(|| Ok(object::new_handle(PortSettings::default())))
}

/// Adds a key of helpers (`SPW_HELPER`) or clients (`SPW_CLIENT`), from a key file that only its owner can read. The port
/// accepts all added keys, so that keys can be rotated. Without a key, only a loopback address is possible, and every
/// process on this host is accepted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_key_file(
    settings: *mut spw_port_settings,
    role: c_int,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller passes valid or null pointers.
    unsafe { add_key(settings, role, || argument::key_file(argument::text(path, "path")?)) }
}

/// If `require` is not 0 (default 0), refuses unencrypted links, which helpers and clients of older versions open, and
/// `spw_listen` fails without a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_require_encryption(
    settings: *mut spw_port_settings,
    require: c_int,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes a valid or null pointer.
        unsafe {
            object::with(settings, |settings| {
                settings.settings.encryption =
                    if require == 0 { Encryption::Preferred } else { Encryption::Required };
                Ok(())
            })
        }
    })
}

/// As `spw_port_settings_key_file`, from the text of a key file. The library erases its copy when it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_key_text(
    settings: *mut spw_port_settings,
    role: c_int,
    text: *const c_char,
) -> c_int {
    // SAFETY: the caller passes valid or null pointers.
    unsafe { add_key(settings, role, || argument::key_text(argument::text(text, "text")?)) }
}

/// # Safety
/// As for [`object::with`].
unsafe fn add_key(
    settings: *mut spw_port_settings,
    role_number: c_int,
    key: impl FnOnce() -> Result<Key, Fault>,
) -> c_int {
    let add = |settings: &mut PortSettings| {
        let role = role(role_number)?;
        settings.settings.keys.accept(role, key()?);
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(settings, add) })
}

/// Sets the client addresses that helpers may carry: ranges as in `10.0.0.0/8`, separated by commas or white space. They
/// replace earlier ones. Default: private ranges and loopback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_allow_clients(
    settings: *mut spw_port_settings,
    ranges: *const c_char,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let list = argument::text(ranges, "ranges")?.split(|c: char| c == ',' || c.is_whitespace());
            let read = |text: &str| {
                text.parse().map_err(|error: RangeError| Fault::invalid(format!("range {text:?}: {error}")))
            };
            let allow =
                list.filter(|text| !text.is_empty()).map(read).collect::<Result<Vec<AddressRange>, _>>()?;
            if allow.is_empty() {
                return Err(Fault::invalid("no range is given: helpers could not carry any client"));
            }
            object::with(settings, |settings| {
                settings.allow = allow;
                Ok(())
            })
        }
    })
}

/// Sets the maximum of concurrent links (default 16384), of which each helper thread and each library client opens one,
/// and of virtual connections on each link (65536).
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
        _ => Err(Fault::invalid("the maxima of links and of connections on each must be at least 1")),
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(settings, change) })
}

/// Sets the maximum of sessions (default 65536), how long a session without a carrier waits for its client (60000 ms), and
/// how long a closed session waits until its client has received the rest (30000 ms).
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
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(settings, change) })
}

/// Sets the maximum of memory that all sessions may hold, in bytes (default 256 MiB, at least 64 KiB). At the limit,
/// the sessions that hold most and whose clients do not read are reset: the application gets `SPW_DISCONNECTED`.
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
        _ => Err(Fault::invalid("the sessions' memory must be at least 65536 bytes")),
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(settings, change) })
}

/// Sets the bounds of each client: request bytes that have arrived and were not consumed (default 256 KiB), and reply bytes
/// that are kept until they are acknowledged (256 KiB). From 4 KiB to 64 MiB each.
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
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(settings, change) })
}

/// Lets several threads share the address: each calls `spw_listen` with these settings, and has its own port and event loop.
/// The kernel distributes links over the threads, and a session stays with the thread where it began.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_share(settings: *mut spw_port_settings) -> c_int {
    let share = |settings: &mut PortSettings| {
        settings.settings.threads = Some(Threads::default());
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(settings, share) })
}

/// Frees settings. Ports made with them stay open. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_settings_free(settings: *mut spw_port_settings) {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::free(settings) });
}
