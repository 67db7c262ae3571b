//! Requests to several servers at the same time.

use core::time::Duration;
use std::io;
use std::time::Instant;

use super::server_page::ServerPage;
use crate::status::layout::Request;

/// Interval between checks whether a request was carried out.
const ANSWER_INTERVAL: Duration = Duration::from_millis(2);

/// Sends the same request to several servers, and waits until all have carried it out, for at most `timeout` in
/// total. `false`: the server has not carried out the request yet, and will when it next handles events.
pub fn request_all(pages: &[ServerPage], request: Request, timeout: Duration) -> Vec<io::Result<bool>> {
    let mut answers: Vec<io::Result<bool>> = Vec::with_capacity(pages.len());
    let requested: Vec<io::Result<u64>> = pages.iter().map(|page| page.request(request)).collect();
    let began = Instant::now();
    for (page, requested) in pages.iter().zip(requested) {
        answers.push(requested.and_then(|requested| {
            loop {
                let is_done = page.has_done(requested)?;
                if is_done || began.elapsed() >= timeout {
                    return Ok(is_done);
                }
                std::thread::sleep(ANSWER_INTERVAL);
            }
        }));
    }
    answers
}
