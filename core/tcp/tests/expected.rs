//! The fast path for expected segments sends the same frames as the general path, at the same times.

mod pair;
mod streams;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pair::{Pair, settings, settings_ipv6};
use spillway_tcp::Settings;
use spillway_transport::{Time, Transport};
use streams::Streams;

/// Frames on the cable: the sending host, and the bytes.
type Frames = Vec<(usize, Vec<u8>)>;

/// Runs three connections to their end. Returns all frames and the time of the end. One frame in `lost_in` is lost.
fn run(settings: fn(u8) -> Settings, has_header_prediction: bool, seed: u64, lost_in: u64) -> (Frames, Time) {
    let hosts = [1, 2].map(|host| Settings { has_header_prediction, ..settings(host) });
    let target = hosts[0].listeners[0].address;
    let mut pair = Pair::new(hosts, [Streams::new(200_000), Streams::new(200_000)]);
    pair.hosts[0].stack.set_listening(0, true);
    let frames = Rc::new(RefCell::new(Frames::new()));
    let (recorded, mut state) = (frames.clone(), seed);
    pair.filter = Box::new(move |host, frame| {
        recorded.borrow_mut().push((host, frame.to_vec()));
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        !(state >> 33).is_multiple_of(lost_in)
    });
    for _ in 0..3 {
        pair.command(1, |now, _, stack| stack.connect(now, target)).expect("room for a connection");
    }
    while pair.hosts.iter().any(|host| host.application.completed < 3) {
        pair.step(Duration::from_secs(10));
        assert!(pair.now < Time(4_000_000_000_000), "the streams should end within 4000 s");
    }
    let frames = frames.take();
    (frames, pair.now)
}

#[test]
fn the_fast_path_sends_the_same_frames_at_the_same_times() {
    let families: [fn(u8) -> Settings; 2] = [settings, settings_ipv6];
    let rounds = (0..40).zip([u64::MAX, 100, 20, 10].into_iter().cycle());
    for ((seed, lost_in), settings) in rounds.flat_map(|round| families.map(|settings| (round, settings))) {
        let ((fast, fast_end), (general, general_end)) =
            (run(settings, true, seed, lost_in), run(settings, false, seed, lost_in));
        assert_eq!(
            fast_end, general_end,
            "the fast path should end like the general one: seed {seed}, one in {lost_in} lost"
        );
        let first_difference = fast.iter().zip(&general).position(|(fast, general)| fast != general);
        assert_eq!(first_difference, None, "no frame should differ: seed {seed}, one in {lost_in} lost");
        assert_eq!(fast.len(), general.len());
    }
}
