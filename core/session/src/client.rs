//! The end of a session that makes it and moves it: a client's.

use core::fmt;
use core::net::SocketAddr;

use spillway_auth::Key;
use spillway_batch::ConsumedTooMuch;
use spillway_transport::Time;
use spillway_wire::session::{Reconnect, SessionId};
use spillway_wire::{CloseReason, Connect, Control, Kind, RefuseReason};

use crate::identity::Identity;
use crate::stream::{Carrier, Stream, StreamEvent, StreamLimits, question};

/// What happens to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The server's application accepted it.
    Accepted,
    /// It goes on, on this carrier.
    Attached {
        /// There is room to write again, as of [`StreamEvent::Room`]: the server has more than it had acknowledged.
        room: bool,
    },
    /// This carrier is refused; the session may be opened on another. Or the server's application refused the
    /// session, and then it [is over](ClientSession::is_over).
    Refused(RefuseReason),
    /// The server does not know the session (any more): it was restarted, or the session expired. Nothing more comes
    /// of it. Not told to who has closed in order, when all that was written is acknowledged: the session
    /// [is over](ClientSession::is_over) then. What was written beyond this offset has an unknown outcome.
    Gone {
        /// The server is known to have received up to here.
        acknowledged: u64,
    },
    /// See [`StreamEvent`].
    Stream(StreamEvent),
    /// The other end of the carrier wants the session moved away within this time.
    Drain {
        /// Milliseconds.
        deadline_ms: u32,
    },
}

/// The carrier's other end says what cannot be. Leave this carrier and open the session on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierError {
    /// It answers another carrier, or does not know the session's key.
    Forged,
    /// It stands where it cannot stand.
    Position,
    /// A message that only a client says, or that does not belong here.
    Unexpected(Kind),
}

impl fmt::Display for CarrierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CarrierError::Forged => f.write_str("the answer to reconnect does not prove the session's key"),
            CarrierError::Position => f.write_str("the server claims to stand where it cannot"),
            CarrierError::Unexpected(kind) => write!(f, "{kind:?} is not expected here"),
        }
    }
}

impl core::error::Error for CarrierError {}

/// A client's end of one session.
///
/// [`open`](Self::open) gives the first words for a new carrier. Feed it what that carrier brings with
/// [`handle_control`](Self::handle_control) and [`handle_data`](Self::handle_data), and have it give the carrier what
/// there is with [`transmit`](Self::transmit) after each of its verbs. Stop reading a carrier before opening the
/// session on another one.
#[derive(Debug)]
pub struct ClientSession {
    identity: Identity,
    client_key: Key,
    epoch: u32,
    stage: Stage,
    /// The life of the session at its server, once that has told that it knows the session.
    life: Option<u64>,
    /// And that its application accepted it.
    is_accepted: bool,
    stream: Stream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No carrier.
    Detached,
    /// The first words are said.
    Opening,
    Attached,
    /// Nothing more comes of it.
    Ended,
}

impl ClientSession {
    /// A new session. `id` are fresh random bytes, never used before.
    pub fn new(client_key: Key, id: SessionId, limits: StreamLimits) -> ClientSession {
        ClientSession {
            identity: Identity::new(&client_key, id),
            client_key,
            epoch: 0,
            stage: Stage::Detached,
            life: None,
            is_accepted: false,
            // The server says what it takes when it answers.
            stream: Stream::new(limits, 0),
        }
    }

    /// The first words for a new carrier, on which the client has this address. The one before, if any, is over.
    ///
    /// Until the server has answered once they make the session if need be: no byte is sent before, so that saying
    /// them again is harmless.
    pub fn open(&mut self, now: Time, client: SocketAddr, server: Option<SocketAddr>) -> Control {
        self.stage = Stage::Opening;
        self.epoch = self.epoch.saturating_add(1);
        let position = self.stream.position(now);
        let words = (self.epoch, self.life.unwrap_or(0));
        let opening = |kind| self.identity.opening(kind, &self.client_key, client, words, position);
        if self.life.is_some() {
            Control::Reconnect(Reconnect { client, server, opening: opening(Kind::Reconnect) })
        } else {
            let session = Some(opening(Kind::Connect));
            Control::Connect(Connect { client, server, credit: position.credit, session })
        }
    }

    /// The carrier is lost. The session waits for another.
    pub fn detach(&mut self) {
        if self.stage != Stage::Ended {
            self.stage = Stage::Detached;
        }
    }

