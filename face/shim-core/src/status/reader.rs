//! Reading the status pages of this machine's servers, for the command.
//!
//! A page lies where others may write too, so its file counts only if it belongs to the user of the process that it
//! names, and that process started when it says. It is read rather than mapped: nobody can pull it away.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use spillway_policy::Word;

use super::layout::{self, Counter, Request, State, Traffic, header};
use super::page::{DIRECTORIES, DIRECTORY, PREFIX, start_ticks};
use crate::sys;

/// Files of one directory that are looked at.
const FILES_MAX: usize = 4096;
/// Places that are just being changed are read again so often, all together.
const TRIES: usize = 2000;
/// How often an order's answer is looked for.
const ANSWER_INTERVAL: Duration = Duration::from_millis(2);

/// The directories where pages may be.
pub fn directories() -> Vec<String> {
    let named = crate::config::variable(DIRECTORY).filter(|name| !name.is_empty());
    match named {
        Some(one) => vec![one],
        None => DIRECTORIES.map(str::to_owned).to_vec(),
    }
}

/// The page of a living server.
#[derive(Debug)]
pub struct ServerPage {
    file: File,
    /// Where the page is.
    pub path: PathBuf,
    /// The server's process.
    pub pid: u32,
}

/// A page that is there and cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    /// Where the page is.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

/// What a page says of a server.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// Whether helpers are served.
    pub state: State,
    /// The operator's word on relief, as long as it holds.
    pub relief: Word,
    /// For how long it still does; `None` is for ever.
    pub relief_left: Option<Duration>,
    /// Since the link port opened.
    pub age: Duration,
    /// Where helpers connect; `None` for all addresses.
    pub link_address: Option<IpAddr>,
    /// The port there.
    pub link_port: u16,
    /// The server's own port that is helped.
    pub helped_port: u16,
    /// In the order of [`Counter::ALL`].
    pub counters: Vec<(Counter, u64)>,
    /// All links together, also those that are gone, in the order of [`Traffic::ALL`].
    pub traffic: Vec<(Traffic, u64)>,
    /// Links there are.
    pub links: Vec<LinkStatus>,
}

/// One link.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// Names it on this page.
    pub index: u32,
    /// The helper, or the client that speaks links itself.
    pub peer: SocketAddr,
    /// `authenticating`, `helper` or `client`.
    pub state: &'static str,
    /// The name of its key.
    pub key: u64,
    /// Since it was accepted.
    pub age: Duration,
    /// Virtual connections on it.
    pub connections: u64,
    /// In the order of [`Traffic::ALL`].
    pub traffic: Vec<(Traffic, u64)>,
}

/// One virtual connection.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// The client's own address.
    pub client: SocketAddr,
    /// The place of its link.
    pub link: u32,
    /// Its id there.
    pub id: u32,
    /// Since it was opened.
    pub age: Duration,
    /// Bytes of requests.
    pub bytes_received: u64,
    /// Bytes of replies.
    pub bytes_sent: u64,
}

/// The pages of all living servers, and those that cannot be read. Pages of servers that were killed are removed
/// where that is allowed.
pub fn find() -> (Vec<ServerPage>, Vec<Unreadable>) {
    find_in(&directories())
}

pub(super) fn find_in(directories: &[String]) -> (Vec<ServerPage>, Vec<Unreadable>) {
    let (mut pages, mut unreadable) = (Vec::new(), Vec::new());
    for directory in directories {
        let Ok(files) = std::fs::read_dir(directory) else { continue };
        for file in files.take(FILES_MAX).flatten() {
            if !file.file_name().to_string_lossy().starts_with(PREFIX) {
                continue;
            }
            match ServerPage::open(&file.path()) {
                Ok(Some(page)) => pages.push(page),
                Ok(None) => {}
                Err(error) => unreadable.push(Unreadable { path: file.path(), error }),
            }
        }
    }
    pages.sort_by_key(|page| page.pid);
    (pages, unreadable)
}

/// The page's words.
struct Words(Vec<u64>);

impl Words {
    fn read(file: &File, first: usize, count: usize) -> io::Result<Words> {
        let mut bytes = vec![0; count * 8];
        file.read_exact_at(&mut bytes, first as u64 * 8)?;
        Ok(Words(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()))
    }
}

