//! What happens in this world.

use spillway_transport::Time;

use super::helper::Message;

/// What is going to happen.
#[derive(Debug)]
pub(super) enum Happening {
    /// A connection's application may want something.
    Ask(u32),
    /// A message arrives at the server's ordinary way in.
    Arrive(Message),
    /// A batch arrives at the server, of this helper.
    Batch(u16, Vec<Message>),
    /// The server has done its present piece of work.
    Served,
    /// A helper has received a message.
    Received(u16, Message),
    /// A helper sends what it has.
    Flush(u16),
    /// A batch of replies arrives at a helper.
    Replies(u16, Vec<Message>),
    /// A reply arrives at its client.
    Reply(Message),
    /// A connection could not go where it was to go.
    Refused(u32, u32),
    /// A connection notices that its helper is gone.
    Lost(u32, u32),
    /// A connection returns to the server by itself.
    Return(u32, u32),
    /// A client has no patience any more.
    GiveUp(u32, u64),
    /// A process asked for this time.
    Wake(u32, Time),
    /// The server looks at itself.
    Look,
    /// The server may send a session back.
    Drain,
    /// Something goes wrong, by index; or stops to.
    Fault(usize),
}
