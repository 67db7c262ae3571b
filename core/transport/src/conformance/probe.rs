//! The scenarios' application: records events, and checks the numbered promises of the [contract](crate#contract).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::{Application, Conn, Event, LostReason, Time, Transport};

/// An event without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// [`Event::Opened`].
    Opened {
        /// Address of the other end.
        peer: SocketAddr,
        /// Index of the listener.
        listener: Option<u16>,
    },
    /// [`Event::Data`].
    Data {
        /// Stream offset after the bytes.
        end: u64,
    },
    /// [`Event::Acknowledged`].
    Acknowledged {
        /// Stream offset.
        through: u64,
    },
    /// [`Event::Room`].
    Room,
    /// [`Event::Finished`].
    Finished,
    /// [`Event::Lost`].
    Lost(LostReason),
}

/// What a scenario does in response to an event. The probe calls this before it grants bytes.
pub type Reaction = Box<dyn FnMut(Time, Conn, Seen, &mut Probe, &mut dyn Transport) + Send>;

#[derive(Default)]
struct Stream {
    opened: bool,
    finished: bool,
    lost: bool,
    aborted: bool,
    granted: u64,
    received: u64,
    acknowledged: u64,
}

/// The byte at a stream offset, the same in every stream of the scenarios.
pub fn pattern(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16)).to_le_bytes()[0]
}

/// Records events, and panics when one breaks the contract: "promise N" is item N of the [contract](crate#contract).
#[derive(Default)]
pub struct Probe {
    /// Events, oldest first.
    pub seen: Vec<(Conn, Seen)>,
    /// Bytes granted within `Opened`; initially 0.
    pub grant_on_open: u32,
    /// Whether the probe grants as many bytes as each `Data` event has delivered.
    pub regrant: bool,
    /// Result of `poll_timeout`. `handle_timeout` clears it.
    pub timeout: Option<Time>,
    /// Times of calls of `handle_timeout`.
    pub timeouts: Vec<Time>,
    /// Number of calls of `end_of_turn`.
    pub turns: u64,
    reaction: Option<Reaction>,
    streams: BTreeMap<Conn, Stream>,
    has_events_in_turn: bool,
    is_in_call: bool,
    last_entry: Time,
}

impl Probe {
    /// A probe that grants nothing by itself.
    pub fn new() -> Probe {
        Probe::default()
    }

    /// Sets the response to each event from now on.
    pub fn react(&mut self, reaction: Reaction) {
        self.reaction = Some(reaction);
    }

    /// Grants bytes, and counts them for the check of promise 2.
    pub fn grant(&mut self, conn: Conn, bytes: u32, out: &mut dyn Transport) {
        self.streams.entry(conn).or_default().granted += u64::from(bytes);
        out.grant(conn, bytes);
    }

    /// Aborts a connection. The probe panics if a later event of the connection arrives (promise 6).
    pub fn abort(&mut self, conn: Conn, out: &mut dyn Transport) {
        self.streams.entry(conn).or_default().aborted = true;
        out.abort(conn);
    }

    /// Bytes received on a connection.
    pub fn received(&self, conn: Conn) -> u64 {
        self.streams.get(&conn).map_or(0, |stream| stream.received)
    }

    /// Offset of a connection's last `Acknowledged`.
    pub fn acknowledged(&self, conn: Conn) -> u64 {
        self.streams.get(&conn).map_or(0, |stream| stream.acknowledged)
    }

    /// The events of one connection, oldest first.
    pub fn of(&self, conn: Conn) -> Vec<Seen> {
        self.seen.iter().filter(|(seen_on, _)| *seen_on == conn).map(|(_, seen)| *seen).collect()
    }

    /// Whether a connection had this event.
    pub fn saw(&self, conn: Conn, event: Seen) -> bool {
        self.seen.contains(&(conn, event))
    }

