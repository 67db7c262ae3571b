//! Deferral of an interface's interrupts while the threads are loaded.
//!
//! Each interrupt wakes the kernel's receive loop (NAPI), which wakes the thread: under load these wake-ups
//! cost more CPU than the packets. While interrupts are deferred, a timer runs the receive loop at fixed
//! intervals, which handles all packets that have arrived since. Packets of the kernel's own connections on
//! the interface wait for the timer, too.
//!
//! - `napi`: the kernel's settings; `frame_rate`: whether a thread is loaded

mod frame_rate;
mod napi;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_transport::Time;

use crate::interface::Interface;
use frame_rate::FrameRate;
use napi::{Deferral, Napi, NapiSocket};

/// Polls without a packet after which the kernel enables the interrupt again. With 1, a gap between random
/// arrivals would end the deferral under load.
const EMPTY_POLLS: u32 = 2;

/// Defers the interrupts of an interface while at least one of its threads is loaded. Clones share one state.
/// Dropping the last clone restores the interface's former settings.
#[derive(Clone, Debug)]
pub struct Interrupts(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    socket: NapiSocket,
    interface: u32,
    /// The setting while a thread is loaded.
    under_load: Deferral,
    /// The receive loops, with their settings before the first deferral.
    napis: Vec<Napi>,
    loaded_threads: usize,
}

/// Why interrupts cannot be deferred.
#[derive(Debug)]
pub struct InterruptsError {
    interface: String,
    cause: io::Error,
}

impl fmt::Display for InterruptsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot defer the interrupts of interface {}: {}; this needs Linux 6.13 or later and CAP_NET_ADMIN: otherwise \
             remove defer_interrupts",
            self.interface, self.cause
        )
    }
}

impl std::error::Error for InterruptsError {}

impl Interrupts {
    /// Prepares to defer the interrupts of an interface of the calling thread's network namespace. `interval`: time between
    /// two polls while they are deferred.
    ///
    /// # Errors
    /// The kernel is too old, or the process has no CAP_NET_ADMIN.
    pub fn open(interface: &Interface, interval: Duration) -> Result<Interrupts, InterruptsError> {
        let open = || {
            let socket = NapiSocket::open()?;
            let mut napis = socket.list(interface.index)?;
            if napis.is_empty() {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let under_load = Deferral { empty_polls: EMPTY_POLLS, interval };
            // A process that was killed under load has left these values; the former ones are unknown.
            napis
                .iter_mut()
                .filter(|napi| napi.deferral == under_load)
                .for_each(|napi| napi.deferral = Deferral::default());
            let inner = Inner { socket, interface: interface.index, under_load, napis, loaded_threads: 0 };
            // Also detects a missing privilege at the start.
            inner.restore()?;
            Ok(inner)
        };
        match open() {
            Ok(inner) => Ok(Interrupts(Arc::new(Mutex::new(inner)))),
            Err(cause) => Err(InterruptsError { interface: interface.name.clone(), cause }),
        }
    }

    /// Whether the kernel defers the interrupts of all receive loops at present.
    ///
    /// # Errors
    /// The interface was removed, or the system has failed.
    pub fn are_deferred(&self) -> io::Result<bool> {
        let inner = self.inner();
        let present = inner.socket.list(inner.interface)?;
        Ok(present.iter().all(|napi| napi.deferral == inner.under_load))
    }

    /// A handle with which one thread defers the interrupts while the thread is loaded.
    pub fn of_thread(&self) -> ThreadInterrupts {
        let interval = self.inner().under_load.interval;
        ThreadInterrupts { shared: self.clone(), rate: FrameRate::new(interval), state: State::Undeferred }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn thread_is_loaded(&mut self) -> io::Result<()> {
        self.loaded_threads += 1;
        if self.loaded_threads > 1 {
            return Ok(());
        }
        let set = self.napis.iter().try_for_each(|napi| self.socket.set(napi.id, self.under_load));
        if set.is_err() {
            self.loaded_threads -= 1;
            // Undoes the changes before the failure.
            let _ = self.restore();
        }
        set
    }

    fn thread_is_unloaded(&mut self) -> io::Result<()> {
        self.loaded_threads -= 1;
        match self.loaded_threads {
            0 => self.restore(),
            _ => Ok(()),
        }
    }

    fn restore(&self) -> io::Result<()> {
        self.napis.iter().try_for_each(|napi| self.socket.set(napi.id, napi.deferral))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Fails if the interface was removed or set down.
        let _ = self.restore();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Undeferred,
    Deferred,
    /// The kernel refused a change. The thread does not try again.
    Failed,
}

/// Defers interrupts while one thread is loaded.
#[derive(Debug)]
pub struct ThreadInterrupts {
    shared: Interrupts,
    rate: FrameRate,
    state: State,
}

impl ThreadInterrupts {
    /// Defers interrupts or ends the deferral, depending on the rate of frames. `received`: frames since the
    /// start of the thread. Call it in each turn.
    ///
    /// # Errors
    /// The kernel has refused a change, for example because the interface is down. Returned once.
    pub fn update(&mut self, now: Time, received: u64) -> io::Result<()> {
        let is_high = self.rate.is_high(now, received);
        let (next, changed) = match (self.state, is_high) {
            (State::Undeferred, true) => (State::Deferred, self.shared.inner().thread_is_loaded()),
            (State::Deferred, false) => (State::Undeferred, self.shared.inner().thread_is_unloaded()),
            _ => return Ok(()),
        };
        self.state = if changed.is_ok() { next } else { State::Failed };
        changed
    }

    /// Whether this thread's load defers interrupts at present.
    pub fn is_deferring(&self) -> bool {
        self.state == State::Deferred
    }
}

impl Drop for ThreadInterrupts {
    fn drop(&mut self) {
        if self.state == State::Deferred {
            // Fails if the interface was removed or set down.
            let _ = self.shared.inner().thread_is_unloaded();
        }
    }
}
