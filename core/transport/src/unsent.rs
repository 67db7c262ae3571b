//! What a socket has not taken yet of a row of chunks.

use crate::Chunk;

/// A chunk, if there is one, of which a socket may have taken a part. The next one comes when all of it is gone.
#[derive(Debug, Default)]
pub struct Unsent(Chunk);

impl Unsent {
    /// Whether nothing waits here.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that wait here.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes of memory that they take.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Gives a socket all there is, until it takes no more.
    ///
    /// `next` returns what comes after a chunk, which it gets back for reuse; at first that is an empty one. `send` returns
    /// how many bytes the socket took, and is asked again even after `Some(0)` (a signal came); `None` says that the socket
    /// takes no more for now.
    ///
    /// # Errors
    /// Those of `send`. What was not sent stays here.
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

    /// The same with a transport, whose `send` returns how many of these bytes it took.
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
            Err(never) => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn chunks() -> impl FnMut(Chunk) -> Option<Chunk> {
        let mut left = [b"abcdef".as_slice(), b"ghi"].into_iter();
        move |spent| {
            assert!(spent.is_empty());
            left.next().map(|bytes| Chunk::from(Vec::from(bytes)))
        }
    }

    #[test]
    fn chunks_go_in_order_whatever_the_socket_takes_at_a_time() {
        for most in 1..=10 {
            let (mut unsent, mut next, mut got) = (Unsent::default(), chunks(), Vec::new());
            for room in 0..30 {
                let mut room = room % 5;
                unsent.send_all_to(&mut next, |bytes| {
                    let taken = bytes.len().min(most).min(room);
                    room -= taken;
                    got.extend_from_slice(&bytes[..taken]);
                    taken
                });
            }
            assert_eq!(
                (got.as_slice(), unsent.is_empty(), unsent.len()),
                (b"abcdefghi".as_slice(), true, 0),
                "{most}"
            );
        }
    }

    #[test]
    fn a_transport_that_took_less_is_not_asked_again() {
        let (mut unsent, mut calls) = (Unsent::default(), 0);
        unsent.send_all_to(chunks(), |_| {
            calls += 1;
            2
        });
        assert_eq!((calls, unsent.len()), (1, 4));
    }

    #[test]
    fn what_a_broken_socket_did_not_take_stays() {
        let mut unsent = Unsent::default();
        let mut calls = 0;
        let outcome = unsent.send_all(chunks(), |_| {
            calls += 1;
            if calls == 1 { Ok(Some(4)) } else { Err("broken") }
        });
        assert_eq!((outcome, unsent.len()), (Err("broken"), 2));
    }
}
