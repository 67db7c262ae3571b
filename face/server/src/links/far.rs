//! Sessions whose carrier is on a link of another thread. See [`crate::threads`].

mod carrying;
mod serving;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use spillway_batch::Control;
use spillway_session::Carrier;
use spillway_wire::session::SessionId;

use crate::event::LinkId;
use crate::threads::{Absent, CarrierName, Ledger, Mailbox, Post, Threads, What};

/// Bytes of a session that may be posted and not yet taken by the link.
const LENT_BYTES_MAX: u64 = 256 * 1024;
/// What a control message counts for while it is posted, and how much of them beside a window of data is too much: an
/// honest client says little while it is not answered.
const CONTROL_BYTES: u64 = 128;
const CONTROL_BYTES_MAX: u64 = 64 * 1024;

/// This thread among those that share the port.
#[derive(Debug)]
pub(super) struct Member {
    threads: Threads,
    pub(super) thread: u32,
    mailbox: Arc<Mailbox>,
    /// Those of threads that were posted to.
    others: HashMap<u32, Arc<Mailbox>>,
    pub(super) is_watched: bool,
    /// What this turn has for other threads.
    out: BTreeMap<u32, Vec<Post>>,
    /// Connections on our links that carry other threads' sessions.
    held: HashMap<CarrierName, Held>,
    serials: u64,
    /// Sessions that the directory says are here.
    claims: VecDeque<SessionId>,
    /// Posts that were taken out and not yet looked at; of the first, so many bytes are dealt with.
    taken: VecDeque<Post>,
    taken_bytes: usize,
    /// What the bytes are that the application is to decompose.
    run: VecDeque<Item>,
}

/// A connection that carries another thread's session.
#[derive(Debug)]
struct Held {
    owner: u32,
    ledger: Arc<Ledger>,
    posted: u64,
    /// What the link has not taken yet, at most [`LENT_BYTES_MAX`], and what is to follow it.
    waiting: VecDeque<u8>,
    end: Vec<Control>,
}

/// The other thread's end of a carrier.
#[derive(Debug)]
pub(super) struct Far {
    pub(super) ledger: Arc<Ledger>,
    posted: u64,
}

/// A piece of what is to be decomposed.
#[derive(Debug)]
enum Item {
    Bytes(CarrierName, usize),
    /// One byte stands for it.
    Other(Post),
}

impl Far {
    pub(super) fn new(ledger: Arc<Ledger>) -> Far {
        Far { ledger, posted: 0 }
    }
}

/// A carrier by post.
pub(super) struct ByPost<'a> {
    far: &'a mut Far,
    carrier: CarrierName,
    posts: &'a mut Vec<Post>,
}

impl Carrier for ByPost<'_> {
    fn data(&mut self, bytes: &[u8]) -> usize {
        let Far { ledger, posted } = &mut *self.far;
        let mut room = LENT_BYTES_MAX.saturating_sub(ledger.waiting(*posted));
        if room < bytes.len() as u64 {
            // First say that we wait, then look again: else the word could come in between.
            ledger.wants_room.store(true, Ordering::SeqCst);
            room = LENT_BYTES_MAX.saturating_sub(ledger.waiting(*posted));
        }
        let taken = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        *posted += taken as u64;
        if taken > 0 {
            self.posts.push(Post {
                carrier: self.carrier,
                serial: ledger.serial,
                what: What::Send(bytes[..taken].to_vec()),
            });
        }
        taken
    }

    fn control(&mut self, control: Control) {
        let serial = self.far.ledger.serial;
        self.posts.push(Post { carrier: self.carrier, serial, what: What::Say(control) });
    }
}

impl Member {
    pub(super) fn join(threads: Threads) -> io::Result<Member> {
        let (thread, mailbox) = threads.join()?;
        Ok(Member {
            threads,
            thread,
            mailbox,
            others: HashMap::new(),
            is_watched: false,
            out: BTreeMap::new(),
            held: HashMap::new(),
            serials: 0,
            claims: VecDeque::new(),
            taken: VecDeque::new(),
            taken_bytes: 0,
            run: VecDeque::new(),
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.mailbox.as_fd()
    }

    /// Whether a flush has something to do.
    pub(super) fn is_busy(&self) -> bool {
        !self.out.is_empty()
    }

    pub(super) fn by_post<'a>(&'a mut self, far: &'a mut Far, carrier: CarrierName) -> ByPost<'a> {
        ByPost { far, carrier, posts: self.out.entry(carrier.0.thread).or_default() }
    }

    pub(super) fn post(&mut self, thread: u32, post: Post) {
        self.out.entry(thread).or_default().push(post);
    }

    /// Puts posts into another thread's mailbox.
    fn put(&mut self, thread: u32, posts: &mut Vec<Post>) -> Result<(), Absent> {
        let mailbox = match self.others.entry(thread) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.threads.mailbox(thread).ok_or(Absent)?),
        };
        let put = mailbox.put(posts);
        if put.is_err() {
            self.others.remove(&thread);
        }
        put
    }

    /// Posts what came on a connection to the thread of the session that it carries. `None`: it carries none of another
    /// thread. `Err`: it brings more than a client may send before it is answered.
    fn pass_on(
        &mut self,
        carrier: CarrierName,
        what: What,
        bytes: u64,
        bytes_max: u64,
    ) -> Option<Result<(), ()>> {
        let held = self.held.get_mut(&carrier)?;
        held.posted += bytes;
        if held.posted.saturating_sub(held.ledger.handled.load(Ordering::Relaxed)) > bytes_max {
            return Some(Err(()));
        }
        let (owner, serial) = (held.owner, held.ledger.serial);
        self.post(owner, Post { carrier, serial, what });
        Some(Ok(()))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Sessions of other threads wait for other carriers. Ours are gone.
        let held: Vec<CarrierName> = self.held.keys().copied().collect();
        for carrier in held {
            let _ = self.pass_on(carrier, What::Lost, 0, u64::MAX);
        }
        for (thread, mut posts) in std::mem::take(&mut self.out) {
            let _ = self.put(thread, &mut posts);
        }
        self.threads.leave(self.thread);
    }
}

/// Stands for the other threads' posts where a link is asked for.
pub(super) const MAIL: LinkId = LinkId { thread: u32::MAX, slot: u32::MAX, generation: 0 };
