//! Reading the status pages of this machine's servers, for the command.
//!
//! A living server holds a lock on its page. The kernel reports which process that is, also across PID namespaces, so
//! nothing that a page could forge is trusted: the page counts only if its file belongs to the user of that process.
//! Only a process that could lock a page removes it. A page is read rather than mapped, so that no other process can
//! cut a mapping short.

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

/// Most files of one directory that are examined, and most names of files of whatever kind that are read.
const FILES_MAX: usize = 4096;
const NAMES_MAX: usize = 1 << 20;
/// Attempts to read places that are being changed, over all places.
const TRIES: usize = 2000;
/// Attempts to read a status while no link ends.
const STATUS_TRIES: usize = 16;
/// Interval between checks for the answer to a request.
const ANSWER_INTERVAL: Duration = Duration::from_millis(2);

/// The directories where pages may be.
pub fn directories() -> Vec<String> {
    let named = crate::environment::variable(DIRECTORY).filter(|name| !name.is_empty());
    match named {
        Some(one) => vec![one],
        None => DIRECTORIES.map(str::to_owned).to_vec(),
    }
}

/// The page of a living server.
#[derive(Debug)]
pub struct ServerPage {
    file: File,
    /// The file's device and inode.
    inode: (u64, u64),
    /// The page's path.
    pub path: PathBuf,
    /// The server's process id: as this process sees it, or else as the server's own PID namespace does.
    pub pid: u32,
    /// Whether the process is in this PID namespace, or in one below.
    pub is_visible: bool,
    /// The inode of the server's PID namespace, if that is not this process's own and is known.
    pub pid_namespace: Option<u64>,
    /// The inode of the server's network namespace, if that is not this process's own and is known.
    pub net_namespace: Option<u64>,
    /// The user that the page belongs to.
    pub user: u32,
    /// The program's name according to the page.
    named: String,
}

/// A page that cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    /// The page's path.
    pub path: PathBuf,
    /// Why the page cannot be read.
    pub error: io::Error,
}

/// A server's status according to its page.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// Whether helpers are served.
    pub state: State,
    /// The operator's override of relief in force.
    pub relief: Override,
    /// The override's remaining time; `None` if it does not end.
    pub relief_left: Option<Duration>,
    /// Time since the page was made, which is before the link port opens.
    pub age: Duration,
    /// The link port's address; `None` for all addresses.
    pub link_address: Option<IpAddr>,
    /// The link port's number.
    pub link_port: u16,
    /// The server's ordinary port.
    pub helped_port: u16,
    /// All counters, in the order of [`Counter::ALL`].
    pub counters: Vec<(Counter, u64)>,
    /// Traffic of all links together, also of those that have ended, in the order of [`Traffic::ALL`].
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
    /// The id of its key.
    pub key: u64,
    /// Time since it was accepted.
    pub age: Duration,
    /// Whether it is encrypted, once it is authenticated.
    pub encrypted: bool,
    /// Number of virtual connections on it.
    pub connections: u64,
    /// Its traffic, in the order of [`Traffic::ALL`].
    pub traffic: Vec<(Traffic, u64)>,
}

/// One virtual connection.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// The client's own address.
    pub client: SocketAddr,
    /// Index of its link.
    pub link: u32,
    /// Its id on that link.
    pub id: u32,
    /// Time since it was opened.
    pub age: Duration,
    /// Bytes of requests received.
    pub bytes_received: u64,
    /// Bytes of replies sent.
    pub bytes_sent: u64,
}

/// The pages of all living servers, and the pages that cannot be read. Removes pages of servers that were killed,
/// where that is allowed.
pub fn find() -> (Vec<ServerPage>, Vec<Unreadable>) {
    find_in(&directories())
}

pub(super) fn find_in(directories: &[String]) -> (Vec<ServerPage>, Vec<Unreadable>) {
    let (mut pages, mut unreadable) = (Vec::new(), Vec::new());
    let mut known = HashSet::new();
    for directory in directories {
        let Ok(files) = std::fs::read_dir(directory) else { continue };
        let is_page = |file: &DirEntry| file.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        for file in files.take(NAMES_MAX).flatten().filter(is_page).take(FILES_MAX) {
            match ServerPage::open(&file.path()) {
                Ok(Some(page)) if known.insert(page.identity()) => pages.push(page),
                Ok(_) => {}
                Err(error) => unreadable.push(Unreadable { path: file.path(), error }),
            }
        }
    }
    pages.sort_by_key(|page| page.pid);
    (pages, unreadable)
}

