//! State that the threads of one link port share, so that a session can resume on a link of any of them.
//!
//! A session stays with the thread where it began, because there the application serves its client. Its next carrier may
//! be a connection on another thread's link, which may also carry clients of further threads. So the link's thread posts
//! the carrier's input to the session's thread, and the session's thread posts its output back. Other sessions have no
//! such cost. The directory of sessions is read only for opening messages; a mailbox is locked only while a turn's posts
//! are put in or taken out.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use spillway_batch::{CloseReason, Control, Id, Kind, RefuseReason, Role};
use spillway_wire::session::{Opening, SessionId};

use crate::event::LinkId;

/// Identifies a carrier: a connection on a link.
pub(crate) type CarrierName = (LinkId, Id);

/// The threads of one process that share a link port: each thread's [`Settings`](crate::Settings) gets a clone. Their
/// settings must have the same keys, rules and bounds.
#[derive(Clone, Debug, Default)]
pub struct Threads(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    mailboxes: Mutex<Mailboxes>,
    /// The directory: the thread that owns each session. It may also name a few sessions that their threads have forgotten.
    owners: Mutex<HashMap<SessionId, u32>>,
}

#[derive(Debug, Default)]
struct Mailboxes {
    by_thread: HashMap<u32, Arc<Mailbox>>,
    next: u32,
}

/// Posts from other threads to one thread.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// `None`: the thread has left.
    posts: Mutex<Option<Vec<Post>>>,
    /// An eventfd that is readable while there are posts.
    wake: OwnedFd,
}

/// A message between threads about a carrier.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) carrier: CarrierName,
    /// The carrier's [`Ledger::serial`]: a connection's id may be used again while an old post is in a mailbox.
    pub(crate) serial: u64,
    pub(crate) message: Message,
}

#[derive(Debug)]
pub(crate) enum Message {
    // From the thread that owns the link.
    Opening(Box<PostedOpening>),
    Data(Vec<u8>),
    Control(Control),
    Lost,
    /// The link has taken bytes, and the session waits for room.
    Room,
    // From the thread that owns the session.
    SendData(Vec<u8>),
    SendControl(Control),
    Refuse(RefuseReason),
    /// Close the carrier, which does not carry its session any more.
    Close(CloseReason),
}

#[derive(Debug)]
pub(crate) struct PostedOpening {
    pub(crate) role: Role,
    pub(crate) kind: Kind,
    pub(crate) client: SocketAddr,
    pub(crate) opening: Opening,
    pub(crate) ledger: Arc<Ledger>,
}

/// Counters of a carrier, shared by the link's thread and the session's thread. They bound the bytes in both mailboxes.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Unique among the carriers of the link's thread.
    pub(crate) serial: u64,
    /// Posted bytes that the session's thread has processed.
    pub(crate) handled: AtomicU64,
    /// Posted bytes that the link has taken.
    pub(crate) sent: AtomicU64,
    /// The link's thread posts [`Message::Room`] when `sent` grows.
    pub(crate) wants_room: AtomicBool,
}

impl Ledger {
    pub(crate) fn new(serial: u64) -> Ledger {
        let (handled, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        Ledger { serial, handled, sent, wants_room: AtomicBool::new(false) }
    }
}

/// The receiving thread has left.
#[derive(Debug)]
pub(crate) struct Absent;

impl Threads {
    /// Adds a thread. Returns its number, which is never reused, and its mailbox.
    pub(crate) fn join(&self) -> io::Result<(u32, Arc<Mailbox>)> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mailbox = Arc::new(Mailbox { posts: Mutex::new(Some(Vec::new())), wake });
        let mut mailboxes = lock(&self.0.mailboxes);
        let thread = mailboxes.next;
        mailboxes.next = thread.checked_add(1).ok_or(io::ErrorKind::QuotaExceeded)?;
        mailboxes.by_thread.insert(thread, mailbox.clone());
        Ok((thread, mailbox))
    }

    /// Removes a thread and its sessions.
    pub(crate) fn leave(&self, thread: u32) {
        let mailbox = lock(&self.0.mailboxes).by_thread.remove(&thread);
        if let Some(mailbox) = mailbox {
            *lock(&mailbox.posts) = None;
        }
        lock(&self.0.owners).retain(|_, owner| *owner != thread);
    }

