use spillway_transport::Chunk;
use spillway_wire::session::Acknowledge;
use spillway_wire::{Control, HEADER_BYTES, Header, Id, Kind, PAYLOAD_BYTES_MAX};

use crate::records::Records;

/// Gathers frames until the batch is taken. Consecutive data of one connection extends its last frame, so a reply
/// written in three pieces costs one header.
#[derive(Debug)]
pub struct Assembler {
    batch: Chunk,
    spare: Option<Chunk>,
    /// Empty buffers of a larger capacity are freed.
    spare_bytes_max: usize,
    /// The last frame, while it can be extended.
    open: Option<OpenFrame>,
    messages: u64,
    control_bytes: usize,
    batches_taken: u64,
    /// Bytes of the preamble at the front. They are never encrypted.
    preamble_bytes: usize,
}

/// Offset and content of one connection's latest *credit* and *acknowledge* in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Updates {
    /// Number of the batch, counted from 1; 0: none yet.
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

/// Default of [`Assembler::set_spare_bytes_max`]: a link of many connections soon fills buffers of this size again.
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
            batches_taken: 0,
            preamble_bytes: 0,
        }
    }

    /// Sets the capacity, in bytes, up to which each of the two empty buffers is kept for reuse; 256 KiB by default.
    /// Larger buffers are freed, so that one large reply does not hold memory until its link ends.
    pub(crate) fn set_spare_bytes_max(&mut self, bytes: usize) {
        self.spare_bytes_max = bytes;
    }

    /// Appends a message, or extends the last frame if that is of the same connection and kind.
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

    /// Appends one frame of another link unchanged, `more` bit included.
    pub fn frame(&mut self, kind: Kind, id: Id, bytes: &[u8], more: bool) {
        self.open = None;
        self.messages += u64::from(!more);
        let length = bytes.len().min(PAYLOAD_BYTES_MAX);
        debug_assert_eq!(length, bytes.len(), "a piece should fit into one frame");
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

    /// Appends a relayed control message. A *credit* or *acknowledge* replaces the connection's older one in this
    /// batch, so a peer that repeats them adds at most one *credit* and two *acknowledge*.
    pub(crate) fn update(&mut self, id: Id, control: Control, updates: &mut Updates) {
        if updates.batch != self.batches_taken + 1 {
            *updates = Updates { batch: self.batches_taken + 1, ..Updates::default() };
        }
        let offset = self.batch.len();
        match (control, updates.credit, updates.acknowledge) {
            (Control::Credit(limit), Some((older_offset, older_limit)), _) => {
                let limit = limit.max(older_limit);
                updates.credit = Some((older_offset, limit));
                self.replace(older_offset, id, Control::Credit(limit));
            }
            // An *acknowledge* that requests an answer must stay behind the data that was sent before it.
            (Control::Acknowledge(acknowledge), _, Some((older_offset, older)))
                if older.requests_answer || !acknowledge.requests_answer =>
            {
                let acknowledge = Acknowledge {
                    received: acknowledge.received.max(older.received),
                    finish_received: acknowledge.finish_received || older.finish_received,
                    requests_answer: older.requests_answer,
                };
                updates.acknowledge = Some((older_offset, acknowledge));
                self.replace(older_offset, id, Control::Acknowledge(acknowledge));
            }
            _ => {
                match control {
                    Control::Credit(limit) => updates.credit = Some((offset, limit)),
                    Control::Acknowledge(acknowledge) => updates.acknowledge = Some((offset, acknowledge)),
                    _ => {}
                }
                self.control(id, control);
            }
        }
    }

    fn replace(&mut self, offset: usize, id: Id, control: Control) {
        let buffer = self.batch.buffer();
        let end = buffer.len();
        control.emit(id, buffer);
        buffer.copy_within(end.., offset);
        buffer.truncate(end);
    }

    pub(crate) fn control_bytes(&self) -> usize {
        self.control_bytes
    }

    /// Appends a part of the link's preamble, before all frames.
    pub fn preamble(&mut self, bytes: &[u8]) {
        self.open = None;
        debug_assert_eq!(
            self.preamble_bytes,
            self.batch.len(),
            "the preamble should be sent before the first frame"
        );
        self.batch.buffer().extend_from_slice(bytes);
        self.preamble_bytes = self.batch.len();
    }

    /// Length of the batch in bytes.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Bytes of memory of the two buffers.
    pub fn held(&self) -> usize {
        self.batch.capacity() + self.spare.as_ref().map_or(0, Chunk::capacity)
    }

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Data messages appended since the start, over all batches.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Takes the batch.
    pub fn take(&mut self) -> Chunk {
        (self.open, self.preamble_bytes, self.control_bytes) = (None, 0, 0);
        self.batches_taken += 1;
        core::mem::replace(&mut self.batch, self.spare.take().unwrap_or_default())
    }

    /// Takes the batch, sealed if the link is encrypted. The buffer with the plain frames is kept.
    pub(crate) fn take_for(&mut self, records: Option<&mut Records>) -> Chunk {
        let Some(records) = records else { return self.take() };
        let mut sealed = self.spare.take().unwrap_or_default();
        let (preamble, frames) = self.batch.as_slice().split_at(self.preamble_bytes);
        sealed.buffer().extend_from_slice(preamble);
        records.seal(frames, &mut sealed);
        (self.open, self.preamble_bytes, self.control_bytes) = (None, 0, 0);
        self.batches_taken += 1;
        if self.batch.capacity() > self.spare_bytes_max {
            self.batch = Chunk::default();
        }
        self.batch.clear();
        sealed
    }

    /// Gives a sent batch's buffer back for reuse.
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

    /// Sets the `more` bit of the last frame if its message continues in another one.
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
    fn consecutive_data_of_one_connection_shares_a_frame() {
        let mut assembler = Assembler::new();
        assembler.data(Kind::Reply, Id(1), b"VALUE ");
        assembler.data(Kind::Reply, Id(1), b"x\r\n");
        assembler.data(Kind::Reply, Id(2), b"END");
        assembler.data(Kind::Reply, Id(1), b"again");
        assert_eq!(assembler.messages(), 3);
        let lengths: Vec<usize> = frames(&assembler.take()).iter().map(|(_, length)| *length).collect();
        assert_eq!(lengths, [9, 3, 5]);
        assert!(assembler.is_empty(), "the assembler should be empty after its batch is taken");
    }

    #[test]
    fn control_messages_and_data_keep_their_order() {
        let mut assembler = Assembler::new();
        assembler.data(Kind::Request, Id(1), b"a");
        assembler.control(Id(1), Control::Finish(1));
        assembler.data(Kind::Request, Id(2), b"b");
        let kinds: Vec<Kind> = frames(&assembler.take()).iter().map(|(header, _)| header.kind).collect();
        assert_eq!(kinds, [Kind::Request, Kind::Finish, Kind::Request]);
    }

    #[test]
    fn repeated_updates_replace_earlier_ones_in_a_batch() {
        let (mut assembler, mut updates, mut other) =
            (Assembler::new(), Updates::default(), Updates::default());
        let acknowledge = |received, answer| {
            Control::Acknowledge(Acknowledge { received, finish_received: false, requests_answer: answer })
        };
        for round in 0..1000 {
            assembler.update(Id(1), Control::Credit(round), &mut updates);
            assembler.update(Id(1), acknowledge(round, round % 2 == 0), &mut updates);
            assembler.update(Id(2), Control::Credit(1), &mut other);
            assembler.data(Kind::Request, Id(2), b"x");
        }
        // Two *credit* frames of 15 bytes and two *acknowledge* frames of 16, instead of 46,000 bytes.
        assert!(
            assembler.control_bytes() < 100,
            "repeated updates should not add up: {} bytes",
            assembler.control_bytes()
        );
        let chunk = assembler.take();
        assert_eq!(assembler.control_bytes(), 0);
        let (mut input, mut disassembler, mut updates_sent) =
            (chunk.as_slice(), Disassembler::new(), Vec::new());
        while let Some(piece) = disassembler.next(&mut input).unwrap() {
            if let Piece::Control { id: Id(1), control } = piece {
                updates_sent.push(control);
            }
        }
        assert_eq!(updates_sent, [Control::Credit(999), acknowledge(999, true)]);
        // Updates of the previous batch are not replaced.
        assembler.update(Id(1), Control::Credit(7), &mut updates);
        assert_eq!(frames(&assembler.take()).len(), 1);
    }

    #[test]
    fn an_acknowledge_that_requests_an_answer_stays_behind_earlier_data() {
        let (mut assembler, mut updates) = (Assembler::new(), Updates::default());
        let acknowledge = Acknowledge { received: 5, finish_received: false, requests_answer: false };
        assembler.update(Id(1), Control::Acknowledge(acknowledge), &mut updates);
        assembler.data(Kind::Request, Id(1), b"x");
        assembler.update(
            Id(1),
            Control::Acknowledge(Acknowledge { requests_answer: true, ..acknowledge }),
            &mut updates,
        );
        let kinds: Vec<Kind> = frames(&assembler.take()).iter().map(|(header, _)| header.kind).collect();
        assert_eq!(kinds, [Kind::Acknowledge, Kind::Request, Kind::Acknowledge]);
    }

    #[test]
    fn a_long_message_is_split_into_frames() {
        let bytes = vec![7; PAYLOAD_BYTES_MAX * 2 + 10];
        let mut assembler = Assembler::new();
        assembler.data(Kind::Request, Id(3), &bytes[..100]);
        assembler.data(Kind::Request, Id(3), &bytes[100..]);
        let chunk = assembler.take();
        let flags_and_lengths: Vec<(bool, usize)> =
            frames(&chunk).iter().map(|(header, length)| (header.more, *length)).collect();
        assert_eq!(flags_and_lengths, [(true, PAYLOAD_BYTES_MAX), (true, PAYLOAD_BYTES_MAX), (false, 10)]);
        let (mut joined, mut input) = (Vec::new(), chunk.as_slice());
        let mut disassembler = Disassembler::new();
        while let Some(Piece::Data { bytes, .. }) = disassembler.next(&mut input).unwrap() {
            joined.extend_from_slice(bytes);
        }
        assert_eq!(joined, bytes);
    }

    #[test]
    fn a_large_buffer_is_not_kept_for_reuse() {
        let mut assembler = Assembler::new();
        assembler.recycle(Chunk::with_capacity(SPARE_BYTES_MAX + 1));
        assert!(assembler.spare.is_none(), "a large buffer should not be kept");
        assembler.recycle(Chunk::with_capacity(1024));
        assert!(assembler.spare.is_some(), "a small buffer should be kept");
    }
}
