//! Echo: the reply must equal the request.

use super::{Protocol, Request, Sent, Verdict, derive, excerpt};

/// Payloads of one size, each different from the previous one.
#[derive(Clone, Debug)]
pub struct Echo {
    seed: u64,
    next: u32,
    expected: Vec<u8>,
}

impl Echo {
    /// Payloads of `size` bytes (at least 1), derived from `seed`.
    pub fn new(seed: u64, size: usize) -> Echo {
        Echo { seed, next: 0, expected: vec![0; size] }
    }
}

impl Protocol for Echo {
    fn draw(&mut self) -> Request {
        self.next = self.next.wrapping_add(1);
        Request { key: self.next, write: false }
    }

    fn encode(&mut self, request: Request, out: &mut Vec<u8>) -> Sent {
        let start = out.len();
        out.resize(start + self.expected.len(), 0);
        derive(self.seed, request.key, 0, &mut out[start..]);
        Sent { request, version: 0 }
    }

    fn check(&mut self, sent: &Sent, reply: &[u8]) -> Verdict {
        let size = self.expected.len();
        if reply.len() < size {
            return Verdict::Incomplete;
        }
        derive(self.seed, sent.request.key, 0, &mut self.expected);
        if reply[..size] == self.expected { Verdict::Right(size) } else { Verdict::Wrong(size) }
    }

    fn explain(&self, sent: &Sent, reply: &[u8]) -> String {
        let mut expected = vec![0; self.expected.len()];
        derive(self.seed, sent.request.key, 0, &mut expected);
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
        assert_eq!(echo.check(&other, &bytes), Verdict::Wrong(21), "another request's reply");
    }
}
