//! A client's session (PostMan §4.2): one stream of bytes in each direction, direct or through helpers.

mod event;
pub(crate) mod shared;
pub(crate) mod state;

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null;
use std::time::{Duration, Instant};

pub use self::event::{spw_session_event, spw_session_event_kind};
use self::state::SessionState;

use crate::argument;
use crate::object::{self, Handle};
use crate::settings::spw_settings;
use crate::status::{Fault, guarded, guarded_status, stream_fault};
use crate::waiting::timeout_ms;

/// A session: one ordered stream of bytes in each direction. It continues on another route when its carrier is lost.
pub struct spw_session {
    _opaque: [u8; 0],
}

impl Handle for spw_session {
    type Value = SessionState;
    const TAG: u32 = 0x7370_7373;
    const NAME: &'static str = "spw_session";
}

/// Begins to open a session on the first route, and returns at once. Bytes that are sent before the server has answered
/// wait. `*session` becomes the new session, for the caller to free, or null on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_connect(settings: *const spw_settings, session: *mut *mut spw_session) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            object::write_result(session, "session", std::ptr::null_mut())?;
            let (routes, session_settings) = object::read(settings, |settings| settings.resolve())?;
            let state = SessionState::open(routes, session_settings)?;
            object::write_result(session, "session", object::new_handle(state))
        }
    })
}

/// Accepts a prefix of the `length` bytes, and returns its length. These bytes are kept, and sent on any route, until
/// the server has acknowledged them. `SPW_AGAIN` when too many bytes are not acknowledged yet: try again after
/// `SPW_SESSION_ROOM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_send(session: *mut spw_session, data: *const c_void, length: usize) -> isize {
    guarded(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let bytes = argument::bytes(data, length)?;
            object::with(session, |state| {
                let sent = state.lock()?.session.send(Instant::now(), bytes);
                sent.map(usize::cast_signed).map_err(|error| state.fault(&error))
            })
        }
    })
}

/// Receives up to `size` bytes and returns their number; 0 is the end of the stream. `SPW_AGAIN` when nothing has arrived;
/// other errors of the stream are final.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_receive(session: *mut spw_session, buffer: *mut c_void, size: usize) -> isize {
    guarded(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let buffer = argument::bytes_mut(buffer, size)?;
            if buffer.is_empty() {
                return Err(Fault::invalid(
                    "the buffer's size is 0, and a result of 0 means the end of the stream",
                ));
            }
            object::with(session, |state| {
                let received = state.lock()?.session.receive(Instant::now(), buffer);
                received.map(usize::cast_signed).map_err(|error| state.fault(&error))
            })
        }
    })
}

/// The descriptor to watch for reading, by `poll`, `epoll` or similar. It never changes, and belongs to the session: do not
/// close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_poll_descriptor(session: *const spw_session) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(session, |state| Ok(state.lock()?.session.as_fd().as_raw_fd())) })
}

/// The timeout for `poll`: how long to wait for the descriptor before `spw_handle` is due, in milliseconds, rounded up; -1:
/// without limit. Call it after all other calls, right before the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_next_timeout_ms(session: *const spw_session) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(session, |state| Ok(timeout_ms(state.lock()?.session.poll_timeout()))) })
}

/// Sends, receives and handles timeouts. Call it when the descriptor is ready and when the timeout has passed; spurious
/// calls are harmless. Returns 1 if `spw_receive` would return bytes, the end, or a final error; otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_handle(session: *mut spw_session) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(session, |state| state.handle()) })
}

/// For programs without an event loop: waits for input or a timer, at most `timeout_ms` (-1: without limit), and then does
/// what `spw_handle` does. Returns 1 like `spw_handle`; 0 after other input, after the timeout, or after a signal: call it
/// again until the result is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_wait(session: *mut spw_session, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(session, |state| state.wait(timeout_ms)) })
}

/// Returns 1 and the next event, or 0 without an event. Call it after `spw_handle` until it returns 0; only the latest 32
/// events are kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_next_event(session: *mut spw_session, event: *mut spw_session_event) -> c_int {
    guarded(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let empty = spw_session_event { kind: 0, route: 0, address: null(), why: null() };
            object::write_result(event, "event", empty)?;
            object::with(session, |state| match state.next_event()? {
                Some(next) => object::write_result(event, "event", next).map(|()| 1),
                None => Ok(0),
            })
        }
    })
}

