//! The samples of the engine xdp.

use spillway_xdp::Figures;

/// Values of one thread by label.
pub(super) type Labelled<const N: usize> = [(&'static str, u64); N];

pub(super) fn frames(figures: &Figures) -> Labelled<4> {
    let driver = figures.driver;
    [
        ("received", driver.received),
        ("sent", driver.sent),
        ("lost", driver.lost),
        ("crossed", figures.crossing.crossed),
    ]
}

pub(super) fn drops(figures: &Figures) -> Labelled<8> {
    let (stack, sockets) = (&figures.stack, figures.sockets);
    [
        ("thread_busy", figures.crossing.lost),
        ("receive_ring_full", sockets.ring_full),
        ("fill_ring_empty", sockets.fill_ring_empty),
        // The kernel counts a frame for which the fill ring is empty in both counters.
        ("too_long", sockets.dropped.saturating_sub(sockets.fill_ring_empty)),
        ("malformed", stack.frames_malformed),
        ("partial_checksum", stack.partial_checksums),
        ("ignored", stack.frames_ignored),
        ("unacceptable", stack.unacceptable),
    ]
}

pub(super) fn events(figures: &Figures) -> Labelled<9> {
    let stack = &figures.stack;
    [
        ("retransmitted_segment", stack.retransmitted),
        ("retransmission_timeout", stack.timeouts),
        ("given_up", stack.given_up),
        ("reset_sent", stack.resets_sent),
        ("reset_received", stack.resets_received),
        ("port_changed", stack.ports_changed),
        ("connection_refused", stack.connections_refused),
        ("cookie_sent", stack.cookies_sent),
        ("unknown_segment", stack.segments_unknown),
    ]
}
