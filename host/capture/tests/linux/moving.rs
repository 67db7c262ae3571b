//! A server's connection that moves.

use std::net::TcpStream;

use spillway_capture::{Captured, Injector, Live, export, import};
use spillway_wire::state::{ConnectionState, Finish};

use crate::cable::{Cable, Seen, wait_until};

/// Number of moves of a test.
pub fn moves() -> usize {
    std::env::var("CAPTURE_MOVES").map_or(100, |text| text.parse().expect("CAPTURE_MOVES is a number"))
}

/// The server's end of a connection, and what is needed to move it. Lives in a thread of the server's namespace.
pub struct Moving<'a> {
    pub cable: &'a Cable,
    pub stream: TcpStream,
    pub injector: Injector,
}

impl<'a> Moving<'a> {
    pub fn new(cable: &'a Cable, stream: TcpStream) -> Moving<'a> {
        Moving { cable, stream, injector: Injector::open().unwrap() }
    }

    /// Moves the connection to a new socket. Returns it, and the state.
    pub fn step(self) -> (Moving<'a>, ConnectionState) {
        self.step_with(ConnectionState::clone)
    }

    /// As [`step`](Self::step); `carry` transports the state.
    pub fn step_with(
        self,
        carry: impl FnOnce(&ConnectionState) -> ConnectionState,
    ) -> (Moving<'a>, ConnectionState) {
        let Moving { cable, stream, injector } = self;
        cable.hold();
        let captured = export(stream).unwrap();
        let (live, state) = carry_over(captured, &injector, cable, carry);
        cable.release();
        assert!(live.fault.is_none(), "{:?}", live.fault);
        assert!(live.unwritten.is_empty() && !live.must_finish, "the kernel accepts all unsent bytes");
        (Moving { cable, stream: live.socket.into(), injector }, state)
    }
}

fn carry_over(
    captured: Captured,
    injector: &Injector,
    cable: &Cable,
    carry: impl FnOnce(&ConnectionState) -> ConnectionState,
) -> (Live, ConnectionState) {
    // The bytes on the wire are those of the state.
    let state = ConnectionState::decode(&captured.state().encode()).unwrap();
    assert_eq!(&state, captured.state());
    let state = carry(&state);
    assert_eq!(captured.close_without_grace().unwrap(), [], "the cable holds all segments");
    let before = cable.server_segments(state.peer);
    let restored = import(&state).unwrap();
    assert_eq!(cable.server_segments(state.peer), before, "an import sends nothing");
    assert!(restored.has_congestion_control());
    assert_eq!(restored.out_of_order_bytes(), 0);
    let live = restored.go_live(injector).unwrap();
    if state.receiving.owes {
        wait_until("the owed acknowledgement is sent", || cable.server_segments(state.peer) > before);
    }
    let has_ended = state.receiving.fin.is_some() || state.sending.finish != Finish::No;
    if !state.receiving.owes && state.sending.queue.is_empty() && !has_ended {
        assert_eq!(cable.server_segments(state.peer), before, "no probe is sent");
    }
    (live, state)
}

/// The same socket, after a capture that ends without a move.
pub fn resumed(captured: Captured) -> TcpStream {
    let resumed = captured.resume(&Injector::open().unwrap()).unwrap();
    assert!(resumed.fault.is_none(), "{:?}", resumed.fault);
    resumed.socket.into()
}

/// Checks that the client has seen no move.
pub fn assert_unseen(cable: &Cable) {
    assert_eq!(cable.seen(), Seen::default());
}
