//! Interrupts that are deferred under load.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_transport::Time;
use spillway_xdp::{Adapter, Interrupts};

use super::exchange;
use super::pair::{Family, OURS, Pair, SERVER, context_with};
use crate::application::{Role, Roles};
use crate::rig::{PATIENCE, ask};

const INTERVAL: Duration = Duration::from_millis(1);
/// With 12 clients, more than two frames arrive in an interval although each client waits for its reply.
const CLIENTS: usize = 12;

fn interrupts(pair: &Pair, adapter: &Adapter) -> Option<Interrupts> {
    match pair.server.run_inside(|| Interrupts::open(adapter.interface(), INTERVAL)).unwrap() {
        Ok(interrupts) => Some(interrupts),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn await_deferred(interrupts: &Interrupts, expected: bool) {
    let start = Instant::now();
    while interrupts.are_deferred().unwrap() != expected {
        assert!(start.elapsed() < PATIENCE, "interrupts should be deferred: {expected}");
        std::thread::sleep(INTERVAL);
    }
}

#[test]
fn interrupts_are_deferred_while_a_thread_is_loaded() {
    let Some(pair) = Pair::with(Family::V4, "xdp-deferred", 1) else { return };
    let adapter = pair.adapter().unwrap();
    let Some(interrupts) = interrupts(&pair, &adapter) else { return };
    let hook = Box::new(|notice| panic!("{notice}"));
    let mut context =
        context_with(&pair, adapter, Roles::new(vec![Role::Echo], vec![]), (Some(interrupts.clone()), hook));
    let remote = context.remote();
    let server = SocketAddr::from((SERVER, OURS));
    let running = std::thread::spawn(move || context.run().unwrap());
    let connect = || (0..=CLIENTS).map(|_| TcpStream::connect(server).unwrap()).collect::<Vec<_>>();
    let mut streams = pair.client.run_inside(connect).unwrap();
    assert!(!interrupts.are_deferred().unwrap(), "a few frames are no load");
    let last = streams.pop().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| exchange(stream, &stop));
        }
        await_deferred(&interrupts, true);
        stop.store(true, Ordering::Relaxed);
    });
    // After a pause, the next frame makes the thread compute its load again.
    std::thread::sleep(Duration::from_millis(50));
    ask(&last, 0, 100);
    await_deferred(&interrupts, false);
    remote.stop();
    running.join().unwrap();
    pair.lab.close().unwrap();
}

#[test]
fn a_loaded_thread_that_ends_or_was_killed_leaves_no_deferral() {
    let Some(pair) = Pair::with(Family::V4, "xdp-undeferred", 1) else { return };
    let adapter = pair.adapter().unwrap();
    let Some(observer) = interrupts(&pair, &adapter) else { return };
    for is_killed in [false, true] {
        let interrupts = interrupts(&pair, &adapter).unwrap();
        let mut thread = interrupts.of_thread();
        thread.update(Time::ZERO + Duration::from_secs(1), 1_000_000).unwrap();
        assert!(observer.are_deferred().unwrap());
        match is_killed {
            false => drop((thread, interrupts)),
            true => std::mem::forget((thread, interrupts)),
        }
        assert_eq!(observer.are_deferred().unwrap(), is_killed);
    }
    // As the next process does at its start.
    let next = self::interrupts(&pair, &adapter).unwrap();
    assert!(!next.are_deferred().unwrap());
    drop((next, observer, adapter));
    pair.lab.close().unwrap();
}
