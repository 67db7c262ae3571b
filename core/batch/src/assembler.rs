//! Frames gathered into a batch.

use spillway_transport::Chunk;
use spillway_wire::session::Acknowledge;
use spillway_wire::{Control, HEADER_BYTES, Header, Id, Kind, PAYLOAD_BYTES_MAX};

use crate::records::Records;

/// Gathers frames until somebody takes the batch. Consecutive data of one sender extends its last frame, so a
/// reply written in three pieces costs one header.
#[derive(Debug)]
pub struct Assembler {
    batch: Chunk,
    spare: Option<Chunk>,
    /// Larger buffers are freed once they are empty.
    spare_bytes_max: usize,
    /// The last frame, while it can be extended.
    open: Option<OpenFrame>,
    messages: u64,
    /// Bytes of control messages in the batch.
    control_bytes: usize,
    /// Batches taken so far.
    taken: u64,
    /// Bytes at the front that belong to the link's beginning, which is never sealed.
    preamble: usize,
}

/// Where the latest *credit* and *acknowledge* of a connection are in a batch, and what they say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Updates {
    /// Number of the batch, plus 1.
    batch: u64,
    credit: Option<(usize, u64)>,
    acknowledge: Option<(usize, Acknowledge)>,
}

#[derive(Clone, Copy, Debug)]
struct OpenFrame {
    id: Id,
    kind: Kind,
    start: usize,
    length: usize,
}

/// Default of [`Assembler::keep_at_most`]: a link of many connections fills buffers of this size again at once.
const SPARE_BYTES_MAX: usize = 256 * 1024;

impl Default for Assembler {
    fn default() -> Assembler {
        Assembler::new()
    }
}

impl Assembler {
    /// An empty batch.
    pub fn new() -> Assembler {
        Assembler {
            batch: Chunk::default(),
            spare: None,
            spare_bytes_max: SPARE_BYTES_MAX,
            open: None,
            messages: 0,
            control_bytes: 0,
            taken: 0,
            preamble: 0,
        }
    }

    /// Sets the capacity, in bytes, up to which an empty buffer is kept for reuse; 256 KiB otherwise. There are at most
    /// two. Larger ones are freed, so that one large reply does not hold memory as long as its link lives.
    pub(crate) fn keep_at_most(&mut self, bytes: usize) {
        self.spare_bytes_max = bytes;
    }

    /// Appends a message, or extends the last one if it came from the same sender and this is its continuation
    /// in time.
    pub fn data(&mut self, kind: Kind, id: Id, mut bytes: &[u8]) {
        if let Some(open) = self.open
            && open.id == id
            && open.kind == kind
        {
            let (head, rest) = bytes.split_at(bytes.len().min(PAYLOAD_BYTES_MAX - open.length));
            self.extend(open, head);
            bytes = rest;
        } else {
            self.messages += 1;
        }
        while !bytes.is_empty() {
            self.mark_more(kind, id);
            let (head, rest) = bytes.split_at(bytes.len().min(PAYLOAD_BYTES_MAX));
            let buffer = self.batch.buffer();
            let start = buffer.len();
            buffer.extend_from_slice(&Header { kind, more: false, length: 0, id }.emit());
            self.extend(OpenFrame { id, kind, start, length: 0 }, head);
            bytes = rest;
        }
    }

    /// Appends one frame as it is, `more` bit included: for relaying another link's frames.
    pub fn frame(&mut self, kind: Kind, id: Id, bytes: &[u8], more: bool) {
        self.open = None;
        self.messages += u64::from(!more);
        let length = bytes.len().min(PAYLOAD_BYTES_MAX);
        debug_assert_eq!(length, bytes.len(), "pieces come out of frames");
        let buffer = self.batch.buffer();
        #[expect(clippy::cast_possible_truncation, reason = "at most PAYLOAD_BYTES_MAX")]
        let header = Header { kind, more, length: length as u16, id };
        buffer.extend_from_slice(&header.emit());
        buffer.extend_from_slice(&bytes[..length]);
    }

    /// Appends a control message.
    pub fn control(&mut self, id: Id, control: Control) {
        self.open = None;
        let before = self.batch.len();
        control.emit(id, self.batch.buffer());
        self.control_bytes += self.batch.len() - before;
    }

