use alloc::vec::Vec;

use spillway_batch::Id;
use spillway_transport::Conn;

/// Clients by id, in a vector, because the opener assigns small and dense ids.
#[derive(Debug, Default)]
pub(crate) struct Members {
    members: Vec<Member>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Free,
    Client(Conn),
    /// A library client has left the connection, and the server has not closed it yet.
    Orphan,
}

impl Members {
    fn get(&self, id: Id) -> Member {
        self.members.get(id.0 as usize).copied().unwrap_or(Member::Free)
    }

    fn set(&mut self, id: Id, member: Member) {
        let index = id.0 as usize;
        if self.members.len() <= index {
            self.members.resize(index + 1, Member::Free);
        }
        self.members[index] = member;
    }

    pub(crate) fn client(&self, id: Id) -> Option<Conn> {
        match self.get(id) {
            Member::Client(conn) => Some(conn),
            Member::Free | Member::Orphan => None,
        }
    }

    pub(crate) fn is_orphan(&self, id: Id) -> bool {
        self.get(id) == Member::Orphan
    }

    pub(crate) fn put(&mut self, id: Id, client: Conn) {
        self.set(id, Member::Client(client));
    }

    pub(crate) fn orphan(&mut self, id: Id) {
        self.set(id, Member::Orphan);
    }

    pub(crate) fn free(&mut self, id: Id) {
        self.set(id, Member::Free);
    }

    /// All clients, in the order of their ids.
    pub(crate) fn clients(&self) -> impl Iterator<Item = Conn> + '_ {
        self.members.iter().filter_map(|member| match member {
            Member::Client(conn) => Some(*conn),
            Member::Free | Member::Orphan => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_change_from_client_to_orphan_to_free() {
        let mut members = Members::default();
        let conn = |slot| Conn { slot, generation: 1 };
        members.put(Id(5), conn(50));
        members.put(Id(2), conn(20));
        assert_eq!(members.clients().collect::<Vec<_>>(), [conn(20), conn(50)]);
        members.orphan(Id(5));
        assert_eq!(
            (members.client(Id(5)), members.is_orphan(Id(5))),
            (None, true),
            "the id should be an orphan's"
        );
        members.free(Id(5));
        assert!(!members.is_orphan(Id(5)) && !members.is_orphan(Id(99)), "free ids should not be orphans");
        assert_eq!(members.client(Id(99)), None, "an id that was never used should have no client");
    }
}
