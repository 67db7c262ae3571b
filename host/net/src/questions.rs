//! Datagrams to the addresses of listeners: answered at a bounded rate, so that a flood of them costs clients little.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use spillway_transport::{Application, Time};

use crate::Notice;
use crate::context::Context;
use crate::datagrams::exchange;
use crate::sockets::{Sockets, question_token};

/// Questions of one listener in one turn; then it is the clients' turn.
const PER_TURN: u32 = 32;
/// Questions of one listener each second: each costs some microseconds, so that all of them take a few percent of a core.
const PER_SECOND: f64 = 10_000.0;
/// More at once, after a quiet time.
const AT_ONCE: f64 = 1_000.0;
/// How long questions then have to wait. Those that find the socket's buffer full are lost.
const PAUSE: Duration = Duration::from_millis(10);
/// Before a socket that could not be watched is tried again.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// The socket for questions at a listener's address.
#[derive(Debug)]
pub struct Questions {
    fd: OwnedFd,
    /// What may be answered still, and as of when.
    allowance: f64,
    since: Time,
    /// Not looked at until then.
    paused: Option<Time>,
}

impl Questions {
    pub fn new(fd: OwnedFd) -> Questions {
        Questions { fd, allowance: AT_ONCE, since: Time::ZERO, paused: None }
    }

    /// How many may be answered now.
    fn allow(&mut self, now: Time) -> u32 {
        let earned = now.since(self.since).as_secs_f64() * PER_SECOND;
        self.allowance = (self.allowance + earned).min(AT_ONCE);
        self.since = now;
        self.allowance as u32
    }

    /// When it is to be looked at again.
    pub fn retry(&self) -> Option<Time> {
        self.paused
    }
}

impl<A: Application> Context<A> {
    /// Answers questions that have come to a listener's address, a bounded number.
    pub(crate) fn answer(&mut self, index: u16) {
        let (now, app) = (self.sockets.now, &mut self.app);
        let Some(questions) = self.sockets.listeners.get_mut(&index).and_then(|l| l.questions.as_mut())
        else {
            return;
        };
        let allowed = questions.allow(now);
        let mut handled = 0;
        while handled < allowed.min(PER_TURN) {
            let answer = |from, question: &[u8], answer: &mut [u8]| {
                app.handle_question(now, index, from, question, answer)
            };
            match exchange(&questions.fd, answer) {
                Ok(true) => handled += 1,
                Ok(false) => break,
                // An answer before could not be delivered, says the host.
                Err(_) => handled += 1,
            }
        }
        questions.allowance -= f64::from(handled);
        if handled == allowed {
            self.sockets.pause_questions(index, PAUSE);
            if self.sockets.too_many_questions.count(now).is_some() {
                (self.sockets.hook)(Notice::TooManyQuestions { listener: index });
            }
        }
    }
}

impl Sockets {
    /// Has the questions to a listener's address come in.
    pub(crate) fn watch_questions(&mut self, index: u16) {
        let Some(questions) = self.listeners.get_mut(&index).and_then(|l| l.questions.as_mut()) else {
            return;
        };
        let added = self.epoll.add(&questions.fd, question_token(index), EventFlags::IN);
        questions.paused = added.err().map(|_| self.now + WATCH_PAUSE);
        self.note_retry(index);
    }

    fn pause_questions(&mut self, index: u16, pause: Duration) {
        let Some(questions) = self.listeners.get_mut(&index).and_then(|l| l.questions.as_mut()) else {
            return;
        };
        self.epoll.remove(&questions.fd);
        questions.paused = Some(self.now + pause);
        self.note_retry(index);
    }

    /// Looks at those again that have paused for long enough.
    pub(crate) fn retry_questions(&mut self) {
        // Others that are due at the same time have their turn next.
        if let Some(index) =
            self.due_listener(|listener| listener.questions.as_ref().and_then(Questions::retry))
        {
            self.watch_questions(index);
        }
    }
}
