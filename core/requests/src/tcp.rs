//! Any protocol: a request is the first byte that is sent while nothing waits, its reply is the first byte that comes back.
//!
//! Right for clients that ask and await the answer. What is pipelined counts as one request.

use spillway_transport::Time;

use crate::gave_up::GaveUp;
use crate::outstanding::{Kind, Outstanding};

pub(crate) fn requests(now: Time, bytes: &[u8], outstanding: &mut Outstanding) -> Result<(), GaveUp> {
    if !bytes.is_empty() && outstanding.first().is_none() {
        outstanding.push(now, Kind::prompt(0))?;
    }
    Ok(())
}

pub(crate) fn replies(bytes: &[u8], outstanding: &mut Outstanding, mut answered: impl FnMut(Option<Time>)) {
    // What comes unasked is a greeting, or the rest of a reply.
    if !bytes.is_empty() && outstanding.first().is_some() {
        answered(outstanding.answered());
    }
}
