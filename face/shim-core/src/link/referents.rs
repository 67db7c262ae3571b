//! What the ids of a link's peer refer to.

use spillway_batch::{Id, IdTable};

use crate::carrier_name::SessionName;

/// What an id of the peer refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Referent {
    /// An unused id, or a connection that the application has closed.
    #[default]
    Nothing,
    /// The connection with this index.
    Connection(u32),
    /// A session; another link may carry that session by now.
    Session(SessionName),
}

/// What each id of the peer refers to.
pub(super) struct Referents {
    /// Ids of [`Referent::Nothing`] are left out.
    by_id: IdTable<Referent>,
    /// Number of [`Referent::Session`]s in `by_id`.
    session_count: usize,
}

impl Referents {
    pub(super) const fn new() -> Referents {
        Referents { by_id: IdTable::new(), session_count: 0 }
    }

    #[inline]
    pub(super) fn get(&self, id: Id) -> Referent {
        self.by_id.get(id).copied().unwrap_or_default()
    }

    pub(super) fn set(&mut self, id: Id, referent: Referent) {
        let before = match referent {
            Referent::Nothing => self.by_id.remove(id),
            _ => self.by_id.insert(id, referent), // the endpoint bounds the ids
        };
        let is_session = |referent: Option<Referent>| matches!(referent, Some(Referent::Session(_)));
        self.session_count += usize::from(is_session(Some(referent)));
        self.session_count -= usize::from(is_session(before));
    }

    /// Number of ids that refer to a session.
    pub(super) fn session_count(&self) -> usize {
        self.session_count
    }

    /// All ids that refer to something.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, Referent)> + '_ {
        self.by_id.iter().map(|(id, referent)| (id, *referent))
    }
}
