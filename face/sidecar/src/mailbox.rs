//! Messages from other threads to a network thread.

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
    Helpers(Vec<SocketAddr>),
    /// The operator's override, and how long it lasts; `None`: until the next override.
    Override(Override, Option<Duration>),
    /// Wakes the thread for a turn, because the watchdog detects a thread that hangs by its missing turns.
    Wake,
    /// Accept no more connections, and end within this time.
    Drain(Duration),
    End,
    #[cfg(test)]
    Panic,
}

/// Holds at most one message of each kind: a newer message replaces an older one.
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

    /// An eventfd that is readable while a message waits.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.wake
    }

    pub fn put(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        // Bounds the queue, also when the thread has ended and reads no messages.
        messages.retain(|older| discriminant(older) != discriminant(&message));
        messages.push_back(message);
        // Fails only when the eventfd's counter is full; the eventfd is readable then, too.
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
    fn newer_message_replaces_an_older_one_of_the_same_kind() {
        let mailbox = Mailbox::new().unwrap();
        for port in 0..100 {
            mailbox.put(Message::Wake);
            mailbox.put(Message::Helpers(vec![([10, 0, 0, 1], port).into()]));
            mailbox.put(Message::Override(Override::On, None));
        }
        mailbox.put(Message::Override(Override::Off, None));
        assert!(matches!(mailbox.take(), Some(Message::Wake)));
        assert!(matches!(mailbox.take(), Some(Message::Helpers(list)) if list[0].port() == 99));
        assert!(matches!(mailbox.take(), Some(Message::Override(Override::Off, None))));
        assert!(mailbox.take().is_none());
    }
}
