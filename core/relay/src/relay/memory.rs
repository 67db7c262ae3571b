//! When memory runs short: who is paused, and who is closed, so that everybody else goes on.

use alloc::vec::Vec;
use core::cmp::Reverse;

use spillway_transport::{Conn, Transport};

use super::Relay;
use crate::memory::Holding;
use crate::reasons::{Cut, MemoryCut};

impl Relay {
    /// After anything that may have taken memory.
    pub(super) fn keep_within_memory<T: Transport>(&mut self, out: &mut T) {
        if self.pressure.may_close_largest(self.turn.now, &self.memory) {
            self.close_largest(out);
        }
        if self.memory.judge() {
            let notice = self.pressure.scarcity_changed(self.turn.now, &self.memory, self.clients.count());
            self.notices.push(notice);
            if !self.memory.is_scarce() {
                self.resume_paused(out);
            }
        }
    }

    /// Closes those who hold most for longest, until an eighth is free. Who has not kept anything waiting is closed only
    /// as far as the bound asks for it.
    fn close_largest<T: Transport>(&mut self, out: &mut T) {
        for holding in self.holdings(out) {
            if self.memory.is_enough_closed(holding.age) {
                return;
            }
            self.close_for_memory(holding, out);
        }
        if self.memory.is_exceeded() {
            self.pressure.looked_in_vain(self.turn.now);
        }
    }

    /// Those that hold anything, in the order in which they are closed.
    fn holdings<T: Transport>(&mut self, out: &T) -> Vec<Holding> {
        let mut holdings = self.clients.holdings(self.turn.now, out);
        holdings.sort_unstable_by_key(|holding| Reverse(holding.rank()));
        holdings
    }

    fn close_for_memory<T: Transport>(&mut self, holding: Holding, out: &mut T) {
        let Holding { conn, bytes, age } = holding;
        let in_transport = out.held(conn);
        let cut = MemoryCut { held_bytes: bytes, unread: age, limit_bytes: self.memory.max() };
        self.cut(conn, Cut::Memory(cut), out);
        self.memory.freed(in_transport);
        self.pressure.count_closed();
    }

    /// Those that were paused are read again.
    fn resume_paused<T: Transport>(&mut self, out: &mut T) {
        let paused = self.clients.iter().filter(|(_, holder)| holder.is_paused()).map(|(conn, _)| conn);
        let paused: Vec<Conn> = paused.collect();
        paused.into_iter().for_each(|conn| self.grant_again(conn, out));
    }

    /// While memory is scarce, those that have not read for [`Timeouts::unread`](crate::Timeouts) are closed, largest
    /// first: otherwise memory for bytes that are never read would stay taken for good.
    pub(super) fn pressure_timeout<T: Transport>(&mut self, out: &mut T) {
        if !self.pressure.handle_timeout(self.turn.now) {
            return;
        }
        let too_long = self.settings.timeouts.unread;
        for holding in self.holdings(out) {
            if self.memory.is_calm() {
                break;
            }
            if holding.age >= too_long {
                self.close_for_memory(holding, out);
            }
        }
    }
}
