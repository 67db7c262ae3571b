//! Splits a link's stream into pieces of data and control messages. The stream may arrive in segments of any size.
//!
//! Data is returned in pieces that borrow from the input. Only an incomplete header or control message is buffered: at
//! most [`CONTROL_BYTES_MAX`] bytes.

use core::fmt;

use crate::control::Control;
use crate::error::ControlError;
use crate::frame::{CONTROL_BYTES_MAX, HEADER_BYTES, Header, Id, Kind, UnknownKind};

/// One piece of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Data of a message.
    Data {
        /// [`Kind::Request`] or [`Kind::Reply`].
        kind: Kind,
        /// The virtual connection.
        id: Id,
        /// Payload of one frame or part of it, never empty.
        bytes: &'a [u8],
        /// Whether the message ends with this piece: the piece ends a frame without the *more* bit.
        last: bool,
    },
    /// A control message.
    Control {
        /// The virtual connection, or [`Id::LINK`].
        id: Id,
        /// The message.
        control: Control,
    },
}

/// The stream is not a sequence of frames. The rest of it cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisassembleError {
    /// The kind in the first byte of a header is unknown.
    UnknownKind(u8),
    /// A data frame has the id of the link, 0.
    DataOnLink,
    /// A control message is malformed.
    Control(ControlError),
}

