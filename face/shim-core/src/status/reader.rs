//! Reads the status pages of this machine's servers, for Spillway's commands.
//!
//! A running server holds a lock on its page. The kernel reports the lock's holder, also across PID namespaces, so the
//! process id on the page, which could be forged, is not trusted: a page is valid only if its file belongs to the user
//! of the holder. Only a process that can lock a page removes it. Pages are not mapped, because another
//! process could truncate them.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::HashSet;
use std::fs::{DirEntry, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use spillway_policy::Override;

use super::files;
use super::layout::{self, Counter, Request, State, Traffic, header};
use super::origin::{DIRECTORIES, DIRECTORY, PREFIX, start_ticks};
use crate::sys;

/// Maximum number of pages that are opened in one directory, and of file names that are read.
const FILES_MAX: usize = 4096;
const NAMES_MAX: usize = 1 << 20;
/// Attempts to read slots that are being changed, over all slots.
const ATTEMPTS: usize = 2000;
/// Attempts to read a status at a time when no link ends.
const STATUS_ATTEMPTS: usize = 16;
/// Interval between checks whether a request was carried out.
const ANSWER_INTERVAL: Duration = Duration::from_millis(2);

/// The directories where pages may be.
pub fn page_directories() -> Vec<String> {
    let configured = crate::environment::variable(DIRECTORY).filter(|name| !name.is_empty());
    match configured {
        Some(directory) => vec![directory],
        None => DIRECTORIES.map(str::to_owned).to_vec(),
    }
}

/// The page of a running server.
#[derive(Debug)]
pub struct ServerPage {
    file: File,
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

/// A page that cannot be read.
#[derive(Debug)]
pub struct UnreadablePage {
    /// The page's path.
    pub path: PathBuf,
    /// Why the page cannot be read.
    pub error: io::Error,
}

/// A server's status according to its page.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// Whether links are accepted.
    pub state: State,
    /// The operator's override of relief that is in effect.
    pub relief: Override,
    /// The override's remaining time; `None` without an end.
    pub relief_left: Option<Duration>,
    /// Time since the page was created, which is before the link port opens.
    pub age: Duration,
    /// The link port's address; `None` for all addresses.
    pub link_address: Option<IpAddr>,
    /// The link port's number.
    pub link_port: u16,
    /// The server's ordinary port.
    pub helped_port: u16,
    /// All counters, in the order of [`Counter::ALL`].
    pub counters: Vec<(Counter, u64)>,
    /// Traffic of all links together, including links that have ended, in the order of [`Traffic::ALL`].
    pub traffic: Vec<(Traffic, u64)>,
    /// The links that have not ended.
    pub links: Vec<LinkStatus>,
}

/// One link.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// Index of the link on this page.
    pub index: u32,
    /// Address of the helper or library client.
    pub peer: SocketAddr,
    /// `authenticating`, `helper` or `client`.
    pub state: &'static str,
    /// The id of the link's key.
    pub key: u64,
    /// Time since the link was accepted.
    pub age: Duration,
    /// Whether the link is encrypted; false before the peer has authenticated.
    pub encrypted: bool,
    /// Number of virtual connections on the link.
    pub connections: u64,
    /// Number of virtual connections on the link that carry sessions, which can move to other links; `None` if the
    /// server does not report it.
    pub sessions: Option<u64>,
    /// The link's traffic, in the order of [`Traffic::ALL`].
    pub traffic: Vec<(Traffic, u64)>,
}

/// One virtual connection.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// The client's own address.
    pub client: SocketAddr,
    /// Index of the connection's link.
    pub link: u32,
    /// The connection's id on that link.
    pub id: u32,
    /// Time since the connection was opened.
    pub age: Duration,
    /// Bytes of requests received.
    pub bytes_received: u64,
    /// Bytes of replies sent.
    pub bytes_sent: u64,
}

/// The pages of all running servers, and the unreadable pages. Removes pages of killed servers, where this user may.
pub fn find_pages() -> (Vec<ServerPage>, Vec<UnreadablePage>) {
    find_in(&page_directories())
}

pub(super) fn find_in(directories: &[String]) -> (Vec<ServerPage>, Vec<UnreadablePage>) {
    let (mut pages, mut unreadable) = (Vec::new(), Vec::new());
    let mut known = HashSet::new();
    for directory in directories {
        let Ok(files) = std::fs::read_dir(directory) else { continue };
        let is_page = |file: &DirEntry| file.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        for file in files.take(NAMES_MAX).flatten().filter(is_page).take(FILES_MAX) {
            match ServerPage::open(&file.path()) {
                Ok(Some(page)) if known.insert(page.identity()) => pages.push(page),
                Ok(_) => {}
                Err(error) => unreadable.push(UnreadablePage { path: file.path(), error }),
            }
        }
    }
    pages.sort_by_key(|page| page.pid);
    (pages, unreadable)
}

