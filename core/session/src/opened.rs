//! The outcome of a session's opening message, and the server's answer.

use spillway_wire::{CloseReason, Control, RefuseReason};

use crate::slots::SessionHandle;
#[cfg(doc)]
use crate::{Sessions, StreamEvent};

/// The outcome of a session's opening message on a carrier. The driver records the outcome and
/// performs its [actions](Opened::actions).
#[derive(Debug)]
pub enum Opened<C> {
    /// A new session for the application to [accept](Sessions::accept) or [refuse](Sessions::refuse). A driver without
    /// room for the session [withdraws it](Sessions::withdraw) and refuses it on its carrier.
    New {
        /// The session.
        session: SessionHandle,
        /// The server's *resumed*.
        answer: Control,
    },
    /// The session continues on this carrier.
    Resumed {
        /// The session.
        session: SessionHandle,
        /// The server's *resumed*.
        answer: Control,
        /// The application has accepted the session.
        is_accepted: bool,
        /// The application may write again, as for [`StreamEvent::Room`], because the client has acknowledged more
        /// bytes.
        room: bool,
        /// The session's previous carrier: ignore its further messages, and close it.
        replaced: Option<C>,
    },
    /// Both ends have closed the session, but the client has not received the *close*. The carrier belongs to no
    /// session.
    AlreadyClosed {
        /// The server's *resumed*.
        answer: Control,
        /// Why the session was closed.
        reason: CloseReason,
    },
    /// The opening message is refused for this reason.
    Refused(RefuseReason),
}

/// An action of the driver on the carrier that brought the opening message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierAction {
    /// Send this message.
    Send(Control),
    /// Send *accepted*, and then *drain* if the session is on the wrong carrier ([`Placement`](crate::Placement)).
    Accept,
    /// Close the carrier, which belongs to no session.
    Close(CloseReason),
    /// Refuse the opening message.
    Refuse(RefuseReason),
}

impl<C> Opened<C> {
    /// The actions on the carrier, in this order.
    pub fn actions(&self) -> impl Iterator<Item = CarrierAction> + use<C> {
        let (first, second) = match *self {
            Opened::New { answer, .. } | Opened::Resumed { answer, is_accepted: false, .. } => {
                (CarrierAction::Send(answer), None)
            }
            Opened::Resumed { answer, .. } => (CarrierAction::Send(answer), Some(CarrierAction::Accept)),
            Opened::AlreadyClosed { answer, reason } => {
                (CarrierAction::Send(answer), Some(CarrierAction::Close(reason)))
            }
            Opened::Refused(reason) => (CarrierAction::Refuse(reason), None),
        };
        core::iter::once(first).chain(second)
    }
}
