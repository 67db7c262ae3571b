//! An application that sends a stream on each connection, and checks every byte of the peer's stream.

use std::collections::BTreeMap;

use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};

pub struct Streams {
    length: u64,
    pub streams: BTreeMap<Conn, Stream>,
    pub completed: u64,
}

#[derive(Clone, Copy, Default)]
pub struct Stream {
    sent: u64,
    received: u64,
    is_finished: bool,
    is_peer_finished: bool,
}

fn byte(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 17)) as u8
}

impl Streams {
    pub fn new(length: u64) -> Streams {
        Streams { length, streams: BTreeMap::new(), completed: 0 }
    }

    fn feed<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let Some(stream) = self.streams.get_mut(&conn) else { return };
        while stream.sent < self.length {
            let count = (self.length - stream.sent).min(1 + stream.sent % 3000);
            let bytes: Vec<u8> = (stream.sent..stream.sent + count).map(byte).collect();
            let accepted = out.send(conn, &bytes) as u64;
            stream.sent += accepted;
            if accepted < count {
                return;
            }
        }
        if !stream.is_finished {
            stream.is_finished = true;
            out.finish(conn);
        }
    }
}

impl Application for Streams {
    fn handle<T: Transport>(&mut self, _: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                self.streams.insert(conn, Stream::default());
                out.grant(conn, 20_000);
                self.feed(conn, out);
            }
            Event::Data { end, bytes } => {
                let stream = self.streams.get_mut(&conn).expect("the stream of an open connection");
                let start = end - bytes.len() as u64;
                assert_eq!(start, stream.received, "bytes should be delivered once and without gaps");
                assert!(
                    (start..).zip(bytes).all(|(offset, one)| *one == byte(offset)),
                    "each byte should be the stream's"
                );
                stream.received = end;
                out.grant(conn, bytes.len() as u32);
            }
            Event::Room => self.feed(conn, out),
            Event::Finished => {
                let stream = self.streams.get_mut(&conn).expect("the stream of an open connection");
                assert_eq!(stream.received, self.length, "the FIN should be reported after all bytes");
                stream.is_peer_finished = true;
            }
            Event::Lost(reason) => {
                assert_eq!(reason, LostReason::Closed);
                let stream = self.streams.remove(&conn).expect("the stream of an open connection");
                assert!(
                    stream.is_peer_finished && stream.sent == self.length,
                    "the stream should be complete in both directions"
                );
                self.completed += 1;
            }
            Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}
