//! Settings of clients' sessions.

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;

use spillway_client::session::{CarrierTimeouts, Pace, StreamLimits};
use spillway_client::{Encryption, Key, LinkTarget, SessionSettings};

use crate::argument::{self, milliseconds};
use crate::object::{self, Handle};
use crate::status::{Fault, guarded, guarded_status};

/// The route to the server's own link port: direct. Helpers have the numbers 0, 1, 2 and so on, in the order of the list.
pub const SPW_DIRECT: u32 = u32::MAX;

/// The number of a route that carries the session, but is not in its present list (`spw_set_routes`).
pub const SPW_FORMER_ROUTE: u32 = u32::MAX - 1;

const HELPERS_MAX: usize = 256;

/// Settings of sessions. Owned by the caller; sessions keep a copy.
pub struct spw_settings {
    _opaque: [u8; 0],
}

#[derive(Debug, Default)]
pub(crate) struct Settings {
    server: Option<SocketAddr>,
    helpers: Vec<SocketAddr>,
    service: Option<SocketAddr>,
    key: Option<Key>,
    begin: Option<u32>,
    encryption: Encryption,
    session: SessionSettings,
}

impl Handle for spw_settings {
    type Value = Settings;
    const TAG: u32 = 0x7370_6373;
    const NAME: &'static str = "spw_settings";
}

/// A session's routes in the order in which it tries them, each with its number in C.
#[derive(Clone, Debug)]
pub(crate) struct Routes(Vec<(u32, LinkTarget)>);

impl Routes {
    pub(crate) fn targets(&self) -> Vec<LinkTarget> {
        self.0.iter().map(|(_, target)| target.clone()).collect()
    }

    /// The route to the server's own link port, and those to helpers.
    pub(crate) fn split(&self) -> (Option<LinkTarget>, Vec<LinkTarget>) {
        let (direct, helpers): (Vec<_>, Vec<_>) =
            self.0.iter().cloned().partition(|(number, _)| *number == SPW_DIRECT);
        let targets = |routes: Vec<(u32, LinkTarget)>| routes.into_iter().map(|(_, target)| target);
        (targets(direct).next(), targets(helpers).collect())
    }

    pub(crate) fn index(&self, route: u32) -> Result<usize, Fault> {
        self.0.iter().position(|(number, _)| *number == route).ok_or_else(|| match route {
            SPW_DIRECT => {
                Fault::invalid("without a server there is no direct route: call spw_settings_server")
            }
            _ => Fault::invalid(format!("there is no helper {route}; the first one is 0")),
        })
    }

    pub(crate) fn route(&self, address: SocketAddr) -> u32 {
        let found = self.0.iter().find(|(_, target)| target.address == address);
        found.map_or(SPW_FORMER_ROUTE, |(number, _)| *number)
    }
}

impl Settings {
    /// The routes of a session with these settings, and the settings of the session itself.
    pub(crate) fn resolve(&self) -> Result<(Routes, SessionSettings), Fault> {
        if self.server.is_none() && self.helpers.is_empty() {
            return Err(Fault::invalid(
                "no address is given: spw_settings_server, spw_settings_helpers, or both",
            ));
        }
        let addresses = || self.helpers.iter().chain(&self.server);
        if let Some(remote) = addresses().find(|address| !address.ip().to_canonical().is_loopback())
            && self.key.is_none()
        {
            return Err(Fault::invalid(format!(
                "{remote} is on another machine, which needs a key: spw_settings_key_file"
            )));
        }
        let key = self.key.clone().unwrap_or_else(Key::loopback_only);
        if self.encryption == Encryption::Required && self.key.is_none() {
            return Err(Fault::invalid("links without a key are not encrypted: spw_settings_key_file"));
        }
        let target =
            |address, server| LinkTarget { address, key: key.clone(), server, encryption: self.encryption };
        let helpers =
            (0..).zip(&self.helpers).map(|(number, helper)| (number, target(*helper, self.service)));
        let direct = self.server.map(|server| (SPW_DIRECT, target(server, None)));
        let mut routes = Routes(helpers.chain(direct).collect());
        if let Some(begin) = self.begin {
            let index = routes.index(begin)?;
            routes.0[..=index].rotate_right(1);
        }
        Ok((routes, SessionSettings { server_port: self.server, ..self.session }))
    }
}

/// Makes settings with default values and without addresses. Null after a fault inside the library.
#[unsafe(no_mangle)]
pub extern "C" fn spw_settings_new() -> *mut spw_settings {
    guarded(|| Ok(object::new_handle(Settings::default())))
}

/// Sets the server's own link port, `HOST:PORT`: the direct route. A host's name is looked up at once, which may block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_server(settings: *mut spw_settings, address: *const c_char) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let address = argument::address(argument::text(address, "address")?)?;
            object::with(settings, |settings| {
                settings.server = Some(address);
                Ok(())
            })
        }
    })
}

/// Sets the list of helpers' link ports, `HOST:PORT`, separated by commas or white space, 256 at most. It replaces an
/// earlier list. Names are looked up at once, which may block. The first helper is tried first: to spread programs over
/// helpers, give them lists in different orders.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_helpers(settings: *mut spw_settings, list: *const c_char) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let list = argument::text(list, "list")?.split(|c: char| c == ',' || c.is_whitespace());
            let texts: Vec<&str> = list.filter(|text| !text.is_empty()).take(HELPERS_MAX + 1).collect();
            if texts.len() > HELPERS_MAX {
                return Err(Fault::invalid(format!("more than {HELPERS_MAX} helpers")));
            }
            let helpers = texts.into_iter().map(argument::address).collect::<Result<Vec<_>, _>>()?;
            object::with(settings, |settings| {
                settings.helpers = helpers;
                Ok(())
            })
        }
    })
}

