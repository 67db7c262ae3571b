//! The fast path for expected segments sends the same frames as the general path, at the same times.

mod pair;
mod streams;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use pair::{PORT, Pair, settings};
use spillway_tcp::Settings;
use spillway_transport::{Time, Transport};
use streams::Streams;

/// Frames on the cable: the sending host, and the bytes.
type Frames = Vec<(usize, Vec<u8>)>;

/// All frames of three connections, and the time of their end; one frame in `lost_in` is lost.
fn frames(is_predicting: bool, seed: u64, lost_in: u64) -> (Frames, Time) {
    let settings = [1, 2].map(|host| Settings { is_predicting, ..settings(host) });
    let mut pair = Pair::new(settings, [Streams::new(200_000), Streams::new(200_000)]);
    pair.hosts[0].stack.set_listening(0, true);
    let all = Rc::new(RefCell::new(Frames::new()));
    let (kept, mut state) = (all.clone(), seed);
    pair.filter = Box::new(move |host, frame| {
        kept.borrow_mut().push((host, frame.to_vec()));
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        !(state >> 33).is_multiple_of(lost_in)
    });
    for _ in 0..3 {
        let target = SocketAddr::from(([10, 0, 0, 1], PORT));
        pair.command(1, |now, _, stack| stack.connect(now, target)).expect("room");
    }
    while pair.hosts.iter().any(|host| host.application.completed < 3) {
        pair.step(Duration::from_secs(10));
        assert!(pair.now < Time(4_000_000_000_000), "it does not end");
    }
    let all = all.take();
    (all, pair.now)
}

#[test]
fn both_ways_lead_to_the_same_frames_at_the_same_times() {
    for (seed, lost_in) in (0..40).zip([u64::MAX, 100, 20, 10].into_iter().cycle()) {
        let (short, long) = (frames(true, seed, lost_in), frames(false, seed, lost_in));
        assert_eq!(short.1, long.1, "seed {seed}, one in {lost_in} lost");
        let differs = short.0.iter().zip(&long.0).position(|(short, long)| short != long);
        assert_eq!(differs, None, "seed {seed}, one in {lost_in} lost: the first frame that differs");
        assert_eq!(short.0.len(), long.0.len());
    }
}
