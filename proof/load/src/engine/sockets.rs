//! The kernel's sockets, watched by epoll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_moving_client::{Kernel, Ready, Socket};
use spillway_net::{Epoll, EpollEvent};

use super::{Engine, Interest, Readiness};

const EVENTS_PER_WAIT_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct Sockets {
    epoll: Epoll,
    events: Vec<EpollEvent>,
    wake: Arc<OwnedFd>,
}

impl Sockets {
    /// `wake` is readable when a message of the steering thread has arrived; it is reported with `wake_token`.
    pub(crate) fn new(wake: Arc<OwnedFd>, wake_token: u64) -> io::Result<Sockets> {
        let epoll = Epoll::new()?;
        epoll::add(&epoll, wake.as_fd(), EventData::new_u64(wake_token), EventFlags::IN)?;
        Ok(Sockets { epoll, events: Vec::with_capacity(EVENTS_PER_WAIT_MAX), wake })
    }
}

impl Engine for Sockets {
    type Network = Kernel;

    fn network(&self) -> &Kernel {
        &Kernel
    }

    fn watch(&mut self, socket: &Socket, interest: Interest) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, interest.readable);
        flags.set(EventFlags::OUT, interest.writable);
        let data = EventData::new_u64(interest.token);
        if interest.is_new {
            epoll::add(&self.epoll, socket, data, flags)?;
        } else {
            epoll::modify(&self.epoll, socket, data, flags)?;
        }
        Ok(())
    }

    fn watch_descriptor(&mut self, descriptor: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(token), EventFlags::IN)?)
    }

    fn wait(&mut self, timeout: Duration, ready: &mut Vec<Readiness>) -> io::Result<()> {
        self.epoll.wait(&mut self.events, Some(timeout))?;
        ready.clear();
        ready.extend(self.events.iter().map(|event| Readiness {
            token: event.u64,
            ready: Ready::from(EventFlags::from_bits_retain(event.events)),
        }));
        Ok(())
    }

    fn wait_for_message(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
