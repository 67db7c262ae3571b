//! A thread's connections by slot. An epoll token names the slot, one of the connection's two descriptors, and the
//! slot's generation, which distinguishes events of an earlier connection from those of the present connection.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use spillway_client::Session;

use crate::pair::Pair;
use crate::relief::Member;

/// A slot's contents: a local connection in one of its stages.
#[derive(Debug)]
pub(crate) enum Entry {
    Free,
    /// The PROXY header is not complete yet.
    AwaitingHeader(AwaitingHeader),
    /// The relief policy decides where to open the session, and may wait for helpers' load reports.
    Opening(Opening),
    Open(Box<Pair>),
    /// The local connection is closed, and the session still has to send its end to the server.
    Closing(Closing),
}

#[derive(Debug)]
pub(crate) struct AwaitingHeader {
    pub socket: OwnedFd,
    pub peer: Option<SocketAddr>,
    /// The bytes received of the header; at most `PROXY_BYTES_MAX`.
    pub bytes: Vec<u8>,
    pub deadline: Instant,
}

#[derive(Debug)]
pub(crate) struct Opening {
    pub socket: OwnedFd,
    pub client: Option<SocketAddr>,
    /// Bytes received after the PROXY header.
    pub first: Vec<u8>,
    pub deadline: Instant,
    /// `None`: the relief policy's group is full, and the session is opened at the server.
    pub member: Option<Member>,
}

#[derive(Debug)]
pub(crate) struct Closing {
    pub session: Box<Session>,
    pub deadline: Instant,
    /// This connection's share of the thread's buffered bytes.
    pub counted_bytes: usize,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    entry: Entry,
    /// When the slot's timer is due.
    timer_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Local,
    Session,
}

/// The caller of [`Table::insert`] bounds the number of slots, by `max_connections`.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Table {
    pub fn insert(&mut self, entry: Entry) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize].entry = entry;
            return index;
        }
        self.slots.push(Slot { generation: 0, entry, timer_at: None });
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX) // bounded by max_connections
    }

    /// Frees a slot and invalidates its tokens.
    pub fn remove(&mut self, index: u32) -> Entry {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.timer_at = None;
        self.free.push(index);
        std::mem::replace(&mut slot.entry, Entry::Free)
    }

    pub fn get(&mut self, index: u32) -> &mut Entry {
        &mut self.slots[index as usize].entry
    }

    pub fn timer_at(&mut self, index: u32) -> &mut Option<Instant> {
        &mut self.slots[index as usize].timer_at
    }

    pub fn token(&self, index: u32, side: Side) -> u64 {
        let generation = self.slots[index as usize].generation;
        u64::from(generation) << 32 | u64::from(index) << 1 | u64::from(side == Side::Session)
    }

    /// The slot that a token names; `None` if the token's connection has left the slot.
    pub fn find(&self, token: u64) -> Option<(u32, Side)> {
        let index = u32::try_from((token & 0xffff_ffff) >> 1).unwrap_or(u32::MAX); // 31 bits
        let side = if token & 1 == 0 { Side::Local } else { Side::Session };
        let slot = self.slots.get(index as usize)?;
        (u64::from(slot.generation) == token >> 32).then_some((index, side))
    }

    pub fn indexes_in_use(&self) -> Vec<u32> {
        let all = (0_u32..).zip(&self.slots);
        all.filter(|(_, slot)| !matches!(slot.entry, Entry::Free)).map(|(index, _)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_removed_entry_are_invalid() {
        let mut table = Table::default();
        let first = table.insert(Entry::Free);
        let second = table.insert(Entry::Free);
        let (local, session) = (table.token(second, Side::Local), table.token(second, Side::Session));
        assert_eq!(table.find(local), Some((second, Side::Local)));
        assert_eq!(table.find(session), Some((second, Side::Session)));
        table.remove(second);
        assert_eq!((table.find(local), table.find(session)), (None, None));
        assert_eq!(table.insert(Entry::Free), second);
        assert_ne!(table.token(second, Side::Local), local);
        assert_eq!(table.find(table.token(first, Side::Local)), Some((first, Side::Local)));
        assert_eq!(table.find(u64::MAX), None);
    }
}