impl ServerPage {
    /// `None` when the server is gone, or it is no page of a server.
    pub(super) fn open(path: &Path) -> io::Result<Option<ServerPage>> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() != layout::WORDS as u64 * 8 {
            return Ok(None);
        }
        let Words(words) = Words::read(&file, 0, layout::HEADER_WORDS)?;
        if words[header::MAGIC] != layout::MAGIC {
            return Ok(None); // just being made
        }
        // Whose it is stands at the same place in every layout.
        let Ok(pid) = u32::try_from(words[header::PID]) else { return Ok(None) };
        if start_ticks(&format!("/proc/{pid}/stat")) != Some(words[header::START_TICKS]) {
            // Killed: nobody else will. Only what says itself that it is a page is removed.
            let _ = std::fs::remove_file(path);
            return Ok(None);
        }
        if words[header::LAYOUT] != layout::LAYOUT {
            return Err(io::Error::other("the server runs another version of Spillway than this command"));
        }
        // One of root's was made before the server gave its rights up.
        if metadata.uid() != 0 && owner(pid) != Some(metadata.uid()) {
            return Err(io::Error::other("it does not belong to the user of the process that it names"));
        }
        Ok(Some(ServerPage { file, path: path.to_owned(), pid }))
    }

    /// What the server does.
    pub fn status(&self) -> io::Result<ServerStatus> {
        let Words(words) = Words::read(&self.file, 0, layout::HEADER_WORDS)?;
        let now = sys::now().as_nanos();
        let mut traffic = traffic_at(&words, header::GONE);
        let made = (words[header::LINKS_MADE] as usize).min(layout::LINKS);
        let links: Vec<LinkStatus> = self
            .places(layout::link_at(0), layout::LINK_WORDS, made)?
            .into_iter()
            .filter_map(|(index, words)| link_status(index, &words, now))
            .collect();
        for link in &links {
            traffic.iter_mut().zip(&link.traffic).for_each(|(sum, one)| sum.1 += one.1);
        }
        let address = [words[header::LINK_ADDRESS], words[header::LINK_ADDRESS + 1]];
        let link_address = (address != [0; 2]).then(|| {
            let v6 = Ipv6Addr::from_bits(u128::from(address[0]) << 64 | u128::from(address[1]));
            v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
        });
        let until = words[header::RELIEF_UNTIL_NS];
        let relief_left = (until > 0).then(|| Duration::from_nanos(until.saturating_sub(now)));
        let said = layout::relief_of(words[header::RELIEF]);
        let relief = if relief_left == Some(Duration::ZERO) { Word::Auto } else { said };
        Ok(ServerStatus {
            relief,
            relief_left: relief_left.filter(|_| relief != Word::Auto),
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

    /// The server's virtual connections, as far as they have a place.
    pub fn connections(&self) -> io::Result<Vec<ConnectionStatus>> {
        let Words(words) = Words::read(&self.file, 0, layout::HEADER_WORDS)?;
        let now = sys::now().as_nanos();
        let made = (words[header::CONNECTIONS_MADE] as usize).min(layout::CONNECTIONS);
        let places = self.places(layout::connection_at(0), layout::CONNECTION_WORDS, made)?;
        Ok(places.into_iter().filter_map(|(_, words)| connection_status(&words, now)).collect())
    }

    /// Places of a table, each as it was at one moment.
    fn places(&self, first: usize, size: usize, count: usize) -> io::Result<Vec<(u32, Vec<u64>)>> {
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
        Ok(None) // its writer died in the middle, or it never rests
    }

    /// Asks the server for something, and waits until it has done that. `false`: it did not within this time, and
    /// will when it next looks.
    pub fn ask(&self, request: Request, patience: Duration) -> io::Result<bool> {
        let Words(words) = Words::read(&self.file, header::REQUEST, 1)?;
        let word = request.word(layout::sequence_of(words[0]).wrapping_add(1));
        // A write by a system call, which the server's watch of the file reports.
        self.file.write_all_at(&word.to_ne_bytes(), header::REQUEST as u64 * 8)?;
        let began = Instant::now();
        loop {
            let Words(words) = Words::read(&self.file, header::ANSWERED, 1)?;
            if words[0] == word {
                return Ok(true);
            }
            if began.elapsed() >= patience {
                return Ok(false);
            }
            std::thread::sleep(ANSWER_INTERVAL);
        }
    }

    /// The server's program, as the system names it.
    pub fn program(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default().trim_end().to_owned()
    }
}

/// The user that a process acts as. `/proc/PID` itself may belong to root.
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
    use super::*;

    #[test]
    fn a_page_of_another_version_is_removed_once_its_server_is_gone() {
        let path = std::env::temp_dir().join(format!("spillway-layout-{}", std::process::id()));
        let write = |start_ticks: u64| {
            let mut words = vec![0; layout::WORDS];
            (words[header::MAGIC], words[header::LAYOUT]) = (layout::MAGIC, layout::LAYOUT + 1);
            (words[header::PID], words[header::START_TICKS]) = (std::process::id().into(), start_ticks);
            let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
            std::fs::write(&path, bytes).unwrap();
        };
        let alive = start_ticks("/proc/self/stat").unwrap();
        write(alive);
        assert!(ServerPage::open(&path).is_err() && path.exists());
        write(alive + 1);
        assert!(ServerPage::open(&path).unwrap().is_none() && !path.exists());
    }

    /// Whatever is in a page that passes for one of this process, reading it is no panic, and bounded.
    #[test]
    fn any_words_are_read() {
        let name = format!("spillway-reader-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let write = |seed: u64| {
            let mut state = seed;
            let mut words: Vec<u64> = Vec::with_capacity(layout::WORDS);
            words.resize_with(layout::WORDS, || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state ^ state >> 29
            });
            words[header::MAGIC] = layout::MAGIC;
            words[header::LAYOUT] = layout::LAYOUT;
            words[header::PID] = std::process::id().into();
            words[header::START_TICKS] = start_ticks("/proc/self/stat").unwrap();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            std::fs::write(&path, bytes).unwrap();
        };
        for seed in 0..4 {
            write(seed);
            let page = ServerPage::open(&path).unwrap().expect("it is a page of a living process");
            assert!(page.status().unwrap().links.len() <= layout::LINKS);
            assert!(page.connections().unwrap().len() <= layout::CONNECTIONS);
            assert!(!page.ask(Request::Refresh, Duration::ZERO).unwrap(), "nobody is there to answer");
        }
        // Too short, a link elsewhere, a directory: no page, or an error.
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(ServerPage::open(&path).unwrap().is_none());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(ServerPage::open(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(ServerPage::open(Path::new("/tmp")).is_err());
    }
}
