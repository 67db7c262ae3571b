//! An echo application, and threads that run it.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use spillway_net::{Clock, Config, Context, Listeners, Notice, Remote};
use spillway_transport::{Application, Conn, Event, HostLimit, Time, Transport};

/// Sends back what it receives, and finishes when the peer does.
#[derive(Default)]
pub struct Echo {
    pub opened: u64,
    pub lost: u64,
    pub turns: u64,
    /// Peers that the transport refused.
    pub refused: Vec<(HostLimit, u64)>,
}

impl Application for Echo {
    fn handle<T: Transport>(&mut self, _: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                self.opened += 1;
                out.grant(conn, 100_000);
            }
            Event::Data { bytes, .. } => {
                // There is room for all granted bytes, because the clients of these tests read.
                assert_eq!(out.send(conn, bytes), bytes.len());
                out.grant(conn, u32::try_from(bytes.len()).unwrap());
            }
            Event::Finished => out.finish(conn),
            Event::Lost(_) => self.lost += 1,
            Event::Room | Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn handle_refused(&mut self, listener: u16, limit: HostLimit, peers: u64) {
        assert_eq!(listener, 0, "the program has only listener 0, so no other should refuse peers");
        self.refused.push((limit, peers));
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {
        self.turns += 1;
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

/// Listening echo contexts, each on its own thread.
pub struct Running {
    pub address: SocketAddr,
    pub remotes: Vec<Remote<Echo>>,
    pub notices: Receiver<Notice>,
    pub threads: Vec<JoinHandle<()>>,
}

impl Running {
    pub fn start(config: &Config, contexts: usize) -> Running {
        let any = "127.0.0.1:0".parse().unwrap();
        let bound = Listeners::bind(&[any], contexts, config).unwrap();
        let (address, clock) = (bound.addresses()[0], Clock::start());
        let (send, notices) = channel();
        let mut running = Running { address, remotes: Vec::new(), notices, threads: Vec::new() };
        for listeners in bound.into_contexts() {
            let send = send.clone();
            let hook = move |notice| drop(send.send(notice));
            let mut context = Context::new(config.clone(), listeners, clock, Echo::default(), hook).unwrap();
            context.command(|_, _, out| out.set_listening(0, true));
            running.remotes.push(context.remote());
            running.threads.push(std::thread::spawn(move || context.run().unwrap()));
        }
        running
    }

    pub fn stop(self) {
        self.remotes.iter().for_each(Remote::stop);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
