//! The loop between a device and what talks through it.

use std::io;

use spillway_transport::Time;

use crate::device::{Device, FRAME_BYTES_MAX, Stop};

/// Frames of one turn at most, in each direction: what comes has to wait for what goes, and time goes on.
pub const BATCH_FRAMES: usize = 64;

/// What talks through a device: a stack and its application. Called in this order, over and over.
pub trait Endpoint {
    /// A turn begins: what is due is done.
    fn begin_turn(&mut self, now: Time);

    /// A frame came.
    fn deliver(&mut self, now: Time, frame: &[u8]);

    /// All frames of this turn were delivered.
    fn end_turn(&mut self, now: Time);

    /// The next frame to send, into `slot`, and its length. Called until there is none, or this turn's are enough.
    #[must_use]
    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize>;

    /// When the next turn is due if no frame comes. Asked after each turn.
    fn poll_timeout(&self) -> Option<Time>;
}

/// Whether to wait before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There may be more to do at once.
    Busy,
    /// Nothing is to be done before a frame comes, or [`Endpoint::poll_timeout`].
    Idle,
}

/// What passed since the driver was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that came.
    pub received: u64,
    /// Frames that went.
    pub sent: u64,
    /// Frames for which the device had no room.
    pub lost: u64,
    /// Turns.
    pub turns: u64,
}

/// A device with the buffers that its loop needs.
#[derive(Debug)]
pub struct Driver<D> {
    device: D,
    buffer: Box<[u8]>,
    counters: Counters,
}

impl<D: Device> Driver<D> {
    /// Of this device.
    pub fn new(device: D) -> Driver<D> {
        let buffer = vec![0; FRAME_BYTES_MAX].into_boxed_slice();
        Driver { device, buffer, counters: Counters::default() }
    }

    /// What passed.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, to change it between turns.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The device, for another driver.
    pub fn into_device(self) -> D {
        self.device
    }

    /// One turn: what is due, what has come, what is to go; [`BATCH_FRAMES`] of each at most. Does not wait.
    ///
    /// # Errors
    /// The device is gone.
    pub fn turn(&mut self, now: Time, endpoint: &mut impl Endpoint) -> io::Result<Turn> {
        endpoint.begin_turn(now);
        let mut turn = Turn::Busy;
        for _ in 0..BATCH_FRAMES {
            let Some(length) = self.device.recv(&mut self.buffer)? else {
                turn = Turn::Idle;
                break;
            };
            self.counters.received += 1;
            endpoint.deliver(now, &self.buffer[..length]);
        }
        endpoint.end_turn(now);
        self.counters.turns += 1;
        for _ in 0..BATCH_FRAMES {
            let Some(length) = endpoint.poll_transmit(now, &mut self.buffer) else { return Ok(turn) };
            let is_sent = self.device.send(&self.buffer[..length])?;
            self.counters.sent += u64::from(is_sent);
            self.counters.lost += u64::from(!is_sent);
        }
        Ok(Turn::Busy)
    }

    /// Takes turns until `stop` is set, and waits between them. `clock` never goes back.
    ///
    /// # Errors
    /// The device is gone.
    pub fn run(
        &mut self,
        endpoint: &mut impl Endpoint,
        clock: impl Fn() -> Time,
        stop: &Stop,
    ) -> io::Result<()> {
        while !stop.is_set() {
            if self.turn(clock(), endpoint)? == Turn::Idle {
                let timeout = endpoint.poll_timeout().map(|at| at.since(clock()));
                self.device.wait(timeout, stop)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Ring;

    /// Sends back what came, a turn later, at most so many frames.
    #[derive(Default)]
    struct Echo {
        waiting: Vec<Vec<u8>>,
        ended: Vec<Time>,
    }

    impl Endpoint for Echo {
        fn begin_turn(&mut self, _now: Time) {}

        fn deliver(&mut self, _now: Time, frame: &[u8]) {
            self.waiting.push(frame.to_vec());
        }

        fn end_turn(&mut self, now: Time) {
            self.ended.push(now);
        }

        fn poll_transmit(&mut self, _now: Time, slot: &mut [u8]) -> Option<usize> {
            let frame = self.waiting.pop()?;
            slot[..frame.len()].copy_from_slice(&frame);
            Some(frame.len())
        }

        fn poll_timeout(&self) -> Option<Time> {
            None
        }
    }

    #[test]
    fn a_turn_takes_a_batch_and_tells_whether_there_is_more() {
        let (near, mut far) = Ring::pair(2 * BATCH_FRAMES);
        let (mut driver, mut echo) = (Driver::new(near), Echo::default());
        assert_eq!(driver.turn(Time(1), &mut echo).unwrap(), Turn::Idle);
        for number in 0..=BATCH_FRAMES {
            assert!(far.send(&[number as u8; 60]).unwrap());
        }
        assert_eq!(driver.turn(Time(2), &mut echo).unwrap(), Turn::Busy);
        assert_eq!(driver.counters().received, BATCH_FRAMES as u64, "one is left");
        assert_eq!(driver.turn(Time(3), &mut echo).unwrap(), Turn::Idle);
        let all = BATCH_FRAMES as u64 + 1;
        assert_eq!(driver.counters(), Counters { received: all, sent: all, lost: 0, turns: 3 });
        assert_eq!(echo.ended, [Time(1), Time(2), Time(3)]);
        let mut buffer = [0; 100];
        assert_eq!(far.recv(&mut buffer).unwrap(), Some(60));
        assert_eq!(buffer[0], BATCH_FRAMES as u8 - 1);
    }

    #[test]
    fn what_the_device_has_no_room_for_is_counted() {
        let (near, mut far) = Ring::pair(2);
        let (mut driver, mut echo) = (Driver::new(near), Echo::default());
        for _ in 0..2 {
            assert!(far.send(&[7; 60]).unwrap());
            driver.turn(Time(1), &mut echo).unwrap();
        }
        assert!(far.send(&[7; 60]).unwrap());
        driver.turn(Time(2), &mut echo).unwrap();
        assert_eq!(driver.counters(), Counters { received: 3, sent: 2, lost: 1, turns: 3 });
    }

    #[test]
    fn a_loop_ends_when_it_is_told_to() {
        let stop = Stop::new().unwrap();
        let (near, _far) = Ring::pair(2);
        let mut driver = Driver::new(near);
        let start = std::time::Instant::now();
        let other = stop.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                other.set();
            });
            driver.run(&mut Echo::default(), || Time::ZERO + start.elapsed(), &stop).unwrap();
        });
        assert!(driver.counters().turns > 0);
    }
}
