//! Matches replies of memcached's text protocol to requests: replies have the order of requests, and quiet requests may
//! have no reply.

use spillway_transport::Time;

use super::commands::ReplyFormat;
use crate::outstanding::{Kind, Outstanding};
use crate::stop_reason::StopReason;

/// The format of a complete reply, as far as it narrows down the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyClass {
    /// `ERROR`, `CLIENT_ERROR`, `SERVER_ERROR`: a possible reply to every request, quiet ones included.
    Error,
    /// `END` of values or statistics.
    End,
    Of(ReplyFormat),
}

impl ReplyClass {
    fn can_answer(self, kind: Kind) -> bool {
        let has_format = |reply_format: ReplyFormat| reply_format.code() == kind.reply_format;
        match self {
            ReplyClass::Error => true,
            ReplyClass::End => has_format(ReplyFormat::Values) || has_format(ReplyFormat::Statistics),
            // `stats reset` and `stats detail on` have replies of one line.
            ReplyClass::Of(ReplyFormat::Line) => {
                has_format(ReplyFormat::Line) || has_format(ReplyFormat::Statistics)
            }
            ReplyClass::Of(reply_format) => has_format(reply_format),
        }
    }
}

/// Removes the request of this reply and returns when it was sent, if its latency is measured. `Ok(None)`: the reply
/// belongs to a quiet request, which is not removed, because more replies to quiet requests may follow.
pub(super) fn match_reply(
    reply: ReplyClass,
    outstanding: &mut Outstanding,
) -> Result<Option<Option<Time>>, StopReason> {
    while let Some(first) = outstanding.first() {
        match (first.is_quiet, reply.can_answer(first)) {
            (false, true) => return Ok(Some(outstanding.take_answered())),
            (false, false) => break,
            // The reply belongs to a later request, so the server did not answer this one.
            (true, false) => outstanding.drop_first_group(),
            (true, true) => {
                return match outstanding.first_not_quiet() {
                    Some(kind) if reply.can_answer(kind) => Err(StopReason::Ambiguous),
                    _ => Ok(None),
                };
            }
        }
    }
    Err(StopReason::UnsolicitedReply)
}
