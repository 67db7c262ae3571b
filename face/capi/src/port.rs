//! A server's link port on the application's event loop (PostMan §4.2, "Using PostMan library").

mod clients;
mod event;
mod turn;

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;

use spillway_server::{BindError, ClientId, CloseReason, Override, RefuseReason, Role};

pub use self::event::{spw_client, spw_event, spw_event_kind, spw_info};
pub(crate) use self::turn::Port;

use crate::argument::{self, SPW_ADDRESS_BYTES, milliseconds};
use crate::listening::{spw_port_settings, spw_role};
use crate::object::{self, Handle};
use crate::port::clients::Context;
use crate::status::{Fault, guarded, guarded_status, spw_status, write_text};
use crate::waiting::timeout_ms;

const CONSUMED_MORE_THAN_RECEIVED: &str = "more bytes are consumed than were received";

/// A link port, to which helpers and library clients open links.
pub struct spw_port {
    _opaque: [u8; 0],
}

impl Handle for spw_port {
    type Value = Port;
    const TAG: u32 = 0x7370_7074;
    const NAME: &'static str = "spw_port";
}

/// Runs a body with exclusive use of a port, for one of its clients.
///
/// # Safety
/// As for [`object::with`].
unsafe fn with_client<R>(
    port: *const spw_port,
    client: spw_client,
    body: impl FnOnce(&mut Port, ClientId) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let unknown =
        || Fault::new(spw_status::SPW_UNKNOWN_CLIENT, "the client's connection has ended, or was closed");
    // SAFETY: the caller passes a valid or null pointer.
    unsafe {
        object::with(port, |port| {
            port.touch_client(client).ok_or_else(unknown).and_then(|connection| body(port, connection))
        })
    }
}

/// As [`with_client`], for a client that was accepted.
///
/// # Safety
/// As for [`object::with`].
unsafe fn with_accepted<R>(
    port: *const spw_port,
    client: spw_client,
    body: impl FnOnce(&mut Port, ClientId) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let accepted = |port: &mut Port, connection| match port.clients.is_accepted(client) {
        true => body(port, connection),
        false => Err(Fault::invalid("the client was not accepted yet: call spw_accept or spw_refuse first")),
    };
    // SAFETY: the caller passes a valid or null pointer.
    unsafe { with_client(port, client, accepted) }
}

/// Opens a link port at `HOST:PORT`; with port 0 the system chooses one (`spw_port_address`). `*port` becomes the new port,
/// for the caller to free, or null on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_listen(
    settings: *const spw_port_settings,
    address: *const c_char,
    port: *mut *mut spw_port,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            object::write_result(port, "port", std::ptr::null_mut())?;
            let settings = object::read(settings, |settings| Ok(settings.resolve()))?;
            let address = argument::address(argument::text(address, "address")?)?;
            let opened = Port::listen(address, settings).map_err(|error| match error {
                BindError::NeedsKeyForAddress(_) | BindError::NeedsKeyForEncryption(_) => {
                    Fault::new(spw_status::SPW_KEY, error.to_string())
                }
                BindError::Release(_) => Fault::new(spw_status::SPW_INVALID, error.to_string()),
                BindError::Listen(..) | BindError::Host(_) => {
                    Fault::new(spw_status::SPW_SYSTEM, error.to_string())
                }
            })?;
            object::write_result(port, "port", object::new_handle(opened))
        }
    })
}

/// Writes the port's address into a buffer of `SPW_ADDRESS_BYTES`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_address(port: *const spw_port, buffer: *mut c_char, size: usize) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let address = object::with(port, |port| Ok(port.links.address()))?;
            argument::write_address(address, buffer, size)
        }
    })
}

/// The descriptor to watch for reading, by `poll`, `epoll` or similar. It never changes, and belongs to the port: do not
/// close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_descriptor(port: *const spw_port) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(port, |port| Ok(port.epoll().as_raw_fd())) })
}

/// The timeout for `poll`: how long to wait for the descriptor before `spw_port_handle` is due, in milliseconds, rounded up;
/// -1: without limit. Call it after `spw_flush`, right before the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_next_timeout_ms(port: *const spw_port) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(port, |port| Ok(timeout_ms(port.poll_timeout()))) })
}

/// Begins a turn. Call it when the descriptor is ready and when the timeout has passed, then `spw_decompose` until it
/// returns 0, then `spw_flush`. Spurious calls are harmless.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_handle(port: *mut spw_port) -> c_int {
    let handle = |port: &mut Port| port.handle().map_err(|error| Fault::system("epoll", &error));
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(port, handle) })
}

