//! The file of a page: reads of its words, and of slots each as of one moment.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::status::layout::{self, Traffic, header};

/// Attempts to read slots that are being changed, over all slots.
const ATTEMPTS: usize = 2000;
/// After this many failed attempts the reader sleeps for [`PAUSE`], so that a writer that was preempted during a change
/// can finish.
const ATTEMPTS_WITHOUT_PAUSE: usize = 100;
const PAUSE: Duration = Duration::from_millis(1);
/// Attempts to read a status at a time when no link ends.
const STATUS_ATTEMPTS: usize = 16;

/// Slots of a table: their indexes and words.
pub(super) type Slots = Vec<(u32, Vec<u64>)>;

/// An open file that may be a page.
#[derive(Debug)]
pub(super) struct PageFile(File);

impl AsFd for PageFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PageFile {
    /// Opens a file that may be a page. `None`: there is no file, or it is not a regular file of the right length.
    pub(super) fn open(path: &Path) -> io::Result<Option<PageFile>> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        let may_be_page = metadata.is_file() && metadata.len() == layout::WORDS as u64 * 8;
        Ok(may_be_page.then_some(PageFile(file)))
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    fn read(&self, first: usize, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * 8];
        self.0.read_exact_at(&mut bytes, first as u64 * 8)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// The words of the header.
    pub(super) fn header(&self) -> io::Result<Vec<u64>> {
        self.read(0, layout::HEADER_WORDS)
    }

    /// One word of the header.
    pub(super) fn word(&self, at: usize) -> io::Result<u64> {
        Ok(self.read(at, 1)?[0])
    }

    /// Writes one word by a system call, because the server's watch of the file reports only these.
    pub(super) fn write_word(&self, at: usize, word: u64) -> io::Result<()> {
        self.0.write_all_at(&word.to_ne_bytes(), at as u64 * 8)
    }

    /// The header and the links, read while no link ended: the traffic of a link that ends between the two reads would
    /// be missing from the sum, which must not decrease.
    pub(super) fn header_and_links(&self) -> io::Result<(Vec<u64>, Slots)> {
        let ended_traffic = header::ENDED_TRAFFIC..header::ENDED_TRAFFIC + Traffic::ALL.len();
        let mut before = self.read(0, layout::HEADER_WORDS)?;
        let mut attempts = STATUS_ATTEMPTS;
        loop {
            let allocated = (before[header::LINKS_ALLOCATED] as usize).min(layout::LINKS);
            let links = self.slots(layout::link_at(0), layout::LINK_WORDS, allocated)?;
            let after = self.read(0, layout::HEADER_WORDS)?;
            attempts -= 1;
            if before[ended_traffic.clone()] == after[ended_traffic.clone()] || attempts == 0 {
                return Ok((before, links));
            }
            before = after;
        }
    }

    /// The slots of the virtual connections.
    pub(super) fn connections(&self) -> io::Result<Slots> {
        let allocated = (self.word(header::CONNECTIONS_ALLOCATED)? as usize).min(layout::CONNECTIONS);
        self.slots(layout::connection_at(0), layout::CONNECTION_WORDS, allocated)
    }

    /// The slots of a table, each as of one moment. Slots that keep changing are left out.
    fn slots(&self, first: usize, size: usize, count: usize) -> io::Result<Slots> {
        let mut found = Vec::with_capacity(count);
        let mut attempts = ATTEMPTS;
        let before = self.read(first, count * size)?;
        let after = self.read(first, count * size)?;
        for index in 0..count {
            let slot = index * size..(index + 1) * size;
            let is_whole = before[slot.start] & 1 == 0 && before[slot.start] == after[slot.start];
            if is_whole {
                found.push((index as u32, before[slot].to_vec()));
            } else if let Some(words) = self.slot(first + index * size, size, &mut attempts)? {
                found.push((index as u32, words));
            }
        }
        Ok(found)
    }

    fn slot(&self, first: usize, size: usize, attempts: &mut usize) -> io::Result<Option<Vec<u64>>> {
        while *attempts > 0 {
            *attempts -= 1;
            let before = self.read(first, size)?;
            let after = self.read(first, 1)?;
            if before[0] & 1 == 0 && before[0] == after[0] {
                return Ok(Some(before));
            }
            if attempts.is_multiple_of(ATTEMPTS_WITHOUT_PAUSE) {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(None) // the writer died during a change, or changes the slot continually
    }
}
