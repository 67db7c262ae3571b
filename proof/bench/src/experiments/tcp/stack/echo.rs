//! An echo server with messages of 64 bytes. Each received segment also acknowledges the previous answer, and
//! each sent segment acknowledges the message that it answers.

use std::time::Instant;

use spillway_transport::Time;

use super::ours::Ours;
use super::server::Echo;
use super::theirs::Theirs;
use crate::experiments::common::script::{Client, Frames, port_of};

/// Messages of one timed block; they are written before the clock starts and checked after it has stopped.
const BLOCK: usize = 256;
/// Frames delivered in one turn when many connections send.
const TURN: usize = 64;
const MESSAGE_NS: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Ours,
    Smoltcp,
}

impl System {
    pub const ALL: [System; 2] = [System::Ours, System::Smoltcp];

    pub fn name(self) -> &'static str {
        match self {
            System::Ours => "spillway",
            System::Smoltcp => "smoltcp",
        }
    }
}

pub struct Scene<E> {
    echo: E,
    clients: Vec<Client>,
    now: Time,
    /// Index of the client of the next message.
    next: usize,
    frames: Frames,
    /// Index of the client of each frame.
    owners: Vec<usize>,
    out: Frames,
}

/// Runs `warm_up` messages, then `messages`. Returns the time for each of the latter in ns: the median over blocks.
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
        let mut frame = Frames::new(1);
        frame.push(|slot| Some(client.syn(slot)));
        self.out.clear();
        self.echo.turn(self.now, &frame, 0..1, &[index], &mut self.out);
        if self.out.len() != 1 {
            return Err(format!("{} frames for a SYN", self.out.len()));
        }
        client.accept_syn_ack(self.out.get(0))?;
        frame.clear();
        frame.push(|slot| Some(client.acknowledgement(slot)));
        self.echo.turn(self.now, &frame, 0..1, &[index], &mut self.out);
        self.now = Time(self.now.0 + MESSAGE_NS);
        Ok(())
    }

    fn run(&mut self, warm_up: usize, messages: usize) -> Result<f64, String> {
        for _ in 0..warm_up.div_ceil(BLOCK) {
            self.write();
            self.measurement_order();
            self.check()?;
        }
        let mut block_ns = Vec::new();
        for _ in 0..messages.div_ceil(BLOCK) {
            self.write();
            let start = Instant::now();
            self.counted_turns();
            block_ns.push(start.elapsed().as_nanos() as f64 / BLOCK as f64);
            self.check()?;
        }
        crate::stats::median(&block_ns).ok_or_else(|| "no messages".into())
    }

    /// Writes the messages of a block, round robin over the connections.
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

    /// The measured code; [`super::counted`] counts instructions inside the function of this name.
    #[inline(never)]
    fn counted_turns(&mut self) {
        self.measurement_order();
    }

    /// Delivers a block in turns, each with at most one message of a client: it has no more under way.
    fn measurement_order(&mut self) {
        let turn = TURN.min(self.clients.len());
        for start in (0..BLOCK).step_by(turn) {
            let range = start..BLOCK.min(start + turn);
            let now = Time(self.now.0 + MESSAGE_NS * range.end as u64);
            self.echo.turn(now, &self.frames, range, &self.owners, &mut self.out);
        }
    }

    fn check(&mut self) -> Result<(), String> {
        self.now = Time(self.now.0 + MESSAGE_NS * BLOCK as u64);
        let mut answers = 0;
        let base = self.clients[0].port();
        for frame in self.out.iter() {
            let port = port_of(frame).unwrap_or(0);
            let client = self.clients.get_mut(usize::from(port.wrapping_sub(base)));
            answers += usize::from(client.ok_or("a frame for an unknown client")?.check(frame)?);
        }
        if answers != BLOCK {
            return Err(format!("{answers} answers to {BLOCK} messages, in {} frames", self.out.len()));
        }
        Ok(())
    }
}
