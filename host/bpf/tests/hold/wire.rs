//! Flows are held and released again and again while their packets arrive: none is lost, and the order holds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_bpf::{Budget, HeldOutcome, Release};

use super::link::{CLIENT, Frames, SERVER, isolated};
use super::{LOCAL, PEER, frame, hold, loaded};

const PATIENCE: Duration = Duration::from_secs(60);
const HOLDS: usize = 2_000;
/// Bytes before the packet's number: at the place of the payload.
const NUMBER_AT: usize = 14 + 20 + 4;

/// The number of a frame from its Ethernet header on, or of a packet from its IP header on.
fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*bytes[at..].first_chunk().unwrap())
}

/// Stops the sender, also when an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The numbers of the frames that the kernel has received.
fn numbers(server: &Frames) -> impl Iterator<Item = u32> {
    std::iter::from_fn(|| server.next()).map(|frame| number(&frame, NUMBER_AT))
}

#[test]
fn no_packet_is_lost_or_overtakes_another_while_a_flow_is_released() {
    let Some(mut held) = loaded(4, 64 << 20) else { return };
    if !isolated() {
        return;
    }
    held.attach(SERVER).unwrap();
    let (client, server) = (Frames::at(CLIENT), Frames::at(SERVER));
    let stop = AtomicBool::new(false);
    let (sent, batches, passed) = std::thread::scope(|scope| {
        let stopper = Stop(&stop);
        let sender = scope.spawn(|| {
            let mut frame = frame(16);
            let mut next = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                frame[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&next.to_be_bytes());
                client.send(&frame);
                next += 1;
                // Bursts with pauses: releases meet both.
                if next.is_multiple_of(1_024) {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            next
        });
        let (mut batches, mut passed) = (Vec::new(), Vec::new());
        for _ in 0..HOLDS {
            let budget = Budget { frames_max: 200_000, bytes_max: 16 << 20 };
            let hold = hold(&mut held, LOCAL, PEER, budget).unwrap();
            let start = Instant::now();
            while held.waiting(hold).unwrap().frames < 20 {
                assert!(start.elapsed() < PATIENCE);
            }
            let mut batch = Vec::new();
            let mut inject = |packet: &[u8]| {
                let number = number(packet, NUMBER_AT - 14);
                passed.extend(numbers(&server));
                let overtaking = passed.last().filter(|passed| **passed > number);
                assert_eq!(overtaking, None, "passed before {number} was injected");
                batch.push(number);
            };
            while held.release(hold, &mut inject).unwrap() == Release::Draining {
                assert!(start.elapsed() < PATIENCE, "the release ends");
            }
            batches.push(batch);
            passed.extend(numbers(&server));
        }
        drop(stopper);
        let sent = sender.join().unwrap();
        let start = Instant::now();
        let held_packets: usize = batches.iter().map(Vec::len).sum();
        while held_packets + passed.len() < sent as usize {
            assert!(start.elapsed() < PATIENCE, "{} of {sent} packets", held_packets + passed.len());
            passed.extend(numbers(&server));
        }
        (sent, batches, passed)
    });
    // Within a hold the numbers are without a gap: no packet has passed between two that were held.
    for batch in &batches {
        assert!(batch.len() >= 20);
        assert!(batch.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{batch:?}");
    }
    assert!(batches.windows(2).all(|pair| pair[0].last() < pair[1].first()));
    assert!(passed.windows(2).all(|pair| pair[0] < pair[1]), "the kernel's packets are in order");
    let mut all: Vec<_> = batches.concat();
    all.extend(&passed);
    all.sort_unstable();
    assert!(all.into_iter().eq(0..sent), "each packet once");
    let counters = held.counters().unwrap();
    assert_eq!(counters.of(HeldOutcome::Held) as usize, batches.concat().len());
    for outcome in [HeldOutcome::DropOverBudget, HeldOutcome::DropRingFull] {
        assert_eq!(counters.of(outcome), 0);
    }
}