struct Words(Vec<u64>);

/// Places of a table: their indexes and words.
type Places = Vec<(u32, Vec<u64>)>;

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
            return older(&words);
        }
        if words[header::MAGIC] != layout::MAGIC {
            return Ok(None); // still being made, or not a page
        }
        let holder = files::lock_holder(file.as_raw_fd()).map_err(io::Error::from_raw_os_error)?;
        let Some(holder) = holder else {
            remove_dead(&file, path);
            return Ok(None);
        };
        if words[header::LAYOUT] != layout::LAYOUT {
            return Err(io::Error::other("the server runs another version of Spillway than this command"));
        }
        // A page of root's was made before the server gave up its rights.
        let is_visible = holder != 0;
        if is_visible && metadata.uid() != 0 && owner(holder) != Some(metadata.uid()) {
            return Err(io::Error::other("it does not belong to the user of the process that has it locked"));
        }
        let elsewhere = |word: usize, own: &str| {
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
            pid_namespace: elsewhere(header::PID_NAMESPACE, PID_NAMESPACE),
            net_namespace: elsewhere(header::NET_NAMESPACE, NET_NAMESPACE),
            user: metadata.uid(),
            named: printable(name.split(|byte| *byte == 0).next().unwrap_or_default()),
        }))
    }

    /// Tells this server from others. A server has one page; further names of it, or pages that its process has locked,
    /// would only use up the reader's descriptors.
    fn identity(&self) -> (u64, u64) {
        if self.is_visible { (u64::MAX, self.pid.into()) } else { self.inode }
    }

    /// Reads the server's status.
    pub fn status(&self) -> io::Result<ServerStatus> {
        let (words, links) = self.header_and_links()?;
        let now = sys::now().as_nanos();
        let mut traffic = traffic_at(&words, header::GONE);
        let links: Vec<LinkStatus> =
            links.into_iter().filter_map(|(index, words)| link_status(index, &words, now)).collect();
        for link in &links {
            // A page may have any numbers.
            traffic.iter_mut().zip(&link.traffic).for_each(|(sum, one)| sum.1 = sum.1.saturating_add(one.1));
        }
        let address = [words[header::LINK_ADDRESS], words[header::LINK_ADDRESS + 1]];
        let link_address = (address != [0; 2]).then(|| {
            let v6 = Ipv6Addr::from_bits(u128::from(address[0]) << 64 | u128::from(address[1]));
            v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
        });
        let until = words[header::RELIEF_UNTIL_NS];
        let relief_left = (until > 0).then(|| Duration::from_nanos(until.saturating_sub(now)));
        let said = layout::relief_of(words[header::RELIEF]);
        let relief = if relief_left == Some(Duration::ZERO) { Override::Auto } else { said };
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
                .map(|one| (*one, words[header::COUNTERS + *one as usize]))
                .collect(),
            traffic,
            links,
        })
    }

    /// The server's virtual connections that have a place on the page.
    pub fn connections(&self) -> io::Result<Vec<ConnectionStatus>> {
        let Words(words) = Words::read(&self.file, 0, layout::HEADER_WORDS)?;
        let now = sys::now().as_nanos();
        let made = (words[header::CONNECTIONS_MADE] as usize).min(layout::CONNECTIONS);
        let places = self.places(layout::connection_at(0), layout::CONNECTION_WORDS, made)?;
        Ok(places.into_iter().filter_map(|(_, words)| connection_status(&words, now)).collect())
    }

    /// The header and the links at a time when no link ended: the traffic of one that ends between the two reads would be
    /// missing from their sum, which must never fall.
    fn header_and_links(&self) -> io::Result<(Vec<u64>, Places)> {
        let gone = header::GONE..header::GONE + Traffic::ALL.len();
        let Words(mut before) = Words::read(&self.file, 0, layout::HEADER_WORDS)?;
        let mut tries = STATUS_TRIES;
        loop {
            let made = (before[header::LINKS_MADE] as usize).min(layout::LINKS);
            let links = self.places(layout::link_at(0), layout::LINK_WORDS, made)?;
            let Words(after) = Words::read(&self.file, 0, layout::HEADER_WORDS)?;
            tries -= 1;
            if before[gone.clone()] == after[gone.clone()] || tries == 0 {
                return Ok((before, links));
            }
            before = after;
        }
    }

    /// The places of a table, each as it was at one moment. Places that keep changing are left out.
    fn places(&self, first: usize, size: usize, count: usize) -> io::Result<Places> {
        let mut found = Vec::with_capacity(count);
        let mut tries = TRIES;
        let Words(before) = Words::read(&self.file, first, count * size)?;
        let Words(after) = Words::read(&self.file, first, count * size)?;
        for index in 0..count {
            let place = index * size..(index + 1) * size;
            let is_whole = before[place.start] & 1 == 0 && before[place.start] == after[place.start];
            if is_whole {
                found.push((index as u32, before[place].to_vec()));
            } else if let Some(words) = self.place(first + index * size, size, &mut tries)? {
                found.push((index as u32, words));
            }
        }
        Ok(found)
    }

    fn place(&self, first: usize, size: usize, tries: &mut usize) -> io::Result<Option<Vec<u64>>> {
        while *tries > 0 {
            *tries -= 1;
            let Words(before) = Words::read(&self.file, first, size)?;
            let Words(after) = Words::read(&self.file, first, 1)?;
            if before[0] & 1 == 0 && before[0] == after[0] {
                return Ok(Some(before));
            }
        }
        Ok(None) // its writer died during a change, or changes it all the time
    }

    /// Sends a request to the server. Returns the word for [`has_done`](Self::has_done).
    fn ask(&self, request: Request) -> io::Result<u64> {
        let Words(words) = Words::read(&self.file, header::REQUEST, 1)?;
        let word = request.word(layout::sequence_of(words[0]).wrapping_add(1));
        // Written by a system call, because the server's watch of the file reports those.
        self.file.write_all_at(&word.to_ne_bytes(), header::REQUEST as u64 * 8)?;
        Ok(word)
    }

    /// Whether the server has carried out this request, the last one.
    fn has_done(&self, asked: u64) -> io::Result<bool> {
        let Words(words) = Words::read(&self.file, header::ANSWERED, 1)?;
        Ok(words[0] == asked)
    }

    /// The name of the server's program: the system's if the process is visible, otherwise the page's. Escaped for
    /// printing, because a process may have any name.
    pub fn program(&self) -> String {
        if !self.is_visible {
            return self.named.clone();
        }
        let name = std::fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        printable(name.trim_ascii_end())
    }
}

