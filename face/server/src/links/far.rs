//! Sessions whose carrier is on a link of another thread. See [`crate::threads`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use spillway_batch::{CloseReason, Control, Kind, RefuseReason};
use spillway_session::{Carrier, SessionHandle};
use spillway_transport::Time;
use spillway_wire::session::{Opening, SessionId};

use super::Links;
use crate::event::{Event, LinkId};
use crate::threads::{CarrierName, Ledger, Mailbox, Post, Threads, What, Words};

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
            if let Some(mailbox) = self.threads.mailbox(thread) {
                let _ = mailbox.put(&mut posts);
            }
        }
        self.threads.leave(self.thread);
    }
}

// The thread that has the link.
impl Links {
    /// A session's first words came. Whether they are another thread's business, and on their way there.
    pub(super) fn post_words(
        &mut self,
        carrier: CarrierName,
        kind: Kind,
        client: SocketAddr,
        opening: Opening,
    ) -> bool {
        let Some(role) = self.table.get(carrier.0).and_then(|entry| entry.end.role()) else { return false };
        let Some(member) = &mut self.member else { return false };
        let owner = match kind {
            Kind::Connect => member.threads.claim(opening.session, member.thread),
            _ => member.threads.owner(opening.session).unwrap_or(member.thread),
        };
        if owner == member.thread {
            return false;
        }
        member.serials += 1;
        let ledger = Arc::new(Ledger::new(member.serials));
        let held =
            Held { owner, ledger: ledger.clone(), posted: 0, waiting: VecDeque::new(), end: Vec::new() };
        let serial = ledger.serial;
        member.held.insert(carrier, held);
        let words = Words { role, kind, client, opening, ledger };
        member.post(owner, Post { carrier, serial, what: What::Words(Box::new(words)) });
        true
    }

    /// Bytes came on a connection that may carry another thread's session.
    pub(super) fn post_bytes(&mut self, carrier: CarrierName, bytes: &[u8]) {
        let Some(member) = &mut self.member else { return };
        // Many small pieces of one client go as one.
        if let Some(held) = member.held.get_mut(&carrier)
            && let Some(Post { carrier: last, what: What::Bytes(gathered), .. }) =
                member.out.get_mut(&held.owner).and_then(|posts| posts.last_mut())
            && *last == carrier
        {
            gathered.extend_from_slice(bytes);
            held.posted += bytes.len() as u64;
            let posted = held.posted.saturating_sub(held.ledger.handled.load(Ordering::Relaxed));
            if posted > self.posted_bytes_max() {
                self.drop_held(carrier);
            }
            return;
        }
        self.pass_on(carrier, What::Bytes(bytes.to_vec()), bytes.len() as u64);
    }

    /// And a control message.
    pub(super) fn post_control(&mut self, carrier: CarrierName, control: Control) {
        self.pass_on(carrier, What::Heard(control), CONTROL_BYTES);
        if matches!(control, Control::Close(_)) {
            self.forget_if_over(carrier);
        }
    }

    fn posted_bytes_max(&self) -> u64 {
        u64::from(self.window_bytes) + CONTROL_BYTES_MAX
    }

    fn pass_on(&mut self, carrier: CarrierName, what: What, bytes: u64) {
        let bytes_max = self.posted_bytes_max();
        if let Some(member) = &mut self.member
            && member.pass_on(carrier, what, bytes, bytes_max) == Some(Err(()))
        {
            self.drop_held(carrier);
        }
    }

    /// Whether a connection carries another thread's session.
    pub(super) fn holds(&self, carrier: CarrierName) -> bool {
        self.member.as_ref().is_some_and(|member| member.held.contains_key(&carrier))
    }

    /// A carrier brings more than may be under way: its session is to come by another one.
    fn drop_held(&mut self, carrier: CarrierName) {
        if self.lose_held(carrier) {
            let (link, id) = carrier;
            self.with(link, |entry| entry.end.close(id, CloseReason::OverCredit));
        }
    }

    /// A connection is lost, with its link perhaps. Whether it carried another thread's session.
    pub(super) fn lose_held(&mut self, carrier: CarrierName) -> bool {
        let Some(member) = &mut self.member else { return false };
        let is_held = member.pass_on(carrier, What::Lost, 0, u64::MAX).is_some();
        member.held.remove(&carrier);
        is_held
    }

    /// A connection's id is free when both ends have closed it.
    fn forget_if_over(&mut self, (link, id): CarrierName) {
        let is_over = self.table.get(link).is_none_or(|entry| entry.end.info(id).is_none());
        if is_over && let Some(member) = &mut self.member {
            member.held.remove(&(link, id));
        }
    }

