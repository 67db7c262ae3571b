//! What the threads of one link port share, so that a session finds its way back whichever of them its next link meets.
//!
//! A session stays with the thread where it began, for there the application serves its client. Its next carrier may be
//! a connection on a link of another thread, and that link may carry other clients of other threads as well; so what the
//! carrier brings is posted to the session's thread, and what the session says is posted back. Only such sessions pay for
//! it. The directory of sessions is looked at for first words alone; a mailbox is locked for the moment in which a turn's
//! posts are put in or taken out.

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

/// What carries a session: a connection on a link.
pub(crate) type CarrierName = (LinkId, Id);

/// Names the threads of one process that share a link port: give each thread's [`Settings`](crate::Settings) a clone.
/// They must have the same keys, rules and bounds.
#[derive(Clone, Debug, Default)]
pub struct Threads(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    mailboxes: Mutex<Mailboxes>,
    /// Which thread has a session. Each names those that its table knows, and few more.
    owners: Mutex<HashMap<SessionId, u32>>,
}

#[derive(Debug, Default)]
struct Mailboxes {
    by_thread: HashMap<u32, Arc<Mailbox>>,
    next: u32,
}

/// What other threads have for one.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// `None`: the thread has gone.
    posts: Mutex<Option<Vec<Post>>>,
    /// Readable when there is something.
    wake: OwnedFd,
}

/// A message between threads about a carrier.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) carrier: CarrierName,
    /// Of [`Ledger::serial`]: a connection's id may be used again while an old post is under way.
    pub(crate) serial: u64,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    // From the thread that has the link.
    /// A session's first words came.
    Words(Box<Words>),
    /// Bytes of a session came.
    Bytes(Vec<u8>),
    /// A control message of a session came.
    Heard(Control),
    /// The link is lost.
    Lost,
    /// The link has taken bytes, and the session waits for that.
    Room,
    // From the thread that has the session.
    /// Bytes of the session are to be sent.
    Send(Vec<u8>),
    /// A control message is to be sent.
    Say(Control),
    /// The carrier is refused.
    Refuse(RefuseReason),
    /// The carrier carries its session no more.
    Leave(CloseReason),
}

#[derive(Debug)]
pub(crate) struct Words {
    pub(crate) role: Role,
    pub(crate) kind: Kind,
    pub(crate) client: SocketAddr,
    pub(crate) opening: Opening,
    pub(crate) ledger: Arc<Ledger>,
}

/// What two threads know of a carrier between them: it bounds what is in their mailboxes.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// No two carriers of a thread have the same.
    pub(crate) serial: u64,
    /// Posted bytes that the session's thread has dealt with.
    pub(crate) handled: AtomicU64,
    /// Posted bytes that the link has taken.
    pub(crate) sent: AtomicU64,
    /// The session's thread is to be told when that rises.
    pub(crate) wants_room: AtomicBool,
}

impl Ledger {
    pub(crate) fn new(serial: u64) -> Ledger {
        let (handled, sent) = (AtomicU64::new(0), AtomicU64::new(0));
        Ledger { serial, handled, sent, wants_room: AtomicBool::new(false) }
    }
}

/// The thread that was asked for has gone.
#[derive(Debug)]
pub(crate) struct Absent;

impl Threads {
    /// One more thread: its number, which is not used again, and its mailbox.
    pub(crate) fn join(&self) -> io::Result<(u32, Arc<Mailbox>)> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mailbox = Arc::new(Mailbox { posts: Mutex::new(Some(Vec::new())), wake });
        let mut mailboxes = lock(&self.0.mailboxes);
        let thread = mailboxes.next;
        mailboxes.next = thread.checked_add(1).ok_or(io::ErrorKind::QuotaExceeded)?;
        mailboxes.by_thread.insert(thread, mailbox.clone());
        Ok((thread, mailbox))
    }

    /// A thread goes, and its sessions with it.
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

    /// Which thread has a session, if any.
    pub(crate) fn owner(&self, session: SessionId) -> Option<u32> {
        lock(&self.0.owners).get(&session).copied()
    }

    /// Which thread has a session: this one, if none had.
    pub(crate) fn claim(&self, session: SessionId, thread: u32) -> u32 {
        *lock(&self.0.owners).entry(session).or_insert(thread)
    }

    /// This thread does not know the session (any more).
    pub(crate) fn release(&self, session: SessionId, thread: u32) {
        let mut owners = lock(&self.0.owners);
        if owners.get(&session) == Some(&thread) {
            owners.remove(&session);
        }
    }
}

