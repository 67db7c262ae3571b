//! Clients send 64 bytes each and get them back: a segment in that acknowledges the answer before, a segment out that
//! acknowledges and answers.

use std::time::Instant;

use spillway_transport::Time;

use super::ours::Ours;
use super::server::Echo;
use super::theirs::Theirs;
use crate::experiments::common::script::{Client, Frames, port_of};

/// Messages that are written down before the clock starts, and checked after it has stopped.
const BLOCK: usize = 256;
/// Frames that a network card has at once, when many connections send.
const TURN: usize = 64;
/// Virtual time between two messages.
const MESSAGE_NS: u64 = 1_000;

/// Whose stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Ours.
    Ours,
    /// smoltcp.
    Smoltcp,
}

impl System {
    /// Both.
    pub const ALL: [System; 2] = [System::Ours, System::Smoltcp];

    /// As rows have it.
    pub fn name(self) -> &'static str {
        match self {
            System::Ours => "spillway",
            System::Smoltcp => "smoltcp",
        }
    }
}

/// Clients that are connected, and the time.
pub struct Scene<E> {
    echo: E,
    clients: Vec<Client>,
    now: Time,
    /// Of the next message.
    next: usize,
    frames: Frames,
    /// The connection of each.
    owners: Vec<usize>,
    out: Frames,
}

/// Runs so many messages over so many connections after so many others: what one took, in ns, the median of blocks.
pub fn measure(system: System, connections: usize, warm_up: usize, messages: usize) -> Result<f64, String> {
    match system {
        System::Ours => Scene::new(Ours::new()?, connections)?.run(warm_up, messages),
        System::Smoltcp => Scene::new(Theirs::new(connections)?, connections)?.run(warm_up, messages),
    }
}

impl<E: Echo> Scene<E> {
    fn new(echo: E, connections: usize) -> Result<Scene<E>, String> {
        let clients = (0..connections).map(Client::new).collect();
        let (frames, out) = (Frames::new(BLOCK), Frames::new(2 * BLOCK));
        let mut scene =
            Scene { echo, clients, now: Time(1_000_000), next: 0, frames, owners: Vec::new(), out };
        for index in 0..connections {
            scene.open(index)?;
        }
        Ok(scene)
    }

    fn open(&mut self, index: usize) -> Result<(), String> {
        let client = &mut self.clients[index];
        let mut one = Frames::new(1);
        one.push(|slot| Some(client.syn(slot)));
        self.out.clear();
        self.echo.turn(self.now, &one, 0..1, &[index], &mut self.out);
        if self.out.len() != 1 {
            return Err(format!("{} frames for a SYN", self.out.len()));
        }
        client.take_syn(self.out.get(0))?;
        one.clear();
        one.push(|slot| Some(client.acknowledgement(slot)));
        self.echo.turn(self.now, &one, 0..1, &[index], &mut self.out);
        self.now = Time(self.now.0 + MESSAGE_NS);
        Ok(())
    }

    fn run(&mut self, warm_up: usize, messages: usize) -> Result<f64, String> {
        for _ in 0..warm_up.div_ceil(BLOCK) {
            self.write();
            self.turns();
            self.check()?;
        }
        let mut each = Vec::new();
        for _ in 0..messages.div_ceil(BLOCK) {
            self.write();
            let start = Instant::now();
            self.counted_turns();
            each.push(start.elapsed().as_nanos() as f64 / BLOCK as f64);
            self.check()?;
        }
        crate::stats::median(&each).ok_or_else(|| "no messages".into())
    }

    /// Writes a block of messages down, connection by connection in turn.
    fn write(&mut self) {
        self.frames.clear();
        self.out.clear();
        self.owners.clear();
        for _ in 0..BLOCK {
            let client = &mut self.clients[self.next];
            self.frames.push(|slot| Some(client.message(slot)));
            self.owners.push(self.next);
            self.next = (self.next + 1) % self.clients.len();
        }
    }

    /// What is measured, under a name that a profiler finds.
    #[inline(never)]
    fn counted_turns(&mut self) {
        self.turns();
    }

    /// A client has one message on its way at a time, so a turn has as many as there are clients.
    fn turns(&mut self) {
        let turn = TURN.min(self.clients.len());
        for start in (0..BLOCK).step_by(turn) {
            let these = start..BLOCK.min(start + turn);
            let now = Time(self.now.0 + MESSAGE_NS * these.end as u64);
            self.echo.turn(now, &self.frames, these, &self.owners, &mut self.out);
        }
    }

    fn check(&mut self) -> Result<(), String> {
        self.now = Time(self.now.0 + MESSAGE_NS * BLOCK as u64);
        let mut answers = 0;
        let base = self.clients[0].port();
        for frame in self.out.iter() {
            let port = port_of(frame).unwrap_or(0);
            let client = self.clients.get_mut(usize::from(port.wrapping_sub(base)));
            answers += usize::from(client.ok_or("a frame for nobody")?.check(frame)?);
        }
        if answers != BLOCK {
            return Err(format!("{answers} answers to {BLOCK} messages, in {} frames", self.out.len()));
        }
        Ok(())
    }
}
