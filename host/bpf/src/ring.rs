//! Reads what a program writes to a ring buffer.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::mpsc::{self, Receiver};

use libbpf_rs::{RingBuffer, RingBufferBuilder};

use crate::BpfError;
use crate::map::Map;

/// Records of a ring buffer, in the order in which the program has written them.
pub(crate) struct Ring<T> {
    ring: RingBuffer<'static>,
    /// The map, which the kernel can poll.
    map: OwnedFd,
    records: Receiver<T>,
    name: &'static str,
}

impl<T: Send + 'static> Ring<T> {
    /// Opens the ring `map`. `parse`: a record of its bytes; others are skipped.
    pub(crate) fn open(map: &Map, parse: fn(&[u8]) -> Option<T>) -> Result<Ring<T>, BpfError> {
        let name = map.name();
        let fails = || BpfError::of(format!("cannot open the ring `{name}`"));
        let (sender, records) = mpsc::channel();
        let mut builder = RingBufferBuilder::new();
        builder
            .add(map.handle(), move |bytes: &[u8]| {
                // The receiver exists as long as the ring.
                _ = parse(bytes).map(|record| sender.send(record));
                0
            })
            .map_err(fails())?;
        let map = map.handle().as_fd().try_clone_to_owned();
        let map = map.map_err(|error| fails()(error.into()))?;
        Ok(Ring { ring: builder.build().map_err(fails())?, map, records, name })
    }

    /// The next record, if there is one. Takes one record out of the ring at a time, so that the ring bounds the memory.
    pub(crate) fn poll(&mut self) -> Result<Option<T>, BpfError> {
        match self.ring.consume_raw_n(1) {
            0.. => Ok(self.records.try_recv().ok()),
            error => {
                let error = io::Error::from_raw_os_error(-error);
                Err(BpfError::of(format!("cannot read the ring `{}`", self.name))(error.into()))
            }
        }
    }
}

/// The descriptor is readable when the ring has records.
impl<T> AsRawFd for Ring<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.epoll_fd()
    }
}

/// As [`AsRawFd`].
impl<T> AsFd for Ring<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("name", &self.name).finish_non_exhaustive()
    }
}
