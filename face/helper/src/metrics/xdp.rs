//! The samples of the engine xdp.

use spillway_xdp::Figures;

/// Values of one thread by label.
pub(super) type Labelled<const N: usize> = [(&'static str, u64); N];

pub(super) fn frames(figures: &Figures) -> Labelled<3> {
    let driver = figures.driver;
    [("received", driver.received), ("sent", driver.sent), ("lost", driver.lost)]
}

pub(super) fn drops(figures: &Figures) -> Labelled<7> {
    let (stack, sockets) = (&figures.stack, figures.sockets);
    [
        ("receive_ring_full", sockets.ring_full),
        ("fill_ring_empty", sockets.fill_ring_empty),
        ("too_long", sockets.dropped),
        ("malformed", stack.frames_malformed),
        ("partial_checksum", stack.partial_checksums),
        ("ignored", stack.frames_ignored),
        ("unacceptable", stack.unacceptable),
    ]
}

pub(super) fn events(figures: &Figures) -> Labelled<7> {
    let stack = &figures.stack;
    [
        ("retransmission_timeout", stack.timeouts),
        ("given_up", stack.given_up),
        ("reset_sent", stack.resets_sent),
        ("reset_received", stack.resets_received),
        ("connection_refused", stack.connections_refused),
        ("cookie_sent", stack.cookies_sent),
        ("unknown_segment", stack.segments_unknown),
    ]
}
