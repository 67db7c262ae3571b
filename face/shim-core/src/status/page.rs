//! The file of a server's status page, and its mapping.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ffi::CString;
use std::path::Path;

use libc::c_int;

use super::files;
use super::layout::{self, header};
use super::origin::PREFIX;
use super::reader;
use crate::sys::{self, Errno};
use crate::table::{self, Entry};

/// The page of this process. Never unmapped, because threads may write to it until the process ends.
pub(crate) struct Page {
    words: *const AtomicU64,
    fd: c_int,
    path: CString,
    links: Slots,
    connections: Slots,
    removed: AtomicBool,
}

// SAFETY: the words are atomic, the rest is constant or atomic.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// The slots of a table. The file begins with holes; if the file system were full, a write into a hole would raise a
/// signal, so memory is allocated for slots before they are written.
struct Slots {
    /// Number of slots with memory.
    allocated: AtomicU64,
    /// The table's first word.
    first: usize,
    words_per_slot: usize,
    slots_per_chunk: usize,
    max: usize,
    /// The header's word for `allocated`.
    allocated_word: usize,
}

/// The outcome of claiming the page of a launch.
pub(crate) enum Claimed {
    Page(Page),
    /// Another process of the same launch has a page; its id.
    Another(u32),
    /// No directory can hold the page.
    Nowhere(Errno),
}

/// Creates the page of this launch, in the first directory that allows it, unless another process has created it.
pub(crate) fn claim(launch: &str, directories: &[String]) -> Claimed {
    let mut why = libc::ENOENT;
    for directory in directories {
        match create_in(directory, launch) {
            Ok(page) => return Claimed::Page(page),
            Err(libc::EEXIST) => {
                let path = format!("{directory}/{PREFIX}{launch}");
                if let Some(owner) = reader::clear_path(Path::new(&path)) {
                    return Claimed::Another(owner);
                }
                match create_in(directory, launch) {
                    Ok(page) => return Claimed::Page(page),
                    Err(error) => why = error,
                }
            }
            Err(libc::ENOENT) => {}
            Err(error) => why = error,
        }
    }
    Claimed::Nowhere(why)
}

/// Whether a page of this launch is in one of these directories.
pub(crate) fn exists(launch: &str, directories: &[String]) -> bool {
    directories.iter().any(|directory| Path::new(&format!("{directory}/{PREFIX}{launch}")).exists())
}

/// Creates a page under a name that readers skip, locks it, and links it to its final name. So a page with a final name
/// and no lock belongs to a process that has ended.
fn create_in(directory: &str, launch: &str) -> Result<Page, Errno> {
    let path = CString::new(format!("{directory}/{PREFIX}{launch}")).map_err(|_| libc::EINVAL)?;
    let temporary = format!("{directory}/.{PREFIX}{launch}-{}", sys::process_id());
    let temporary = CString::new(temporary).map_err(|_| libc::EINVAL)?;
    let bytes = layout::WORDS * 8;
    if files::file_size_limit() < bytes as u64 {
        return Err(libc::EFBIG); // the attempt would raise SIGXFSZ
    }
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let open = || files::open(&temporary, flags, 0o600);
    let fd = match open() {
        Err(libc::EEXIST) => {
            files::unlink(&temporary); // left by a killed process that had the same process id
            open()?
        }
        outcome => outcome?,
    };
    table::record(fd, Entry::Library);
    let words = files::lock(fd)
        .and_then(|()| files::truncate(fd, bytes))
        .and_then(|()| files::allocate(fd, 0, layout::HEADER_WORDS * 8))
        .and_then(|()| files::link(&temporary, &path))
        .and_then(|()| map(fd, bytes).inspect_err(|_| files::unlink(&path)));
    files::unlink(&temporary);
    match words {
        Ok(words) => Ok(Page::new(words, fd, path)),
        Err(error) => {
            table::record(fd, Entry::Real);
            sys::close(fd);
            Err(error)
        }
    }
}

fn map(fd: c_int, bytes: usize) -> Result<*const AtomicU64, Errno> {
    let before = sys::errno();
    // SAFETY: a new mapping of a file that was just created, at an address that the kernel chooses.
    let start =
        unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0) };
    if start == libc::MAP_FAILED {
        let error = sys::errno();
        sys::set_errno(before);
        return Err(error);
    }
    Ok(start.cast::<AtomicU64>().cast_const())
}

impl Page {
    fn new(words: *const AtomicU64, fd: c_int, path: CString) -> Page {
        Page {
            words,
            fd,
            path,
            links: Slots {
                allocated: AtomicU64::new(0),
                first: layout::link_at(0),
                words_per_slot: layout::LINK_WORDS,
                slots_per_chunk: layout::LINKS_CHUNK,
                max: layout::LINKS,
                allocated_word: header::LINKS_ALLOCATED,
            },
            connections: Slots {
                allocated: AtomicU64::new(0),
                first: layout::connection_at(0),
                words_per_slot: layout::CONNECTION_WORDS,
                slots_per_chunk: layout::CONNECTIONS_CHUNK,
                max: layout::CONNECTIONS,
                allocated_word: header::CONNECTIONS_ALLOCATED,
            },
            removed: AtomicBool::new(false),
        }
    }

