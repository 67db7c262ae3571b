//! The events of the world of relief policies.

use spillway_transport::Time;

use super::helper::Message;

#[derive(Debug)]
pub(super) enum WorldEvent {
    /// A connection's next request may be due.
    RequestDue(u32),
    /// A message arrives on the server's ordinary port.
    DirectMessageAtServer(Message),
    /// A batch of a helper arrives at the server, on the helper's only link.
    BatchAtServer(u16, Vec<Message>),
    ServiceEnded,
    /// A helper has processed a message from a client.
    HelperReceived(u16, Message),
    HelperFlush(u16),
    RepliesAtHelper(u16, Vec<Message>),
    ReplyAtClient(Message),
    /// The move of a connection (index, epoch) is refused.
    Refused(u32, u32),
    /// A connection (index, epoch) detects that its helper has failed.
    CarrierLost(u32, u32),
    /// A connection (index, epoch) that lost its carrier, and found no other helper, returns to the server.
    ReturnToServer(u32, u32),
    /// A client gives a request (connection, request) up, if it is still unanswered.
    GiveUp(u32, u64),
    /// A process's timer, set to this time, expires.
    Wake(u32, Time),
    ReleaseSample,
    /// The server's release policy may release a session.
    ReleaseDue,
    /// A fault of the plan, by index.
    Fault(usize),
}
