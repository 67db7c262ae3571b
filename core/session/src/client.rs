//! The client's end of a session: it creates the session and moves it between carriers.

use core::fmt;
use core::net::SocketAddr;

use spillway_auth::Key;
use spillway_batch::ConsumedTooMuch;
use spillway_transport::Time;
use spillway_wire::session::{Reconnect, SessionId};
use spillway_wire::{CloseReason, Connect, Control, Kind, RefuseReason};

use crate::identity::Identity;
use crate::stream::{Carrier, Stream, StreamEvent, StreamLimits, probe_message};

/// An event of a client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The server's application accepted the session.
    Accepted,
    /// The present carrier carries the session from now on.
    Attached {
        /// There is room to write again, as for [`StreamEvent::Room`], because the server has acknowledged more bytes.
        room: bool,
    },
    /// The carrier is refused, and the session may be opened on another one; or the server's application refused the
    /// session, which [is over](ClientSession::is_over) then.
    Refused(RefuseReason),
    /// The server does not know the session: it was restarted, or the session expired. The session
    /// [is over](ClientSession::is_over). Bytes written beyond `acknowledged` have an unknown outcome. Not reported if
    /// the application had closed with [`CloseReason::Normal`] and all bytes are acknowledged.
    Gone {
        /// The server has acknowledged all bytes up to this offset.
        acknowledged: u64,
    },
    /// An event of the byte streams.
    Stream(StreamEvent),
    /// The carrier's other end asks the client to move the session within this time.
    Drain {
        /// Milliseconds.
        deadline_ms: u32,
    },
}

/// The carrier's other end sent an invalid message. Leave this carrier and open the session on another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierError {
    /// *Resumed* answers another opening message, names another life, or does not prove the session's key.
    Forged,
    /// *Resumed* has a position that contradicts what was sent or acknowledged before.
    Position,
    /// A message that only clients send, or that is invalid in this state.
    Unexpected(Kind),
}

impl fmt::Display for CarrierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CarrierError::Forged => {
                f.write_str("the answer to the opening message does not prove the session's key")
            }
            CarrierError::Position => {
                f.write_str("the server's position contradicts what was sent or acknowledged before")
            }
            CarrierError::Unexpected(kind) => write!(f, "unexpected {kind:?} message from the server"),
        }
    }
}

impl core::error::Error for CarrierError {}

/// A client's end of one session.
///
/// [`open`](Self::open) returns the opening message for a new carrier. Pass that carrier's messages to
/// [`handle_control`](Self::handle_control) and [`handle_data`](Self::handle_data), and call
/// [`transmit`](Self::transmit) after each call to send on the carrier. Stop reading a carrier before opening the
/// session on another one.
#[derive(Debug)]
pub struct ClientSession {
    identity: Identity,
    client_key: Key,
    epoch: u32,
    stage: Stage,
    /// Number of the session's life at the server ([`Resumed::life`](spillway_wire::session::Resumed::life)), from the
    /// first *resumed*.
    life: Option<u64>,
    /// The server's application has accepted the session.
    is_accepted: bool,
    stream: Stream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No carrier.
    Detached,
    /// The opening message was created; the server has not answered.
    Opening,
    Attached,
    /// The session is over.
    Ended,
}

impl ClientSession {
    /// A new session. `id`: fresh random bytes, never used before.
    pub fn new(client_key: Key, id: SessionId, limits: StreamLimits) -> ClientSession {
        ClientSession {
            identity: Identity::new(&client_key, id),
            client_key,
            epoch: 0,
            stage: Stage::Detached,
            life: None,
            is_accepted: false,
            // The initial credit is 0: the server grants credit in its answer.
            stream: Stream::new(limits, 0),
        }
    }

    /// The opening message for a new carrier, which replaces the present one. `client`: the client's address
    /// on the new carrier.
    ///
    /// The message is *connect* until the server has answered once, and *reconnect* after that. *Connect* creates the
    /// session unless it exists. No data is sent before the first answer, so a repeated *connect* is harmless.
    pub fn open(&mut self, now: Time, client: SocketAddr, server: Option<SocketAddr>) -> Control {
        self.stage = Stage::Opening;
        self.epoch = self.epoch.saturating_add(1);
        let position = self.stream.position(now);
        let epoch_and_life = (self.epoch, self.life.unwrap_or(0));
        let opening = |kind| self.identity.opening(kind, &self.client_key, client, epoch_and_life, position);
        if self.life.is_some() {
            Control::Reconnect(Reconnect { client, server, opening: opening(Kind::Reconnect) })
        } else {
            let session = Some(opening(Kind::Connect));
            Control::Connect(Connect { client, server, credit: position.credit, session })
        }
    }

    /// The carrier is lost. The session waits for another one.
    pub fn detach(&mut self) {
        if self.stage != Stage::Ended {
            self.stage = Stage::Detached;
        }
    }