/// Sets the client key, from a key file that only its owner can read (`spillway key new FILE`). Not needed on loopback
/// if neither server nor helpers have keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_key_file(settings: *mut spw_settings, path: *const c_char) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let key = argument::key_file(argument::text(path, "path")?)?;
            object::with(settings, |settings| {
                settings.key = Some(key);
                Ok(())
            })
        }
    })
}

/// Sets the client key, from the text of a key file. The library erases its copy when it is freed; the caller should
/// erase its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_key_text(settings: *mut spw_settings, text: *const c_char) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let key = argument::key_text(argument::text(text, "text")?)?;
            object::with(settings, |settings| {
                settings.key = Some(key);
                Ok(())
            })
        }
    })
}

/// If `require` is not 0 (default 0), refuses unencrypted links, which servers and helpers of older versions have.
/// Otherwise links are encrypted if both ends can encrypt and have a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_require_encryption(
    settings: *mut spw_settings,
    require: c_int,
) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    unsafe {
        change_settings(settings, |settings| {
            settings.encryption = if require == 0 { Encryption::Preferred } else { Encryption::Required };
            Ok(())
        })
    }
}

/// Names the server for helpers that serve several servers: its link port, as in the helpers' configuration. Not needed
/// for helpers of one server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_service(settings: *mut spw_settings, address: *const c_char) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let address = argument::address(argument::text(address, "address")?)?;
            object::with(settings, |settings| {
                settings.service = Some(address);
                Ok(())
            })
        }
    })
}

/// Sets the route that sessions try first: a helper's number, or `SPW_DIRECT`. Default: the first helper, or direct
/// without helpers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_begin(settings: *mut spw_settings, route: u32) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    unsafe {
        change_settings(settings, |settings| {
            settings.begin = Some(route);
            Ok(())
        })
    }
}

/// Sets the bounds of the timeout after which a session leaves a carrier that owes an answer, in milliseconds. The
/// timeout follows measured round trips, between `floor` (default 100) and `ceiling` (1000). A carrier that owes no
/// answer is probed after `idle` (5000) of silence.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_carrier_timeouts_ms(
    settings: *mut spw_settings,
    floor: u32,
    ceiling: u32,
    idle: u32,
) -> c_int {
    let change = |settings: &mut Settings| {
        if floor == 0 || ceiling < floor || idle == 0 {
            return Err(Fault::invalid("carrier timeouts: 0 < floor <= ceiling, and 0 < idle"));
        }
        settings.session.carrier_timeouts = CarrierTimeouts {
            floor: milliseconds(floor),
            ceiling: milliseconds(ceiling),
            idle: milliseconds(idle),
        };
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    unsafe { change_settings(settings, change) }
}

/// Sets how the return of sessions to the server is spread in time when no helper is left, in milliseconds: each
/// session returns at a random time within `window` (default 1000), which doubles up to `window_max` (8000) after each
/// attempt that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_pace_ms(
    settings: *mut spw_settings,
    window: u32,
    window_max: u32,
) -> c_int {
    let change = |settings: &mut Settings| {
        if window_max < window {
            return Err(Fault::invalid("pace: window <= window_max"));
        }
        settings.session.pace = Pace { window: milliseconds(window), window_max: milliseconds(window_max) };
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    unsafe { change_settings(settings, change) }
}

/// Sets two timeouts in milliseconds: for the server's answer on a new `route` (default 1000), and for a `session`
/// without an answering route, which is then given up (60000).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_give_up_ms(
    settings: *mut spw_settings,
    route: u32,
    session: u32,
) -> c_int {
    let change = |settings: &mut Settings| {
        if route == 0 || session < route {
            return Err(Fault::invalid("times to give up: 0 < route <= session"));
        }
        settings.session.attach_timeout = milliseconds(route);
        settings.session.give_up_after = milliseconds(session);
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    unsafe { change_settings(settings, change) }
}

/// Sets the bounds of a session's memory: bytes that have arrived and were not received (default 256 KiB), and bytes
/// that were sent and not acknowledged (256 KiB). From 4 KiB to 64 MiB each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_limits(
    settings: *mut spw_settings,
    window_bytes: u32,
    kept_bytes: u32,
) -> c_int {
    let change = |settings: &mut Settings| {
        settings.session.stream = stream_limits(window_bytes, kept_bytes)?;
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    unsafe { change_settings(settings, change) }
}

pub(crate) fn stream_limits(window_bytes: u32, kept_bytes: u32) -> Result<StreamLimits, Fault> {
    let fits = |bytes| (4 * 1024..=64 * 1024 * 1024).contains(&bytes);
    match usize::try_from(kept_bytes) {
        Ok(kept_bytes_max) if fits(window_bytes) && fits(kept_bytes) => {
            Ok(StreamLimits { window_bytes, kept_bytes_max })
        }
        _ => Err(Fault::invalid("limits: from 4 KiB to 64 MiB each")),
    }
}

/// # Safety
/// As for [`object::with`].
unsafe fn change_settings(
    settings: *mut spw_settings,
    change: impl FnOnce(&mut Settings) -> Result<(), Fault>,
) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(settings, change) })
}

/// Frees settings. Sessions made with them continue. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_settings_free(settings: *mut spw_settings) {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::free(settings) });
}