    /// What the session's thread has for one of our connections.
    fn serve_post(&mut self, post: Post) {
        let (carrier, (link, id)) = (post.carrier, post.carrier);
        let Some(held) = self.member.as_mut().and_then(|member| member.held.get_mut(&carrier)) else {
            return;
        };
        if held.ledger.serial != post.serial {
            return;
        }
        match post.what {
            What::Send(bytes) => {
                held.waiting.extend(bytes);
                self.pass_waiting(carrier);
            }
            // These come after all bytes.
            What::Say(control @ (Control::Finish(_) | Control::Close(_))) if !held.waiting.is_empty() => {
                held.end.push(control);
            }
            What::Say(control) => self.say_held(carrier, control),
            What::Refuse(reason) => {
                self.with(link, |entry| entry.end.refuse(id, reason));
                self.forget_held(carrier);
            }
            What::Leave(reason) => {
                self.with(link, |entry| entry.end.close(id, reason));
                self.forget_held(carrier);
            }
            What::Words(_) | What::Bytes(_) | What::Heard(_) | What::Lost | What::Room => {}
        }
    }

    fn forget_held(&mut self, carrier: CarrierName) {
        if let Some(member) = &mut self.member {
            member.held.remove(&carrier);
        }
    }

    fn say_held(&mut self, carrier: CarrierName, control: Control) {
        let (link, id) = carrier;
        self.with(link, |entry| match control {
            Control::Accepted => entry.end.accept(id),
            control => entry.end.say(id, control),
        });
        if matches!(control, Control::Close(_)) {
            self.forget_if_over(carrier);
        }
    }

    /// Gives a connection what waits for it. Whether it carries another thread's session.
    pub(super) fn pass_waiting(&mut self, carrier: CarrierName) -> bool {
        let (link, id) = carrier;
        let Some(member) = &mut self.member else { return false };
        let Some(held) = member.held.get_mut(&carrier) else { return false };
        let (owner, ledger) = (held.owner, held.ledger.clone());
        let mut waiting = std::mem::take(&mut held.waiting);
        let passed = self.with(link, |entry| {
            if !entry.end.is_open(id) {
                return waiting.len();
            }
            entry.end.compose(id, waiting.make_contiguous())
        });
        let passed = passed.unwrap_or(waiting.len());
        waiting.drain(..passed);
        let is_empty = waiting.is_empty();
        let Some(member) = &mut self.member else { return false };
        if passed > 0 && ledger.note_sent(passed) {
            member.post(owner, Post { carrier, serial: ledger.serial, what: What::Room });
        }
        let mut end = Vec::new();
        if let Some(held) = member.held.get_mut(&carrier) {
            held.waiting = waiting;
            if is_empty {
                end = std::mem::take(&mut held.end);
            }
        }
        for control in end {
            self.say_held(carrier, control);
        }
        true
    }

    /// Hands this turn's posts over.
    pub(super) fn hand_over(&mut self) {
        let Some(member) = &mut self.member else { return };
        let mut absent = Vec::new();
        for (thread, mut posts) in std::mem::take(&mut member.out) {
            let mailbox = member.threads.mailbox(thread);
            if posts.is_empty() || mailbox.is_some_and(|mailbox| mailbox.put(&mut posts).is_ok()) {
                continue;
            }
            // That thread's sessions are gone, as their clients will hear when they come by another carrier.
            absent.extend(member.held.iter().filter(|(_, held)| held.owner == thread).map(|(name, _)| *name));
            member.held.retain(|_, held| held.owner != thread);
        }
        for (link, id) in absent {
            self.with(link, |entry| entry.end.close(id, CloseReason::Lost));
        }
    }
}

// The thread that has the session.
impl Links {
    /// Whether this thread may begin the session that these first words speak of. The directory names it then.
    pub(super) fn claims(&mut self, kind: Kind, session: SessionId) -> bool {
        let Some(member) = &mut self.member else { return true };
        if kind != Kind::Connect || self.carried.knows(session) {
            return true;
        }
        // Sessions that have been forgotten meanwhile leave the directory, two for each one that comes.
        for _ in 0..2 {
            if let Some(claimed) = member.claims.pop_front() {
                if self.carried.knows(claimed) {
                    member.claims.push_back(claimed);
                } else {
                    member.threads.release(claimed, member.thread);
                }
            }
        }
        if member.threads.claim(session, member.thread) != member.thread {
            return false;
        }
        member.claims.push_back(session);
        true
    }

    /// First words have been looked at: whether they began a session or not, the directory is right.
    pub(super) fn settle_claim(&mut self, session: SessionId) {
        if let Some(member) = &mut self.member
            && !self.carried.knows(session)
        {
            member.threads.release(session, member.thread);
            if member.claims.back() == Some(&session) {
                member.claims.pop_back();
            }
        }
    }