/// Sends the same request to several servers, and waits until all have carried it out, for at most `patience` in
/// total. `false`: the server has not done so, and will when it next looks.
pub fn ask_all(pages: &[ServerPage], request: Request, patience: Duration) -> Vec<io::Result<bool>> {
    let mut answers: Vec<io::Result<bool>> = Vec::with_capacity(pages.len());
    let asked: Vec<io::Result<u64>> = pages.iter().map(|page| page.ask(request)).collect();
    let began = Instant::now();
    for (page, asked) in pages.iter().zip(asked) {
        answers.push(asked.and_then(|asked| {
            loop {
                let is_done = page.has_done(asked)?;
                if is_done || began.elapsed() >= patience {
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

/// Handles a page of a layout without a lock: its server cannot be proven to have ended, so the page stays.
fn older(words: &[u64]) -> io::Result<Option<ServerPage>> {
    let pid = words[header::PID];
    if start_ticks(&format!("/proc/{pid}/stat")) == Some(words[header::START_TICKS]) {
        return Err(io::Error::other("the server runs an older version of Spillway than this command"));
    }
    Ok(None)
}

/// Removes a page that no process has locked. Of several processes that try, only the one with the lock removes it, while
/// the path still names this file: a process that makes a page of this name has locked and removed this file before.
fn remove_dead(file: &File, path: &Path) {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    if files::lock(file.as_raw_fd()).is_ok()
        && let (Ok(this), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path))
        && identity(this) == identity(named)
    {
        let _ = std::fs::remove_file(path);
    }
}

/// Clears a path for a process that is to make a page there. Returns the living process that has a page there;
/// otherwise removes the file, even a locked one that does not belong to the user of its process.
pub(super) fn take_out(path: &Path) -> Option<u32> {
    if let Ok(Some(file)) = open_page(path) {
        let holder = files::lock_holder(file.as_raw_fd()).ok().flatten();
        let user = file.metadata().map_or(0, |metadata| metadata.uid());
        match holder {
            Some(holder) if holder == 0 || user == 0 || owner(holder) == Some(user) => return Some(holder),
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

/// The files by which the kernel shows a process its own namespaces.
pub(super) const PID_NAMESPACE: &str = "/proc/self/ns/pid";
pub(super) const NET_NAMESPACE: &str = "/proc/self/ns/net";

/// The inode of a namespace; 0 if it is not known.
pub(super) fn namespace(path: &str) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.ino())
}

/// The name of another process, escaped for printing: control characters, and characters that change the direction of
/// writing.
pub fn printable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let escaped = text.chars().flat_map(|one| {
        let is_plain = matches!(one, '\'' | '"');
        let (plain, escaped) = (is_plain.then_some(one), (!is_plain).then(|| one.escape_debug()));
        plain.into_iter().chain(escaped.into_iter().flatten())
    });
    escaped.collect()
}

/// The effective user of a process. `/proc/PID` itself may belong to root.
fn owner(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn traffic_at(words: &[u64], at: usize) -> Vec<(Traffic, u64)> {
    Traffic::ALL.iter().map(|one| (*one, words[at + *one as usize])).collect()
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
    fn a_page_is_removed_when_nobody_has_it_locked_whatever_its_layout() {
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
                Ok(None) => panic!("its server lives"),
            }
            assert!(path.exists());
            drop(holder);
            assert!(ServerPage::open(&path).unwrap().is_none() && !path.exists());
        }
    }

    #[test]
    fn an_older_page_is_refused_or_left_alone() {
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
            "it may live in another namespace"
        );
        std::fs::remove_file(&path).unwrap();
    }

    /// The page of one user's process, in a file of another user.
    #[test]
    fn a_page_that_is_not_its_process_users_is_told() {
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
    fn a_page_is_found_among_many_other_files() {
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
    fn further_names_and_pages_of_a_process_are_left_out() {
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

    /// A page whose only link ends and is accepted again, over and over.
    #[test]
    fn traffic_does_not_fall_when_a_link_ends() {
        const MESSAGES: u64 = 1_000_000;
        let path = scratch("ending");
        write(&path, &[(header::LINKS_MADE, layout::LINKS as u64)]);
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
            named: String::new(),
        };
        let messages = || page.status().unwrap().traffic[Traffic::MessagesReceived as usize].1;
        let is_over = AtomicBool::new(false);
        let lives = std::thread::scope(|scope| {
            let links = scope.spawn(|| {
                let traffic = Traffic::MessagesReceived as usize;
                let (mut sequence, mut lives) = (0, 0);
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
                    lives += 1;
                    change(&[(header::GONE + traffic, lives * MESSAGES), (link + layout::link::STATE, 0)]);
                    std::thread::sleep(Duration::from_millis(2));
                }
                lives
            });
            let (mut before, began) = (0, Instant::now());
            let mut falls = 0;
            while began.elapsed() < Duration::from_secs(2) {
                let now = messages();
                falls += usize::from(now < before);
                before = now;
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(falls, 0);
            links.join().unwrap()
        });
        assert_eq!(messages(), lives * MESSAGES);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn any_traffic_is_added_up() {
        let path = scratch("traffic");
        let traffic = layout::link_at(0) + layout::link::TRAFFIC;
        let mut words = vec![(header::MAGIC, layout::MAGIC), (header::LAYOUT, layout::LAYOUT)];
        words.extend([(header::LINKS_MADE, 1), (header::GONE, 1), (traffic, u64::MAX)]);
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
    fn any_words_are_read() {
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
            let page = ServerPage::open(&path).unwrap().expect("it is a page of a living process");
            assert!(page.named.chars().all(|one| !one.is_control()), "{:?}", page.named);
            assert_eq!((page.pid, page.program().as_str()), (holder.pid(), "python3"));
            assert!(page.status().unwrap().links.len() <= layout::LINKS);
            assert!(page.connections().unwrap().len() <= layout::CONNECTIONS);
            let answers = ask_all(&[page], Request::Refresh, Duration::ZERO);
            assert!(matches!(answers[..], [Ok(false)]), "nobody is there to answer");
        }
        // Too short, a symbolic link, a directory: not a page, or an error.
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(ServerPage::open(&path).unwrap().is_none());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(ServerPage::open(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(ServerPage::open(Path::new("/tmp")).is_err());
    }

    #[test]
    fn names_cannot_write_to_terminals() {
        assert_eq!(printable(b"memcached"), "memcached");
        assert_eq!(printable(b"it's \"x\""), "it's \"x\"");
        assert_eq!(printable(b"\x1b[2Jroot\n\x07"), "\\u{1b}[2Jroot\\n\\u{7}");
        assert_eq!(printable("\u{9b}31m\u{202e}".as_bytes()), "\\u{9b}31m\\u{202e}");
        assert_eq!(printable(b"\xff\\"), "\u{fffd}\\\\");
    }
}