impl Mailbox {
    /// Puts posts in, in this order. `posts` is empty afterwards.
    pub(crate) fn put(&self, posts: &mut Vec<Post>) -> Result<(), Absent> {
        {
            let mut held = lock(&self.posts);
            let Some(held) = &mut *held else { return Err(Absent) };
            held.append(posts);
        }
        self.wake();
        Ok(())
    }

    /// Takes all posts out.
    pub(crate) fn take(&self) -> Vec<Post> {
        // First, so that what comes meanwhile wakes again. It fails when nobody has woken us, which is as well.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        lock(&self.posts).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Has the thread look into its mailbox.
    pub(crate) fn wake(&self) {
        // It fails only when the number would pass 64 bits: it is readable then.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Ledger {
    /// The link has taken more. Whether the session's thread waits to hear of it.
    pub(crate) fn note_sent(&self, bytes: usize) -> bool {
        self.sent.fetch_add(bytes as u64, Ordering::SeqCst);
        self.wants_room.swap(false, Ordering::SeqCst)
    }

    /// How much of what was posted the link has not taken.
    pub(crate) fn waiting(&self, posted: u64) -> u64 {
        posted.saturating_sub(self.sent.load(Ordering::SeqCst))
    }
}

/// No thread leaves a map half changed.
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
    fn a_session_has_one_thread_until_that_lets_it_go() {
        let threads = Threads::default();
        let (one, _) = threads.join().unwrap();
        let (other, _) = threads.join().unwrap();
        assert_eq!((threads.claim(id(1), one), threads.claim(id(1), other)), (one, one));
        threads.release(id(1), other);
        assert_eq!(threads.owner(id(1)), Some(one));
        threads.release(id(1), one);
        assert_eq!((threads.owner(id(1)), threads.claim(id(1), other)), (None, other));
        threads.leave(other);
        assert_eq!(threads.owner(id(1)), None);
        assert_eq!(threads.join().unwrap().0, 2, "numbers are not used again");
    }

    #[test]
    fn posts_wake_and_a_thread_that_has_gone_takes_none() {
        let threads = Threads::default();
        let (thread, mailbox) = threads.join().unwrap();
        let link = LinkId { thread: 7, slot: 1, generation: 2 };
        let mut posts = Vec::from([Post { carrier: (link, Id(3)), serial: 4, what: What::Lost }]);
        threads.mailbox(thread).unwrap().put(&mut posts).unwrap();
        assert!(posts.is_empty());
        assert_eq!(rustix::io::read(&mailbox.wake, &mut [0; 8]), Ok(8), "it is woken");
        assert_eq!((mailbox.take().len(), mailbox.take().len()), (1, 0));
        threads.leave(thread);
        assert!(threads.mailbox(thread).is_none());
        posts.push(Post { carrier: (link, Id(3)), serial: 4, what: What::Room });
        assert!(mailbox.put(&mut posts).is_err());
    }

    #[test]
    fn whoever_waits_for_room_is_told_once() {
        let ledger = Ledger::new(1);
        assert!(!ledger.note_sent(5));
        ledger.wants_room.store(true, Ordering::SeqCst);
        assert_eq!(ledger.waiting(100), 95);
        assert!(ledger.note_sent(5));
        assert!(!ledger.note_sent(5));
        assert_eq!(ledger.waiting(10), 0);
    }
}
