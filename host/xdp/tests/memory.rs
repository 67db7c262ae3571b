//! Memory of an idle connection.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use spillway_tcp::isn::Key;
use spillway_tcp::{Listener, Settings, Stack, StackEvent};
use spillway_transport::{Conn, Time, Transport};
use spillway_wire::packet::ethernet::Mac;

/// Counts the bytes that are allocated and not freed.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: each call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PORT: u16 = 7000;
const CONNECTIONS: usize = 8192;
/// Maximum bytes of a connection at each end after messages of 64 bytes in both directions, as docs/tcp.md states.
const BYTES_MAX: usize = 2048;

fn stack(number: u8) -> Stack {
    let address = Ipv4Addr::new(10, 0, 0, number);
    let listener = Listener { address: SocketAddr::from((address, PORT)), is_gated: false };
    let settings = Settings::new(Mac([2, 0, 0, 0, 0, number]), address, 24, Key([number; 16]));
    Stack::new(Time::ZERO, Settings { listeners: vec![listener], ..settings }).expect("settings that can be")
}

fn take(stack: &mut Stack, sends_back: bool, conn: Conn, bytes: &[u8]) {
    stack.grant(conn, bytes.len() as u32);
    if sends_back {
        assert_eq!(stack.send(conn, bytes), bytes.len());
    }
}

/// Exchanges frames until both stacks are silent. The end that accepted a connection sends each message back.
fn settle(stacks: &mut [Stack; 2], now: Time) {
    let mut slot = vec![0; stacks[0].frame_bytes_max()];
    let mut is_quiet = false;
    while !is_quiet {
        is_quiet = true;
        for from in [0, 1] {
            while let Some(length) = stacks[from].poll_transmit(now, &mut slot) {
                is_quiet = false;
                let to = &mut stacks[1 - from];
                if let Some(delivery) = to.handle_frame(now, &slot[..length]) {
                    take(to, from == 1, delivery.conn, &slot[delivery.range]);
                }
                while let Some((conn, event)) = to.poll_event() {
                    match event {
                        StackEvent::Opened { .. } => {
                            to.grant(conn, 65_536);
                            if from == 0 {
                                assert_eq!(to.send(conn, &[7; 64]), 64);
                            }
                        }
                        StackEvent::Data { bytes, .. } => take(to, from == 1, conn, &bytes),
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn an_idle_connection_takes_two_kilobytes_at_most() {
    let mut stacks = [stack(1), stack(2)];
    stacks[0].set_listening(0, true);
    let before = HELD.load(Ordering::Relaxed);
    let mut now = Time::ZERO;
    for _ in 0..CONNECTIONS {
        now = now + Duration::from_millis(1);
        stacks[1].connect(now, SocketAddr::from(([10, 0, 0, 1], PORT))).expect("room");
        settle(&mut stacks, now);
    }
    // Time for delayed acknowledgements.
    now = now + Duration::from_secs(1);
    stacks.iter_mut().for_each(|stack| stack.handle_timeout(now));
    settle(&mut stacks, now);
    assert_eq!(stacks.each_ref().map(Stack::connections), [CONNECTIONS; 2]);
    let each = (HELD.load(Ordering::Relaxed) - before) / (2 * CONNECTIONS);
    println!("{each} bytes for each end of an idle connection");
    assert!(each <= BYTES_MAX, "{each} bytes");
}
