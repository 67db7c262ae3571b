//! The time to parse a request, alone.

use crate::experiments::moves::thread_cpu;

use super::targets::example;

/// As many fields as the server permits.
const FIELDS_MAX: usize = 64;

/// Mean CPU time of the server's parser for a request, in µs.
pub(super) fn measure(requests: usize) -> Result<f64, String> {
    let request = example();
    let start = thread_cpu::own();
    for _ in 0..requests {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Request::new(&mut fields);
        match parsed.parse(std::hint::black_box(&request)) {
            Ok(httparse::Status::Complete(bytes)) if bytes == request.len() => {}
            other => return Err(format!("the parser does not take the request: {other:?}")),
        }
    }
    Ok(thread_cpu::own().saturating_sub(start).as_nanos() as f64 / 1000.0 / requests as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_parsed_completely() {
        assert!(measure(100).unwrap() > 0.0);
    }
}
