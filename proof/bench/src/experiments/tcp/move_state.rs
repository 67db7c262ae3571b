//! Time to move a connection from one user-level stack to another: export, serialise, parse, import. It depends on the
//! numbers of queued bytes and of bytes received out of order. Network and switch are excluded, as in Capybara's
//! figure.
//!
//! Serialising includes one write of all bytes into a buffer, in which the target then reads them: this stands for the
//! copy into datagrams and for the one out of them. The buffer's memory was used before, like that of a ring: the
//! first use of fresh memory costs a page fault for each 4 KB, far more than the write.
//!
//! All connections move together, phase by phase, and move back in the next pass. Each phase is timed over all
//! connections, so that reading the clock costs little, and caches are as in a server that moves many connections at
//! once.

use std::io::Write;
use std::time::Instant;

use spillway_tcp::{Stack, StackEvent};
use spillway_transport::{Conn, Time, Transport};
use spillway_wire::state::ConnectionState;
use spillway_wire::{Bytes, Chunks};

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{measurement_order, print_line};
use crate::experiments::common::script::{Client, Frames, MTU};
use crate::experiments::tcp::stack::stack;
use crate::machine::Machine;
use crate::results::{Check, Results, Row};
use crate::stats::median;
use crate::stop;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    /// Unacknowledged bytes to send.
    queued: usize,
    /// Bytes received out of order.
    out_of_order: usize,
}

const LOADS: [Load; 7] = [
    Load { queued: 0, out_of_order: 0 },
    Load { queued: 1 << 10, out_of_order: 0 },
    Load { queued: 16 << 10, out_of_order: 0 },
    Load { queued: 64 << 10, out_of_order: 0 },
    Load { queued: 128 << 10, out_of_order: 0 },
    Load { queued: 0, out_of_order: 16 << 10 },
    Load { queued: 64 << 10, out_of_order: 64 << 10 },
];

/// Buffered bytes of all connections together; determines their number, within [`CONNECTIONS`].
const BUFFERED_BYTES: usize = 4 << 20;
const CONNECTIONS: std::ops::RangeInclusive<usize> = 16..=256;

/// Mean times of one connection, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    export: f64,
    emit: f64,
    /// Part of `emit`: the state as chunks, before they are written.
    encode: f64,
    parse: f64,
    import: f64,
    bytes: usize,
}

impl Times {
    fn total(&self) -> f64 {
        self.export + self.emit + self.parse + self.import
    }
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let (rounds, passes) = if options.quick { (7, 40) } else { (15, 400) };
    let mut machine = Machine::here();
    machine.lab.insert("stacks".into(), "two in one thread, no network card".into());
    if cfg!(debug_assertions) {
        machine.lab.insert("build".into(), "with assertions: times are not those of a release".into());
    }
    let mut results = Results::new("move-state", machine);
    let mut times = vec![Vec::new(); LOADS.len()];
    let outcome = measurement_order(rounds, LOADS.len()).try_for_each(|(round, index)| {
        stop::check()?;
        let load = LOADS[index];
        let measured =
            measure(load, passes).map_err(|why| Error::process("moving between two stacks", why))?;
        print_line(
            out,
            format_args!("round {round}, {load:?}: {:.2} µs, {} bytes", measured.total(), measured.bytes),
        );
        times[index].push(measured);
        Ok(())
    });
    for (load, times) in LOADS.iter().zip(&times) {
        let mut row = |metric: &str, unit: &str, value: &dyn Fn(&Times) -> f64, note: &str| {
            let values: Vec<f64> = times.iter().map(value).collect();
            let row = Row::new("spillway", metric, unit, &values)
                .param("queued_bytes", load.queued)
                .param("early_bytes", load.out_of_order);
            results.rows.push(row.note(note));
        };
        let note = "all four; Capybara: 3.7 µs; expected ≤ 2 µs when nothing is queued";
        row("export_import_us", "µs", &Times::total, note);
        row("export_us", "µs", &|times| times.export, "");
        row(
            "emit_us",
            "µs",
            &|times| times.emit,
            "with one write of all bytes, into memory that was used before",
        );
        row("encode_us", "µs", &|times| times.encode, "part of emit: without the write");
        row("parse_us", "µs", &|times| times.parse, "");
        row("import_us", "µs", &|times| times.import, "");
        row("state_bytes", "B", &|times| times.bytes as f64, "");
    }
    // A state that differs after parsing is an error that ends the run.
    if outcome.is_ok() {
        results.checks.push(Check::new("moved", true, "every parsed state was equal to the exported one"));
    }
    Ok(results.with_outcome(outcome))
}

/// Two stacks; all connections are in the first.
struct Scene {
    stacks: [Stack; 2],
    conns: Vec<Conn>,
    now: Time,
    out: Frames,
    buffers: Buffers,
}

/// Memory into which states are written. The stack that has read a state uses its buffer until the connection moves
/// again; only then the buffer is written again.
#[derive(Default)]
struct Buffers {
    in_use: Vec<Bytes>,
    free: Vec<Vec<u8>>,
}

impl Buffers {
    /// Takes over the buffers of a pass, and frees those of the pass before.
    fn replace(&mut self, written: Vec<Bytes>) {
        let unused = std::mem::replace(&mut self.in_use, written);
        self.free.extend(unused.into_iter().map(Vec::from)); // moves the memory, because nothing else refers to it
    }

    fn take(&mut self) -> Vec<u8> {
        let mut buffer = self.free.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }
}

