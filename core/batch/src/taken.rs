//! What a server has taken of its clients' requests, told to their helper where that is asked for: then the helper's own TCP
//! may acknowledge them to the client, and a helper that dies has acknowledged nothing that is lost (PostMan §4.2).
//!
//! It is told for each input at its end, and so rides in the batch that has the first replies: a client's TCP hears of it as
//! soon as it would have from the server's own.

use alloc::vec::Vec;

use spillway_wire::session::Acknowledge;
use spillway_wire::{Control, Id};

use crate::ends::Ends;

/// Of one connection whose helper has asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taking {
    /// Something was taken since it was told last.
    is_owed: bool,
}

/// Connections that are owed something, each once.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    ids: Vec<Id>,
}

impl Ends {
    /// Something of this connection was taken.
    pub(crate) fn owe(&mut self, id: Id) {
        if let Some(taking) = self.get_mut(id).and_then(|connection| connection.incoming.taking.as_mut())
            && !core::mem::replace(&mut taking.is_owed, true)
        {
            self.owed.ids.push(id);
        }
    }

    /// Tells all that is owed.
    pub(crate) fn tell_owed(&mut self) {
        while let Some(id) = self.owed.ids.pop() {
            let Some(connection) = self.get_mut(id) else { continue };
            let is_open = connection.is_open();
            let (received, finish_received) = (connection.incoming.received, connection.incoming.finished);
            let Some(taking) = &mut connection.incoming.taking else { continue };
            if core::mem::take(&mut taking.is_owed) && is_open {
                let told = Acknowledge { received, finish_received, answer: false };
                self.assembler.control(id, Control::Acknowledge(told));
            }
        }
    }

    /// What a server says that it has taken. `None`: it cannot have.
    pub(crate) fn incoming_taken(&self, id: Id, told: Acknowledge) -> Option<u64> {
        let outgoing = &self.get(id)?.outgoing;
        let is_possible = told.received <= outgoing.sent
            && (!told.finish_received || (outgoing.finished && told.received == outgoing.sent));
        is_possible.then_some(told.received)
    }
}
