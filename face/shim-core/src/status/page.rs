//! The file behind a server's status page, and its mapping.

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

/// The page of this process. Never unmapped: threads may write to it until the process ends.
pub(crate) struct Page {
    words: *const AtomicU64,
    fd: c_int,
    path: CString,
    links: Places,
    connections: Places,
    removed: AtomicBool,
}

// SAFETY: the words are atomic, the rest is constant or atomic.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// The places of a table that have memory. The file has holes: a write into one could fail with a signal if the file
/// system is full, so memory is allocated first.
struct Places {
    made: AtomicU64,
    first: usize,
    words: usize,
    chunk: usize,
    max: usize,
    told: usize,
}

/// The outcome of claiming the page of a launch.
pub(crate) enum Claimed {
    Page(Page),
    /// Another process of the same launch serves helpers.
    Another(u32),
    /// No directory can hold the page.
    Nowhere(Errno),
}

/// Makes the page of this launch, in the first directory that allows it, unless another process has it.
pub(crate) fn claim(launch: &str, directories: &[String]) -> Claimed {
    let mut why = libc::ENOENT;
    for directory in directories {
        match make_in(directory, launch) {
            Ok(page) => return Claimed::Page(page),
            Err(libc::EEXIST) => {
                let path = format!("{directory}/{PREFIX}{launch}");
                if let Some(owner) = reader::take_out(Path::new(&path)) {
                    return Claimed::Another(owner);
                }
                match make_in(directory, launch) {
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

/// Makes a page under a name that no reader looks at, locks it, and links it to its final name: a page of that name
/// that is not locked is left over from a process that ended.
fn make_in(directory: &str, launch: &str) -> Result<Page, Errno> {
    let path = CString::new(format!("{directory}/{PREFIX}{launch}")).map_err(|_| libc::EINVAL)?;
    let unnamed = format!("{directory}/.{PREFIX}{launch}-{}", sys::process_id());
    let unnamed = CString::new(unnamed).map_err(|_| libc::EINVAL)?;
    let bytes = layout::WORDS * 8;
    if files::file_size_limit() < bytes as u64 {
        return Err(libc::EFBIG); // the attempt would end the process with a signal
    }
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let open = || files::open(&unnamed, flags, 0o600);
    let fd = match open() {
        Err(libc::EEXIST) => {
            files::unlink(&unnamed); // left by a process with this process id that was killed here
            open()?
        }
        outcome => outcome?,
    };
    table::note(fd, Entry::Own);
    let words = files::lock(fd)
        .and_then(|()| files::truncate(fd, bytes))
        .and_then(|()| files::take_room(fd, 0, layout::HEADER_WORDS * 8))
        .and_then(|()| files::link(&unnamed, &path))
        .and_then(|()| map(fd, bytes).inspect_err(|_| files::unlink(&path)));
    files::unlink(&unnamed);
    match words {
        Ok(words) => Ok(Page::new(words, fd, path)),
        Err(error) => {
            table::note(fd, Entry::Real);
            sys::close(fd);
            Err(error)
        }
    }
}

fn map(fd: c_int, bytes: usize) -> Result<*const AtomicU64, Errno> {
    let before = sys::errno();
    // SAFETY: a fresh mapping of a file that was just made for it, with no address asked for.
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
            links: Places {
                made: AtomicU64::new(0),
                first: layout::link_at(0),
                words: layout::LINK_WORDS,
                chunk: layout::LINKS_CHUNK,
                max: layout::LINKS,
                told: header::LINKS_MADE,
            },
            connections: Places {
                made: AtomicU64::new(0),
                first: layout::connection_at(0),
                words: layout::CONNECTION_WORDS,
                chunk: layout::CONNECTIONS_CHUNK,
                max: layout::CONNECTIONS,
                told: header::CONNECTIONS_MADE,
            },
            removed: AtomicBool::new(false),
        }
    }

    /// A word of the header, or of a place that has memory.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < layout::WORDS);
        // SAFETY: the mapping is aligned, that long and stays; callers ask for words of the header, or of places
        // that `link` or `connection` returned, so that there is memory behind them. Only the server's own user
        // could cut the file short, and that user can end the server anyway.
        unsafe { &*self.words.add(index) }
    }

    /// The first word of a link's place; `None` when there is no memory for it.
    pub(crate) fn link(&self, index: u32) -> Option<usize> {
        self.place(&self.links, index as usize)
    }

    /// The first word of a connection's place; `None` when there is no memory for it.
    pub(crate) fn connection(&self, index: u32) -> Option<usize> {
        self.place(&self.connections, index as usize)
    }

    fn place(&self, places: &Places, index: usize) -> Option<usize> {
        if index >= places.made.load(Ordering::Acquire) as usize && !self.grow(places, index) {
            return None;
        }
        Some(places.first + index * places.words)
    }

    #[cold]
    fn grow(&self, places: &Places, index: usize) -> bool {
        if index >= places.max {
            return false;
        }
        let made = places.made.load(Ordering::Acquire) as usize;
        let wanted = (index / places.chunk + 1) * places.chunk;
        if wanted <= made {
            return true;
        }
        let (offset, bytes) = ((places.first + made * places.words) * 8, (wanted - made) * places.words * 8);
        if files::take_room(self.fd, offset, bytes).is_err() {
            return false;
        }
        // Two threads may have made the same places; the larger number holds.
        let now = places.made.fetch_max(wanted as u64, Ordering::AcqRel).max(wanted as u64);
        self.word(places.told).fetch_max(now, Ordering::Release);
        true
    }

    /// Changes a place so that readers notice a change under way. Only one thread at a time may change a place.
    pub(crate) fn change(&self, at: usize, change: impl FnOnce()) {
        let sequence = self.word(at);
        let before = sequence.load(Ordering::Relaxed);
        sequence.store(before | 1, Ordering::Relaxed);
        core::sync::atomic::fence(Ordering::Release);
        change();
        sequence.store((before | 1).wrapping_add(1), Ordering::Release);
    }

    /// A descriptor that is ready when a process has written to the file with a system call.
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
    fn a_page_is_locked_until_it_is_removed_and_others_are_taken_out() {
        let directory = std::env::temp_dir().join(format!("spillway-page-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let directories = [directory.to_str().unwrap().to_owned()];
        let named = directory.join(format!("{PREFIX}one"));
        let Claimed::Page(page) = claim("one", &directories) else { panic!("not made") };
        assert_eq!(page.connection(layout::CONNECTIONS as u32), None);
        let (first, later) = (page.connection(0).unwrap(), page.connection(1000).unwrap());
        assert_eq!(later - first, 1000 * layout::CONNECTION_WORDS);
        assert_eq!(page.word(header::CONNECTIONS_MADE).load(Ordering::Relaxed), 1024);
        page.change(later, || page.word(later + 1).store(7, Ordering::Relaxed));
        assert_eq!(page.word(later).load(Ordering::Relaxed), 2);
        // Other processes find it locked by this one.
        let holder = holder_seen_by_another_process(&named);
        assert_eq!(holder, std::process::id() as i32);

        // A process does not conflict with its own locks, so this one takes its own page for one that was left behind.
        let Claimed::Page(again) = claim("one", &directories) else { panic!("left behind") };
        again.remove();
        assert!(!named.exists());
        // Held by another process, which has not even written the first word.
        std::fs::write(&named, vec![0; layout::WORDS * 8]).unwrap();
        let held = super::super::test_holder::Holder::of(&named);
        assert!(matches!(claim("one", &directories), Claimed::Another(pid) if pid == held.pid()));
        drop(held);
        let Claimed::Page(page) = claim("one", &directories) else { panic!("its owner is gone") };
        page.remove();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
        assert!(matches!(claim("one", &directories), Claimed::Nowhere(_)));
    }

    /// The process id of the lock's holder by `F_GETLK`; 0 if there is none.
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