impl fmt::Display for DisassembleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DisassembleError::UnknownKind(code) => write!(f, "unknown frame kind {code:#04x}"),
            DisassembleError::DataOnLink => {
                f.write_str("a data frame has connection id 0, which denotes the link")
            }
            DisassembleError::Control(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for DisassembleError {}

impl From<ControlError> for DisassembleError {
    fn from(error: ControlError) -> DisassembleError {
        DisassembleError::Control(error)
    }
}

/// Splits one direction of a link into pieces.
#[derive(Clone, Debug)]
pub struct Disassembler {
    state: State,
    /// The first `held` bytes of an incomplete header or control message.
    buffer: [u8; CONTROL_BYTES_MAX],
    held: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    Data { header: Header, left: usize },
    Control { header: Header },
}

impl Default for Disassembler {
    fn default() -> Disassembler {
        Disassembler::new()
    }
}

impl Disassembler {
    /// A disassembler for a link whose handshake is complete.
    pub fn new() -> Disassembler {
        Disassembler { state: State::Header, buffer: [0; CONTROL_BYTES_MAX], held: 0 }
    }

    /// Removes the next piece from the front of `input`. Returns `None` when `input` is used up.
    ///
    /// # Errors
    /// The stream is malformed: close the link.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, DisassembleError> {
        if let Some(piece) = self.take_whole_frame(input) {
            return Ok(Some(piece));
        }
        loop {
            match self.state {
                State::Header => {
                    let Some(header) = self.take_header(input)? else { return Ok(None) };
                    self.state = self.after_header(header)?;
                }
                State::Data { header, left: 0 } => {
                    debug_assert_eq!(header.length, 0, "only an empty frame should have 0 bytes left here");
                    self.state = State::Header;
                }
                State::Data { header, left } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let (bytes, rest) = input.split_at(left.min(input.len()));
                    *input = rest;
                    let left = left - bytes.len();
                    self.state = if left == 0 { State::Header } else { State::Data { header, left } };
                    let last = left == 0 && !header.more;
                    return Ok(Some(Piece::Data { kind: header.kind, id: header.id, bytes, last }));
                }
                State::Control { header } => {
                    let Some(payload) = self.gather(input, usize::from(header.length)) else {
                        return Ok(None);
                    };
                    let control = Control::parse(header.kind, payload)?;
                    self.held = 0;
                    self.state = State::Header;
                    return Ok(Some(Piece::Control { id: header.id, control }));
                }
            }
        }
    }

    /// Fast path for the most common case, a complete data frame. The loop in [`next`](Self::next) gives the same
    /// result.
    #[inline]
    fn take_whole_frame<'a>(&self, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        if !self.is_between_frames() {
            return None;
        }
        let (head, rest) = input.split_first_chunk::<HEADER_BYTES>()?;
        let Header { kind, more, length, id } = Header::parse(head).ok()?;
        if !kind.is_data() || id == Id::LINK || length == 0 {
            return None;
        }
        let (bytes, rest) = rest.split_at_checked(usize::from(length))?;
        *input = rest;
        Some(Piece::Data { kind, id, bytes, last: !more })
    }

    /// Whether the input so far ends between two frames.
    pub fn is_between_frames(&self) -> bool {
        self.held == 0 && matches!(self.state, State::Header)
    }

    fn take_header(&mut self, input: &mut &[u8]) -> Result<Option<Header>, DisassembleError> {
        let parsed = match input.split_first_chunk::<HEADER_BYTES>() {
            Some((bytes, rest)) if self.held == 0 => {
                *input = rest;
                Header::parse(bytes)
            }
            _ => match self.gather(input, HEADER_BYTES).and_then(|bytes| bytes.first_chunk()) {
                None => return Ok(None),
                Some(bytes) => {
                    let parsed = Header::parse(bytes);
                    self.held = 0;
                    parsed
                }
            },
        };
        parsed.map(Some).map_err(|UnknownKind(first)| DisassembleError::UnknownKind(first))
    }

    fn after_header(&self, header: Header) -> Result<State, DisassembleError> {
        if header.kind.is_data() {
            if header.id == Id::LINK {
                return Err(DisassembleError::DataOnLink);
            }
            return Ok(State::Data { header, left: usize::from(header.length) });
        }
        if header.more {
            return Err(ControlError::Continued(header.kind).into());
        }
        if usize::from(header.length) > CONTROL_BYTES_MAX {
            return Err(ControlError::TooLong(header.length).into());
        }
        Ok(State::Control { header })
    }

    /// Moves input to the buffer; returns the buffer's content when it has `length` bytes.
    fn gather(&mut self, input: &mut &[u8], length: usize) -> Option<&[u8]> {
        let (bytes, rest) = input.split_at((length - self.held).min(input.len()));
        self.buffer[self.held..self.held + bytes.len()].copy_from_slice(bytes);
        self.held += bytes.len();
        *input = rest;
        (self.held == length).then(|| &self.buffer[..length])
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::control::{CloseReason, RefuseReason};

    /// A message to send, or a received one with its pieces joined.
    #[derive(Clone, Debug, PartialEq)]
    enum Message {
        Data(Kind, Id, Vec<u8>),
        Control(Id, Control),
    }

    fn emit(messages: &[Message]) -> Vec<u8> {
        let mut out = Vec::new();
        for message in messages {
            match message {
                Message::Data(kind, id, bytes) => {
                    let header = Header { kind: *kind, more: false, length: bytes.len() as u16, id: *id };
                    out.extend_from_slice(&header.emit());
                    out.extend_from_slice(bytes);
                }
                Message::Control(id, control) => control.emit(*id, &mut out),
            }
        }
        out
    }

    /// Disassembles the stream in parts that end at `cuts`, and joins the pieces of each message.
    fn disassemble(stream: &[u8], cuts: &[usize]) -> Result<Vec<Message>, DisassembleError> {
        let mut disassembler = Disassembler::new();
        let mut messages = Vec::new();
        let mut open: Option<(Kind, Id, Vec<u8>)> = None;
        let mut start = 0;
        for end in cuts.iter().map(|cut| cut % (stream.len() + 1)).chain([stream.len()]) {
            let mut input = &stream[start..end.max(start)];
            start = end.max(start);
            while let Some(piece) = disassembler.next(&mut input)? {
                match piece {
                    Piece::Data { kind, id, bytes, last } => {
                        let (_, _, joined) = open.get_or_insert((kind, id, Vec::new()));
                        joined.extend_from_slice(bytes);
                        if last {
                            let (kind, id, joined) = open.take().unwrap();
                            messages.push(Message::Data(kind, id, joined));
                        }
                    }
                    Piece::Control { id, control } => messages.push(Message::Control(id, control)),
                }
            }
            assert!(input.is_empty(), "the disassembler should use up its input");
        }
        Ok(messages)
    }

    fn message() -> impl Strategy<Value = Message> {
        let data = (any::<bool>(), 1..u32::MAX, proptest::collection::vec(any::<u8>(), 1..300)).prop_map(
            |(request, id, bytes)| {
                Message::Data(if request { Kind::Request } else { Kind::Reply }, Id(id), bytes)
            },
        );
        let control = (any::<u32>(), any::<u64>(), 0..6).prop_map(|(id, offset, which)| {
            let control = match which {
                0 => Control::Credit(offset),
                1 => Control::Finish(offset),
                2 => Control::Accepted,
                3 => Control::Refused(RefuseReason::Forbidden),
                4 => Control::Close(CloseReason::Reset),
                _ => Control::Drain { deadline_ms: offset as u32 },
            };
            Message::Control(Id(id), control)
        });
        prop_oneof![3 => data, 1 => control]
    }

    proptest! {
        #[test]
        fn messages_are_independent_of_how_the_stream_is_split(
            messages in proptest::collection::vec(message(), 0..20),
            mut cuts in proptest::collection::vec(any::<usize>(), 0..40),
        ) {
            let stream = emit(&messages);
            cuts.iter_mut().for_each(|cut| *cut %= stream.len() + 1);
            cuts.sort_unstable();
            prop_assert_eq!(disassemble(&stream, &cuts), Ok(messages));
        }

        #[test]
        fn arbitrary_bytes_cause_no_panic_and_no_endless_loop(
            stream in proptest::collection::vec(any::<u8>(), 0..2000),
        ) {
            let mut disassembler = Disassembler::new();
            let mut input = &stream[..];
            let mut pieces = 0;
            while let Ok(Some(_)) = disassembler.next(&mut input) {
                pieces += 1;
                prop_assert!(pieces <= stream.len(), "each piece should need a byte at least");
            }
        }
    }

    fn error_of(stream: &[u8]) -> DisassembleError {
        disassemble(stream, &[]).unwrap_err()
    }

    #[test]
    fn malformed_headers_are_rejected() {
        assert_eq!(error_of(&[0, 0, 0, 0, 0, 0, 1]), DisassembleError::UnknownKind(0));
        assert_eq!(error_of(&[13, 0, 0, 0, 0, 0, 1]), DisassembleError::UnknownKind(13));
        assert_eq!(error_of(&[1, 0, 1, 0, 0, 0, 0]), DisassembleError::DataOnLink);
        assert_eq!(error_of(&[0x84, 0, 0, 0, 0, 0, 1]), ControlError::Continued(Kind::Accepted).into());
        assert_eq!(error_of(&[5, 2, 0, 0, 0, 0, 1]), ControlError::TooLong(512).into());
        assert_eq!(error_of(&[7, 0, 0, 0, 0, 0, 1]), ControlError::Truncated(Kind::Acknowledge).into());
    }

    #[test]
    fn empty_data_frames_are_skipped() {
        let stream = [&[1, 0, 0, 0, 0, 0, 7][..], &[1, 0, 1, 0, 0, 0, 7, b'x']].concat();
        let expected = Message::Data(Kind::Request, Id(7), Vec::from(*b"x"));
        assert_eq!(disassemble(&stream, &[]), Ok(Vec::from([expected])));
    }

    #[test]
    fn a_continued_message_ends_with_its_last_frame() {
        let stream = [&[0x81, 0, 2, 0, 0, 0, 7, b'a', b'b'][..], &[1, 0, 1, 0, 0, 0, 7, b'c']].concat();
        let expected = Message::Data(Kind::Request, Id(7), Vec::from(*b"abc"));
        assert_eq!(disassemble(&stream, &[]), Ok(Vec::from([expected])));
    }
}