    /// Appends a control message that somebody else has made. Where the batch has an older *credit* or *acknowledge* of
    /// the same connection, that one is replaced: however often a peer repeats them, a batch has two at most.
    pub(crate) fn update(&mut self, id: Id, control: Control, updates: &mut Updates) {
        if updates.batch != self.taken + 1 {
            *updates = Updates { batch: self.taken + 1, ..Updates::default() };
        }
        let here = self.batch.len();
        match (control, updates.credit, updates.acknowledge) {
            (Control::Credit(limit), Some((at, before)), _) => {
                let limit = limit.max(before);
                updates.credit = Some((at, limit));
                self.replace(at, id, Control::Credit(limit));
            }
            // An answer that is asked for has to come after what was sent before.
            (Control::Acknowledge(told), _, Some((at, before))) if before.answer || !told.answer => {
                let told = Acknowledge {
                    received: told.received.max(before.received),
                    finish_received: told.finish_received || before.finish_received,
                    answer: before.answer,
                };
                updates.acknowledge = Some((at, told));
                self.replace(at, id, Control::Acknowledge(told));
            }
            _ => {
                match control {
                    Control::Credit(limit) => updates.credit = Some((here, limit)),
                    Control::Acknowledge(told) => updates.acknowledge = Some((here, told)),
                    _ => {}
                }
                self.control(id, control);
            }
        }
    }

    /// Overwrites a control message with another one of the same length.
    fn replace(&mut self, at: usize, id: Id, control: Control) {
        let buffer = self.batch.buffer();
        let end = buffer.len();
        control.emit(id, buffer);
        buffer.copy_within(end.., at);
        buffer.truncate(end);
    }

    /// Bytes of control messages that wait in the batch.
    pub(crate) fn control_bytes(&self) -> usize {
        self.control_bytes
    }

    /// Appends bytes that are no frame: a link's preamble.
    pub fn preamble(&mut self, bytes: &[u8]) {
        self.open = None;
        debug_assert_eq!(self.preamble, self.batch.len(), "a link begins before its first frame");
        self.batch.buffer().extend_from_slice(bytes);
        self.preamble = self.batch.len();
    }

    /// Bytes gathered.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Bytes of memory that the batch and the spare buffer take.
    pub fn held(&self) -> usize {
        self.batch.capacity() + self.spare.as_ref().map_or(0, Chunk::capacity)
    }

    /// Whether nothing is gathered.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Data messages appended so far, since the start.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Takes the batch.
    pub fn take(&mut self) -> Chunk {
        (self.open, self.preamble, self.control_bytes) = (None, 0, 0);
        self.taken += 1;
        core::mem::replace(&mut self.batch, self.spare.take().unwrap_or_default())
    }

    /// Takes the batch as it is sent: sealed, if the link is encrypted. The buffer that it was gathered in stays here.
    pub(crate) fn take_for(&mut self, records: Option<&mut Records>) -> Chunk {
        let Some(records) = records else { return self.take() };
        let mut sealed = self.spare.take().unwrap_or_default();
        let (preamble, frames) = self.batch.as_slice().split_at(self.preamble);
        sealed.buffer().extend_from_slice(preamble);
        records.seal(frames, &mut sealed);
        (self.open, self.preamble, self.control_bytes) = (None, 0, 0);
        self.taken += 1;
        if self.batch.capacity() > self.spare_bytes_max {
            self.batch = Chunk::default();
        }
        self.batch.clear();
        sealed
    }

    /// Gives a spent buffer back for reuse.
    pub fn recycle(&mut self, mut chunk: Chunk) {
        chunk.clear();
        if self.spare.is_none() && (1..=self.spare_bytes_max).contains(&chunk.capacity()) {
            self.spare = Some(chunk);
        }
    }

