//! A server's link port on the application's own loop (PostMan §4.2, "Using PostMan library").

mod clients;
mod event;
mod turn;

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;

use spillway_server::{BindError, Client, CloseReason, RefuseReason, Role, Word};

pub use self::event::{spw_client, spw_event, spw_event_kind, spw_info};
pub(crate) use self::turn::Port;

use crate::argument::{self, SPW_ADDRESS_BYTES, milliseconds};
use crate::listening::{spw_port_settings, spw_role};
use crate::object::{self, Handle};
use crate::port::clients::Context;
use crate::status::{Fault, call, done, spw_status, write_text};
use crate::waiting::timeout_ms;

const CONSUMED_TOO_MUCH: &str = "more is said to be consumed than has come";

/// A link port: helpers, and clients that speak links themselves, open links to it.
pub struct spw_port {
    _opaque: [u8; 0],
}

impl Handle for spw_port {
    type Value = Port;
    const TAG: u32 = 0x7370_7074;
    const NAME: &'static str = "spw_port";
}

/// Lets a body use a port and one of its clients.
///
/// # Safety
/// As of [`object::with`].
unsafe fn with_client<R>(
    port: *const spw_port,
    client: spw_client,
    body: impl FnOnce(&mut Port, Client) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let unknown =
        || Fault::new(spw_status::SPW_UNKNOWN_CLIENT, "the client's connection has ended, or was closed");
    // SAFETY: the caller vouches for it.
    unsafe {
        object::with(port, |port| port.client(client).ok_or_else(unknown).and_then(|it| body(port, it)))
    }
}

/// The same with a client that was accepted.
///
/// # Safety
/// As of [`object::with`].
unsafe fn with_accepted<R>(
    port: *const spw_port,
    client: spw_client,
    body: impl FnOnce(&mut Port, Client) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let accepted = |port: &mut Port, it| match port.clients.is_accepted(client) {
        true => body(port, it),
        false => Err(Fault::invalid("the client was not accepted yet: spw_accept, or spw_refuse")),
    };
    // SAFETY: the caller vouches for it.
    unsafe { with_client(port, client, accepted) }
}

/// Opens a link port, `HOST:PORT`; with port 0 the system chooses one (`spw_port_address`). `*port` becomes the new port,
/// for the caller to free, or null on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_listen(
    settings: *const spw_port_settings,
    address: *const c_char,
    port: *mut *mut spw_port,
) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for all.
        unsafe {
            object::answer(port, "port", std::ptr::null_mut())?;
            let settings = object::read(settings, |settings| Ok(settings.resolve()))?;
            let address = argument::address(argument::text(address, "address")?)?;
            let opened = Port::listen(address, settings).map_err(|error| match error {
                BindError::NeedsKey(_) => Fault::new(spw_status::SPW_KEY, error.to_string()),
                BindError::Listen(..) => Fault::new(spw_status::SPW_SYSTEM, error.to_string()),
            })?;
            object::answer(port, "port", object::give(opened))
        }
    })
}

/// The port's address, into a buffer of `SPW_ADDRESS_BYTES`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_address(port: *const spw_port, buffer: *mut c_char, size: usize) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            let address = object::with(port, |port| Ok(port.links.address()))?;
            argument::write_address(address, buffer, size)
        }
    })
}

/// The descriptor to watch for reading in the application's `epoll` or `poll`. It never changes, and belongs to the port: do
/// not close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_descriptor(port: *const spw_port) -> c_int {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::with(port, |port| Ok(port.epoll().as_raw_fd())) })
}

/// How long to wait for the descriptor at most, in milliseconds, as `poll` takes it. -1: for ever. Ask after `spw_flush`,
/// right before the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_next_timeout_ms(port: *const spw_port) -> c_int {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::with(port, |port| Ok(timeout_ms(port.poll_timeout()))) })
}

/// Begins a turn: to be called when the descriptor is ready and when the timeout has passed; once too often does no harm.
/// Then `spw_decompose` until 0, then `spw_flush`. Links are accepted, and lost ones noticed, by the way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_handle(port: *mut spw_port) -> c_int {
    let handle = |port: &mut Port| port.handle().map_err(|error| Fault::system("epoll", &error));
    // SAFETY: the caller vouches for it.
    done(|| unsafe { object::with(port, handle) })
}