/// The route that carries the session now: `*route` becomes a helper's number or `SPW_DIRECT`, and `address` its address.
/// Both may be null (with a `size` of 0). `SPW_AGAIN` while no route carries the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_carrier(
    session: *const spw_session,
    route: *mut u32,
    address: *mut c_char,
    size: usize,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let (number, carrier) = object::with(session, |state| {
                let carrier: Option<SocketAddr> = state.lock()?.session.carrier();
                let carrier = carrier.ok_or_else(|| Fault::again("no route carries the session now"))?;
                Ok((state.route(carrier), carrier))
            })?;
            if !route.is_null() {
                object::write_result(route, "route", number)?;
            }
            argument::write_address(carrier, address, size)
        }
    })
}

/// Moves the session at once to a route, a helper's number or `SPW_DIRECT`. Requests may be in flight: no byte is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_move(session: *mut spw_session, route: u32) -> c_int {
    guarded_status(|| {
        let move_to_route = |state: &mut SessionState| {
            state.check_has_no_relief()?;
            let index = state.route_index(route)?;
            state.lock()?.session.move_to(Instant::now(), index).map_err(|error| stream_fault(&error))
        };
        // SAFETY: the caller passes a valid or null pointer.
        unsafe { object::with(session, move_to_route) }
    })
}

/// Replaces the session's routes by the server and the helpers of these settings. The present carrier stays in use, even if
/// it is not among them (`SPW_FORMER_ROUTE`). The key must be the same as before; other settings have no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_set_routes(session: *mut spw_session, settings: *const spw_settings) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let (routes, _) = object::read(settings, |settings| settings.resolve())?;
            object::with(session, |state| state.set_routes(routes))
        }
    })
}

/// Reports a reply to the session's relief: `latency_us` is the time in microseconds since the request was due. Do not
/// report blocking commands, which wait on purpose. No effect for sessions of `spw_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_measured(session: *mut spw_session, latency_us: u64) -> c_int {
    let report = |state: &mut SessionState| match state.relief() {
        Some(membership) => membership.record_latency(Duration::from_micros(latency_us)),
        None => Ok(()),
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(session, report) })
}

/// Reports to the session's relief for how long the oldest request without a reply has waited, in microseconds; negative
/// without such a request. Call it when that request changes. No effect for sessions of `spw_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_oldest_wait(session: *mut spw_session, waited_us: i64) -> c_int {
    let report = |state: &mut SessionState| match state.relief() {
        Some(membership) => {
            membership.set_oldest_wait(u64::try_from(waited_us).ok().map(Duration::from_micros))
        }
        None => Ok(()),
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(session, report) })
}

/// Ends the outgoing stream; replies still arrive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_finish(session: *mut spw_session) -> c_int {
    let finish = |state: &mut SessionState| -> Result<(), Fault> {
        state.lock()?.session.finish(Instant::now());
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(session, finish) })
}

/// Closes the session. Sent bytes still reach the server if the session is handled until it is over (`spw_is_over`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_close(session: *mut spw_session) -> c_int {
    let close = |state: &mut SessionState| -> Result<(), Fault> {
        state.lock()?.session.close(Instant::now());
        Ok(())
    };
    // SAFETY: the caller passes a valid or null pointer.
    guarded_status(|| unsafe { object::with(session, close) })
}

/// 1 if the session has ended: it was closed and the server has received everything, or it failed, with the error that
/// `spw_receive` returns. Otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_is_over(session: *const spw_session) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(session, |state| Ok(c_int::from(state.lock()?.session.is_over()))) })
}

/// After `SPW_GONE`: the server is known to have received `*acknowledged` of the `*written` bytes that were sent. Both may
/// be null. `SPW_AGAIN` when no call has returned `SPW_GONE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_gone(
    session: *const spw_session,
    acknowledged: *mut u64,
    written: *mut u64,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let gone = object::with(session, |state| {
                state.gone.ok_or_else(|| Fault::again("no call has returned SPW_GONE"))
            })?;
            for (target, name, value) in
                [(acknowledged, "acknowledged", gone.acknowledged), (written, "written", gone.written)]
            {
                if !target.is_null() {
                    object::write_result(target, name, value)?;
                }
            }
            Ok(())
        }
    })
}

/// Frees a session and its events' texts. If the session is freed before it is closed and over, the server may not
/// receive everything. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_free(session: *mut spw_session) {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::free(session) });
}
