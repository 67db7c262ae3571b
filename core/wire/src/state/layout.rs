//! Head, data and checksum around the fields of a state: version 2, which is written, and version 1, which is only read.

use alloc::vec::Vec;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::connection::ConnectionState;
use super::error::StateError;
use super::features::Features;
use super::fields::{Data, Reader, Writer};
use crate::cursor::Cursor;
use crate::{Bytes, Chunks};

const MAGIC: [u8; 8] = *b"SPWYCONN";
const VERSION_1: u8 = 1;
const VERSION_2: u8 = 2;
/// Magic, version and three reserved bytes, in all versions.
const BEGIN_BYTES: usize = 12;
/// The beginning, and the length of the fields.
const HEAD_1_BYTES: usize = BEGIN_BYTES + 4;
/// The beginning, the features that a reader must know, the length of the fields and that of the data.
const HEAD_2_BYTES: usize = BEGIN_BYTES + 12;
const CHECKSUM_BYTES: usize = 8;
/// Memory for the fields of a state with few segments in flight, in bytes.
const FIELDS_BYTES: usize = 1024;

impl ConnectionState {
    /// The state as bytes, in version 2. Copies no queued bytes: the chunks share the memory of the state.
    pub fn encode(&self) -> Chunks {
        let mut fields = Vec::with_capacity(FIELDS_BYTES);
        fields.extend_from_slice(&MAGIC);
        fields.extend_from_slice(&[VERSION_2, 0, 0, 0]);
        fields.extend_from_slice(&self.needs().bits().to_be_bytes());
        fields.extend_from_slice(&[0; 8]);
        let mut writer = Writer { fields, data: Chunks::new() };
        self.write(&mut writer);
        let Writer { mut fields, data } = writer;
        let lengths = [fields.len() - HEAD_2_BYTES, data.len()];
        for (at, length) in [HEAD_2_BYTES - 8, HEAD_2_BYTES - 4].into_iter().zip(lengths) {
            let length = u32::try_from(length).unwrap_or(u32::MAX); // states are far below 4 GiB
            fields[at..at + 4].copy_from_slice(&length.to_be_bytes());
        }
        let mut all = Chunks::from(fields);
        all.append(&data);
        let checksum = checksum(all.chunks().iter().map(|chunk| &chunk[..]));
        all.push(Bytes::copy_from_slice(&checksum.to_be_bytes()));
        all
    }

    /// Appends a copy of the encoded state to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let encoded = self.encode();
        out.reserve(encoded.len());
        encoded.chunks().iter().for_each(|chunk| out.extend_from_slice(chunk));
    }

    /// Reads an encoded state. Copies no queued bytes of version 2: the state shares the memory of `bytes`.
    ///
    /// # Errors
    /// The bytes are malformed or altered, of an unknown version, or need an unknown feature.
    pub fn decode(bytes: &Chunks) -> Result<ConnectionState, StateError> {
        let begin = bytes.get(0..BEGIN_BYTES).ok_or(StateError::Truncated)?;
        let (magic, version) = begin.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(StateError::Magic);
        }
        match version {
            &[VERSION_1, ..] => decode_version_1(bytes),
            &[VERSION_2, ..] => decode_version_2(bytes),
            &[version, ..] => Err(StateError::Version(version)),
            [] => Err(StateError::Truncated),
        }
    }

    /// Reads an encoded state from a copy of the bytes, which it must fill.
    ///
    /// # Errors
    /// Those of [`decode`](Self::decode).
    pub fn parse(bytes: &[u8]) -> Result<ConnectionState, StateError> {
        ConnectionState::decode(&Chunks::from(bytes))
    }
}

fn decode_version_1(bytes: &Chunks) -> Result<ConnectionState, StateError> {
    let head = bytes.get(0..HEAD_1_BYTES).ok_or(StateError::Truncated)?;
    let fields_bytes = Cursor::new(&head[BEGIN_BYTES..]).u32()? as usize;
    let end = HEAD_1_BYTES.saturating_add(fields_bytes);
    check_frame(bytes, &head, end)?;
    let fields = bytes.get(HEAD_1_BYTES..end).ok_or(StateError::Truncated)?;
    read(&fields, Data::Inline)
}

fn decode_version_2(bytes: &Chunks) -> Result<ConnectionState, StateError> {
    let head = bytes.get(0..HEAD_2_BYTES).ok_or(StateError::Truncated)?;
    let mut numbers = Cursor::new(&head[BEGIN_BYTES..]);
    let needs = Features::from_bits(numbers.u32()?);
    let (fields_bytes, data_bytes) = (numbers.u32()? as usize, numbers.u32()? as usize);
    let fields_end = HEAD_2_BYTES.saturating_add(fields_bytes);
    let end = fields_end.saturating_add(data_bytes);
    check_frame(bytes, &head, end)?;
    let unknown = needs.without(Features::KNOWN);
    if !unknown.is_empty() {
        return Err(StateError::Features(unknown));
    }
    let fields = bytes.get(HEAD_2_BYTES..fields_end).ok_or(StateError::Truncated)?;
    let state = read(&fields, Data::Behind { all: bytes, at: fields_end, end })?;
    if state.needs() == needs { Ok(state) } else { Err(StateError::Field("needed features")) }
}

/// Checks the length, the checksum, which follows `end` bytes, and the reserved bytes of the head.
fn check_frame(bytes: &Chunks, head: &[u8], end: usize) -> Result<(), StateError> {
    let checked = bytes.slices(0..end).ok_or(StateError::Truncated)?;
    let stored = bytes.get(end..end.saturating_add(CHECKSUM_BYTES)).ok_or(StateError::Truncated)?;
    if bytes.len() != end + CHECKSUM_BYTES {
        return Err(StateError::Length);
    }
    if Cursor::new(&stored).u64()? != checksum(checked) {
        return Err(StateError::Checksum);
    }
    if head[MAGIC.len() + 1..BEGIN_BYTES] != [0; 3] {
        return Err(StateError::Field("reserved bytes"));
    }
    Ok(())
}

fn read(fields: &[u8], data: Data<'_>) -> Result<ConnectionState, StateError> {
    let mut reader = Reader::new(fields, data);
    let state = ConnectionState::read(&mut reader)?;
    if reader.is_empty() { Ok(state) } else { Err(StateError::Length) }
}

/// XXH3 of all bytes. Hashes a single slice without the hasher's buffer, whose set-up takes as long as hashing a small state.
fn checksum<'a>(mut slices: impl Iterator<Item = &'a [u8]>) -> u64 {
    let first = slices.next().unwrap_or_default();
    let Some(second) = slices.next() else { return xxh3_64(first) };
    let mut hasher = Xxh3::new();
    [first, second].into_iter().chain(slices).for_each(|slice| hasher.update(slice));
    hasher.digest()
}