/// Takes what came apart: 1 and the next event, or 0 when this turn has no more. What the event before lent is no longer
/// good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_decompose(port: *mut spw_port, event: *mut spw_event) -> c_int {
    call(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            object::answer(event, "event", spw_event::nothing())?;
            object::with(port, |port| match port.decompose() {
                Some(next) => object::answer(event, "event", next).map(|()| 1),
                None => Ok(0),
            })
        }
    })
}

/// Accepts a client that connects. Once is enough.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_accept(port: *mut spw_port, client: spw_client) -> c_int {
    let accept = |port: &mut Port, it| {
        if port.clients.accept(client) {
            port.links.accept(it);
        }
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { with_client(port, client, accept) })
}

/// Why a client is refused.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_refusal {
    /// There are too many clients.
    SPW_REFUSE_FULL = 1,
    /// This client may not connect.
    SPW_REFUSE_FORBIDDEN = 2,
    /// The server is going away, or does not serve now.
    SPW_REFUSE_UNAVAILABLE = 3,
}

/// Refuses a client that was not accepted, with a `spw_refusal`. The number is no longer good, and what it asked counts as
/// undelivered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_refuse(port: *mut spw_port, client: spw_client, reason: c_int) -> c_int {
    let refuse = |port: &mut Port, it| {
        let reason = match reason {
            1 => RefuseReason::Full,
            2 => RefuseReason::Forbidden,
            3 => RefuseReason::Unavailable,
            _ => return Err(Fault::invalid("a reason is SPW_REFUSE_FULL, _FORBIDDEN or _UNAVAILABLE")),
        };
        if port.clients.is_accepted(client) {
            return Err(Fault::invalid("the client was accepted: spw_close_connection ends it"));
        }
        port.links.refuse(it, reason);
        port.clients.remove(client);
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { with_client(port, client, refuse) })
}

/// Puts a prefix of a reply into the link's next batch, as far as the client's window and the batch allow, and returns its
/// length. The bytes are copied. After it took less than all, `SPW_ROOM` tells when it is worth trying again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_compose(
    port: *mut spw_port,
    client: spw_client,
    reply: *const c_void,
    length: usize,
) -> isize {
    call(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            let reply = argument::bytes(reply, length)?;
            with_accepted(port, client, |port, client| Ok(port.links.compose(client, reply).cast_signed()))
        }
    })
}

/// So many bytes of a client's requests are dealt with: it may send as many more. `SPW_INVALID` when that
/// is more than came.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_consumed(port: *mut spw_port, client: spw_client, length: usize) -> c_int {
    let consumed = |port: &mut Port, it| {
        if !port.clients.consumed(client, length) {
            return Err(Fault::invalid(CONSUMED_TOO_MUCH));
        }
        port.links.consumed(it, length).map_err(|_| Fault::invalid(CONSUMED_TOO_MUCH))
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { with_client(port, client, consumed) })
}

/// What is known about a client: the paper's *get_info*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_get_info(
    port: *const spw_port,
    client: spw_client,
    info: *mut spw_info,
) -> c_int {
    done(|| {
        let mut known =
            spw_info { role: 0, address: [0; SPW_ADDRESS_BYTES], bytes_received: 0, bytes_sent: 0 };
        // SAFETY: the caller vouches for both.
        unsafe {
            let found = with_client(port, client, |port, client| {
                let ended =
                    || Fault::new(spw_status::SPW_UNKNOWN_CLIENT, "the client's connection has ended");
                port.links.info(client).ok_or_else(ended)
            })?;
            known.role = match found.role {
                Role::Helper => spw_role::SPW_HELPER as i32,
                Role::Client => spw_role::SPW_CLIENT as i32,
            };
            known.bytes_received = found.bytes_received;
            known.bytes_sent = found.bytes_sent;
            let mut address = [0_u8; SPW_ADDRESS_BYTES];
            write_text(&found.client.to_string(), &mut address);
            known.address = address.map(|byte| byte as c_char);
            object::answer(info, "info", known)
        }
    })
}

/// Sets a pointer of the application's own for a client: all its events have it as `context`. It is never followed or freed
/// here.
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
    // SAFETY: the caller vouches for it.
    done(|| unsafe { with_client(port, client, set) })
}

