//! A streaming session.

use std::io::{ErrorKind, Read};
use std::time::Instant;

use spillway_client::LinkTarget;
use spillway_client::session::{BlockingSession, SessionEvent, SessionSettings};

/// Streams bytes both ways while the session moves from route to route, and checks every byte. More than
/// a round trip is under way at each move. Returns the number of moves.
pub fn stream_and_move(routes: Vec<LinkTarget>, number: usize, total: usize) -> usize {
    let routes_max = routes.len();
    let mut session = BlockingSession::open(routes, SessionSettings::default()).unwrap();
    let byte = |offset: usize| ((offset * 31 + number * 17) % 251) as u8;
    let (mut written, mut read, mut turn) = (0, 0, 0);
    while read < total {
        let now = Instant::now();
        let bytes: Vec<u8> = (written..total.min(written + 3_000)).map(byte).collect();
        written += session.session().send(now, &bytes).unwrap_or(0);
        let mut buffer = [0; 10_000];
        let count = match session.session().receive(now, &mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => session.read(&mut buffer).unwrap(),
            outcome => outcome.unwrap(),
        };
        for actual in &buffer[..count] {
            assert_eq!(*actual, byte(read), "session {number}, byte {read}");
            read += 1;
        }
        turn += 1;
        if turn % 20 == number {
            session.session().move_to(now, (turn / 20 + number) % routes_max).unwrap();
        }
    }
    let mut moves = 0;
    while let Some(event) = session.poll_event() {
        moves += usize::from(matches!(event, SessionEvent::Moved(_)));
    }
    session.finish();
    assert_eq!(session.read(&mut [0; 9]).unwrap(), 0, "the stream should end after the last byte");
    session.close().unwrap();
    moves
}
