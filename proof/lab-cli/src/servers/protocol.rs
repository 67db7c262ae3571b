//! What a protocol is for [`RequestServer`](super::RequestServer).

use super::replies::Replies;

/// Executes the requests of all connections.
pub(crate) trait Protocol {
    /// What is already answered of a request whose replies are longer than the buffer. The default is that of a new
    /// request.
    type Progress: Default + std::fmt::Debug;

    /// Executes the first request in `input`, and appends its reply to `replies`. `progress` is that of the same connection
    /// and has its default value for a new request.
    fn execute(&mut self, input: &[u8], replies: &mut Replies, progress: &mut Self::Progress) -> Outcome;
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A request of this many bytes was answered.
    Answered(usize),
    /// The request is not complete yet.
    Incomplete,
    /// The bound of waiting replies is reached: the request must be repeated when some have left, and then continues.
    Full,
    /// The connection must be closed after the replies: the client has ended it, or the start of the next request cannot be
    /// found.
    Close,
}
