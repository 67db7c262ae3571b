//! Echo: the reply must equal the request.

use super::{Protocol, Request, SentRequest, Verdict, excerpt, fill_derived};

/// Requests with payloads of one size. Each payload differs from the one before it.
#[derive(Clone, Debug)]
pub struct Echo {
    seed: u64,
    last_number: u32,
    expected: Vec<u8>,
}

impl Echo {
    /// Payloads of `size` bytes (at least 1), derived from `seed`.
    pub fn new(seed: u64, size: usize) -> Echo {
        Echo { seed, last_number: 0, expected: vec![0; size] }
    }
}

impl Protocol for Echo {
    fn draw(&mut self) -> Request {
        self.last_number = self.last_number.wrapping_add(1);
        Request { key: self.last_number, write: false }
    }

    fn encode(&mut self, request: Request, out: &mut Vec<u8>) -> SentRequest {
        let start = out.len();
        out.resize(start + self.expected.len(), 0);
        fill_derived(self.seed, request.key, 0, &mut out[start..]);
        SentRequest { request, version: 0 }
    }

    fn check(&mut self, sent: &SentRequest, reply: &[u8]) -> Verdict {
        let size = self.expected.len();
        if reply.len() < size {
            return Verdict::Incomplete;
        }
        fill_derived(self.seed, sent.request.key, 0, &mut self.expected);
        if reply[..size] == self.expected { Verdict::Right(size) } else { Verdict::Wrong(size) }
    }

    fn explain(&self, sent: &SentRequest, reply: &[u8]) -> String {
        let mut expected = vec![0; self.expected.len()];
        fill_derived(self.seed, sent.request.key, 0, &mut expected);
        format!("sent {}, got {}", excerpt(&expected), excerpt(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_altered_byte_is_detected() {
        let mut echo = Echo::new(7, 21);
        let mut bytes = Vec::new();
        let request = echo.draw();
        let sent = echo.encode(request, &mut bytes);
        assert_eq!(echo.check(&sent, &bytes[..20]), Verdict::Incomplete);
        assert_eq!(echo.check(&sent, &bytes), Verdict::Right(21));
        for index in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[index] ^= 0x10;
            assert_eq!(echo.check(&sent, &altered), Verdict::Wrong(21), "byte {index}");
        }
        let request = echo.draw();
        let other = echo.encode(request, &mut Vec::new());
        assert_eq!(
            echo.check(&other, &bytes),
            Verdict::Wrong(21),
            "the reply to another request should be wrong"
        );
    }
}