struct Words(Vec<u64>);

/// Slots of a table: their indexes and words.
type Slots = Vec<(u32, Vec<u64>)>;

impl Words {
    fn read(file: &File, first: usize, count: usize) -> io::Result<Words> {
        let mut bytes = vec![0; count * 8];
        file.read_exact_at(&mut bytes, first as u64 * 8)?;
        Ok(Words(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()))
    }
}

impl ServerPage {
    /// `None` if the server has ended, or if the file is not the page of a server.
    pub(super) fn open(path: &Path) -> io::Result<Option<ServerPage>> {
        let Some(file) = open_page(path)? else { return Ok(None) };
        let metadata = file.metadata()?;
        let Words(words) = Words::read(&file, 0, layout::HEADER_WORDS)?;
        if words[header::MAGIC] == layout::MAGIC_UNLOCKED {
            return open_unlocked_layout(&words);
        }
        if words[header::MAGIC] != layout::MAGIC {
            return Ok(None); // still being created, or not a page
        }
        let holder = files::lock_holder(file.as_raw_fd()).map_err(io::Error::from_raw_os_error)?;
        let Some(holder) = holder else {
            remove_dead(&file, path);
            return Ok(None);
        };
        if words[header::LAYOUT] != layout::LAYOUT {
            return Err(io::Error::other("the server runs another version of Spillway than this command"));
        }
        // Root may own the page, because the server created it before it changed its user.
        let is_visible = holder != 0;
        if is_visible && metadata.uid() != 0 && effective_user(holder) != Some(metadata.uid()) {
            return Err(io::Error::other(
                "the page does not belong to the user of the process that has locked the page",
            ));
        }
        let if_foreign = |word: usize, own: &str| {
            Some(words[word]).filter(|inode| *inode != 0 && *inode != namespace(own))
        };
        let name: Vec<u8> =
            words[header::PROGRAM..header::PROGRAM + 2].iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(Some(ServerPage {
            file,
            inode: (metadata.dev(), metadata.ino()),
            path: path.to_owned(),
            pid: if is_visible { holder } else { words[header::PID] as u32 },
            is_visible,
            pid_namespace: if_foreign(header::PID_NAMESPACE, PID_NAMESPACE),
            net_namespace: if_foreign(header::NET_NAMESPACE, NET_NAMESPACE),
            user: metadata.uid(),
            name_on_page: escape_name(name.split(|byte| *byte == 0).next().unwrap_or_default()),
        }))
    }

    /// Distinguishes servers. Each server counts once: further names of its page, or further pages that its process has
    /// locked, would only use up the reader's descriptors.
    fn identity(&self) -> (u64, u64) {
        if self.is_visible { (u64::MAX, self.pid.into()) } else { self.inode }
    }

    /// Reads the server's status.
    pub fn status(&self) -> io::Result<ServerStatus> {
        let (words, links) = self.header_and_links()?;
        let now = sys::now().as_nanos();
        let mut traffic = traffic_at(&words, header::ENDED_TRAFFIC);
        let links: Vec<LinkStatus> =
            links.into_iter().filter_map(|(index, words)| link_status(index, &words, now)).collect();
        for link in &links {
            // Saturating, because a forged page may contain any numbers.
            traffic
                .iter_mut()
                .zip(&link.traffic)
                .for_each(|(sum, more)| sum.1 = sum.1.saturating_add(more.1));
        }
        let address = [words[header::LINK_ADDRESS], words[header::LINK_ADDRESS + 1]];
        let link_address = (address != [0; 2]).then(|| {
            let v6 = Ipv6Addr::from_bits(u128::from(address[0]) << 64 | u128::from(address[1]));
            v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
        });
        let until = words[header::RELIEF_UNTIL_NS];
        let relief_left = (until > 0).then(|| Duration::from_nanos(until.saturating_sub(now)));
        let on_page = layout::override_of(words[header::RELIEF]);
        let relief = if relief_left == Some(Duration::ZERO) { Override::Auto } else { on_page };
        Ok(ServerStatus {
            relief,
            relief_left: relief_left.filter(|_| relief != Override::Auto),
            state: State::of(words[header::STATE]),
            age: Duration::from_nanos(now.saturating_sub(words[header::BEGAN_NS])),
            link_address,
            link_port: words[header::LINK_PORT] as u16,
            helped_port: words[header::HELPED_PORT] as u16,
            counters: Counter::ALL
                .iter()
                .map(|counter| (*counter, words[header::COUNTERS + *counter as usize]))
                .collect(),
            traffic,
            links,
        })
    }

