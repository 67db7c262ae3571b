use crate::Chunk;

/// The unsent rest of a chunk. The next chunk follows when all of this one is sent.
#[derive(Debug, Default)]
pub struct Unsent(Chunk);

impl Unsent {
    /// Whether no unsent bytes are left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of unsent bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Allocated size in bytes.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Sends chunks until a socket takes no more. `next` takes back a sent chunk (at first an empty one) and returns
    /// the next one. `send` returns the number of bytes that the socket took, or `None` if the socket takes no more for
    /// now. `Some(0)`, for example after EINTR, makes this function call `send` again. On an error of `send`, unsent
    /// bytes are kept.
    pub fn send_all<E>(
        &mut self,
        mut next: impl FnMut(Chunk) -> Option<Chunk>,
        mut send: impl FnMut(&[u8]) -> Result<Option<usize>, E>,
    ) -> Result<(), E> {
        loop {
            if self.0.is_empty() {
                match next(core::mem::take(&mut self.0)) {
                    Some(chunk) => self.0 = chunk,
                    None => return Ok(()),
                }
            }
            match send(self.0.as_slice())? {
                Some(taken) => self.0.advance(taken),
                None => return Ok(()),
            }
        }
    }

    /// As [`send_all`](Self::send_all) for a transport, whose `send` returns the number of bytes that it took.
    pub fn send_all_to(
        &mut self,
        next: impl FnMut(Chunk) -> Option<Chunk>,
        mut send: impl FnMut(&[u8]) -> usize,
    ) {
        let mut is_full = false;
        let outcome = self.send_all(next, |bytes| {
            if is_full {
                return Ok::<_, core::convert::Infallible>(None);
            }
            let taken = send(bytes);
            is_full = taken < bytes.len();
            Ok(Some(taken))
        });
        match outcome {
            Ok(()) => {}
            Err(error) => match error {},
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn chunks() -> impl FnMut(Chunk) -> Option<Chunk> {
        let mut chunks = [b"abcdef".as_slice(), b"ghi"].into_iter();
        move |sent| {
            assert!(sent.is_empty(), "nothing should be sent twice");
            chunks.next().map(|bytes| Chunk::from(Vec::from(bytes)))
        }
    }

    #[test]
    fn chunks_are_sent_in_order_when_the_socket_takes_few_bytes() {
        for send_bytes_max in 1..=10 {
            let (mut unsent, mut next, mut sent_bytes) = (Unsent::default(), chunks(), Vec::new());
            for room in 0..30 {
                let mut room = room % 5;
                unsent.send_all_to(&mut next, |bytes| {
                    let taken = bytes.len().min(send_bytes_max).min(room);
                    room -= taken;
                    sent_bytes.extend_from_slice(&bytes[..taken]);
                    taken
                });
            }
            assert_eq!(
                (sent_bytes.as_slice(), unsent.is_empty(), unsent.len()),
                (b"abcdefghi".as_slice(), true, 0),
                "all chunks should be sent in order with at most {send_bytes_max} bytes in one send"
            );
        }
    }

    #[test]
    fn send_is_not_called_again_after_a_short_send() {
        let (mut unsent, mut calls) = (Unsent::default(), 0);
        unsent.send_all_to(chunks(), |_| {
            calls += 1;
            2
        });
        assert_eq!((calls, unsent.len()), (1, 4), "one short send should leave four bytes");
    }

    #[test]
    fn unsent_bytes_are_kept_after_an_error() {
        let mut unsent = Unsent::default();
        let mut calls = 0;
        let outcome = unsent.send_all(chunks(), |_| {
            calls += 1;
            if calls == 1 { Ok(Some(4)) } else { Err("broken") }
        });
        assert_eq!((outcome, unsent.len()), (Err("broken"), 2));
    }
}
