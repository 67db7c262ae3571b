//! A client's session (PostMan §4.2): one stream of bytes in each direction, direct or through helpers.

mod event;
pub(crate) mod side;

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use self::event::{spw_session_event, spw_session_event_kind};
use self::side::{ClientSide, Shared};

use crate::argument;
use crate::object::{self, Handle};
use crate::settings::spw_settings;
use crate::status::{Fault, call, done, lock, of_stream};
use crate::waiting::timeout_ms;

/// A session: one ordered stream of bytes in each direction, which goes on by itself when what carries it is lost.
pub struct spw_session {
    _opaque: [u8; 0],
}

impl Handle for spw_session {
    type Value = Shared;
    const TAG: u32 = 0x7370_7373;
    const NAME: &'static str = "spw_session";
}

/// Lets a body use a session.
///
/// # Safety
/// As of [`object::with`].
unsafe fn with_side<R>(
    session: *const spw_session,
    body: impl FnOnce(&mut ClientSide) -> Result<R, Fault>,
) -> Result<R, Fault> {
    // SAFETY: the caller vouches for it.
    unsafe { object::with(session, |shared| body(&mut *lock(shared)?)) }
}

/// Opens a session and returns at once: the first route is tried from now on. What is sent before a server has answered
/// waits. `*session` becomes the new session, for the caller to free, or null on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_connect(settings: *const spw_settings, session: *mut *mut spw_session) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            object::answer(session, "session", std::ptr::null_mut())?;
            let (routes, bounds) = object::read(settings, |settings| settings.resolve())?;
            let side = ClientSide::open(routes, bounds)?;
            object::answer(session, "session", object::give(Arc::new(Mutex::new(side))))
        }
    })
}

/// Sends a prefix of `length` bytes and returns its length. `SPW_AGAIN` when too much is not acknowledged yet:
/// `SPW_SESSION_ROOM` tells when it is worth trying again. What was taken is kept until the server has it, on whatever
/// route.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_send(session: *mut spw_session, data: *const c_void, length: usize) -> isize {
    call(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            let bytes = argument::bytes(data, length)?;
            with_side(session, |side| match side.session.send(Instant::now(), bytes) {
                Ok(taken) => Ok(taken.cast_signed()),
                Err(error) => Err(side.failed(&error)),
            })
        }
    })
}

/// Receives up to `size` bytes and returns how many. 0 is the end of the stream. `SPW_AGAIN` when nothing has arrived; all
/// other errors are for ever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_receive(session: *mut spw_session, buffer: *mut c_void, size: usize) -> isize {
    call(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            let room = argument::room(buffer, size)?;
            if room.is_empty() {
                return Err(Fault::invalid("a buffer of no size: 0 would look like the end"));
            }
            with_side(session, |side| match side.session.receive(Instant::now(), room) {
                Ok(received) => Ok(received.cast_signed()),
                Err(error) => Err(side.failed(&error)),
            })
        }
    })
}

/// The descriptor to watch for reading, in `poll`, `epoll` or anything like it. It never changes, and belongs to the
/// session: do not close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_poll_descriptor(session: *const spw_session) -> c_int {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { with_side(session, |side| Ok(side.session.as_fd().as_raw_fd())) })
}

/// How long to wait for the descriptor at most before `spw_handle` is due, in milliseconds, rounded up: as `poll` takes it.
/// -1: for ever. Ask after the other calls, right before the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_next_timeout_ms(session: *const spw_session) -> c_int {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { with_side(session, |side| Ok(timeout_ms(side.session.poll_timeout()))) })
}

/// Does what there is to do: to be called when the descriptor is ready and when the timeout has passed; once too often does
/// no harm. Returns 1 when `spw_receive` has something (bytes, the end, or an error), otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_handle(session: *mut spw_session) -> c_int {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { with_side(session, |side| Ok(side.handle())) })
}

/// For programs without a loop: waits until there is something to do, `timeout_ms` at most (-1: for ever), and does it.
/// Returns as `spw_handle`. 0 says that something was done, that the time has passed, or that a signal came: call again as
/// long as what is wanted has not come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_wait(session: *mut spw_session, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::with(session, |shared| side::wait(shared, timeout_ms)) })
}

/// What happened since it was last asked: 1 and an event, or 0. Ask until 0 after `spw_handle`; of those that nobody asks for
/// the latest 32 are kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_next_event(session: *mut spw_session, event: *mut spw_session_event) -> c_int {
    call(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            let nothing = spw_session_event { kind: 0, route: 0, address: null(), why: null() };
            object::answer(event, "event", nothing)?;
            with_side(session, |side| match side.next_event() {
                Some(next) => object::answer(event, "event", next).map(|()| 1),
                None => Ok(0),
            })
        }
    })
}

