//! Stack, agent and application as the endpoint of a device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use spillway_metrics::process::thread_cpu;
use spillway_moves::{Meter, Movable, OwnLoad, Server};
use spillway_transport::Time;
use spillway_xdp::{BATCH_FRAMES, Endpoint, KernelSide};

use crate::datagrams::Datagrams;

/// Maximum number of datagrams in a turn, so that a flood leaves time for frames.
const DATAGRAMS_PER_TURN: usize = 256;
/// Interval at which a thread that never waits reads datagrams. Each read is a system call.
const READ_INTERVAL: Duration = Duration::from_micros(50);

/// The endpoint of a server's device.
pub(crate) struct Station<A> {
    pub(crate) server: Server,
    pub(crate) application: A,
    pub(crate) kernel: KernelSide,
    /// `None`: no connection moves.
    pub(crate) datagrams: Option<Datagrams>,
    /// When datagrams are read next.
    pub(crate) read_at: Time,
    /// The first error of the datagrams' socket.
    pub(crate) error: Option<io::Error>,
    pub(crate) meter: Meter,
    /// Frames of this turn.
    pub(crate) frames: usize,
    /// The thread stops for this time after each export: for measurements.
    pub(crate) export_pause: Duration,
}

impl<A: Movable> Station<A> {
    /// Exports connections, if all frames have left, and sends the datagrams that wait. Call it after each turn.
    pub(crate) fn finish_turn(&mut self, now: Time, are_frames_sent: bool) {
        if are_frames_sent && self.server.has_exports() {
            let exports = self.server.exports();
            self.server.frames_sent(&mut self.application, now);
            self.pause_after_exports(exports);
        }
        let Some(datagrams) = &mut self.datagrams else { return };
        while let Some(transmit) = self.server.poll_datagram(now) {
            datagrams.send(&transmit);
            self.server.recycle_datagram(transmit);
        }
    }

    /// Stops the thread, as if `exports` exports had taken longer.
    fn pause_after_exports(&self, exports: usize) {
        if !self.export_pause.is_zero() {
            std::thread::sleep(self.export_pause * u32::try_from(exports).unwrap_or(u32::MAX));
        }
    }

    /// Measures the load if a look at it is due.
    fn look(&mut self, now: Time) {
        if self.datagrams.is_some() && now >= self.server.next_look() {
            let (busy, queueing) = self.meter.look(now, thread_cpu());
            let load = OwnLoad { busy, queueing }.max(self.application.own_load(now));
            self.server.look(now, load.busy, load.queueing);
        }
    }

    fn receive_datagrams(&mut self, now: Time) -> io::Result<()> {
        let Some(datagrams) = &mut self.datagrams else { return Ok(()) };
        for _ in 0..DATAGRAMS_PER_TURN {
            let Some(payload) = datagrams.receive()? else { return Ok(()) };
            self.server.handle_datagram(&mut self.application, now, payload);
        }
        self.read_at = now; // the next turn reads the rest
        Ok(())
    }
}

impl<A: Movable> Endpoint for Station<A> {
    fn begin_turn(&mut self, now: Time) {
        self.kernel.receive(now, self.server.connections_mut().stack_mut());
        self.server.begin_turn(&mut self.application, now);
        if now >= self.read_at {
            self.read_at = now + READ_INTERVAL;
            if let Err(error) = self.receive_datagrams(now) {
                self.error.get_or_insert(error);
            }
        }
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        self.frames += 1;
        self.server.deliver(&mut self.application, now, frame);
    }

    fn end_turn(&mut self, now: Time) {
        let frames = std::mem::take(&mut self.frames);
        self.meter.record_turn(now, frames, frames < BATCH_FRAMES);
        self.look(now);
        self.server.end_turn(&mut self.application, now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        let length = self.server.poll_transmit(now, slot);
        if length.is_none() {
            self.kernel.ask(self.server.connections_mut().stack_mut());
        }
        length
    }

    fn poll_timeout(&self) -> Option<Time> {
        let next_look = self.datagrams.is_some().then(|| self.server.next_look());
        self.server.poll_timeout(&self.application).into_iter().chain(next_look).min()
    }

    fn handle_wake(&mut self) {
        self.read_at = Time::ZERO;
        self.kernel.handle_wake();
    }

    fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.kernel.wakes().chain(self.datagrams.as_ref().map(AsFd::as_fd))
    }
}
