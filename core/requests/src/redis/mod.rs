//! redis: requests as arrays of bulk strings or as lines, replies in RESP2 and RESP3.
//!
//! Replies tell their own extent, so that a command which is not known here is no trouble.

mod commands;
mod replies;
mod requests;

use spillway_transport::Time;

use self::commands::Verdict;
use self::replies::Replies;
use self::requests::Requests;
use crate::gave_up::GaveUp;
use crate::outstanding::{Kind, Outstanding};

/// All replies look alike.
const ANY: u8 = 0;

/// Both directions of a connection.
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
                Verdict::Prompt => Kind::prompt(ANY),
                Verdict::Unmeasured => Kind::unmeasured(ANY),
                Verdict::MayBlock => Kind::blocking(ANY),
                Verdict::Leave(why) => return Err(why),
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
                return Err(GaveUp::Unasked);
            }
            answered(outstanding.answered());
        }
        Ok(())
    }

    pub fn is_between(&self) -> bool {
        self.requests.is_between() && self.replies.is_between()
    }
}
