//! redis: requests as arrays of bulk strings or as lines, replies in RESP2 and RESP3.
//!
//! A reply's end follows from its own bytes, so unknown commands can be measured too.

mod commands;
mod replies;
mod requests;

use spillway_transport::Time;

use self::commands::Verdict;
use self::replies::Replies;
use self::requests::Requests;
use crate::outstanding::{Kind, Outstanding};
use crate::stop_reason::StopReason;

/// All replies have one format.
const REPLY_FORMAT: u8 = 0;

#[derive(Clone, Debug, Default)]
pub(crate) struct Redis {
    requests: Requests,
    replies: Replies,
}

impl Redis {
    pub fn requests(
        &mut self,
        now: Time,
        mut bytes: &[u8],
        outstanding: &mut Outstanding,
    ) -> Result<(), StopReason> {
        while let Some(verdict) = self.requests.next(&mut bytes)? {
            let kind = match verdict {
                Verdict::Prompt => Kind::prompt(REPLY_FORMAT),
                Verdict::Unmeasured => Kind::unmeasured(REPLY_FORMAT),
                Verdict::MayBlock => Kind::blocking(REPLY_FORMAT),
                Verdict::StopTracking(reason) => return Err(reason),
            };
            outstanding.push(now, kind)?;
        }
        Ok(())
    }

    pub fn replies(
        &mut self,
        mut bytes: &[u8],
        outstanding: &mut Outstanding,
        mut answered: impl FnMut(Option<Time>),
    ) -> Result<(), StopReason> {
        while self.replies.next(&mut bytes)? {
            if outstanding.first().is_none() {
                return Err(StopReason::UnsolicitedReply);
            }
            answered(outstanding.take_answered());
        }
        Ok(())
    }

    pub fn is_between_messages(&self) -> bool {
        self.requests.is_between_messages() && self.replies.is_between_messages()
    }
}
