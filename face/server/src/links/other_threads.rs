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
use crate::threads::{Absent, CarrierName, Ledger, Mailbox, Message, Post, Threads};

/// Maximum of a session's posted bytes that the link has not taken yet.
const POSTED_OUTPUT_BYTES_MAX: u64 = 256 * 1024;
/// Bytes that a posted control message counts for.
const CONTROL_BYTES: u64 = 128;
/// Maximum number of bytes of a carrier's input that are posted and not yet processed, beyond one window of
/// data. An honest client sends few control messages before it is answered.
const CONTROL_BYTES_MAX: u64 = 64 * 1024;

/// This thread among those that share the port.
#[derive(Debug)]
pub(super) struct Member {
    threads: Threads,
    pub(super) thread: u32,
    mailbox: Arc<Mailbox>,
    /// Mailboxes of threads that this thread has posted to.
    others: HashMap<u32, Arc<Mailbox>>,
    pub(super) is_watched: bool,
    outgoing: BTreeMap<u32, Vec<Post>>,
    /// Connections on this thread's links that carry other threads' sessions.
    held: HashMap<CarrierName, Held>,
    /// The [`Ledger::serial`] of the latest carrier.
    last_serial: u64,
    /// Sessions that this thread owns according to the directory, oldest first.
    claims: VecDeque<SessionId>,
    /// Posts that were taken out of the mailbox and wait for room in the application's buffer.
    taken: VecDeque<Post>,
    /// Bytes of the first post in `taken` that are in the buffer already.
    taken_bytes: usize,
    /// The meaning of the bytes in the application's buffer, in order.
    buffer_items: VecDeque<Item>,
}

/// The link thread's end of a carrier: a connection that carries another thread's session.
#[derive(Debug)]
struct Held {
    owner: u32,
    ledger: Arc<Ledger>,
    posted: u64,
    /// Bytes that the link has not taken yet, at most [`POSTED_OUTPUT_BYTES_MAX`].
    waiting: VecDeque<u8>,
    /// *finish* and *close*, to be sent after `waiting`.
    end: Vec<Control>,
}

/// The session thread's end of a carrier on another thread's link.
#[derive(Debug)]
pub(super) struct RemoteCarrier {
    pub(super) ledger: Arc<Ledger>,
    posted: u64,
}

/// The meaning of a piece of the application's buffer.
#[derive(Debug)]
enum Item {
    /// This many bytes of data.
    Bytes(CarrierName, usize),
    /// A post without data, represented by one byte.
    Other(Post),
}

impl RemoteCarrier {
    pub(super) fn new(ledger: Arc<Ledger>) -> RemoteCarrier {
        RemoteCarrier { ledger, posted: 0 }
    }
}

/// A [`Carrier`] that posts the session's output to the link's thread.
pub(super) struct RemoteOutput<'a> {
    remote: &'a mut RemoteCarrier,
    carrier: CarrierName,
    posts: &'a mut Vec<Post>,
}

impl Carrier for RemoteOutput<'_> {
    fn data(&mut self, bytes: &[u8]) -> usize {
        let RemoteCarrier { ledger, posted } = &mut *self.remote;
        let mut room = POSTED_OUTPUT_BYTES_MAX.saturating_sub(ledger.waiting(*posted));
        if room < bytes.len() as u64 {
            // Set the flag before the second reading of `sent`: otherwise bytes that are sent in between post no `Room`.
            ledger.wants_room.store(true, Ordering::SeqCst);
            room = POSTED_OUTPUT_BYTES_MAX.saturating_sub(ledger.waiting(*posted));
        }
        let taken = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        *posted += taken as u64;
        if taken > 0 {
            self.posts.push(Post {
                carrier: self.carrier,
                serial: ledger.serial,
                message: Message::SendData(bytes[..taken].to_vec()),
            });
        }
        taken
    }

    fn control(&mut self, control: Control) {
        let serial = self.remote.ledger.serial;
        self.posts.push(Post { carrier: self.carrier, serial, message: Message::SendControl(control) });
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
            outgoing: BTreeMap::new(),
            held: HashMap::new(),
            last_serial: 0,
            claims: VecDeque::new(),
            taken: VecDeque::new(),
            taken_bytes: 0,
            buffer_items: VecDeque::new(),
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.mailbox.as_fd()
    }

    /// Whether [`Links::flush`](crate::Links::flush) has posts to deliver.
    pub(super) fn is_busy(&self) -> bool {
        !self.outgoing.is_empty()
    }

    pub(super) fn remote_output<'a>(
        &'a mut self,
        remote: &'a mut RemoteCarrier,
        carrier: CarrierName,
    ) -> RemoteOutput<'a> {
        RemoteOutput { remote, carrier, posts: self.outgoing.entry(carrier.0.thread).or_default() }
    }

    pub(super) fn post(&mut self, thread: u32, post: Post) {
        self.outgoing.entry(thread).or_default().push(post);
    }

    fn deliver(&mut self, thread: u32, posts: &mut Vec<Post>) -> Result<(), Absent> {
        let mailbox = match self.others.entry(thread) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.threads.mailbox(thread).ok_or(Absent)?),
        };
        let outcome = mailbox.put(posts);
        if outcome.is_err() {
            self.others.remove(&thread);
        }
        outcome
    }

    /// Posts input of a connection to the thread of its session. `None`: the connection carries no session of another
    /// thread. `Err`: more than `bytes_max` bytes would be posted and not yet processed.
    fn post_input(
        &mut self,
        carrier: CarrierName,
        message: Message,
        bytes: u64,
        bytes_max: u64,
    ) -> Option<Result<(), ()>> {
        let held = self.held.get_mut(&carrier)?;
        held.posted += bytes;
        if held.posted.saturating_sub(held.ledger.handled.load(Ordering::Relaxed)) > bytes_max {
            return Some(Err(()));
        }
        let (owner, serial) = (held.owner, held.ledger.serial);
        self.post(owner, Post { carrier, serial, message });
        Some(Ok(()))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Detaches other threads' sessions from this thread's links. `leave` removes this thread's sessions.
        let held: Vec<CarrierName> = self.held.keys().copied().collect();
        for carrier in held {
            let _ = self.post_input(carrier, Message::Lost, 0, u64::MAX);
        }
        for (thread, mut posts) in std::mem::take(&mut self.outgoing) {
            let _ = self.deliver(thread, &mut posts);
        }
        self.threads.leave(self.thread);
    }
}

/// Stands for the posts of other threads where a link's id is expected.
pub(super) const MAIL: LinkId = LinkId { thread: u32::MAX, slot: u32::MAX, generation: 0 };