    fn extend(&mut self, mut open: OpenFrame, bytes: &[u8]) {
        open.length += bytes.len();
        let buffer = self.batch.buffer();
        buffer.extend_from_slice(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "callers keep it within PAYLOAD_BYTES_MAX")]
        let length = open.length as u16;
        buffer[open.start + 1..open.start + 3].copy_from_slice(&length.to_be_bytes());
        self.open = Some(open);
    }

    /// A message that goes on in another frame says so in the frame before.
    fn mark_more(&mut self, kind: Kind, id: Id) {
        if let Some(OpenFrame { id: open_id, kind: open_kind, start, length }) = self.open
            && (open_id, open_kind) == (id, kind)
        {
            #[expect(clippy::cast_possible_truncation, reason = "at most PAYLOAD_BYTES_MAX")]
            let header = Header { kind, more: true, length: length as u16, id };
            self.batch.buffer()[start..start + HEADER_BYTES].copy_from_slice(&header.emit());
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use spillway_wire::{Disassembler, Piece};

    use super::*;

    fn frames(chunk: &Chunk) -> Vec<(Header, usize)> {
        let (mut bytes, mut out) = (chunk.as_slice(), Vec::new());
        while let Some(head) = bytes.first_chunk() {
            let header = Header::parse(head).unwrap();
            out.push((header, usize::from(header.length)));
            bytes = &bytes[HEADER_BYTES + usize::from(header.length)..];
        }
        out
    }

    #[test]
    fn consecutive_bytes_of_one_sender_share_a_frame() {
        let mut assembler = Assembler::new();
        assembler.data(Kind::Reply, Id(1), b"VALUE ");
        assembler.data(Kind::Reply, Id(1), b"x\r\n");
        assembler.data(Kind::Reply, Id(2), b"END");
        assembler.data(Kind::Reply, Id(1), b"again");
        assert_eq!(assembler.messages(), 3);
        let lengths: Vec<usize> = frames(&assembler.take()).iter().map(|(_, length)| *length).collect();
        assert_eq!(lengths, [9, 3, 5]);
        assert!(assembler.is_empty());
    }

    #[test]
    fn control_between_keeps_the_order() {
        let mut assembler = Assembler::new();
        assembler.data(Kind::Request, Id(1), b"a");
        assembler.control(Id(1), Control::Finish(1));
        assembler.data(Kind::Request, Id(2), b"b");
        let kinds: Vec<Kind> = frames(&assembler.take()).iter().map(|(header, _)| header.kind).collect();
        assert_eq!(kinds, [Kind::Request, Kind::Finish, Kind::Request]);
    }

    #[test]
    fn repeated_updates_take_the_place_of_older_ones() {
        let (mut assembler, mut updates, mut other) =
            (Assembler::new(), Updates::default(), Updates::default());
        let acknowledge =
            |received, answer| Control::Acknowledge(Acknowledge { received, finish_received: false, answer });
        for round in 0..1000 {
            assembler.update(Id(1), Control::Credit(round), &mut updates);
            assembler.update(Id(1), acknowledge(round, round % 2 == 0), &mut updates);
            assembler.update(Id(2), Control::Credit(1), &mut other);
            assembler.data(Kind::Request, Id(2), b"x");
        }
        assert!(assembler.control_bytes() < 100, "{}", assembler.control_bytes());
        let chunk = assembler.take();
        assert_eq!(assembler.control_bytes(), 0);
        let (mut input, mut disassembler, mut said) = (chunk.as_slice(), Disassembler::new(), Vec::new());
        while let Some(piece) = disassembler.next(&mut input).unwrap() {
            if let Piece::Control { id: Id(1), control } = piece {
                said.push(control);
            }
        }
        assert_eq!(said, [Control::Credit(999), acknowledge(999, true)]);
        // The next batch has its own.
        assembler.update(Id(1), Control::Credit(7), &mut updates);
        assert_eq!(frames(&assembler.take()).len(), 1);
    }

    #[test]
    fn an_answer_is_asked_for_after_what_was_sent_before() {
        let (mut assembler, mut updates) = (Assembler::new(), Updates::default());
        let told = Acknowledge { received: 5, finish_received: false, answer: false };
        assembler.update(Id(1), Control::Acknowledge(told), &mut updates);
        assembler.data(Kind::Request, Id(1), b"x");
        assembler.update(Id(1), Control::Acknowledge(Acknowledge { answer: true, ..told }), &mut updates);
        let kinds: Vec<Kind> = frames(&assembler.take()).iter().map(|(header, _)| header.kind).collect();
        assert_eq!(kinds, [Kind::Acknowledge, Kind::Request, Kind::Acknowledge]);
    }

    #[test]
    fn a_long_message_is_continued() {
        let bytes = vec![7; PAYLOAD_BYTES_MAX * 2 + 10];
        let mut assembler = Assembler::new();
        assembler.data(Kind::Request, Id(3), &bytes[..100]);
        assembler.data(Kind::Request, Id(3), &bytes[100..]);
        let chunk = assembler.take();
        let shape: Vec<(bool, usize)> = frames(&chunk).iter().map(|(h, length)| (h.more, *length)).collect();
        assert_eq!(shape, [(true, PAYLOAD_BYTES_MAX), (true, PAYLOAD_BYTES_MAX), (false, 10)]);
        let (mut joined, mut input) = (Vec::new(), chunk.as_slice());
        let mut disassembler = Disassembler::new();
        while let Some(Piece::Data { bytes, .. }) = disassembler.next(&mut input).unwrap() {
            joined.extend_from_slice(bytes);
        }
        assert_eq!(joined, bytes);
    }

    #[test]
    fn a_large_spent_buffer_is_not_kept() {
        let mut assembler = Assembler::new();
        assembler.recycle(Chunk::with_capacity(SPARE_BYTES_MAX + 1));
        assert!(assembler.spare.is_none());
        assembler.recycle(Chunk::with_capacity(1024));
        assert!(assembler.spare.is_some());
    }
}