    /// A control message came on the present carrier.
    pub fn handle_control(
        &mut self,
        now: Time,
        control: &Control,
    ) -> Result<Option<ClientEvent>, CarrierError> {
        match (self.stage, control) {
            (Stage::Detached | Stage::Ended, _) => Ok(None),
            (_, Control::Drain { deadline_ms }) => Ok(Some(ClientEvent::Drain { deadline_ms: *deadline_ms })),
            // Restated on every carrier.
            (Stage::Attached, Control::Accepted) => {
                Ok((!core::mem::replace(&mut self.is_accepted, true)).then_some(ClientEvent::Accepted))
            }
            (Stage::Opening, Control::Resumed(resumed)) => {
                let is_ours =
                    resumed.epoch == self.epoch && self.life.is_none_or(|life| life == resumed.life);
                if !is_ours || !self.identity.is_proven(resumed) {
                    return Err(CarrierError::Forged);
                }
                let room = self.stream.resume(&resumed.position).map_err(|_| CarrierError::Position)?;
                self.stage = Stage::Attached;
                self.life = Some(resumed.life);
                Ok(Some(ClientEvent::Attached { room }))
            }
            (Stage::Opening, Control::Refused(RefuseReason::Gone)) => {
                self.stage = Stage::Ended;
                // The server has all that it was to have, and its *close* was lost with a carrier: it remembers sessions
                // that have ended only for a while, and old versions do not tell how they ended.
                if self.stream.has_closed_complete() {
                    return Ok(None);
                }
                Ok(Some(ClientEvent::Gone { acknowledged: self.stream.acknowledged() }))
            }
            (Stage::Opening, Control::Refused(reason)) => {
                self.stage = Stage::Detached;
                Ok(Some(ClientEvent::Refused(*reason)))
            }
            (Stage::Attached, Control::Refused(reason)) => {
                self.stage = Stage::Ended;
                Ok(Some(ClientEvent::Refused(*reason)))
            }
            (Stage::Opening, Control::Close(_)) => {
                // Of the carrier: the session's own end is told only after *resumed*.
                self.stage = Stage::Detached;
                Ok(Some(ClientEvent::Refused(RefuseReason::Unavailable)))
            }
            (Stage::Attached, Control::Close(CloseReason::Lost | CloseReason::Moved)) => {
                self.stage = Stage::Detached;
                Ok(Some(ClientEvent::Refused(RefuseReason::Unavailable)))
            }
            (
                Stage::Attached,
                Control::Credit(_) | Control::Acknowledge(_) | Control::Finish(_) | Control::Close(_),
            ) => {
                let event = self.stream.handle(now, control);
                Ok(event.map(ClientEvent::Stream))
            }
            _ => Err(CarrierError::Unexpected(control.kind())),
        }
    }

    /// Bytes came on the present carrier. Whether the application is to have them; say
    /// [`consumed`](Self::consumed) when it has.
    pub fn handle_data(&mut self, now: Time, bytes: usize) -> Result<bool, ClientEvent> {
        if self.stage != Stage::Attached {
            return Ok(false);
        }
        self.stream.receive(now, bytes).map_err(ClientEvent::Stream)
    }

    /// Takes a prefix of what the application sends and returns its length. When it is less than all,
    /// [`StreamEvent::Room`] tells when it is worth trying again.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if self.stage == Stage::Ended { 0 } else { self.stream.write(bytes) }
    }

    /// How many bytes [`write`](Self::write) would take now.
    pub fn room(&self) -> usize {
        if self.stage == Stage::Ended { 0 } else { self.stream.room() }
    }

    /// The application has read this many bytes.
    ///
    /// # Errors
    /// More than were received; nothing has changed, then.
    pub fn consumed(&mut self, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.stream.consume(bytes)
    }

    /// The application sends no more, but still reads.
    pub fn finish(&mut self) {
        self.stream.finish();
    }

    /// The application closes. What it wrote is still delivered, unless the reason is not [`CloseReason::Normal`]:
    /// keep the session and its carriers until it [is over](Self::is_over).
    pub fn close(&mut self, reason: CloseReason) {
        self.stream.close_and_discard(reason);
        // What is kept is delivered on the first carrier, also where there was none yet.
        if self.life.is_none() && self.stage != Stage::Opening && self.stream.kept() == 0 {
            self.stage = Stage::Ended;
        }
    }

    /// Gives the present carrier what it is to have now.
    pub fn transmit(&mut self, now: Time, carrier: &mut impl Carrier) {
        if self.stage == Stage::Attached {
            self.stream.transmit(now, carrier);
        }
    }

    /// Asks the server, through the present carrier, to say at once how far it has received: a sign of life.
    pub fn ask(&mut self, carrier: &mut impl Carrier) {
        if self.stage == Stage::Attached {
            carrier.control(question(&self.stream));
        }
    }

    /// When to call [`transmit`](Self::transmit) next if nothing happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.stage == Stage::Attached { self.stream.poll_timeout() } else { None }
    }

    /// Whether there is a carrier on which the server has answered.
    pub fn is_attached(&self) -> bool {
        self.stage == Stage::Attached
    }

    /// Whether our application has closed it.
    pub fn is_closed_here(&self) -> bool {
        self.stream.is_closed_here()
    }

    /// Whether our application has closed it in order, and the server has all that was written.
    pub fn has_closed_complete(&self) -> bool {
        self.stream.has_closed_complete()
    }

    /// Whether nothing more comes of it: both ends have closed, or the server does not know it.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Ended || self.stream.is_over()
    }

    /// Whether the carrier owes a sign of life: an answer to the first words, or an acknowledgement.
    pub fn awaits(&self) -> bool {
        match self.stage {
            Stage::Opening => true,
            Stage::Attached => self.stream.awaits(),
            Stage::Detached | Stage::Ended => false,
        }
    }

    /// Its id.
    pub fn id(&self) -> SessionId {
        self.identity.id
    }

    /// Bytes that the server is known to have received.
    pub fn acknowledged(&self) -> u64 {
        self.stream.acknowledged()
    }

    /// Bytes written, in all.
    pub fn written(&self) -> u64 {
        self.stream.written()
    }

    /// Bytes written that are not known to have arrived; they are in memory.
    pub fn kept(&self) -> usize {
        self.stream.kept()
    }

    /// Bytes of memory that [`kept`](Self::kept) bytes take; 0 when there are none.
    pub fn kept_held(&self) -> usize {
        self.stream.kept_held()
    }
}
