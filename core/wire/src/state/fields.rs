//! Reads and writes the fields of a state in sequence, and its data: the bytes of queues and of the attachment.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::error::StateError;
use crate::cursor::Cursor;
use crate::{Bytes, Chunks, address};

/// Maximum bytes of one queue. A send buffer is smaller, unless a single chunk exceeds the buffer's limit.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of out-of-order pieces. One range may be exported as two pieces.
pub const RANGES_MAX: usize = 256;

/// The fields and the data written so far. Data stays in the chunks of its owner.
pub(super) struct Writer {
    pub(super) fields: Vec<u8>,
    pub(super) data: Chunks,
}

impl Writer {
    pub(super) fn u8(&mut self, number: u8) {
        self.fields.push(number);
    }

    pub(super) fn u16(&mut self, number: u16) {
        self.fields.extend_from_slice(&number.to_be_bytes());
    }

    pub(super) fn u32(&mut self, number: u32) {
        self.fields.extend_from_slice(&number.to_be_bytes());
    }

    pub(super) fn u64(&mut self, number: u64) {
        self.fields.extend_from_slice(&number.to_be_bytes());
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.u8(u8::from(flag));
    }

    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(super) fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX)); // lengths are far below 4 Gi
    }

    /// Bytes among the fields, after their length.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.fields.extend_from_slice(bytes);
    }

    /// An extension: its number, its length, and its fields. It has no data.
    pub(super) fn extension(&mut self, number: u16, write: impl FnOnce(&mut Self)) {
        self.u16(number);
        let length_at = self.fields.len();
        self.length(0);
        let start = self.fields.len();
        write(self);
        let length = u32::try_from(self.fields.len() - start).unwrap_or(u32::MAX); // some hundred bytes
        self.fields[length_at..start].copy_from_slice(&length.to_be_bytes());
    }

    /// A length; the bytes follow as data.
    pub(super) fn data(&mut self, bytes: &Bytes) {
        self.length(bytes.len());
        self.data.push(bytes.clone());
    }

    /// A length; the bytes follow as data.
    pub(super) fn queue(&mut self, bytes: &Chunks) {
        self.length(bytes.len());
        self.data.append(bytes);
    }

    pub(super) fn address(&mut self, address: SocketAddr) {
        address::emit(Some(address), &mut self.fields);
    }
}

/// Where the bytes of queues are.
pub(super) enum Data<'a> {
    /// Version 1: each directly behind its length.
    Inline,
    /// Since version 2: one after the other, behind all fields. The next one begins at `at` in `all`, the last one ends at
    /// `end`.
    Behind { all: &'a Chunks, at: usize, end: usize },
}

pub(super) struct Reader<'a> {
    fields: Cursor<'a>,
    data: Data<'a>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(fields: &'a [u8], data: Data<'a>) -> Reader<'a> {
        Reader { fields: Cursor::new(fields), data }
    }

    /// Whether all fields and all data were read.
    pub(super) fn is_empty(&self) -> bool {
        let has_all_data = match &self.data {
            Data::Inline => true,
            Data::Behind { at, end, .. } => at == end,
        };
        self.fields.is_empty() && has_all_data
    }

    pub(super) fn u8(&mut self) -> Result<u8, StateError> {
        Ok(self.fields.u8()?)
    }

    pub(super) fn u16(&mut self) -> Result<u16, StateError> {
        Ok(self.fields.u16()?)
    }

    pub(super) fn u32(&mut self) -> Result<u32, StateError> {
        Ok(self.fields.u32()?)
    }

    pub(super) fn u64(&mut self) -> Result<u64, StateError> {
        Ok(self.fields.u64()?)
    }

    pub(super) fn flag(&mut self) -> Result<bool, StateError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(StateError::Field("flag")),
        }
    }

    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, StateError>,
    ) -> Result<Option<T>, StateError> {
        self.flag()?.then(|| read(self)).transpose()
    }

    /// A field that version 1 does not have.
    pub(super) fn since_version_2<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, StateError>,
    ) -> Result<Option<T>, StateError> {
        match self.data {
            Data::Inline => Ok(None),
            Data::Behind { .. } => read(self).map(Some),
        }
    }

    /// A field that is optional since version 2, and always there in version 1.
    pub(super) fn option_since_version_2<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, StateError>,
    ) -> Result<Option<T>, StateError> {
        match self.data {
            Data::Inline => read(self).map(Some),
            Data::Behind { .. } => self.option(read),
        }
    }

    /// Bytes among the fields, after their length.
    pub(super) fn bytes(&mut self, max: usize, what: &'static str) -> Result<&'a [u8], StateError> {
        let length = self.length(max, what)?;
        Ok(self.fields.bytes(length)?)
    }

    /// The bytes of a queue; they share the memory of the data.
    pub(super) fn queue(&mut self, max: usize, what: &'static str) -> Result<Chunks, StateError> {
        let length = self.length(max, what)?;
        match &mut self.data {
            Data::Inline => Ok(Bytes::copy_from_slice(self.fields.bytes(length)?).into()),
            Data::Behind { all, at, end } => {
                let start = *at;
                *at = start.checked_add(length).filter(|next| next <= end).ok_or(StateError::Truncated)?;
                all.slice(start..*at).ok_or(StateError::Truncated)
            }
        }
    }

    /// The bytes of a queue in one chunk: copied if they are in several.
    pub(super) fn data_joined(&mut self, max: usize, what: &'static str) -> Result<Bytes, StateError> {
        let bytes = self.queue(max, what)?;
        bytes.joined(0..bytes.len()).ok_or(StateError::Truncated)
    }

    /// A list of at most `max` elements.
    pub(super) fn list<T>(
        &mut self,
        max: usize,
        what: &'static str,
        mut read: impl FnMut(&mut Self) -> Result<T, StateError>,
    ) -> Result<Vec<T>, StateError> {
        let length = self.length(max, what)?;
        // Each element takes at least one byte of input: this bounds the allocation for any length.
        let mut all = Vec::with_capacity(length.min(self.fields.len()));
        for _ in 0..length {
            all.push(read(self)?);
        }
        Ok(all)
    }

    /// A list of at most `max` elements that are not kept.
    pub(super) fn each(
        &mut self,
        max: usize,
        what: &'static str,
        mut read: impl FnMut(&mut Self) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        (0..self.length(max, what)?).try_for_each(|_| read(self))
    }

    fn length(&mut self, max: usize, what: &'static str) -> Result<usize, StateError> {
        let length = self.u32()? as usize;
        if length > max { Err(StateError::TooMany(what)) } else { Ok(length) }
    }

    pub(super) fn address(&mut self) -> Result<SocketAddr, StateError> {
        address::parse(&mut self.fields).ok().flatten().ok_or(StateError::Field("address"))
    }
}