    /// Accepted connections, oldest first.
    pub fn accepted(&self) -> Vec<Conn> {
        let opened = |seen: &Seen| matches!(seen, Seen::Opened { listener: Some(_), .. });
        self.seen.iter().filter(|(_, seen)| opened(seen)).map(|(conn, _)| *conn).collect()
    }

    /// Whether there were events since the last `end_of_turn`.
    pub fn has_events_in_turn(&self) -> bool {
        self.has_events_in_turn
    }

    fn enter(&mut self, now: Time) {
        assert!(!self.is_in_call, "promise 9: a method of the transport called back into the application");
        assert!(now >= self.last_entry, "the time must not go back");
        self.is_in_call = true;
        self.last_entry = now;
    }

    fn check(&mut self, conn: Conn, event: &Event<'_>) -> Seen {
        let stream = self.streams.entry(conn).or_default();
        assert!(!stream.lost, "promise 1: {event:?} after Lost, {conn:?}");
        assert!(!stream.aborted, "promise 6: {event:?} after abort, {conn:?}");
        let may_be_first = matches!(event, Event::Opened { .. } | Event::Lost(_));
        assert!(stream.opened || may_be_first, "promise 1: {event:?} before Opened, {conn:?}");
        match *event {
            Event::Opened { peer, listener } => {
                assert!(!stream.opened, "promise 1: Opened twice, {conn:?}");
                stream.opened = true;
                Seen::Opened { peer, listener }
            }
            Event::Data { end, bytes } => {
                assert!(!bytes.is_empty(), "Data must not be empty, {conn:?}");
                assert!(!stream.finished, "promise 3: Data after Finished, {conn:?}");
                let start = stream.received;
                stream.received += bytes.len() as u64;
                assert_eq!(end, stream.received, "wrong stream offset of Data, {conn:?}");
                assert!(end <= stream.granted, "promise 2: {end} delivered, {} granted", stream.granted);
                let wrong_byte = (start..).zip(bytes).find(|&(offset, byte)| pattern(offset) != *byte);
                assert_eq!(wrong_byte, None, "(offset, value) of the first wrong byte, {conn:?}");
                Seen::Data { end }
            }
            Event::Acknowledged { through } => {
                assert!(
                    through >= stream.acknowledged,
                    "the offset of Acknowledged must not decrease, {conn:?}"
                );
                stream.acknowledged = through;
                Seen::Acknowledged { through }
            }
            Event::Room => Seen::Room,
            Event::Finished => {
                assert!(!stream.finished, "promise 3: Finished twice, {conn:?}");
                stream.finished = true;
                Seen::Finished
            }
            Event::Lost(reason) => {
                stream.lost = true;
                Seen::Lost(reason)
            }
        }
    }
}

impl Application for Probe {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        self.enter(now);
        self.has_events_in_turn = true;
        let seen = self.check(conn, &event);
        self.seen.push((conn, seen));
        if let Some(mut reaction) = self.reaction.take() {
            reaction(now, conn, seen, self, out);
            // Unless the reaction has set another one.
            self.reaction.get_or_insert(reaction);
        }
        match (seen, event) {
            (Seen::Opened { .. }, _) if self.grant_on_open > 0 => self.grant(conn, self.grant_on_open, out),
            (_, Event::Data { bytes, .. }) if self.regrant => {
                self.grant(conn, u32::try_from(bytes.len()).unwrap_or(u32::MAX), out);
            }
            _ => {}
        }
        self.is_in_call = false;
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, _: &mut T) {
        self.enter(now);
        let requested = self.timeout.take();
        assert!(
            requested.is_some_and(|instant| instant <= now),
            "promise 8: handle_timeout at {now:?}, requested at {requested:?}"
        );
        self.timeouts.push(now);
        self.is_in_call = false;
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, _: &mut T) {
        self.enter(now);
        self.turns += 1;
        self.has_events_in_turn = false;
        self.is_in_call = false;
    }

    fn poll_timeout(&self) -> Option<Time> {
        assert!(!self.has_events_in_turn, "promise 8: poll_timeout called before end_of_turn");
        self.timeout
    }
}