    /// A word of the header, or of a slot with memory.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < layout::WORDS, "the word should be within the page");
        // SAFETY: the mapping is aligned, has `layout::WORDS` words and is never unmapped. Callers pass words of the
        // header, or of slots that `link` or `connection` returned, which have memory. Only the server's own user could
        // truncate the file, and that user can end the server anyway.
        unsafe { &*self.words.add(index) }
    }

    /// The first word of a link's slot; `None` without memory for it.
    pub(crate) fn link(&self, index: u32) -> Option<usize> {
        self.slot(&self.links, index as usize)
    }

    /// The first word of a connection's slot; `None` without memory for it.
    pub(crate) fn connection(&self, index: u32) -> Option<usize> {
        self.slot(&self.connections, index as usize)
    }

    fn slot(&self, slots: &Slots, index: usize) -> Option<usize> {
        if index >= slots.allocated.load(Ordering::Acquire) as usize && !self.grow(slots, index) {
            return None;
        }
        Some(slots.first + index * slots.words_per_slot)
    }

    #[cold]
    fn grow(&self, slots: &Slots, index: usize) -> bool {
        if index >= slots.max {
            return false;
        }
        let allocated = slots.allocated.load(Ordering::Acquire) as usize;
        let wanted = (index / slots.slots_per_chunk + 1) * slots.slots_per_chunk;
        if wanted <= allocated {
            return true;
        }
        let (offset, bytes) = (
            (slots.first + allocated * slots.words_per_slot) * 8,
            (wanted - allocated) * slots.words_per_slot * 8,
        );
        if files::allocate(self.fd, offset, bytes).is_err() {
            return false;
        }
        // Two threads may have allocated the same slots: the larger number is right.
        let now = slots.allocated.fetch_max(wanted as u64, Ordering::AcqRel).max(wanted as u64);
        self.word(slots.allocated_word).fetch_max(now, Ordering::Release);
        true
    }

    /// Changes the slot at word `at`, with an odd sequence number meanwhile. One thread at a time may change a slot.
    pub(crate) fn change(&self, at: usize, change: impl FnOnce()) {
        let sequence = self.word(at);
        let before = sequence.load(Ordering::Relaxed);
        sequence.store(before | 1, Ordering::Relaxed);
        core::sync::atomic::fence(Ordering::Release);
        change();
        sequence.store((before | 1).wrapping_add(1), Ordering::Release);
    }

    /// A descriptor that is readable after a process has written to the file with a system call.
    pub(crate) fn watch(&self) -> Result<c_int, Errno> {
        files::watch_writes(&self.path)
    }

    /// Removes the file; the mapping stays.
    pub(crate) fn remove(&self) {
        if !self.removed.swap(true, Ordering::AcqRel) {
            files::unlink(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claimed_page_is_locked_and_unlocked_pages_are_replaced() {
        let directory = std::env::temp_dir().join(format!("spillway-page-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let directories = [directory.to_str().unwrap().to_owned()];
        let path = directory.join(format!("{PREFIX}one"));
        let Claimed::Page(page) = claim("one", &directories) else { panic!("the page should be created") };
        assert_eq!(page.connection(layout::CONNECTIONS as u32), None);
        let (first, later) = (page.connection(0).unwrap(), page.connection(1000).unwrap());
        assert_eq!(later - first, 1000 * layout::CONNECTION_WORDS);
        assert_eq!(page.word(header::CONNECTIONS_ALLOCATED).load(Ordering::Relaxed), 1024);
        page.change(later, || page.word(later + 1).store(7, Ordering::Relaxed));
        assert_eq!(page.word(later).load(Ordering::Relaxed), 2);
        // Another process finds the page locked by this one.
        let holder = holder_seen_by_another_process(&path);
        assert_eq!(holder, std::process::id() as i32);

        // A process does not conflict with its own locks, so a second claim replaces this process's own page.
        let Claimed::Page(replacement) = claim("one", &directories) else {
            panic!("the unlocked page should be replaced")
        };
        replacement.remove();
        assert!(!path.exists());
        // Another process holds the lock, and has not written the first word yet.
        std::fs::write(&path, vec![0; layout::WORDS * 8]).unwrap();
        let held = super::super::test_holder::Holder::of(&path);
        assert!(matches!(claim("one", &directories), Claimed::Another(pid) if pid == held.pid()));
        drop(held);
        let Claimed::Page(page) = claim("one", &directories) else {
            panic!("the page of the killed process should be replaced")
        };
        page.remove();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
        assert!(matches!(claim("one", &directories), Claimed::Nowhere(_)));
    }

    /// The process id of the lock's holder, as another process reads it by `F_GETLK`; 0 without a lock.
    fn holder_seen_by_another_process(path: &Path) -> i32 {
        const ASK: &str = "import fcntl, struct, sys; f = open(sys.argv[1], 'r+'); \
            lock = fcntl.fcntl(f, fcntl.F_GETLK, struct.pack('hhqqixxxx', fcntl.F_WRLCK, 0, 0, 0, 0)); \
            kind, _, _, _, pid = struct.unpack('hhqqixxxx', lock); \
            print(0 if kind == fcntl.F_UNLCK else pid)";
        let output =
            std::process::Command::new("/usr/bin/python3").args(["-c", ASK]).arg(path).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }
}
