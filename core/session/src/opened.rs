//! What becomes of a session's first words on a carrier, and what a server says to them.

use spillway_wire::{CloseReason, Control, RefuseReason};

use crate::slots::SessionHandle;
#[cfg(doc)]
use crate::{Sessions, StreamEvent};

/// What becomes of a session's first words on a carrier: the driver notes it, and carries its [orders](Opened::orders) out.
#[derive(Debug)]
pub enum Opened<C> {
    /// A session that the application is to [accept](Sessions::accept) or [refuse](Sessions::refuse), unless the driver has no
    /// room for it: then it is to be [taken back](Sessions::take_back), and refused on its carrier.
    New {
        /// Which.
        session: SessionHandle,
        /// The server's words.
        answer: Control,
    },
    /// It goes on, on this carrier.
    Resumed {
        /// Which.
        session: SessionHandle,
        /// The server's words.
        answer: Control,
        /// The application has accepted it.
        is_accepted: bool,
        /// The application may write again, as of [`StreamEvent::Room`]: the client has more than it had acknowledged.
        room: bool,
        /// The carrier it had: pass over what still comes of it, and close it.
        replaced: Option<C>,
    },
    /// Both ends have closed it, and its client has not heard the end. The carrier is nobody's.
    Over {
        /// The server's words.
        answer: Control,
        /// Why the session was closed.
        reason: CloseReason,
    },
    /// It is none of ours, or cannot be.
    Refused(RefuseReason),
}

/// Something that a driver is to do on the carrier that first words came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Say this.
    Say(Control),
    /// Say that the application has accepted the session; and, where the server wants it elsewhere, so
    /// ([`Placement`](crate::Placement)).
    Accept,
    /// Close it: the carrier is nobody's any more.
    Close(CloseReason),
    /// Refuse what came.
    Refuse(RefuseReason),
}

impl<C> Opened<C> {
    /// What is to be done on the carrier, in this order.
    pub fn orders(&self) -> impl Iterator<Item = Order> + use<C> {
        let (first, second) = match *self {
            Opened::New { answer, .. } | Opened::Resumed { answer, is_accepted: false, .. } => {
                (Order::Say(answer), None)
            }
            Opened::Resumed { answer, .. } => (Order::Say(answer), Some(Order::Accept)),
            Opened::Over { answer, reason } => (Order::Say(answer), Some(Order::Close(reason))),
            Opened::Refused(reason) => (Order::Refuse(reason), None),
        };
        core::iter::once(first).chain(second)
    }
}