    pub(crate) fn mailbox(&self, thread: u32) -> Option<Arc<Mailbox>> {
        lock(&self.0.mailboxes).by_thread.get(&thread).cloned()
    }

    pub(crate) fn owner(&self, session: SessionId) -> Option<u32> {
        lock(&self.0.owners).get(&session).copied()
    }

    /// Makes `thread` the owner of a session without one. Returns the owner.
    pub(crate) fn claim(&self, session: SessionId, thread: u32) -> u32 {
        *lock(&self.0.owners).entry(session).or_insert(thread)
    }

    /// Removes a session from the directory, if `thread` is its owner.
    pub(crate) fn release(&self, session: SessionId, thread: u32) {
        let mut owners = lock(&self.0.owners);
        if owners.get(&session) == Some(&thread) {
            owners.remove(&session);
        }
    }
}

impl Mailbox {
    /// Appends posts in this order, and wakes the thread. `posts` is empty afterwards.
    pub(crate) fn put(&self, posts: &mut Vec<Post>) -> Result<(), Absent> {
        {
            let mut queue = lock(&self.posts);
            let Some(queue) = &mut *queue else { return Err(Absent) };
            queue.append(posts);
        }
        self.wake();
        Ok(())
    }

    /// Removes and returns all posts.
    pub(crate) fn take(&self) -> Vec<Post> {
        // Read before posts are taken: a post that is put in meanwhile must wake the thread again. EAGAIN is harmless.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        lock(&self.posts).as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn wake(&self) {
        // The write fails only if the counter would overflow, and then the eventfd is readable.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Ledger {
    /// The link has taken `bytes` more. Returns whether the session's thread waits for room.
    pub(crate) fn note_sent(&self, bytes: usize) -> bool {
        self.sent.fetch_add(bytes as u64, Ordering::SeqCst);
        self.wants_room.swap(false, Ordering::SeqCst)
    }

    /// Posted bytes that the link has not taken.
    pub(crate) fn waiting(&self, posted: u64) -> u64 {
        posted.saturating_sub(self.sent.load(Ordering::SeqCst))
    }
}

/// A poisoned lock is usable: no critical section leaves its data half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    #[test]
    fn session_has_one_owner_until_the_owner_releases_it() {
        let threads = Threads::default();
        let (first, _) = threads.join().unwrap();
        let (second, _) = threads.join().unwrap();
        assert_eq!((threads.claim(id(1), first), threads.claim(id(1), second)), (first, first));
        threads.release(id(1), second);
        assert_eq!(threads.owner(id(1)), Some(first));
        threads.release(id(1), first);
        assert_eq!((threads.owner(id(1)), threads.claim(id(1), second)), (None, second));
        threads.leave(second);
        assert_eq!(threads.owner(id(1)), None);
        assert_eq!(threads.join().unwrap().0, 2, "thread numbers should not be reused");
    }

    #[test]
    fn put_wakes_the_thread_and_fails_after_the_thread_has_left() {
        let threads = Threads::default();
        let (thread, mailbox) = threads.join().unwrap();
        let link = LinkId { thread: 7, slot: 1, generation: 2 };
        let mut posts = Vec::from([Post { carrier: (link, Id(3)), serial: 4, message: Message::Lost }]);
        threads.mailbox(thread).unwrap().put(&mut posts).unwrap();
        assert!(posts.is_empty());
        assert_eq!(rustix::io::read(&mailbox.wake, &mut [0; 8]), Ok(8), "the eventfd should be readable");
        assert_eq!((mailbox.take().len(), mailbox.take().len()), (1, 0));
        threads.leave(thread);
        assert!(threads.mailbox(thread).is_none());
        posts.push(Post { carrier: (link, Id(3)), serial: 4, message: Message::Room });
        assert!(mailbox.put(&mut posts).is_err());
    }

    #[test]
    fn waiting_for_room_is_reported_once() {
        let ledger = Ledger::new(1);
        assert!(!ledger.note_sent(5));
        ledger.wants_room.store(true, Ordering::SeqCst);
        assert_eq!(ledger.waiting(100), 95);
        assert!(ledger.note_sent(5));
        assert!(!ledger.note_sent(5));
        assert_eq!(ledger.waiting(10), 0);
    }
}