    /// The server's virtual connections that have a slot on the page.
    pub fn connections(&self) -> io::Result<Vec<ConnectionStatus>> {
        let Words(words) = Words::read(&self.file, 0, layout::HEADER_WORDS)?;
        let now = sys::now().as_nanos();
        let allocated = (words[header::CONNECTIONS_ALLOCATED] as usize).min(layout::CONNECTIONS);
        let slots = self.slots(layout::connection_at(0), layout::CONNECTION_WORDS, allocated)?;
        Ok(slots.into_iter().filter_map(|(_, words)| connection_status(&words, now)).collect())
    }

    /// The header and the links, read while no link ended: the traffic of a link that ends between the two reads would
    /// be missing from the sum, which must not decrease.
    fn header_and_links(&self) -> io::Result<(Vec<u64>, Slots)> {
        let ended_traffic = header::ENDED_TRAFFIC..header::ENDED_TRAFFIC + Traffic::ALL.len();
        let Words(mut before) = Words::read(&self.file, 0, layout::HEADER_WORDS)?;
        let mut attempts = STATUS_ATTEMPTS;
        loop {
            let allocated = (before[header::LINKS_ALLOCATED] as usize).min(layout::LINKS);
            let links = self.slots(layout::link_at(0), layout::LINK_WORDS, allocated)?;
            let Words(after) = Words::read(&self.file, 0, layout::HEADER_WORDS)?;
            attempts -= 1;
            if before[ended_traffic.clone()] == after[ended_traffic.clone()] || attempts == 0 {
                return Ok((before, links));
            }
            before = after;
        }
    }

    /// The slots of a table, each as of one moment. Slots that keep changing are left out.
    fn slots(&self, first: usize, size: usize, count: usize) -> io::Result<Slots> {
        let mut found = Vec::with_capacity(count);
        let mut attempts = ATTEMPTS;
        let Words(before) = Words::read(&self.file, first, count * size)?;
        let Words(after) = Words::read(&self.file, first, count * size)?;
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
            let Words(before) = Words::read(&self.file, first, size)?;
            let Words(after) = Words::read(&self.file, first, 1)?;
            if before[0] & 1 == 0 && before[0] == after[0] {
                return Ok(Some(before));
            }
        }
        Ok(None) // the writer died during a change, or changes the slot continually
    }

    /// Sends a request to the server. Returns the request's word, for [`has_done`](Self::has_done).
    fn request(&self, request: Request) -> io::Result<u64> {
        let Words(words) = Words::read(&self.file, header::REQUEST, 1)?;
        let word = request.word(layout::sequence_of(words[0]).wrapping_add(1));
        // By a system call, because the server's watch of the file reports only these.
        self.file.write_all_at(&word.to_ne_bytes(), header::REQUEST as u64 * 8)?;
        Ok(word)
    }

    /// Whether the server has carried out this request, which must be the last one.
    fn has_done(&self, requested: u64) -> io::Result<bool> {
        let Words(words) = Words::read(&self.file, header::ANSWERED, 1)?;
        Ok(words[0] == requested)
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

/// Sends the same request to several servers, and waits until all have carried it out, for at most `timeout` in
/// total. `false`: the server has not carried out the request yet, and will when it next handles events.
pub fn request_all(pages: &[ServerPage], request: Request, timeout: Duration) -> Vec<io::Result<bool>> {
    let mut answers: Vec<io::Result<bool>> = Vec::with_capacity(pages.len());
    let requested: Vec<io::Result<u64>> = pages.iter().map(|page| page.request(request)).collect();
    let began = Instant::now();
    for (page, requested) in pages.iter().zip(requested) {
        answers.push(requested.and_then(|requested| {
            loop {
                let is_done = page.has_done(requested)?;
                if is_done || began.elapsed() >= timeout {
                    return Ok(is_done);
                }
                std::thread::sleep(ANSWER_INTERVAL);
            }
        }));
    }
    answers
}

/// Opens a file that may be a page: a regular file of the right length.
fn open_page(path: &Path) -> io::Result<Option<File>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    Ok((metadata.is_file() && metadata.len() == layout::WORDS as u64 * 8).then_some(file))
}

/// Handles a page of a layout without a lock: its server may still run in another PID namespace, so the page stays.
fn open_unlocked_layout(words: &[u64]) -> io::Result<Option<ServerPage>> {
    let pid = words[header::PID];
    if start_ticks(&format!("/proc/{pid}/stat")) == Some(words[header::START_TICKS]) {
        return Err(io::Error::other("the server runs an older version of Spillway than this command"));
    }
    Ok(None)
}

