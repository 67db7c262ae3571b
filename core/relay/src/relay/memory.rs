//! Memory pressure: clients that do not read are paused or closed, so that the others are served.

use alloc::vec::Vec;
use core::cmp::Reverse;

use spillway_transport::{Conn, Transport};

use super::Relay;
use crate::memory::Holding;
use crate::reasons::{MemoryReset, ResetReason};

impl Relay {
    /// Call this after every operation that may have allocated memory.
    pub(super) fn keep_within_memory<T: Transport>(&mut self, out: &mut T) {
        if self.pressure.may_close_largest(self.turn.now, &self.memory) {
            self.close_largest(out);
        }
        if self.memory.update_scarcity() {
            let notice = self.pressure.scarcity_changed(self.turn.now, &self.memory, self.clients.count());
            self.notices.push(notice);
            if !self.memory.is_scarce() {
                self.resume_paused(out);
            }
        }
    }

    /// Closes the clients that hold most memory and have not read for longest, until an eighth of the memory
    /// is free. Clients whose bytes have not waited at all are closed only until memory is within the bound.
    fn close_largest<T: Transport>(&mut self, out: &mut T) {
        for holding in self.holdings(out) {
            if self.memory.is_enough_closed(holding.age) {
                return;
            }
            self.close_for_memory(holding, out);
        }
        if self.memory.is_exceeded() {
            self.pressure.delay_rescan(self.turn.now);
        }
    }

    /// The memory of each client with waiting bytes, in the order in which clients are closed.
    fn holdings<T: Transport>(&mut self, out: &T) -> Vec<Holding> {
        let mut holdings = self.clients.holdings(self.turn.now, out);
        holdings.sort_unstable_by_key(|holding| Reverse(holding.rank()));
        holdings
    }

    fn close_for_memory<T: Transport>(&mut self, holding: Holding, out: &mut T) {
        let Holding { conn, memory_bytes, age } = holding;
        let in_transport = out.held(conn);
        let reset = MemoryReset { held_bytes: memory_bytes, unread: age, limit_bytes: self.memory.max() };
        self.reset_for(conn, ResetReason::Memory(reset), out);
        self.memory.transport_freed(in_transport);
        self.pressure.count_closed();
    }

    /// Grants bytes to paused clients.
    fn resume_paused<T: Transport>(&mut self, out: &mut T) {
        let paused = self.clients.iter().filter(|(_, role)| role.is_paused()).map(|(conn, _)| conn);
        let paused: Vec<Conn> = paused.collect();
        paused.into_iter().for_each(|conn| self.grant_again(conn, out));
    }

    /// While memory is scarce, closes clients that have not read for [`Timeouts::unread`](crate::Timeouts),
    /// in the order of `holdings`. Otherwise bytes that are never read would occupy memory for ever.
    pub(super) fn pressure_timeout<T: Transport>(&mut self, out: &mut T) {
        if !self.pressure.handle_timeout(self.turn.now) {
            return;
        }
        let unread_max = self.settings.timeouts.unread;
        for holding in self.holdings(out) {
            if self.memory.is_calm() {
                break;
            }
            if holding.age >= unread_max {
                self.close_for_memory(holding, out);
            }
        }
    }
}
