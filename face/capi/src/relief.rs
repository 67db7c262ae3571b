//! Automatic relief (PostMan §5.2, §5.3) for all sessions of a program at one service.

pub(crate) mod state;

use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use spillway_client::relief::ActivationSettings;

use self::state::{ReliefState, SharedRelief};

use crate::argument::{self, milliseconds};
use crate::object::{self, Handle};
use crate::port::override_from_c;
use crate::session::spw_session;
use crate::session::state::SessionState;
use crate::settings::spw_settings;
use crate::status::{guarded, guarded_status, write_text};
use crate::waiting::timeout_ms;

/// Automatic relief of one service for this program: moves its sessions to helpers while replies are late, and back.
pub struct spw_relief {
    _opaque: [u8; 0],
}

impl Handle for spw_relief {
    type Value = SharedRelief;
    const TAG: u32 = 0x7370_726c;
    const NAME: &'static str = "spw_relief";
}

/// The state of a relief.
#[repr(C)]
pub struct spw_relief_figures {
    /// The stage, such as "direct", "late", "moving", "helped" or "backed off".
    pub stage: [c_char; 16],
    /// The present override, a `spw_override`.
    pub manual_override: i32,
    /// Number of sessions.
    pub sessions: u32,
    /// Number of helped sessions.
    pub helped: u32,
    /// p99 of recent latencies, in microseconds. 0 without replies.
    pub p99_us: u64,
    /// Number of times that the sessions moved to helpers together.
    pub activations: u64,
    /// Number of times that helpers did not make the replies faster.
    pub back_offs: u64,
    /// Moves of single sessions that succeeded.
    pub moves: u64,
}

/// Creates the relief of a service. The settings name the server and the helpers, and limit the sessions. Replies are late
/// after `sla_us` microseconds (10 to 10,000,000). `*relief` becomes the new relief, for the caller to free, or null on an
/// error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_new(
    settings: *const spw_settings,
    sla_us: u32,
    relief: *mut *mut spw_relief,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            object::write_result(relief, "relief", std::ptr::null_mut())?;
            let (routes, session_settings) = object::read(settings, |settings| settings.resolve())?;
            let sla = Duration::from_micros(sla_us.into());
            let activation = ActivationSettings { sla, ..ActivationSettings::default() };
            let state = ReliefState::new(routes, session_settings, activation)?;
            object::write_result(relief, "relief", object::new_handle(SharedRelief::new(state)))
        }
    })
}

/// Opens a session, as `spw_connect` does, on the carrier that the relief chooses; the relief also moves it later.
/// While sessions are helped, this call queries the load of helpers, which blocks for some milliseconds. `SPW_AGAIN`
/// when there are too many sessions. Report each reply by `spw_measured`, and the oldest request without a reply by
/// `spw_oldest_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_connect(
    relief: *mut spw_relief,
    session: *mut *mut spw_session,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            object::write_result(session, "session", std::ptr::null_mut())?;
            let (opened, routes, membership) = object::with(relief, |shared| state::open(shared.inner()))?;
            let state = SessionState::new(opened, routes, Some(membership));
            object::write_result(session, "session", object::new_handle(state))
        }
    })
}

/// The descriptor to watch for reading, in addition to those of the sessions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_descriptor(relief: *const spw_relief) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(relief, |shared| Ok(shared.lock()?.relief.as_fd().as_raw_fd())) })
}

/// The timeout for `poll`: how long to wait before `spw_relief_handle` is due, in milliseconds, rounded up; -1: without
/// limit. Call it after all calls with sessions, right before the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_next_timeout_ms(relief: *const spw_relief) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(relief, |shared| Ok(timeout_ms(shared.lock()?.due()))) })
}

/// Applies the policy and moves sessions. Call it when the descriptor is ready and when the timeout has passed. Returns the
/// number of sessions that were ordered to move. `spw_wait` with one of the relief's sessions does this, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_handle(relief: *mut spw_relief) -> c_int {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::with(relief, |shared| state::handle(shared.inner())) })
}

/// Sets the operator's override, a `spw_override`, for `lasts_ms` milliseconds; 0 is without limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_override(
    relief: *mut spw_relief,
    manual_override: c_int,
    lasts_ms: u32,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes a valid or null pointer.
        unsafe {
            object::with(relief, |shared| {
                let manual_override = override_from_c(manual_override)?;
                let lasts = (lasts_ms > 0).then(|| milliseconds(lasts_ms));
                shared.lock()?.change(|relief, now| relief.set_override(now, manual_override, lasts));
                Ok(())
            })
        }
    })
}

/// Replaces the helpers by those of these settings, which must name the same server; other settings have no effect. A
/// session on a helper outside the new list stays there until it moves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_set_helpers(
    relief: *mut spw_relief,
    settings: *const spw_settings,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let (routes, _) = object::read(settings, |settings| settings.resolve())?;
            object::with(relief, |shared| shared.lock()?.set_helpers(routes))
        }
    })
}

/// Returns 1 and the next decision as a line for the log, truncated to `size` bytes; 0 without a decision.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_next_notice(
    relief: *mut spw_relief,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let buffer = argument::bytes_mut(buffer.cast(), size)?;
            object::with(relief, |shared| match shared.lock()?.relief.poll_notice() {
                Some(notice) => {
                    write_text(&notice.to_string(), buffer);
                    Ok(1)
                }
                None => Ok(0),
            })
        }
    })
}

/// Returns the state of a relief.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_status(
    relief: *const spw_relief,
    figures: *mut spw_relief_figures,
) -> c_int {
    guarded_status(|| {
        // SAFETY: the caller passes valid or null pointers.
        unsafe {
            let output = object::with(relief, |shared| {
                let state = shared.lock()?;
                let (status, counters) = (state.relief.status(Instant::now()), state.relief.counters());
                let mut stage = [0_u8; 16];
                write_text(status.stage, &mut stage);
                Ok(spw_relief_figures {
                    stage: stage.map(|byte| byte as c_char),
                    manual_override: crate::port::override_to_c(status.manual_override),
                    sessions: status.members,
                    helped: status.helped,
                    p99_us: status
                        .figures
                        .p99
                        .map_or(0, |p99| u64::try_from(p99.as_micros()).unwrap_or(u64::MAX)),
                    activations: counters.activations,
                    back_offs: counters.back_offs,
                    moves: counters.orders_done,
                })
            })?;
            object::write_result(figures, "figures", output)
        }
    })
}

/// Frees a relief. Its sessions continue on their carriers, like sessions of `spw_connect`. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_free(relief: *mut spw_relief) {
    // SAFETY: the caller passes a valid or null pointer.
    guarded(|| unsafe { object::free(relief) });
}