/// Removes a page that no process has locked: locks the file, and removes it if the path still names it. Otherwise
/// another process has removed it before, and may have created a new page with this name.
fn remove_dead(file: &File, path: &Path) {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    if files::lock(file.as_raw_fd()).is_ok()
        && let (Ok(opened), Ok(at_path)) = (file.metadata(), std::fs::symlink_metadata(path))
        && identity(opened) == identity(at_path)
    {
        let _ = std::fs::remove_file(path);
    }
}

/// Clears a path for a new page. Returns the process that holds a valid page there, if any; otherwise removes the
/// file, also a locked file that does not belong to the user of its process.
pub(super) fn clear_path(path: &Path) -> Option<u32> {
    if let Ok(Some(file)) = open_page(path) {
        let holder = files::lock_holder(file.as_raw_fd()).ok().flatten();
        let user = file.metadata().map_or(0, |metadata| metadata.uid());
        match holder {
            Some(holder) if holder == 0 || user == 0 || effective_user(holder) == Some(user) => {
                return Some(holder);
            }
            Some(_) => {}
            None => {
                remove_dead(&file, path);
                return None;
            }
        }
    }
    let _ = std::fs::remove_file(path);
    None
}

/// The kernel's files for the namespaces of the calling process.
pub(super) const PID_NAMESPACE: &str = "/proc/self/ns/pid";
pub(super) const NET_NAMESPACE: &str = "/proc/self/ns/net";

/// The inode of a namespace; 0 if it cannot be read.
pub(super) fn namespace(path: &str) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.ino())
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

/// The effective user of a process. `/proc/PID` itself may belong to root.
fn effective_user(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn traffic_at(words: &[u64], at: usize) -> Vec<(Traffic, u64)> {
    Traffic::ALL.iter().map(|kind| (*kind, words[at + *kind as usize])).collect()
}

fn address_at(words: &[u64], at: usize) -> Option<SocketAddr> {
    layout::address_of([words[at], words[at + 1], words[at + 2]])
}

fn link_status(index: u32, words: &[u64], now: u64) -> Option<LinkStatus> {
    let state = match words[layout::link::STATE] {
        1 => "authenticating",
        2 => "helper",
        3 => "client",
        _ => return None,
    };
    Some(LinkStatus {
        index,
        state,
        peer: address_at(words, layout::link::PEER)?,
        key: words[layout::link::KEY],
        age: Duration::from_nanos(now.saturating_sub(words[layout::link::SINCE_NS])),
        encrypted: words[layout::link::ENCRYPTED] == 1,
        connections: words[layout::link::CONNECTIONS],
        sessions: words[layout::link::SESSIONS].checked_sub(1),
        traffic: traffic_at(words, layout::link::TRAFFIC),
    })
}

fn connection_status(words: &[u64], now: u64) -> Option<ConnectionStatus> {
    let link = words[layout::connection::LINK];
    Some(ConnectionStatus {
        client: address_at(words, layout::connection::CLIENT)?,
        link: (link >> 32) as u32,
        id: link as u32,
        age: Duration::from_nanos(now.saturating_sub(words[layout::connection::SINCE_NS])),
        bytes_received: words[layout::connection::BYTES_RECEIVED],
        bytes_sent: words[layout::connection::BYTES_SENT],
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::test_holder::Holder;
    use super::*;

    fn write(path: &Path, header: &[(usize, u64)]) {
        let mut words = vec![0; layout::WORDS];
        header.iter().for_each(|(at, word)| words[*at] = *word);
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        std::fs::write(path, bytes).unwrap();
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("spillway-{name}-{}", std::process::id()))
    }

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

    /// In a directory that lists its newest file first.
    #[test]
    fn page_is_found_among_many_other_files() {
        let directory = Path::new("/dev/shm").join(format!("spillway-many-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join(format!("{PREFIX}a"));
        write(&path, &[(header::MAGIC, layout::MAGIC), (header::LAYOUT, layout::LAYOUT)]);
        let holder = Holder::of(&path);
        for number in 0..=FILES_MAX {
            File::create(directory.join(format!("other-{number}"))).unwrap();
        }
        let (pages, _) = find_in(&[directory.to_str().unwrap().to_owned()]);
        drop(holder);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(pages.len(), 1);
    }

    #[test]
    fn hard_links_of_a_page_are_reported_once() {
        let directory = scratch("names");
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join(format!("{PREFIX}a"));
        write(&path, &[(header::MAGIC, layout::MAGIC), (header::LAYOUT, layout::LAYOUT)]);
        let holder = Holder::of(&path);
        for name in ["b", "c"] {
            std::fs::hard_link(&path, directory.join(format!("{PREFIX}{name}"))).unwrap();
        }
        let (pages, unreadable) = find_in(&[directory.to_str().unwrap().to_owned()]);
        drop(holder);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!((pages.len(), unreadable.len()), (1, 0));
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
            file: file.try_clone().unwrap(),
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
