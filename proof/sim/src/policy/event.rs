//! The events of this world.

use spillway_transport::Time;

use super::helper::Message;

#[derive(Debug)]
pub(super) enum WorldEvent {
    /// A connection's next request may be due.
    RequestDue(u32),
    /// A message arrives on the server's ordinary port.
    Arrive(Message),
    /// A batch of this helper arrives at the server.
    Batch(u16, Vec<Message>),
    /// The server has finished its present work.
    Served,
    /// A helper has received a message.
    Received(u16, Message),
    /// A helper sends its batch.
    Flush(u16),
    /// A batch of replies arrives at a helper.
    Replies(u16, Vec<Message>),
    /// A reply arrives at its client.
    Reply(Message),
    /// The move of a connection (index, epoch) is refused.
    Refused(u32, u32),
    /// A connection (index, epoch) detects that its helper has failed.
    Lost(u32, u32),
    /// A connection (index, epoch) returns to the server by itself.
    Return(u32, u32),
    /// A client gives up a request (connection, request).
    GiveUp(u32, u64),
    /// A process's timer, set for this time, runs out.
    Wake(u32, Time),
    /// The server's release policy takes a sample.
    ReleaseSample,
    /// The server's release policy may release a session.
    ReleaseDue,
    /// A fault of the plan, by index.
    Fault(usize),
}
