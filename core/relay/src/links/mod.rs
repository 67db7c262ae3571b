//! The links of all services. A turn processes only links on which something has changed or is due.

mod link;
mod linked;

use spillway_batch::Id;
use spillway_transport::Conn;

pub(crate) use link::{Due, Ended, Lifecycle, Link};
pub(crate) use linked::{BATCH_BYTES, LINK_GRANT_BYTES, Linked};

use crate::marked::MarkedList;

/// Links by index. The index of a closed link is reused.
pub(crate) type Links = MarkedList<Link>;

impl Links {
    /// Adds a link to a service's server and returns its index. The link connects in its first turn.
    pub(crate) fn open(&mut self, service: u16, number: u16) -> usize {
        let new = Link::new(service, number);
        let free = self.iter().position(|link| link.lifecycle() == Lifecycle::Free);
        let index = free.unwrap_or(self.len());
        match free {
            Some(_) => self[index] = new,
            None => self.push(new),
        }
        index
    }

    /// The link, if it is open.
    pub(crate) fn linked(&self, index: usize) -> Option<&Linked> {
        self[index].linked()
    }

    /// The link, if it is open. Marks it for a turn.
    pub(crate) fn linked_mut(&mut self, index: usize) -> Option<&mut Linked> {
        self[index].linked_mut()
    }

    /// The open link that carries a client. Always `Some`: clients are removed from a link before it is closed.
    pub(crate) fn open_link(&mut self, index: usize) -> Option<&mut Linked> {
        let linked = self[index].linked_mut();
        debug_assert!(linked.is_some(), "a link should not be closed before its clients are removed");
        linked
    }

    pub(crate) fn client(&self, index: usize, id: Id) -> Option<Conn> {
        self[index].linked()?.client(id)
    }

    /// The candidate with the fewest connections, among those that accept clients.
    pub(crate) fn choose(&self, candidates: &[usize]) -> Option<usize> {
        let open = candidates.iter().copied().filter(|index| self[*index].accepts_clients());
        open.min_by_key(|index| self[*index].linked().map_or(0, Linked::connections))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_of_a_forgotten_link_is_reused() {
        let mut links = Links::default();
        assert_eq!((links.open(0, 0), links.open(0, 1)), (0, 1));
        assert_eq!(links.choose(&[0, 1]), None, "no link should be chosen while none is open");
        let _ = links[0].close();
        let _ = links[0].forget();
        assert_eq!(links.open(4, 0), 0);
        assert_eq!((links[0].service(), links[0].lifecycle()), (4, Lifecycle::Current));
        assert_eq!(links.len(), 2);
    }
}
