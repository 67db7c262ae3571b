//! Matches replies of memcached's text protocol to requests: replies have the order of requests, and quiet requests may
//! have no reply.

use spillway_transport::Time;

use super::commands::Shape;
use crate::gave_up::GaveUp;
use crate::outstanding::{Kind, Outstanding};

/// The format of a complete reply, as far as it narrows down the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// `ERROR`, `CLIENT_ERROR`, `SERVER_ERROR`: a possible reply to every request, quiet ones included.
    Error,
    /// `END` of values or statistics.
    End,
    Of(Shape),
}

impl Answer {
    fn can_be_of(self, kind: Kind) -> bool {
        let is = |shape: Shape| shape.number() == kind.shape;
        match self {
            Answer::Error => true,
            Answer::End => is(Shape::Values) || is(Shape::Statistics),
            // Statistics: replies to `stats reset` and `stats detail on` are one line.
            Answer::Of(Shape::Line) => is(Shape::Line) || is(Shape::Statistics),
            Answer::Of(shape) => is(shape),
        }
    }
}

/// Removes the request of this reply and returns when it was sent, if its latency is measured. `Ok(None)`: the request
/// was a quiet one, which remains.
pub(super) fn find(answer: Answer, outstanding: &mut Outstanding) -> Result<Option<Option<Time>>, GaveUp> {
    while let Some(first) = outstanding.first() {
        match (first.is_quiet, answer.can_be_of(first)) {
            (false, true) => return Ok(Some(outstanding.answered())),
            (false, false) => break,
            // The reply belongs to a later request, so the server did not answer this one.
            (true, false) => outstanding.forget_first(),
            (true, true) => {
                return match outstanding.first_not_quiet() {
                    Some(kind) if answer.can_be_of(kind) => Err(GaveUp::Ambiguous),
                    _ => Ok(None),
                };
            }
        }
    }
    Err(GaveUp::UnsolicitedReply)
}
