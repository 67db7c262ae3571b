//! Any protocol whose clients wait for each reply before the next request. A request is the first byte that a client
//! sends while no request waits, and its reply is the first byte from the server. Pipelined requests count as one.

use spillway_transport::Time;

use crate::outstanding::{Kind, Outstanding};
use crate::stop_reason::StopReason;

pub(crate) fn requests(now: Time, bytes: &[u8], outstanding: &mut Outstanding) -> Result<(), StopReason> {
    if !bytes.is_empty() && outstanding.first().is_none() {
        outstanding.push(now, Kind::prompt(0))?;
    }
    Ok(())
}

pub(crate) fn replies(bytes: &[u8], outstanding: &mut Outstanding, mut answered: impl FnMut(Option<Time>)) {
    // Bytes from the server while no request waits are a greeting or the rest of a reply.
    if !bytes.is_empty() && outstanding.first().is_some() {
        answered(outstanding.take_answered());
    }
}