/// What carries the session now: `*route` becomes a helper's number or `SPW_DIRECT`, and the buffer its address; both may be
/// null (with a `size` of 0). `SPW_AGAIN` while nothing does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_carrier(
    session: *const spw_session,
    route: *mut u32,
    address: *mut c_char,
    size: usize,
) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for all.
        unsafe {
            let (number, carrier) = with_side(session, |side| {
                let carrier: SocketAddr =
                    side.session.carrier().ok_or_else(|| Fault::again("no route carries the session now"))?;
                Ok((side.route(carrier), carrier))
            })?;
            if !route.is_null() {
                object::answer(route, "route", number)?;
            }
            argument::write_address(carrier, address, size)
        }
    })
}

/// Moves to a route, a helper's number or `SPW_DIRECT`, at once. Requests may be under way: nothing is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_move(session: *mut spw_session, route: u32) -> c_int {
    done(|| {
        let move_it = |side: &mut ClientSide| {
            side.check_is_free()?;
            let place = side.place(route)?;
            side.session.move_to(Instant::now(), place).map_err(|error| of_stream(&error))
        };
        // SAFETY: the caller vouches for it.
        unsafe { with_side(session, move_it) }
    })
}

/// Other routes from now on: the server and the helpers of these settings, which may be others than the session was opened
/// with. What carries it goes on doing so, be it among them or not (`SPW_FORMER_ROUTE`). All else in the settings is of no
/// effect; the key must be the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_set_routes(session: *mut spw_session, settings: *const spw_settings) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            let (routes, _) = object::read(settings, |settings| settings.resolve())?;
            with_side(session, |side| side.set_routes(routes))
        }
    })
}

/// Tells the session's relief that a reply came, so long after its request was meant to be sent, in microseconds. Not for
/// requests that wait because they are asked to. Of no effect for sessions of `spw_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_measured(session: *mut spw_session, latency_us: u64) -> c_int {
    let tell = |side: &mut ClientSide| match side.relief() {
        Some(membership) => membership.measured(Duration::from_micros(latency_us)),
        None => Ok(()),
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { with_side(session, tell) })
}

/// Tells the session's relief for how long the oldest request without a reply has waited, in microseconds; negative when
/// none waits. Say so when it changes. Of no effect for sessions of `spw_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_waiting(session: *mut spw_session, waited_us: i64) -> c_int {
    let tell = |side: &mut ClientSide| match side.relief() {
        Some(membership) => membership.waiting(u64::try_from(waited_us).ok().map(Duration::from_micros)),
        None => Ok(()),
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { with_side(session, tell) })
}

/// Sends no more; replies still come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_finish(session: *mut spw_session) -> c_int {
    let finish = |side: &mut ClientSide| {
        side.session.finish(Instant::now());
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { with_side(session, finish) })
}

/// Closes. What was sent still reaches the server if the session is handled until it is over (`spw_is_over`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_close(session: *mut spw_session) -> c_int {
    let close = |side: &mut ClientSide| {
        side.session.close(Instant::now());
        Ok(())
    };
    // SAFETY: the caller vouches for it.
    done(|| unsafe { with_side(session, close) })
}

/// 1 when nothing more comes of the session: it was closed and the server has everything, or it failed for ever, which
/// `spw_receive` then tells. Otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_is_over(session: *const spw_session) -> c_int {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { with_side(session, |side| Ok(c_int::from(side.session.is_over()))) })
}

/// After `SPW_GONE`: the server is known to have received `*acknowledged` of the `*written` bytes that were sent. Both may be
/// null. `SPW_AGAIN` when no call has returned `SPW_GONE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_gone(
    session: *const spw_session,
    acknowledged: *mut u64,
    written: *mut u64,
) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for all.
        unsafe {
            let gone = with_side(session, |side| {
                side.gone.ok_or_else(|| Fault::again("the session is not known to be gone"))
            })?;
            for (place, name, value) in
                [(acknowledged, "acknowledged", gone.acknowledged), (written, "written", gone.written)]
            {
                if !place.is_null() {
                    object::answer(place, name, value)?;
                }
            }
            Ok(())
        }
    })
}

/// Frees a session, with all that it lent; without `spw_close` before, and until it is over, the server may not have
/// everything. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_free(session: *mut spw_session) {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::free(session) });
}
