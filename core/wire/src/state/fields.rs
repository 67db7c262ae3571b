//! Reads and writes the fields of a state in sequence.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::StateError;
use crate::address;
use crate::cursor::Cursor;

/// Maximum bytes of one queue. A send buffer is smaller, unless a single chunk exceeds the buffer's limit.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of out-of-order pieces. One range may be exported as two pieces.
pub const RANGES_MAX: usize = 256;

pub(super) struct Writer<'a>(pub(super) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(super) fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub(super) fn u16(&mut self, number: u16) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub(super) fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub(super) fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_be_bytes());
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

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn address(&mut self, address: SocketAddr) {
        address::emit(Some(address), self.0);
    }
}

pub(super) struct Reader<'a>(Cursor<'a>);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(Cursor::new(bytes))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn u8(&mut self) -> Result<u8, StateError> {
        Ok(self.0.u8()?)
    }

    pub(super) fn u16(&mut self) -> Result<u16, StateError> {
        Ok(self.0.u16()?)
    }

    pub(super) fn u32(&mut self) -> Result<u32, StateError> {
        Ok(self.0.u32()?)
    }

    pub(super) fn u64(&mut self) -> Result<u64, StateError> {
        Ok(self.0.u64()?)
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

    pub(super) fn bytes(&mut self, max: usize, what: &'static str) -> Result<&'a [u8], StateError> {
        let length = self.length(max, what)?;
        Ok(self.0.bytes(length)?)
    }

    pub(super) fn list<T>(
        &mut self,
        max: usize,
        what: &'static str,
        mut read: impl FnMut(&mut Self) -> Result<T, StateError>,
    ) -> Result<Vec<T>, StateError> {
        let length = self.length(max, what)?;
        // Each element takes at least one byte of input: this bounds the allocation for any length.
        let mut all = Vec::with_capacity(length.min(self.0.len()));
        for _ in 0..length {
            all.push(read(self)?);
        }
        Ok(all)
    }

    fn length(&mut self, max: usize, what: &'static str) -> Result<usize, StateError> {
        let length = self.u32()? as usize;
        if length > max { Err(StateError::TooMany(what)) } else { Ok(length) }
    }

    pub(super) fn address(&mut self) -> Result<SocketAddr, StateError> {
        address::parse(&mut self.0).ok().flatten().ok_or(StateError::Field("address"))
    }
}
