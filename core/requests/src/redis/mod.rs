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
use crate::gave_up::GaveUp;
use crate::outstanding::{Kind, Outstanding};

/// All replies have one format.
const SHAPE: u8 = 0;

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
    ) -> Result<(), GaveUp> {
        while let Some(verdict) = self.requests.next(&mut bytes)? {
            let kind = match verdict {
                Verdict::Prompt => Kind::prompt(SHAPE),
                Verdict::Unmeasured => Kind::unmeasured(SHAPE),
                Verdict::MayBlock => Kind::blocking(SHAPE),
                Verdict::GiveUp(reason) => return Err(reason),
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
    ) -> Result<(), GaveUp> {
        while self.replies.next(&mut bytes)? {
            if outstanding.first().is_none() {
                return Err(GaveUp::UnsolicitedReply);
            }
            answered(outstanding.answered());
        }
        Ok(())
    }

    pub fn is_between(&self) -> bool {
        self.requests.is_between() && self.replies.is_between()
    }
}
