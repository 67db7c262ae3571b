//! Helper functions of the scenarios: commands with a result, waiting, connections, streams.

use alloc::vec::Vec;

use super::Side::{Accepting, Connecting};
use super::{Probe, Rig, Side, pattern};
use crate::{Conn, Transport};

pub(super) trait RigExt: Rig {
    fn on<R>(&mut self, side: Side, act: impl FnMut(&mut Probe, &mut dyn Transport) -> R) -> R;
    fn wait(&mut self, condition: &str, side: Side, is_met: impl FnMut(&Probe) -> bool);
    fn settle(&mut self);
}

impl<T: Rig + ?Sized> RigExt for T {
    fn on<R>(&mut self, side: Side, mut act: impl FnMut(&mut Probe, &mut dyn Transport) -> R) -> R {
        let mut result = None;
        self.command(side, &mut |_, probe, out| result = Some(act(probe, out)));
        result.expect("Rig::command should run the command before it returns")
    }

    fn wait(&mut self, condition: &str, side: Side, mut is_met: impl FnMut(&Probe) -> bool) {
        let deadline = self.now() + self.patience();
        while !self.on(side, |probe, _| is_met(probe)) {
            if self.now() > deadline {
                let seen = self.on(side, |probe, _| probe.seen.clone());
                let latest = &seen[seen.len().saturating_sub(12)..];
                panic!(
                    "timed out waiting for: {condition}; {} events seen, the latest: {latest:?}",
                    seen.len()
                );
            }
            self.step();
        }
    }

    fn settle(&mut self) {
        let end = self.now() + self.quiet();
        while self.now() < end {
            self.step();
        }
    }
}

/// Opens the listener and one connection. Returns (connecting end, accepting end).
pub(super) fn connected(rig: &mut dyn Rig) -> (Conn, Conn) {
    let target = rig.listener();
    let before = rig.on(Accepting, |probe, out| {
        out.set_listening(0, true);
        probe.accepted().len()
    });
    let connecting = connect(rig, target);
    rig.wait("Opened at the connecting side", Connecting, |probe| !probe.of(connecting).is_empty());
    rig.wait("Opened at the accepting side", Accepting, |probe| probe.accepted().len() > before);
    (connecting, rig.on(Accepting, |probe, _| probe.accepted()[before]))
}

pub(super) fn connect(rig: &mut dyn Rig, target: core::net::SocketAddr) -> Conn {
    let mut conn = None;
    rig.command(Connecting, &mut |now, _, out| conn = Some(out.connect(now, target)));
    conn.expect("Rig::command should run the command before it returns")
        .expect("the transport should have room for a connection")
}

/// `length` bytes of the test pattern from an offset on.
pub(super) fn stream(from: u64, length: usize) -> Vec<u8> {
    (from..).take(length).map(pattern).collect()
}

/// Sends `length` bytes of the test pattern from an offset on, as room allows.
pub(super) fn send_all(rig: &mut dyn Rig, side: Side, conn: Conn, from: u64, length: usize) {
    let bytes = stream(from, length);
    let deadline = rig.now() + rig.patience();
    let mut sent = 0;
    while sent < bytes.len() {
        sent += rig.on(side, |_, out| out.send(conn, &bytes[sent..]));
        assert!(rig.now() < deadline, "only {sent} of {length} bytes sent before the timeout");
        rig.step();
    }
}

pub(super) fn other(side: Side) -> Side {
    if side == Accepting { Connecting } else { Accepting }
}
