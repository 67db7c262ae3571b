//! Time to seal the parts of a state at one server, and to open them at the other.

use spillway_auth::{Key, Opened, PeerSeal};
use spillway_wire::handoff::{Body, Message, Part, Run};
use spillway_wire::switch::ServerId;

use super::memory::any_flow;
use crate::experiments::moves::thread_cpu;

/// Mean CPU time of a state of `bytes` bytes, in µs.
pub(super) fn measure(bytes: usize, states: usize) -> Result<f64, String> {
    let (mut source, mut target) = session()?;
    let state = vec![7; bytes.max(1)];
    let flow = any_flow()?;
    let mut datagram = Vec::new();
    let start = thread_cpu::own();
    for generation in 1..=states as u64 {
        for number in 0.. {
            let Some(part) = Part::of(&state, number) else { break };
            send(
                &mut source,
                &mut target,
                &Message { flow, generation, body: Body::State(part) },
                &mut datagram,
            )?;
        }
    }
    Ok(thread_cpu::own().saturating_sub(start).as_nanos() as f64 / 1000.0 / states as f64)
}

fn send(
    source: &mut PeerSeal,
    target: &mut PeerSeal,
    message: &Message<'_>,
    datagram: &mut Vec<u8>,
) -> Result<(), String> {
    datagram.clear();
    source.seal(message, datagram).map_err(|error| error.to_string())?;
    match target.open(datagram) {
        Ok(Opened::Message(opened)) if opened == *message => Ok(()),
        other => Err(format!("a sealed part was opened as {other:?}")),
    }
}

/// Both ends of a session.
fn session() -> Result<(PeerSeal, PeerSeal), String> {
    let key = Key::from_secret([5; 32]);
    let end = |own: u8, peer: u8| {
        let run = Run::new(u64::from(own)).ok_or("a run is not 0")?;
        Ok::<_, String>(PeerSeal::new(&key, (ServerId(own), run), ServerId(peer)))
    };
    let (mut source, mut target) = (end(1, 2)?, end(2, 1)?);
    let mut greeting = Some(source.greeting().to_vec());
    // Each end answers the other's greeting until both have a session.
    for turn in 0.. {
        let Some(mut datagram) = greeting.take() else { break };
        let end = if turn % 2 == 0 { &mut target } else { &mut source };
        match end.open(&mut datagram) {
            Ok(Opened::Greeting { answer, .. }) => greeting = answer.map(|answer| answer.to_vec()),
            other => return Err(format!("a greeting was opened as {other:?}")),
        }
    }
    if source.is_open() && target.is_open() {
        Ok((source, target))
    } else {
        Err("two ends found no session".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_all_sizes_are_sealed_and_opened() {
        for bytes in [0, 1 << 10, 128 << 10] {
            assert!(measure(bytes, 2).unwrap() > 0.0);
        }
    }
}
