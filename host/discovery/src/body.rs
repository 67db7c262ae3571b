//! How the body of an HTTP answer comes (RFC 9112, §6 and §7.1).

/// A body, as far as it has come.
#[derive(Debug)]
pub(crate) struct Body {
    state: State,
}

#[derive(Debug)]
enum State {
    /// So many bytes are to come.
    Rest(u64),
    /// Everything until the connection ends.
    UntilEnd,
    /// The next chunk's size is to come.
    Size,
    /// So many bytes of a chunk are to come.
    Chunk(u64),
    /// The end of line after a chunk is to come.
    ChunkEnd,
    /// Trailers may follow: nobody reads them.
    Complete,
}

/// It is none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Body {
    pub(crate) fn of_length(bytes: u64) -> Body {
        Body { state: State::Rest(bytes) }
    }

    pub(crate) fn until_end() -> Body {
        Body { state: State::UntilEnd }
    }

    pub(crate) fn chunked() -> Body {
        Body { state: State::Size }
    }

    /// Whether no more is to come.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete | State::Rest(0))
    }

    /// Whether the connection may end here.
    pub(crate) fn may_end(&self) -> bool {
        self.is_complete() || matches!(self.state, State::UntilEnd)
    }

    /// Moves what can be understood of `raw` to `decoded`.
    pub(crate) fn decode(&mut self, raw: &mut Vec<u8>, decoded: &mut Vec<u8>) -> Result<(), Malformed> {
        let mut at = 0;
        loop {
            let rest = &raw[at..];
            match &mut self.state {
                State::UntilEnd => {
                    decoded.extend_from_slice(rest);
                    at = raw.len();
                    break;
                }
                State::Rest(left) => {
                    at += take(rest, left, decoded);
                    break;
                }
                State::Chunk(left) => {
                    at += take(rest, left, decoded);
                    if *left > 0 {
                        break;
                    }
                    self.state = State::ChunkEnd;
                }
                State::ChunkEnd => {
                    let Some(end) = rest.get(..2) else { break };
                    if end != b"\r\n" {
                        return Err(Malformed);
                    }
                    at += 2;
                    self.state = State::Size;
                }
                State::Size => match httparse::parse_chunk_size(rest) {
                    Ok(httparse::Status::Complete((length, size))) => {
                        at += length;
                        self.state = if size > 0 { State::Chunk(size) } else { State::Complete };
                    }
                    // Extensions are short, if there are any.
                    Ok(httparse::Status::Partial) if rest.len() <= 1024 => break,
                    _ => return Err(Malformed),
                },
                State::Complete => {
                    at = raw.len();
                    break;
                }
            }
        }
        raw.drain(..at);
        Ok(())
    }
}

fn take(rest: &[u8], left: &mut u64, decoded: &mut Vec<u8>) -> usize {
    let bytes = usize::try_from(*left).map_or(rest.len(), |left| left.min(rest.len()));
    decoded.extend_from_slice(&rest[..bytes]);
    *left -= bytes as u64;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_may_be_cut_anywhere(text in "[a-z\r\n]{0,200}", size in 1_usize..50, cut in 1_usize..20) {
            let mut sent = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                sent.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                sent.extend_from_slice(chunk);
                sent.extend_from_slice(b"\r\n");
            }
            sent.extend_from_slice(b"0\r\nTrailer: x\r\n\r\n");
            let (mut body, mut raw, mut decoded) = (Body::chunked(), Vec::new(), Vec::new());
            for piece in sent.chunks(cut) {
                raw.extend_from_slice(piece);
                body.decode(&mut raw, &mut decoded).unwrap();
            }
            prop_assert_eq!(decoded, text.as_bytes());
            prop_assert!(body.is_complete() && raw.is_empty());
        }

        #[test]
        fn any_bytes_are_taken_or_refused(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20)) {
            let (mut body, mut raw, mut decoded) = (Body::chunked(), Vec::new(), Vec::new());
            for piece in pieces {
                raw.extend_from_slice(&piece);
                if body.decode(&mut raw, &mut decoded).is_err() {
                    break;
                }
                prop_assert!(raw.len() <= 1024 + 50);
            }
        }
    }
}