/// Moves all connections in each of several passes. Returns the medians over the passes.
fn measure(load: Load, passes: usize) -> Result<Times, String> {
    let connections = (BUFFERED_BYTES / (load.queued + load.out_of_order).max(1))
        .clamp(*CONNECTIONS.start(), *CONNECTIONS.end());
    let mut scene = Scene::new(connections, load)?;
    // Warm up: moves in both directions allocate the memory of stacks and buffers.
    for _ in 0..4 {
        scene.pass()?;
    }
    let measured = (0..passes).map(|_| scene.pass()).collect::<Result<Vec<Times>, String>>()?;
    let median_of = |value: fn(&Times) -> f64| {
        let values: Vec<f64> = measured.iter().map(value).collect();
        median(&values).unwrap_or(f64::NAN)
    };
    Ok(Times {
        export: median_of(|times| times.export),
        emit: median_of(|times| times.emit),
        encode: median_of(|times| times.encode),
        parse: median_of(|times| times.parse),
        import: median_of(|times| times.import),
        bytes: measured.last().map_or(0, |times| times.bytes),
    })
}

impl Scene {
    fn new(connections: usize, load: Load) -> Result<Scene, String> {
        let (stacks, out) = ([stack(false)?, stack(false)?], Frames::new(1));
        let (conns, buffers) = (Vec::new(), Buffers::default());
        let mut scene = Scene { stacks, conns, now: Time(1_000_000), out, buffers };
        scene.stacks[0].set_listening(0, true);
        for number in 0..connections {
            scene.open(&mut Client::new(number), load)?;
        }
        Ok(scene)
    }

    /// Opens a connection with `load.queued` unacknowledged bytes, and `load.out_of_order` received bytes behind a gap
    /// of one byte.
    fn open(&mut self, client: &mut Client, load: Load) -> Result<(), String> {
        let mut frame = Frames::new(1);
        frame.push(|slot| Some(client.syn(slot)));
        self.stacks[0].handle_frame(self.now, frame.get(0));
        self.drain();
        if self.out.len() != 1 {
            return Err("no answer to a SYN".into());
        }
        client.accept_syn_ack(self.out.get(0))?;
        frame.clear();
        frame.push(|slot| Some(client.acknowledgement(slot)));
        self.stacks[0].handle_frame(self.now, frame.get(0));
        let Some((conn, StackEvent::Opened { .. })) = self.stacks[0].poll_event() else {
            return Err("the stack did not open a connection".into());
        };
        self.conns.push(conn);
        self.stacks[0].grant(conn, 1 << 20);
        let bytes = vec![7; load.queued];
        if self.stacks[0].send(conn, &bytes) != load.queued {
            return Err(format!("the stack did not accept {} bytes to send", load.queued));
        }
        let piece = vec![7; usize::from(MTU) - 100];
        for offset in (0..load.out_of_order).step_by(piece.len()) {
            let length = piece.len().min(load.out_of_order - offset);
            frame.clear();
            frame.push(|slot| Some(client.after_gap(1 + offset as u32, &piece[..length], slot))); // within the window
            if self.stacks[0].handle_frame(self.now, frame.get(0)).is_some() {
                return Err("bytes behind a gap were delivered".into());
            }
        }
        self.drain();
        Ok(())
    }

    /// Discards all frames of both stacks, except the last one, which stays in `out`.
    fn drain(&mut self) {
        let Scene { stacks, out, now, .. } = self;
        out.clear();
        for stack in stacks {
            let mut frame = Frames::new(1);
            while frame.push(|slot| stack.poll_transmit(*now, slot)) {
                std::mem::swap(out, &mut frame);
                frame.clear();
            }
        }
    }

    /// Moves all connections from the first stack to the second, and swaps the stacks.
    fn pass(&mut self) -> Result<Times, String> {
        self.now = Time(self.now.0 + 1_000);
        let (now, count) = (self.now, self.conns.len());
        let [source, target] = &mut self.stacks;
        let each = |start: Instant| start.elapsed().as_nanos() as f64 / 1000.0 / count as f64;

        let start = Instant::now();
        let states: Result<Vec<ConnectionState>, _> =
            self.conns.iter().map(|conn| source.export(now, *conn)).collect();
        let export = each(start);
        let states = states.map_err(|error| error.to_string())?;

        let mut buffers: Vec<Vec<u8>> = states.iter().map(|_| self.buffers.take()).collect();
        let start = Instant::now();
        let encoded: Vec<Chunks> = states.iter().map(ConnectionState::encode).collect();
        let encode = each(start);
        for (chunks, buffer) in encoded.iter().zip(&mut buffers) {
            chunks.copy_to(0..chunks.len(), buffer);
        }
        let emit = each(start);
        drop(encoded);

        let start = Instant::now();
        let received: Vec<Bytes> = buffers.into_iter().map(Bytes::from).collect();
        let parsed: Result<Vec<ConnectionState>, _> =
            received.iter().map(|bytes| ConnectionState::decode(&bytes.clone().into())).collect();
        let parse = each(start);
        let parsed = parsed.map_err(|error| error.to_string())?;
        if parsed != states {
            return Err("the parsed state differs from the exported one".into());
        }

        let start = Instant::now();
        let conns: Result<Vec<Conn>, _> = parsed.iter().map(|state| target.import(now, state)).collect();
        let import = each(start);
        self.conns = conns.map_err(|error| error.to_string())?;
        drop((states, parsed));

        self.stacks.swap(0, 1);
        self.drain();
        while self.stacks[0].poll_event().is_some() {}
        let bytes = received.first().map_or(0, Bytes::len);
        self.buffers.replace(received);
        Ok(Times { export, emit, encode, parse, import, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_state_contains_all_buffered_bytes() {
        for load in LOADS {
            let times = measure(load, 2).unwrap();
            assert!(times.bytes > load.queued + load.out_of_order, "{load:?}: {times:?}");
            assert!(times.bytes < load.queued + load.out_of_order + 4000, "{load:?}: {times:?}");
        }
    }
}