    /// Handles a control message of the present carrier.
    ///
    /// # Errors
    /// The message is invalid: leave the carrier.
    pub fn handle_control(
        &mut self,
        now: Time,
        control: &Control,
    ) -> Result<Option<ClientEvent>, CarrierError> {
        match (self.stage, control) {
            (Stage::Detached | Stage::Ended, _) => Ok(None),
            (_, Control::Drain { deadline_ms }) => Ok(Some(ClientEvent::Drain { deadline_ms: *deadline_ms })),
            // The server repeats *accepted* on every carrier.
            (Stage::Attached, Control::Accepted) => {
                Ok((!core::mem::replace(&mut self.is_accepted, true)).then_some(ClientEvent::Accepted))
            }
            (Stage::Opening, Control::Resumed(resumed)) => {
                let is_expected =
                    resumed.epoch == self.epoch && self.life.is_none_or(|life| life == resumed.life);
                if !is_expected || !self.identity.is_proven_by_resumed(resumed) {
                    return Err(CarrierError::Forged);
                }
                let room = self.stream.resume(&resumed.position).map_err(|_| CarrierError::Position)?;
                self.stage = Stage::Attached;
                self.life = Some(resumed.life);
                Ok(Some(ClientEvent::Attached { room }))
            }
            (Stage::Opening, Control::Refused(RefuseReason::Gone)) => {
                self.stage = Stage::Ended;
                // The server has received all bytes; only its *close* was lost with a carrier. It answers *gone*
                // because it has forgotten the session's end, or its version does not remember ends.
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
                // This *close* ends the carrier only: the session's own *close* comes after *resumed*.
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

    /// Handles data of the present carrier. Returns whether to pass the bytes to the application; call
    /// [`consumed`](Self::consumed) after the application has read them.
    pub fn handle_data(&mut self, now: Time, bytes: usize) -> Result<bool, ClientEvent> {
        if self.stage != Stage::Attached {
            return Ok(false);
        }
        self.stream.receive(now, bytes).map_err(ClientEvent::Stream)
    }

    /// Takes a prefix of `bytes` and returns its length. If it took fewer bytes than it was given,
    /// [`StreamEvent::Room`] follows when there is room again.
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
    /// `bytes` exceeds the unread bytes; nothing has changed.
    pub fn consumed(&mut self, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.stream.consume(bytes)
    }

    /// The application sends no more, but still reads.
    pub fn finish(&mut self) {
        self.stream.finish();
    }

    /// The application closes. With [`CloseReason::Normal`] written bytes are still delivered: keep the session and its
    /// carriers until it [is over](Self::is_over). Other reasons drop them.
    pub fn close(&mut self, reason: CloseReason) {
        self.stream.close_and_discard(reason);
        // Kept bytes are delivered on the first carrier even if the session has never had one.
        if self.life.is_none() && self.stage != Stage::Opening && self.stream.unacknowledged_bytes() == 0 {
            self.stage = Stage::Ended;
        }
    }

    /// Sends all due data and control messages on the present carrier.
    pub fn transmit(&mut self, now: Time, carrier: &mut impl Carrier) {
        if self.stage == Stage::Attached {
            self.stream.transmit(now, carrier);
        }
    }

    /// Probes the server through the present carrier: asks for an acknowledgement at once.
    pub fn probe(&mut self, carrier: &mut impl Carrier) {
        if self.stage == Stage::Attached {
            carrier.control(probe_message(&self.stream));
        }
    }

    /// When to call [`transmit`](Self::transmit) next, if no event requires it before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.stage == Stage::Attached { self.stream.poll_timeout() } else { None }
    }

    /// Whether there is a carrier on which the server has answered.
    pub fn is_attached(&self) -> bool {
        self.stage == Stage::Attached
    }

    /// Whether the application at this end has closed the session.
    pub fn is_closed_here(&self) -> bool {
        self.stream.is_closed_here()
    }

    /// Whether the application has closed with [`CloseReason::Normal`], and the server has acknowledged all bytes.
    pub fn has_closed_complete(&self) -> bool {
        self.stream.has_closed_complete()
    }

    /// Whether the session has ended: both ends have closed, or the server refused or does not know it.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Ended || self.stream.is_over()
    }

    /// Whether an answer to the opening message, or an acknowledgement, is outstanding.
    pub fn awaits_answer(&self) -> bool {
        match self.stage {
            Stage::Opening => true,
            Stage::Attached => self.stream.awaits_answer(),
            Stage::Detached | Stage::Ended => false,
        }
    }

    /// The session's id.
    pub fn id(&self) -> SessionId {
        self.identity.id
    }

    /// Bytes that the server has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.stream.acknowledged()
    }

    /// Total bytes written.
    pub fn written(&self) -> u64 {
        self.stream.written()
    }

    /// Bytes written and not acknowledged, which are kept in memory.
    pub fn unacknowledged_bytes(&self) -> usize {
        self.stream.unacknowledged_bytes()
    }

    /// Bytes of memory that hold the [unacknowledged](Self::unacknowledged_bytes) bytes; 0 if all are acknowledged.
    pub fn kept_held(&self) -> usize {
        self.stream.kept_held()
    }
}
