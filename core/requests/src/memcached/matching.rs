//! Which request a reply of the text protocol belongs to: replies come in the order of requests, and quiet requests may
//! have none.

use spillway_transport::Time;

use super::commands::Shape;
use crate::gave_up::GaveUp;
use crate::outstanding::{Kind, Outstanding};

/// What a complete reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// `ERROR`, `CLIENT_ERROR`, `SERVER_ERROR`: anything can be answered so, what is quiet included.
    Error,
    /// `END`: of values or of statistics.
    End,
    Of(Shape),
}

impl Answer {
    fn can_be_of(self, kind: Kind) -> bool {
        let is = |shape: Shape| shape.number() == kind.shape;
        match self {
            Answer::Error => true,
            Answer::End => is(Shape::Values) || is(Shape::Statistics),
            // `stats reset`, `stats detail on`
            Answer::Of(Shape::Line) => is(Shape::Line) || is(Shape::Statistics),
            Answer::Of(shape) => is(shape),
        }
    }
}

/// Finds the request of an answer. `Ok(None)`: it was a quiet one's.
pub(super) fn find(answer: Answer, outstanding: &mut Outstanding) -> Result<Option<Option<Time>>, GaveUp> {
    while let Some(first) = outstanding.first() {
        match (first.is_quiet, answer.can_be_of(first)) {
            (false, true) => return Ok(Some(outstanding.answered())),
            (false, false) => break,
            // Later requests are answered: this one was not.
            (true, false) => outstanding.forget_first(),
            (true, true) => {
                return match outstanding.first_sure() {
                    Some(sure) if answer.can_be_of(sure) => Err(GaveUp::Ambiguous),
                    _ => Ok(None),
                };
            }
        }
    }
    Err(GaveUp::Unasked)
}
