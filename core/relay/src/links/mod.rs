//! All links to servers, those of all services. A turn looks only at links on which something has changed or is due.

mod link;
mod linked;

use spillway_batch::Id;
use spillway_transport::Conn;

pub(crate) use link::{Due, Ended, Link, Tenure};
pub(crate) use linked::{BATCH_BYTES, LINK_GRANT_BYTES, Linked};

use crate::marked::MarkedList;

/// Links by index. A place is used again when its link has gone.
pub(crate) type Links = MarkedList<Link>;

impl Links {
    /// A link to a service's server, which connects when it has its turn. Returns its index.
    pub(crate) fn open(&mut self, service: u16, link: u16) -> usize {
        let new = Link::new(service, link);
        let free = self.iter().position(|link| link.tenure() == Tenure::Gone);
        let index = free.unwrap_or(self.len());
        match free {
            Some(_) => self[index] = new,
            None => self.push(new),
        }
        index
    }

    /// An open link.
    pub(crate) fn linked(&self, index: usize) -> Option<&Linked> {
        self[index].linked()
    }

    /// An open link, which has a turn then.
    pub(crate) fn linked_mut(&mut self, index: usize) -> Option<&mut Linked> {
        self[index].linked_mut()
    }

    /// The open link that carries a client. It is always there: a client leaves a link before the link closes.
    pub(crate) fn carrier(&mut self, index: usize) -> Option<&mut Linked> {
        let linked = self[index].linked_mut();
        debug_assert!(linked.is_some(), "a client leaves its link before the link closes");
        linked
    }

    /// The client's connection that an id of a link belongs to.
    pub(crate) fn client(&self, index: usize, id: Id) -> Option<Conn> {
        self[index].linked()?.client(id)
    }

    /// Of these links, the one with the fewest connections among those that take clients.
    pub(crate) fn choose(&self, candidates: &[usize]) -> Option<usize> {
        let takes = candidates.iter().copied().filter(|index| self[*index].takes_clients());
        takes.min_by_key(|index| self[*index].linked().map_or(0, Linked::connections))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_link_that_has_gone_is_used_again() {
        let mut links = Links::default();
        assert_eq!((links.open(0, 0), links.open(0, 1)), (0, 1));
        assert_eq!(links.choose(&[0, 1]), None, "none is open");
        let _ = links[0].close();
        let _ = links[0].forget();
        assert_eq!(links.open(4, 0), 0);
        assert_eq!((links[0].service(), links[0].tenure()), (4, Tenure::Current));
        assert_eq!(links.len(), 2);
    }
}
