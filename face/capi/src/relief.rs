//! Relief that switches itself (PostMan §5.2, §5.3), for all sessions of a program at one service.

pub(crate) mod side;

use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use spillway_client::relief::ActivationSettings;

use self::side::{Owner, ReliefSide};

use crate::argument::{self, milliseconds};
use crate::object::{self, Handle};
use crate::port::word;
use crate::session::spw_session;
use crate::settings::spw_settings;
use crate::status::{call, done, write_text};
use crate::waiting::timeout_ms;

/// Relief of one service, for this program: it learns how fast replies come, moves sessions to helpers when they are late,
/// and back.
pub struct spw_relief {
    _opaque: [u8; 0],
}

impl Handle for spw_relief {
    type Value = Owner;
    const TAG: u32 = 0x7370_726c;
    const NAME: &'static str = "spw_relief";
}

/// What a relief is about.
#[repr(C)]
pub struct spw_relief_figures {
    /// In a word, as in "direct", "late", "moving", "helped", "backed off".
    pub stage: [c_char; 16],
    /// The operator's `spw_relief_word` that holds.
    pub word: i32,
    /// Its sessions.
    pub sessions: u32,
    /// Those of them that are helped.
    pub helped: u32,
    /// Of the last while: 99 of 100 replies came within so many microseconds. 0: there was none.
    pub p99_us: u64,
    /// Times that the sessions were moved to helpers as a whole.
    pub activations: u64,
    /// Times that this was found to be of no use.
    pub back_offs: u64,
    /// Sessions that went where they were sent.
    pub moves: u64,
}

/// Makes the relief of a service, whose server and helpers these settings name, with the bounds of its sessions. Replies are
/// late after `sla_us` microseconds (10 to 10,000,000). `*relief` becomes the new relief, for the caller to free, or null on
/// an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_new(
    settings: *const spw_settings,
    sla_us: u32,
    relief: *mut *mut spw_relief,
) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            object::answer(relief, "relief", std::ptr::null_mut())?;
            let (routes, bounds) = object::read(settings, |settings| settings.resolve())?;
            let sla = Duration::from_micros(sla_us.into());
            let activation = ActivationSettings { sla, ..ActivationSettings::default() };
            let side = ReliefSide::new(routes, bounds, activation)?;
            object::answer(relief, "relief", object::give(Owner::new(side)))
        }
    })
}

/// Opens a session, as `spw_connect` does, where the relief wants it: it moves it from then on. While sessions are helped the
/// helpers are asked first, which takes some milliseconds. `SPW_AGAIN` when there are too many. Tell `spw_measured` of each of
/// its replies, and `spw_waiting` of what has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_connect(
    relief: *mut spw_relief,
    session: *mut *mut spw_session,
) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            object::answer(session, "session", std::ptr::null_mut())?;
            let opened = object::with(relief, |owner| side::open(owner.shared()))?;
            object::answer(session, "session", object::give(opened))
        }
    })
}

/// The descriptor to watch for reading, beside those of the sessions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_descriptor(relief: *const spw_relief) -> c_int {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::with(relief, |owner| Ok(owner.lock()?.relief.as_fd().as_raw_fd())) })
}

/// How long to wait at most before `spw_relief_handle` is due, in milliseconds, as `poll` takes it. -1: for ever. Ask after
/// the sessions' calls, right before the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_next_timeout_ms(relief: *const spw_relief) -> c_int {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::with(relief, |owner| Ok(timeout_ms(owner.lock()?.due()))) })
}

/// Does what is due, and moves sessions: to be called when the descriptor is ready and when the timeout has passed. Returns
/// how many are moving. `spw_wait` with one of its sessions does this, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_handle(relief: *mut spw_relief) -> c_int {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::with(relief, |owner| side::handle(owner.shared())) })
}

/// The operator's word, a `spw_relief_word`: it overrides everything for so many milliseconds; 0 is until another word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_say(relief: *mut spw_relief, word_of: c_int, lasts_ms: u32) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for it.
        unsafe {
            object::with(relief, |owner| {
                let word = word(word_of)?;
                let lasts = (lasts_ms > 0).then(|| milliseconds(lasts_ms));
                owner.lock()?.change(|relief, now| relief.say(now, word, lasts));
                Ok(())
            })
        }
    })
}

/// Other helpers from now on: those of these settings, of which only the helpers are looked at. Sessions at a helper that is
/// no longer named stay until they are moved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_set_helpers(
    relief: *mut spw_relief,
    settings: *const spw_settings,
) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            let (routes, _) = object::read(settings, |settings| settings.resolve())?;
            object::with(relief, |owner| owner.lock()?.set_helpers(routes))
        }
    })
}

/// What it has decided since it was last asked: 1 and a line for the log, or 0. Longer ones are cut to `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_next_notice(
    relief: *mut spw_relief,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            let room = argument::room(buffer.cast(), size)?;
            object::with(relief, |owner| match owner.lock()?.relief.poll_notice() {
                Some(notice) => {
                    write_text(&notice.to_string(), room);
                    Ok(1)
                }
                None => Ok(0),
            })
        }
    })
}

/// What it is about.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_status(
    relief: *const spw_relief,
    figures: *mut spw_relief_figures,
) -> c_int {
    done(|| {
        // SAFETY: the caller vouches for both.
        unsafe {
            let known = object::with(relief, |owner| {
                let side = owner.lock()?;
                let (status, counters) = (side.relief.status(Instant::now()), side.relief.counters());
                let mut stage = [0_u8; 16];
                write_text(status.stage, &mut stage);
                Ok(spw_relief_figures {
                    stage: stage.map(|byte| byte as c_char),
                    word: crate::port::number(status.word),
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
            object::answer(figures, "figures", known)
        }
    })
}

/// Frees a relief. Its sessions go on where they are, as those of `spw_connect` do. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_relief_free(relief: *mut spw_relief) {
    // SAFETY: the caller vouches for it.
    call(|| unsafe { object::free(relief) });
}