/// Returns 1 and the next event, or 0 when this turn has no more events. Bytes and text of the previous event are not
/// valid any more. This call also accepts links and receives from them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_decompose(port: *mut spw_port, event: *mut spw_event) -> c_int {
    guarded(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            object::write_result(event, "event", spw_event::empty())?;
            object::with(port, |port| match port.decompose() {
                Some(next) => object::write_result(event, "event", next).map(|()| 1),
                None => Ok(0),
            })
        }
    })
}

/// Accepts a client that connects. No effect for a client that was accepted before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_accept(port: *mut spw_port, client: spw_client) -> c_int {
    let accept = |port: &mut Port, connection| {
        if port.clients.accept(client) {
            port.links.accept(connection);
        }
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { with_client(port, client, accept) })
}

/// Reasons for `spw_refuse`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_refusal {
    /// There are too many clients.
    SPW_REFUSE_FULL = 1,
    /// This client may not connect.
    SPW_REFUSE_FORBIDDEN = 2,
    /// The server drains, or does not serve now.
    SPW_REFUSE_UNAVAILABLE = 3,
}

/// Refuses a client that was not accepted; `reason` is a `spw_refusal`. The number is not valid any more, and the client's
/// requests count as undelivered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_refuse(port: *mut spw_port, client: spw_client, reason: c_int) -> c_int {
    let refuse = |port: &mut Port, connection| {
        let reason = match reason {
            1 => RefuseReason::Full,
            2 => RefuseReason::Forbidden,
            3 => RefuseReason::Unavailable,
            _ => return Err(Fault::invalid("a reason is SPW_REFUSE_FULL, _FORBIDDEN or _UNAVAILABLE")),
        };
        if port.clients.is_accepted(client) {
            return Err(Fault::invalid("the client was accepted: end it with spw_close_connection"));
        }
        port.links.refuse(connection, reason);
        port.clients.remove(client);
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { with_client(port, client, refuse) })
}

/// Copies a prefix of a reply into the link's next batch, as far as the client's window and the batch allow, and returns
/// its length. If that is less than the whole reply, try again after `SPW_CAN_COMPOSE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_compose(
    port: *mut spw_port,
    client: spw_client,
    reply: *const c_void,
    length: usize,
) -> isize {
    guarded(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let reply = argument::bytes(reply, length)?;
            with_accepted(port, client, |port, client| Ok(port.links.compose(client, reply).cast_signed()))
        }
    })
}

/// Reports that the application has processed `length` more bytes of a client's requests: the client may send as many
/// more. `SPW_INVALID` if that is more than were received.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_consumed(port: *mut spw_port, client: spw_client, length: usize) -> c_int {
    let consumed = |port: &mut Port, connection| {
        if !port.clients.record_consumed(client, length) {
            return Err(Fault::invalid(CONSUMED_MORE_THAN_RECEIVED));
        }
        port.links.consumed(connection, length).map_err(|_| Fault::invalid(CONSUMED_MORE_THAN_RECEIVED))
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { with_client(port, client, consumed) })
}

/// Returns a client's role, address and byte counts: the paper's *get_info*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_get_info(
    port: *const spw_port,
    client: spw_client,
    info: *mut spw_info,
) -> c_int {
    guarded_status(|| {
        let mut output =
            spw_info { role: 0, address: [0; SPW_ADDRESS_BYTES], bytes_received: 0, bytes_sent: 0 };
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let client_info = with_client(port, client, |port, client| {
                let ended =
                    || Fault::new(spw_status::SPW_UNKNOWN_CLIENT, "the client's connection has ended");
                port.links.info(client).ok_or_else(ended)
            })?;
            output.role = match client_info.role {
                Role::Helper => spw_role::SPW_HELPER as i32,
                Role::Client => spw_role::SPW_CLIENT as i32,
            };
            output.bytes_received = client_info.bytes_received;
            output.bytes_sent = client_info.bytes_sent;
            let mut address = [0_u8; SPW_ADDRESS_BYTES];
            write_text(&client_info.client.to_string(), &mut address);
            output.address = address.map(|byte| byte as c_char);
            object::write_result(info, "info", output)
        }
    })
}

