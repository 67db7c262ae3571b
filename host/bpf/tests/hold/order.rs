//! All orders of the steps of a decision on a packet and of the end of a release, in a model: a delay of one CPU between two steps
//! is too rare on a real kernel for a test.

/// What the program and the loader share.
#[derive(Clone, Copy)]
struct Shared {
    /// `frames` of `struct buffer`.
    counted: u64,
    /// `frames` of `struct taken`.
    taken: u64,
}

/// Where the program reads `taken`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// In a step of its own, before it decides.
    Before,
    /// In the step that decides and counts, under the lock of `struct buffer`.
    WithDecision,
}

/// A step of the program for one packet. Each is a step under a lock.
fn program(step: usize, reading: Reading, shared: &mut Shared, known: &mut u64, is_held: &mut bool) {
    if step == 0 && reading == Reading::Before {
        *known = shared.taken;
    }
    if step == 1 {
        if reading == Reading::WithDecision {
            *known = shared.taken;
        }
        *is_held = shared.counted != *known;
        shared.counted += u64::from(*is_held);
    }
}

/// Whether a packet is lost in some order: held, while the loader ends the hold without it.
fn loses_a_packet(reading: Reading) -> bool {
    // The bits of `order` name who makes the next step: 1 the program, 0 the loader. Both have two steps.
    (0_u8..16).filter(|order| order.count_ones() == 2).any(|order| {
        // One packet was held before, and has been injected; the release has begun.
        let (mut shared, mut known, mut is_held) = (Shared { counted: 1, taken: 0 }, 0, false);
        let (mut program_step, mut loader_step, mut has_ended) = (0, 0, false);
        for turn in 0..4 {
            if order >> turn & 1 == 1 {
                program(program_step, reading, &mut shared, &mut known, &mut is_held);
                program_step += 1;
            } else {
                match loader_step {
                    0 => shared.taken = 1,
                    _ => has_ended = shared.counted == shared.taken,
                }
                loader_step += 1;
            }
        }
        is_held && has_ended
    })
}

#[test]
fn no_packet_is_held_after_the_end_of_its_hold() {
    assert!(!loses_a_packet(Reading::WithDecision));
    assert!(loses_a_packet(Reading::Before), "the model finds the fault of the simpler program");
}
