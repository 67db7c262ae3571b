//! When memory runs short: when clients that hold memory are looked for, so that everybody else goes on.
//!
//! A client that holds nothing is never closed for it, and none is scanned for while there is enough: the largest are
//! looked for when a bound is reached, once for at least an eighth of the whole memory.

use core::time::Duration;

use spillway_transport::Time;

use crate::memory::Memory;
use crate::notice::Notice;

/// How often clients that do not read are looked for while memory is scarce.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Who holds memory was just looked for in vain: what is left is in links and in the turn's own bytes.
const NOTHING_TO_CLOSE: Duration = Duration::from_millis(10);

/// What goes on while memory is scarce.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pressure {
    /// When clients that do not read are looked for.
    look_at: Option<Time>,
    /// Looking for holders is in vain until then.
    vain_until: Time,
    /// Clients closed because memory was short, since the start.
    closed: u64,
    /// Paused and closed before memory became scarce.
    before: (u64, u64),
}

impl Pressure {
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.look_at
    }

    /// Whether clients that do not read are to be looked for now; if so, the next look is scheduled.
    #[must_use]
    pub(crate) fn handle_timeout(&mut self, now: Time) -> bool {
        let is_due = self.look_at.is_some_and(|at| at <= now);
        if is_due {
            self.look_at = Some(now + LOOK_AGAIN);
        }
        is_due
    }

    /// Whether the largest are to be looked for, and closed until an eighth of the memory is free.
    pub(crate) fn may_close_largest(&self, now: Time, memory: &Memory) -> bool {
        memory.is_exceeded() && (now >= self.vain_until || memory.clients() > memory.max())
    }

    /// All that hold something were looked at, and there is still too little memory.
    pub(crate) fn looked_in_vain(&mut self, now: Time) {
        self.vain_until = now + NOTHING_TO_CLOSE;
    }

    /// A client was closed because memory is short.
    pub(crate) fn count_closed(&mut self) {
        self.closed += 1;
    }

    /// Memory has become scarce, or there is enough again.
    pub(crate) fn scarcity_changed(&mut self, now: Time, memory: &Memory, clients: u32) -> Notice {
        let (held, limit) = (memory.total(), memory.max());
        if memory.is_scarce() {
            self.look_at = Some(now + LOOK_AGAIN);
            self.before = (memory.pauses(), self.closed);
            return Notice::MemoryScarce { held, limit, clients };
        }
        self.look_at = None;
        let (pauses, closed) = self.before;
        let (paused, closed) = (memory.pauses() - pauses, self.closed - closed);
        Notice::MemoryEnough { held, limit, paused, closed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_once_a_second_while_memory_is_scarce_and_says_what_it_did() {
        let mut memory = Memory::new(800);
        let mut pressure = Pressure::default();
        memory.count_pause();
        pressure.count_closed();
        memory.changed(0, 700);
        assert!(memory.judge());
        let scarce = pressure.scarcity_changed(Time(5), &memory, 3);
        assert_eq!(scarce, Notice::MemoryScarce { held: 700, limit: 800, clients: 3 });
        let at = pressure.poll_timeout().unwrap();
        assert!(!pressure.handle_timeout(Time(6)) && pressure.handle_timeout(at));
        assert_eq!(pressure.poll_timeout(), Some(at + LOOK_AGAIN));
        memory.count_pause();
        memory.changed(700, 0);
        assert!(memory.judge());
        let enough = pressure.scarcity_changed(at, &memory, 3);
        assert_eq!(enough, Notice::MemoryEnough { held: 0, limit: 800, paused: 1, closed: 0 });
        assert_eq!(pressure.poll_timeout(), None);
    }

    #[test]
    fn does_not_look_again_at_once_for_what_clients_do_not_hold() {
        let mut memory = Memory::new(800);
        let mut pressure = Pressure::default();
        memory.link_changed(0, 900);
        assert!(pressure.may_close_largest(Time(0), &memory));
        pressure.looked_in_vain(Time(0));
        assert!(!pressure.may_close_largest(Time(1), &memory));
        assert!(pressure.may_close_largest(Time(0) + NOTHING_TO_CLOSE, &memory));
        memory.changed(0, 801);
        assert!(pressure.may_close_largest(Time(1), &memory), "it is clients that hold it now");
    }
}
