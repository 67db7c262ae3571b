//! What a network thread is told by others.

use std::collections::VecDeque;
use std::io;
use std::mem::discriminant;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use spillway_policy::Override;

#[derive(Debug)]
pub(crate) enum Message {
    /// The list of helpers, as it is now.
    Helpers(Vec<SocketAddr>),
    /// The operator's override on relief, for ever or for a time.
    Say(Override, Option<Duration>),
    /// Make a turn, to show that it can.
    Wake,
    /// Take no more connections, and end within this time.
    Drain(Duration),
    /// End at once.
    End,
    /// End as a broken thread does.
    #[cfg(test)]
    Panic,
}

/// One message of each kind at most.
#[derive(Debug)]
pub(crate) struct Mailbox {
    messages: Mutex<VecDeque<Message>>,
    wake: OwnedFd,
}

impl Mailbox {
    pub fn new() -> io::Result<Mailbox> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { messages: Mutex::default(), wake })
    }

    /// Readable when there is a message.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.wake
    }

    pub fn put(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        // The newest counts; a thread that has ended takes none.
        messages.retain(|one| discriminant(one) != discriminant(&message));
        messages.push_back(message);
        // Fails only when the counter is full, and then the thread is told already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    pub fn take(&self) -> Option<Message> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let message = messages.pop_front();
        if message.is_none() {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_kind_the_newest_counts() {
        let mailbox = Mailbox::new().unwrap();
        for turn in 0..100 {
            mailbox.put(Message::Wake);
            mailbox.put(Message::Helpers(vec![([10, 0, 0, 1], turn).into()]));
            mailbox.put(Message::Say(Override::On, None));
        }
        mailbox.put(Message::Say(Override::Off, None));
        assert!(matches!(mailbox.take(), Some(Message::Wake)));
        assert!(matches!(mailbox.take(), Some(Message::Helpers(list)) if list[0].port() == 99));
        assert!(matches!(mailbox.take(), Some(Message::Say(Override::Off, None))));
        assert!(mailbox.take().is_none());
    }
}
