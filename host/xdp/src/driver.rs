//! The loop between a device and an endpoint.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use spillway_transport::Time;

use crate::device::{Device, Stop};

/// Maximum frames of one turn in each direction, so that a flood does not delay other frames and timers.
pub const BATCH_FRAMES: usize = 64;

/// What sends and receives frames through a device, such as a stack with its application. A turn calls
/// `begin_turn`, `deliver` for each frame, `end_turn`, and `poll_transmit` until no frame is left.
pub trait Endpoint {
    /// A turn begins: handle due timers.
    fn begin_turn(&mut self, now: Time);

    /// A frame has arrived.
    fn deliver(&mut self, now: Time, frame: &[u8]);

    /// All frames of this turn were delivered.
    fn end_turn(&mut self, now: Time);

    /// Writes the next frame to send into `slot` and returns its length. Called until there is no frame, at most
    /// [`BATCH_FRAMES`] times in a turn.
    #[must_use]
    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize>;

    /// When the next turn is due if no frame arrives; `None` for no limit. Called before the loop waits.
    fn poll_timeout(&self) -> Option<Time>;

    /// One of [`wakes`](Self::wakes) is readable. The next turn follows.
    fn handle_wake(&mut self) {}

    /// Descriptors that begin a turn when they are readable.
    fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::empty()
    }
}

/// Whether the loop may wait before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// More frames may be waiting: take the next turn at once.
    Busy,
    /// The next turn may wait for a frame, or for [`Endpoint::poll_timeout`].
    Idle,
}

/// Totals since the driver was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames lost because the device did not accept them.
    pub lost: u64,
    /// Turns that ended because the device had no room for another frame.
    pub full: u64,
    /// Turns.
    pub turns: u64,
}

/// A device with the counters of its loop.
#[derive(Debug)]
pub struct Driver<D> {
    device: D,
    counters: Counters,
}

impl<D: Device> Driver<D> {
    /// A driver of this device.
    pub fn new(device: D) -> Driver<D> {
        Driver { device, counters: Counters::default() }
    }

    /// Totals since the driver was created.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, for changes between turns.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Ends the driver and returns its device.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Takes one turn: due timers, then received frames, then frames to send; at most [`BATCH_FRAMES`] in each direction.
    /// Does not block.
    ///
    /// # Errors
    /// The device has failed.
    pub fn turn(&mut self, now: Time, endpoint: &mut impl Endpoint) -> io::Result<Turn> {
        endpoint.begin_turn(now);
        let mut turn = Turn::Busy;
        for _ in 0..BATCH_FRAMES {
            let Some(frame) = self.device.receive()? else {
                turn = Turn::Idle;
                break;
            };
            self.counters.received += 1;
            endpoint.deliver(now, frame);
        }
        endpoint.end_turn(now);
        self.counters.turns += 1;
        Ok(match self.send(now, endpoint)? {
            Turn::Busy => Turn::Busy,
            Turn::Idle => turn,
        })
    }

    /// Sends waiting frames, at most [`BATCH_FRAMES`]. Returns [`Turn::Busy`] if more may wait.
    ///
    /// # Errors
    /// The device has failed.
    pub fn send(&mut self, now: Time, endpoint: &mut impl Endpoint) -> io::Result<Turn> {
        for _ in 0..BATCH_FRAMES {
            let Some(slot) = self.device.transmit()? else {
                // Idle: the other frames stay in the endpoint, and `Device::wait` waits for room.
                self.counters.full += 1;
                self.device.flush()?;
                return Ok(Turn::Idle);
            };
            let Some(length) = endpoint.poll_transmit(now, slot) else {
                self.device.flush()?;
                return Ok(Turn::Idle);
            };
            let is_sent = self.device.commit(length)?;
            self.counters.sent += u64::from(is_sent);
            self.counters.lost += u64::from(!is_sent);
        }
        self.device.flush()?;
        Ok(Turn::Busy)
    }

    /// Takes turns until `stop` is set, and waits between them. `clock` must be monotonic.
    ///
    /// # Errors
    /// The device has failed.
    pub fn run(
        &mut self,
        endpoint: &mut impl Endpoint,
        clock: impl Fn() -> Time,
        stop: &Stop,
    ) -> io::Result<()> {
        while !stop.is_set() {
            if self.turn(clock(), endpoint)? == Turn::Idle {
                let timeout = endpoint.poll_timeout().map(|at| at.since(clock()));
                let wakes: Vec<_> = std::iter::once(stop.as_fd()).chain(endpoint.wakes()).collect();
                if self.device.wait(timeout, &wakes)? {
                    endpoint.handle_wake();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Ring, send};

    /// Sends received frames back in the same turn, the last one first.
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
    fn a_turn_takes_one_batch_and_is_busy_while_frames_wait() {
        let (near, mut far) = Ring::pair(2 * BATCH_FRAMES);
        let (mut driver, mut echo) = (Driver::new(near), Echo::default());
        assert_eq!(driver.turn(Time(1), &mut echo).unwrap(), Turn::Idle);
        for number in 0..=BATCH_FRAMES {
            assert!(send(&mut far, &[number as u8; 60]).unwrap());
        }
        assert_eq!(driver.turn(Time(2), &mut echo).unwrap(), Turn::Busy);
        assert_eq!(driver.counters().received, BATCH_FRAMES as u64, "one is left");
        assert_eq!(driver.turn(Time(3), &mut echo).unwrap(), Turn::Idle);
        let all = BATCH_FRAMES as u64 + 1;
        assert_eq!(driver.counters(), Counters { received: all, sent: all, turns: 3, ..Counters::default() });
        assert_eq!(echo.ended, [Time(1), Time(2), Time(3)]);
        assert_eq!(far.receive().unwrap(), Some(&[BATCH_FRAMES as u8 - 1; 60][..]));
    }

    #[test]
    fn frames_that_the_device_refuses_are_counted() {
        let (near, mut far) = Ring::pair(2);
        let (mut driver, mut echo) = (Driver::new(near), Echo::default());
        for _ in 0..2 {
            assert!(send(&mut far, &[7; 60]).unwrap());
            driver.turn(Time(1), &mut echo).unwrap();
        }
        assert!(send(&mut far, &[7; 60]).unwrap());
        driver.turn(Time(2), &mut echo).unwrap();
        assert_eq!(driver.counters(), Counters { received: 3, sent: 2, lost: 1, turns: 3, full: 0 });
    }

    #[test]
    fn run_ends_when_stop_is_set() {
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
