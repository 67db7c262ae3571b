//! What a protocol is for [`RequestServer`](super::RequestServer).

use spillway_wire::switch::ServerId;

use super::replies::Replies;

/// Executes the requests of all connections.
pub(crate) trait Protocol {
    /// What is already answered of a request whose replies are longer than the buffer. The default is that of a new
    /// request.
    type Progress: Default + std::fmt::Debug;

    /// Executes the first request in `input`, and appends its reply to `replies`. `progress` is that of the same connection
    /// and has its default value for a new request.
    fn execute(&mut self, input: &[u8], replies: &mut Replies, progress: &mut Self::Progress) -> Outcome;

    /// As [`execute`](Self::execute), for a request that has come from another server with its connection.
    fn execute_handed(
        &mut self,
        input: &[u8],
        replies: &mut Replies,
        progress: &mut Self::Progress,
    ) -> Outcome {
        self.execute(input, replies, progress)
    }

    /// As [`execute`](Self::execute), for a request that belongs to another server, to which it could not be handed off:
    /// answers without the object. Only protocols whose requests belong elsewhere need it.
    fn refuse(&mut self, input: &[u8], replies: &mut Replies) -> Outcome {
        let _ = (input, replies);
        Outcome::Close
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A request of this many bytes was answered.
    Answered(usize),
    /// The request is not complete yet.
    Incomplete,
    /// Another server has the object.
    Elsewhere(ServerId),
    /// The bound of waiting replies is reached: the request must be repeated when some have left, and then continues.
    Full,
    /// The connection must be closed after the replies: the client has ended it, or the start of the next request cannot be
    /// found.
    Close,
}