/// Sends no more to a client, which may still send. What was composed before still reaches it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_finish_reply(port: *mut spw_port, client: spw_client) -> c_int {
    let finish = |port: &mut Port, client| {
        port.links.finish(client);
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { with_accepted(port, client, finish) })
}

/// Closes the connection of a client that was accepted; the number is no longer good. What was composed before still reaches the client, unless
/// `reset` is not 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_close_connection(
    port: *mut spw_port,
    client: spw_client,
    reset: c_int,
) -> c_int {
    let close = |port: &mut Port, it| {
        let reason = if reset == 0 { CloseReason::Normal } else { CloseReason::Reset };
        port.links.close(it, reason);
        port.clients.remove(client);
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { with_accepted(port, client, close) })
}

/// Ends a turn: everything that was composed leaves, in one batch for each link. Call it also after composing outside of a
/// turn.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_flush(port: *mut spw_port) -> c_int {
    let flush = |port: &mut Port| port.flush().map_err(|error| Fault::system("epoll", &error));
    // SAFETY: the caller vouches for it.
    done(|| unsafe { object::with(port, flush) })
}

/// Asks helpers and clients to move all connections away within this time, before the server goes. `spw_flush` sends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_drain(port: *mut spw_port, deadline_ms: u32) -> c_int {
    let drain = |port: &mut Port| {
        port.links.drain(deadline_ms);
        port.is_touched = true;
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { object::with(port, drain) })
}

/// Where the operator wants sessions.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_relief_word {
    /// Clients decide.
    SPW_RELIEF_AUTO = 0,
    /// With helpers.
    SPW_RELIEF_ON = 1,
    /// Direct.
    SPW_RELIEF_OFF = 2,
}

/// Sends sessions where they are wanted, by a `spw_relief_word`, each within this time; it holds for sessions that come
/// later, too. A session whose client knows no such way stays where it is. Returns how many are sent elsewhere now;
/// `spw_flush` tells them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_relief(port: *mut spw_port, word: c_int, within_ms: u32) -> c_int {
    let say = |port: &mut Port| {
        let said = self::word(word)?;
        port.is_touched = true;
        Ok(count(port.links.say(said, milliseconds(within_ms))))
    };
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::with(port, say) })
}

/// Sends sessions that are helped now back, once: this server can serve them directly again. Returns how many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_release(port: *mut spw_port, within_ms: u32) -> c_int {
    let release = |port: &mut Port| {
        port.is_touched = true;
        Ok(count(port.links.release(milliseconds(within_ms))))
    };
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::with(port, release) })
}

/// The operator's word that C means.
pub(crate) fn word(word: c_int) -> Result<Word, Fault> {
    match word {
        0 => Ok(Word::Auto),
        1 => Ok(Word::On),
        2 => Ok(Word::Off),
        _ => Err(Fault::invalid("a word is SPW_RELIEF_AUTO, _ON or _OFF")),
    }
}

/// The reverse.
pub(crate) fn number(word: Word) -> i32 {
    let word = match word {
        Word::Auto => spw_relief_word::SPW_RELIEF_AUTO,
        Word::On => spw_relief_word::SPW_RELIEF_ON,
        Word::Off => spw_relief_word::SPW_RELIEF_OFF,
    };
    word as i32
}

fn count(sessions: usize) -> c_int {
    c_int::try_from(sessions).unwrap_or(c_int::MAX)
}

/// How many links, clients and sessions there are; each may be null. Sessions include those that wait for their clients, or
/// that linger.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_counts(
    port: *const spw_port,
    links: *mut usize,
    clients: *mut usize,
    sessions: *mut usize,
) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for all.
        unsafe {
            let counts =
                object::with(port, |port| Ok([port.links.len(), port.clients.len(), port.links.sessions()]))?;
            for (place, count) in [links, clients, sessions].into_iter().zip(counts) {
                if !place.is_null() {
                    object::answer(place, "a count's place", count)?;
                }
            }
            Ok(())
        }
    })
}

/// Closes the port with all its links, and frees it with all that it lent. Contexts are the application's to free. Null is
/// allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_port_free(port: *mut spw_port) {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::free(port) });
}
