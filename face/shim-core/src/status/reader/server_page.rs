//! The page of one running server: opened, read, and used for requests.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::decoded::{ConnectionStatus, ServerStatus};
use super::holder::{holder, is_owner, remove_dead};
use super::page_file::PageFile;
use crate::status::layout::{self, Request, header};
use crate::status::origin::{NET_NAMESPACE, PID_NAMESPACE, namespace, start_ticks};
use crate::sys;

/// The page of a running server.
#[derive(Debug)]
pub struct ServerPage {
    file: PageFile,
    /// The file's device and inode.
    inode: (u64, u64),
    /// The page's path.
    pub path: PathBuf,
    /// The server's process id in this process's PID namespace; if the server has none there, in the server's own.
    pub pid: u32,
    /// Whether the process has an id in this process's PID namespace.
    pub is_visible: bool,
    /// The inode of the server's PID namespace, if it is known and differs from this process's own.
    pub pid_namespace: Option<u64>,
    /// The inode of the server's network namespace, if it is known and differs from this process's own.
    pub net_namespace: Option<u64>,
    /// The user id of the page's owner.
    pub user: u32,
    /// The program's name according to the page.
    name_on_page: String,
}

impl ServerPage {
    /// `None` if the server has ended, or if the file is not the page of a server.
    pub(super) fn open(path: &Path) -> io::Result<Option<ServerPage>> {
        let Some(file) = PageFile::open(path)? else { return Ok(None) };
        let metadata = file.metadata()?;
        let words = file.header()?;
        if words[header::MAGIC] == layout::MAGIC_UNLOCKED {
            return open_unlocked_layout(&words);
        }
        if words[header::MAGIC] != layout::MAGIC {
            return Ok(None); // still being created, or not a page
        }
        let Some(process) = holder(&file)? else {
            remove_dead(&file, path);
            return Ok(None);
        };
        if words[header::LAYOUT] != layout::LAYOUT {
            return Err(io::Error::other("the server runs another version of Spillway than this command"));
        }
        if !is_owner(metadata.uid(), process) {
            return Err(io::Error::other(
                "the page does not belong to the user of the process that has locked the page",
            ));
        }
        let is_visible = process != 0;
        let if_foreign = |word: usize, own: &str| {
            Some(words[word]).filter(|inode| *inode != 0 && *inode != namespace(own))
        };
        let name: Vec<u8> =
            words[header::PROGRAM..header::PROGRAM + 2].iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(Some(ServerPage {
            file,
            inode: (metadata.dev(), metadata.ino()),
            path: path.to_owned(),
            pid: if is_visible { process } else { words[header::PID] as u32 },
            is_visible,
            pid_namespace: if_foreign(header::PID_NAMESPACE, PID_NAMESPACE),
            net_namespace: if_foreign(header::NET_NAMESPACE, NET_NAMESPACE),
            user: metadata.uid(),
            name_on_page: escape_name(name.split(|byte| *byte == 0).next().unwrap_or_default()),
        }))
    }

    /// Distinguishes servers. Each server counts once: further names of its page, or further pages that its process has
    /// locked, would only use up the reader's descriptors.
    pub(super) fn identity(&self) -> (u64, u64) {
        if self.is_visible { (u64::MAX, self.pid.into()) } else { self.inode }
    }

    /// Reads the server's status.
    pub fn status(&self) -> io::Result<ServerStatus> {
        let (words, links) = self.file.header_and_links()?;
        Ok(ServerStatus::of(&words, links, sys::now().as_nanos()))
    }

    /// The server's virtual connections that have a slot on the page.
    pub fn connections(&self) -> io::Result<Vec<ConnectionStatus>> {
        let now = sys::now().as_nanos();
        let slots = self.file.connections()?;
        Ok(slots.into_iter().filter_map(|(_, words)| ConnectionStatus::of(&words, now)).collect())
    }

    /// Sends a request to the server. Returns the request's word, for [`has_done`](Self::has_done).
    pub(super) fn request(&self, request: Request) -> io::Result<u64> {
        let last = self.file.word(header::REQUEST)?;
        let word = request.word(layout::sequence_of(last).wrapping_add(1));
        self.file.write_word(header::REQUEST, word)?;
        Ok(word)
    }

    /// Whether the server has carried out this request, which must be the last one.
    pub(super) fn has_done(&self, requested: u64) -> io::Result<bool> {
        Ok(self.file.word(header::ANSWERED)? == requested)
    }