    /// Something is to be said on a carrier, here or elsewhere.
    pub(super) fn on_carrier(&mut self, carrier: CarrierName, serial: u64, what: What) {
        let (link, id) = carrier;
        if link.thread != self.table.thread() {
            if let Some(member) = &mut self.member {
                member.post(link.thread, Post { carrier, serial, what });
            }
            return;
        }
        self.with(link, |entry| match what {
            What::Say(Control::Accepted) => entry.end.accept(id),
            What::Say(control) => entry.end.say(id, control),
            What::Refuse(reason) => entry.end.refuse(id, reason),
            What::Leave(reason) => entry.end.close(id, reason),
            // Bytes go by their own way.
            _ => {}
        });
    }

    /// Takes what other threads have posted: what is for our links is done at once, what is for our sessions is put into
    /// the buffer, to be [decomposed](Links::decompose).
    pub(super) fn receive_mail(&mut self, buffer: &mut [u8]) -> usize {
        let Some(member) = &mut self.member else { return 0 };
        if member.taken.is_empty() {
            member.taken.extend(member.mailbox.take());
        }
        let mut used = 0;
        while let Some(member) = &mut self.member {
            let Some(post) = member.taken.pop_front() else { break };
            let room = buffer.len() - used;
            match &post.what {
                What::Bytes(bytes) => {
                    let rest = &bytes[member.taken_bytes..];
                    let count = rest.len().min(room);
                    buffer[used..used + count].copy_from_slice(&rest[..count]);
                    used += count;
                    if count > 0 {
                        member.run.push_back(Item::Bytes(post.carrier, count));
                    }
                    member.taken_bytes += count;
                    if member.taken_bytes < bytes.len() {
                        member.taken.push_front(post);
                        break;
                    }
                    member.taken_bytes = 0;
                }
                What::Words(_) | What::Heard(_) | What::Lost if room == 0 => {
                    member.taken.push_front(post);
                    break;
                }
                What::Words(_) | What::Heard(_) | What::Lost => {
                    buffer[used] = 0;
                    used += 1;
                    member.run.push_back(Item::Other(post));
                }
                What::Room => {
                    self.carried.has_room(post.carrier);
                }
                What::Send(_) | What::Say(_) | What::Refuse(_) | What::Leave(_) => self.serve_post(post),
            }
        }
        if let Some(member) = &self.member
            && !member.taken.is_empty()
        {
            member.mailbox.wake();
        }
        used
    }

    /// Takes the next event off the front of what was posted.
    pub(super) fn decompose_mail<'a>(&mut self, now: Time, input: &mut &'a [u8]) -> Option<Event<'a>> {
        loop {
            let item = self.member.as_mut()?.run.pop_front()?;
            let count = if let Item::Bytes(_, count) = &item { *count } else { 1 };
            let (bytes, rest) = input.split_at(count.min(input.len()));
            *input = rest;
            let event = match item {
                Item::Bytes(carrier, _) => {
                    self.carried.note_handled(carrier, bytes.len() as u64);
                    self.session_data(now, carrier, bytes)
                }
                Item::Other(Post { carrier, what: What::Heard(control), .. }) => {
                    self.carried.note_handled(carrier, CONTROL_BYTES);
                    self.session_control(now, carrier, control)
                }
                Item::Other(Post { carrier, what: What::Words(words), .. }) => {
                    self.posted_words(now, carrier, *words)
                }
                Item::Other(Post { carrier, .. }) => {
                    self.carried.detach(now, carrier);
                    None
                }
            };
            if event.is_some() {
                return event;
            }
        }
    }

    fn posted_words(&mut self, now: Time, carrier: CarrierName, words: Words) -> Option<Event<'static>> {
        let Words { role, kind, client, opening, ledger } = words;
        // It was forgotten here, and has begun elsewhere since: the client comes again, and meets it there.
        if !self.claims(kind, opening.session) {
            self.on_carrier(carrier, ledger.serial, What::Refuse(RefuseReason::Unavailable));
            return None;
        }
        let event = self.open_session(now, carrier, role, (kind, client, opening), Some(Far::new(ledger)));
        self.settle_claim(opening.session);
        event
    }
}

/// Stands for the other threads' posts where a link is asked for.
pub(super) const MAIL: LinkId = LinkId { thread: u32::MAX, slot: u32::MAX, generation: 0 };

/// How a session is reached.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) session: SessionHandle,
    /// By a link of another thread.
    pub(super) far: Option<Far>,
}

impl Reached {
    pub(super) fn serial(&self) -> u64 {
        self.far.as_ref().map_or(0, |far| far.ledger.serial)
    }
}