/// Sets the application's own pointer for a client, which all later events of this client have as `context`. The library
/// neither follows nor frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_set_context(
    port: *mut spw_port,
    client: spw_client,
    context: *mut c_void,
) -> c_int {
    let context = Context(context);
    let set = |port: &mut Port, _| {
        port.clients.set_context(client, context);
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { with_client(port, client, set) })
}

/// Ends the stream of replies to a client, which may still send. Replies composed before still reach the client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_finish_reply(port: *mut spw_port, client: spw_client) -> c_int {
    let finish = |port: &mut Port, client| {
        port.links.finish(client);
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { with_accepted(port, client, finish) })
}

/// Closes the connection of a client that was accepted; the number is not valid any more. Replies composed before still
/// reach the client, unless `reset` is not 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_close_connection(
    port: *mut spw_port,
    client: spw_client,
    reset: c_int,
) -> c_int {
    let close = |port: &mut Port, connection| {
        let reason = if reset == 0 { CloseReason::Normal } else { CloseReason::Reset };
        port.links.close(connection, reason);
        port.clients.remove(client);
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { with_accepted(port, client, close) })
}

/// Ends a turn: sends everything that was composed, in one batch for each link. Call it also after composing outside of a
/// turn.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_flush(port: *mut spw_port) -> c_int {
    let flush = |port: &mut Port| port.flush().map_err(|error| Fault::system("epoll", &error));
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(port, flush) })
}

/// Asks helpers and library clients to move all connections away within `deadline_ms`, before the server ends. `spw_flush`
/// sends the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_drain(port: *mut spw_port, deadline_ms: u32) -> c_int {
    let drain = |port: &mut Port| {
        port.links.drain(deadline_ms);
        port.is_flush_due = true;
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(port, drain) })
}

/// An operator's override of relief.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_override {
    /// No override: clients decide.
    SPW_OVERRIDE_AUTO = 0,
    /// Sessions are helped.
    SPW_OVERRIDE_ON = 1,
    /// Sessions are direct.
    SPW_OVERRIDE_OFF = 2,
}

/// Sets the override of relief, a `spw_override`. Present sessions on the wrong carrier are asked to move at random times
/// within `within_ms`, and so are later ones after they are accepted. A session whose client has no such route stays.
/// Returns the number of sessions asked to move; `spw_flush` sends the requests.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_relief(
    port: *mut spw_port,
    manual_override: c_int,
    within_ms: u32,
) -> c_int {
    let set_override = |port: &mut Port| {
        let manual_override = override_from_c(manual_override)?;
        port.is_flush_due = true;
        Ok(count(port.links.set_override(manual_override, milliseconds(within_ms))))
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(port, set_override) })
}

/// Sends the sessions that are helped now back to the server's own port, once, at random times within `within_ms`. Later
/// sessions are not affected. Returns the number of sessions asked to move.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_release(port: *mut spw_port, within_ms: u32) -> c_int {
    let release = |port: &mut Port| {
        port.is_flush_due = true;
        Ok(count(port.links.release(milliseconds(within_ms))))
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(port, release) })
}

pub(crate) fn override_from_c(number: c_int) -> Result<Override, Fault> {
    match number {
        0 => Ok(Override::Auto),
        1 => Ok(Override::On),
        2 => Ok(Override::Off),
        _ => Err(Fault::invalid("an override is SPW_OVERRIDE_AUTO, _ON or _OFF")),
    }
}

pub(crate) fn override_to_c(manual_override: Override) -> i32 {
    let number = match manual_override {
        Override::Auto => spw_override::SPW_OVERRIDE_AUTO,
        Override::On => spw_override::SPW_OVERRIDE_ON,
        Override::Off => spw_override::SPW_OVERRIDE_OFF,
    };
    number as i32
}

fn count(sessions: usize) -> c_int {
    c_int::try_from(sessions).unwrap_or(c_int::MAX)
}

/// Returns the numbers of links, clients and sessions; each pointer may be null. Sessions include those that wait for
/// their clients, and closed ones that linger.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_counts(
    port: *const spw_port,
    links: *mut usize,
    clients: *mut usize,
    sessions: *mut usize,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let counts =
                object::with(port, |port| Ok([port.links.len(), port.clients.len(), port.links.sessions()]))?;
            for (target, count) in [links, clients, sessions].into_iter().zip(counts) {
                if !target.is_null() {
                    object::write_result(target, "a count", count)?;
                }
            }
            Ok(())
        }
    })
}

/// Closes the port and its links, and frees the port and its events' data. The application frees its contexts. Null is
/// allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_free(port: *mut spw_port) {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::free(port) });
}