    /// The program's name, escaped for printing: from the kernel if the process is visible, otherwise from the page.
    pub fn program(&self) -> String {
        if !self.is_visible {
            return self.name_on_page.clone();
        }
        let name = std::fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        escape_name(name.trim_ascii_end())
    }
}

/// Handles a page of a layout without a lock: its server may still run in another PID namespace, so the page stays.
fn open_unlocked_layout(words: &[u64]) -> io::Result<Option<ServerPage>> {
    let pid = words[header::PID];
    if start_ticks(&format!("/proc/{pid}/stat")) == Some(words[header::START_TICKS]) {
        return Err(io::Error::other("the server runs an older version of Spillway than this command"));
    }
    Ok(None)
}

/// A process name, which may hold any characters, with those for control and writing direction escaped.
pub fn escape_name(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let escaped = text.chars().flat_map(|character| {
        let is_plain = matches!(character, '\'' | '"');
        let (plain, escaped) = (is_plain.then_some(character), (!is_plain).then(|| character.escape_debug()));
        plain.into_iter().chain(escaped.into_iter().flatten())
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::status::layout::Traffic;
    use crate::status::reader::requests::request_all;
    use crate::status::reader::test_pages::{scratch, write};
    use crate::status::test_holder::Holder;

    #[test]
    fn unlocked_page_of_any_layout_is_removed() {
        let path = scratch("layout");
        for layout in [layout::LAYOUT, layout::LAYOUT + 1] {
            // The process id on the page is wrong, and must not be used.
            write(&path, &[(header::MAGIC, layout::MAGIC), (header::LAYOUT, layout), (header::PID, 1 << 40)]);
            let holder = Holder::of(&path);
            match ServerPage::open(&path) {
                Ok(Some(page)) => assert_eq!((layout, page.pid), (layout::LAYOUT, holder.pid())),
                Err(error) => {
                    assert!(layout > layout::LAYOUT && error.to_string().contains("another version"))
                }
                Ok(None) => panic!("a locked page should be found"),
            }
            assert!(path.exists());
            drop(holder);
            assert!(ServerPage::open(&path).unwrap().is_none() && !path.exists());
        }
    }

    #[test]
    fn page_of_a_layout_without_lock_is_refused_or_skipped_and_stays() {
        let path = scratch("older");
        let ticks = start_ticks("/proc/self/stat").unwrap();
        let write = |ticks: u64| {
            let pid = (header::PID, std::process::id().into());
            write(&path, &[(header::MAGIC, layout::MAGIC_UNLOCKED), pid, (header::START_TICKS, ticks)]);
        };
        write(ticks);
        assert!(ServerPage::open(&path).unwrap_err().to_string().contains("older version"));
        write(ticks + 1);
        assert!(
            ServerPage::open(&path).unwrap().is_none() && path.exists(),
            "the page should stay: its server may run in another PID namespace"
        );
        std::fs::remove_file(&path).unwrap();
    }

    /// The page is locked by a process of one user, and its file belongs to another user.
    #[test]
    fn page_whose_owner_is_not_the_user_of_its_process_is_rejected() {
        let path = scratch("forged");
        write(&path, &[(header::MAGIC, layout::MAGIC), (header::LAYOUT, layout::LAYOUT)]);
        let holder = Holder::of(&path);
        if std::os::unix::fs::chown(&path, Some(65_534), None).is_ok() {
            let error = ServerPage::open(&path).unwrap_err();
            assert!(error.to_string().contains("does not belong"), "{error}");
        }
        drop(holder);
        std::fs::remove_file(&path).unwrap();
    }

    /// The page's only link ends and is accepted again, in a loop.
    #[test]
    fn traffic_does_not_decrease_when_a_link_ends() {
        const MESSAGES: u64 = 1_000_000;
        let path = scratch("ending");
        write(&path, &[(header::LINKS_ALLOCATED, layout::LINKS as u64)]);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let set = |at: usize, word: u64| file.write_all_at(&word.to_ne_bytes(), at as u64 * 8).unwrap();
        let link = layout::link_at(layout::LINKS - 1);
        let peer = layout::address_words("10.0.0.1:1".parse().unwrap());
        peer.iter().enumerate().for_each(|(n, word)| set(link + layout::link::PEER + n, *word));
        let page = ServerPage {
            file: PageFile::open(&path).unwrap().unwrap(),
            inode: (0, 0),
            path: path.clone(),
            pid: 1,
            is_visible: true,
            pid_namespace: None,
            net_namespace: None,
            user: 0,
            name_on_page: String::new(),
        };
        let messages = || page.status().unwrap().traffic[Traffic::MessagesReceived as usize].1;
        let is_over = AtomicBool::new(false);
        let links_ended = std::thread::scope(|scope| {
            let links = scope.spawn(|| {
                let traffic = Traffic::MessagesReceived as usize;
                let (mut sequence, mut links_ended) = (0, 0);
                let mut change = |words: &[(usize, u64)]| {
                    set(link, sequence + 1);
                    words.iter().for_each(|(at, word)| set(*at, *word));
                    sequence += 2;
                    set(link, sequence);
                };
                while !is_over.load(Ordering::Relaxed) {
                    change(&[(link + layout::link::TRAFFIC + traffic, 0), (link + layout::link::STATE, 2)]);
                    set(link + layout::link::TRAFFIC + traffic, MESSAGES);
                    std::thread::sleep(Duration::from_millis(2));
                    links_ended += 1;
                    change(&[
                        (header::ENDED_TRAFFIC + traffic, links_ended * MESSAGES),
                        (link + layout::link::STATE, 0),
                    ]);
                    std::thread::sleep(Duration::from_millis(2));
                }
                links_ended
            });
            let (mut before, began) = (0, Instant::now());
            let mut decreases = 0;
            while began.elapsed() < Duration::from_secs(2) {
                let now = messages();
                decreases += usize::from(now < before);
                before = now;
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(decreases, 0);
            links.join().unwrap()
        });
        assert_eq!(messages(), links_ended * MESSAGES);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn sum_of_traffic_saturates() {
        let path = scratch("traffic");
        let traffic = layout::link_at(0) + layout::link::TRAFFIC;
        let mut words = vec![(header::MAGIC, layout::MAGIC), (header::LAYOUT, layout::LAYOUT)];
        words.extend([(header::LINKS_ALLOCATED, 1), (header::ENDED_TRAFFIC, 1), (traffic, u64::MAX)]);
        words.push((layout::link_at(0) + layout::link::STATE, 2));
        let peer = layout::address_words("10.0.0.1:1".parse().unwrap());
        words.extend(
            peer.iter().enumerate().map(|(n, word)| (layout::link_at(0) + layout::link::PEER + n, *word)),
        );
        write(&path, &words);
        let holder = Holder::of(&path);
        let status = ServerPage::open(&path).unwrap().unwrap().status().unwrap();
        drop(holder);
        std::fs::remove_file(&path).unwrap();
        assert_eq!((status.links.len(), status.traffic[0].1), (1, u64::MAX));
    }

    /// Reading a page with a valid start and random words does not panic, and returns bounded tables.
    #[test]
    fn page_with_random_words_is_read_without_panic() {
        let path = scratch("reader");
        let fill = |seed: u64| {
            let mut state = seed;
            let mut words: Vec<u64> = Vec::with_capacity(layout::WORDS);
            words.resize_with(layout::WORDS, || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state ^ state >> 29
            });
            (words[header::MAGIC], words[header::LAYOUT]) = (layout::MAGIC, layout::LAYOUT);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            std::fs::write(&path, bytes).unwrap();
        };
        for seed in 0..4 {
            fill(seed);
            let holder = Holder::of(&path);
            let page = ServerPage::open(&path).unwrap().expect("a locked page should be found");
            assert!(
                page.name_on_page.chars().all(|character| !character.is_control()),
                "{:?}",
                page.name_on_page
            );
            assert_eq!((page.pid, page.program().as_str()), (holder.pid(), "python3"));
            assert!(page.status().unwrap().links.len() <= layout::LINKS);
            assert!(page.connections().unwrap().len() <= layout::CONNECTIONS);
            let answers = request_all(&[page], Request::Refresh, Duration::ZERO);
            assert!(
                matches!(answers[..], [Ok(false)]),
                "the request should not be carried out, because no server runs"
            );
        }
        // A file that is too short is not a page; a symbolic link or a directory is an error.
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(ServerPage::open(&path).unwrap().is_none());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(ServerPage::open(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(ServerPage::open(Path::new("/tmp")).is_err());
    }

    #[test]
    fn control_characters_in_names_are_escaped() {
        assert_eq!(escape_name(b"memcached"), "memcached");
        assert_eq!(escape_name(b"it's \"x\""), "it's \"x\"");
        assert_eq!(escape_name(b"\x1b[2Jroot\n\x07"), "\\u{1b}[2Jroot\\n\\u{7}");
        assert_eq!(escape_name("\u{9b}31m\u{202e}".as_bytes()), "\\u{9b}31m\\u{202e}");
        assert_eq!(escape_name(b"\xff\\"), "\u{fffd}\\\\");
    }
}
