//! Sessions that wait to be accepted.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_auth::Key;
use spillway_batch::Control;
use spillway_session::{ClientSession, StreamLimits};
use spillway_wire::session::{Acknowledge, SessionId};
use support::driver::{Driver, Relayed};
use support::inside;

/// The server's next control message for the session, other than an acknowledgement.
fn next_control(helper: &mut Driver, id: spillway_batch::Id) -> Control {
    loop {
        match helper.next_relayed(id) {
            Relayed::Control(Control::Acknowledge(_)) => {}
            Relayed::Control(control) => return control,
            Relayed::Data(_) => panic!("a session that was not accepted should receive no data"),
        }
    }
}

/// Ends the application's thread when dropped, also if the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn unaccepted_session_that_violates_the_protocol_is_closed_at_once() {
    let inside = inside::start();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The application waits for events and never accepts.
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                inside.wait(64, 10);
            }
        });
        let _set_on_drop = SetOnDrop(&is_done);
        let mut helper = Driver::loopback(inside.link);
        let client = SocketAddr::from(([127, 0, 0, 7], 4_321));
        let mut session =
            ClientSession::new(Key::loopback_only(), SessionId([7; 16]), StreamLimits::default());
        let opening = session.open(helper.now(), client, None);
        let id = helper.link.open_with_message(opening).unwrap();
        assert!(matches!(next_control(&mut helper, id), Control::Resumed(_)));
        // Acknowledges 1,000 bytes, although the server has sent none.
        let acknowledge = Acknowledge { received: 1_000, finish_received: false, requests_answer: false };
        helper.link.relay_control(id, Control::Acknowledge(acknowledge));
        helper.flush();
        assert!(matches!(next_control(&mut helper, id), Control::Close(_)));
    });
}
