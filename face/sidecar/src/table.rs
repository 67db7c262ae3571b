//! A thread's connections by place. A token tells the place, its turn (so that an event for who was there before is told from
//! one for who is there now) and which of its two descriptors is meant.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use spillway_client::Session;

use crate::pair::Pair;
use crate::relief::Member;

/// Who is at a place.
#[derive(Debug)]
pub(crate) enum Place {
    Free,
    /// Its PROXY header has not come yet.
    Arriving(Arriving),
    /// It is not known yet where its session is to be opened: helpers are asked for their load.
    Opening(Opening),
    Taken(Box<Pair>),
    /// The local connection is gone, and the server has not been told all.
    Closing(Closing),
}

#[derive(Debug)]
pub(crate) struct Arriving {
    pub socket: OwnedFd,
    pub peer: Option<SocketAddr>,
    /// What has come of the header. At most as long as a header may be.
    pub bytes: Vec<u8>,
    pub deadline: Instant,
}

#[derive(Debug)]
pub(crate) struct Opening {
    pub socket: OwnedFd,
    pub client: Option<SocketAddr>,
    /// What came behind a PROXY header.
    pub first: Vec<u8>,
    pub deadline: Instant,
    /// None: to the server.
    pub member: Option<Member>,
}

#[derive(Debug)]
pub(crate) struct Closing {
    pub session: Box<Session>,
    pub deadline: Instant,
    /// Counted for it in the thread's buffered bytes.
    pub counted_bytes: usize,
}

#[derive(Debug)]
struct Slot {
    turn: u32,
    place: Place,
    armed: Option<Instant>,
}

/// Which descriptor of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Local,
    Session,
}

/// Bounded by whoever inserts.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Table {
    /// Takes a free place.
    pub fn insert(&mut self, place: Place) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize].place = place;
            return index;
        }
        self.slots.push(Slot { turn: 0, place, armed: None });
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX) // bounded by max_connections
    }

    /// Frees it: tokens of now mean nothing any more.
    pub fn remove(&mut self, index: u32) -> Place {
        let slot = &mut self.slots[index as usize];
        slot.turn = slot.turn.wrapping_add(1);
        slot.armed = None;
        self.free.push(index);
        std::mem::replace(&mut slot.place, Place::Free)
    }

    pub fn get(&mut self, index: u32) -> &mut Place {
        &mut self.slots[index as usize].place
    }

    pub fn armed(&mut self, index: u32) -> &mut Option<Instant> {
        &mut self.slots[index as usize].armed
    }

    /// Of a place as it is now.
    pub fn token(&self, index: u32, which: Which) -> u64 {
        let turn = self.slots[index as usize].turn;
        u64::from(turn) << 32 | u64::from(index) << 1 | u64::from(which == Which::Session)
    }

    /// The place that a token means, if it is still who it was.
    pub fn find(&self, token: u64) -> Option<(u32, Which)> {
        let index = u32::try_from((token & 0xffff_ffff) >> 1).unwrap_or(u32::MAX); // 31 bits
        let which = if token & 1 == 0 { Which::Local } else { Which::Session };
        let slot = self.slots.get(index as usize)?;
        (u64::from(slot.turn) == token >> 32).then_some((index, which))
    }

    /// Every place that is in use.
    pub fn in_use(&self) -> Vec<u32> {
        let all = (0_u32..).zip(&self.slots);
        all.filter(|(_, slot)| !matches!(slot.place, Place::Free)).map(|(index, _)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_who_was_there_before_mean_nobody() {
        let mut table = Table::default();
        let first = table.insert(Place::Free);
        let second = table.insert(Place::Free);
        let (local, session) = (table.token(second, Which::Local), table.token(second, Which::Session));
        assert_eq!(table.find(local), Some((second, Which::Local)));
        assert_eq!(table.find(session), Some((second, Which::Session)));
        table.remove(second);
        assert_eq!((table.find(local), table.find(session)), (None, None));
        assert_eq!(table.insert(Place::Free), second);
        assert_ne!(table.token(second, Which::Local), local);
        assert_eq!(table.find(table.token(first, Which::Local)), Some((first, Which::Local)));
        assert_eq!(table.find(u64::MAX), None);
    }
}
