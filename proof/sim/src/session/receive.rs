//! The server's input from its links: opening messages, bytes and control messages of sessions.

use std::net::SocketAddr;

use spillway_auth::{Prover, prove};
use spillway_batch::{CloseReason, Control, Id, Kind, LinkError, RefuseReason, Scratch, ServerEvent};
use spillway_session::{CarrierAction, ControlEffects, Opened, OpeningMessage, SessionHandle, StreamEvent};
use spillway_transport::{Conn, Time, Transport};
use spillway_wire::preamble::PROOF_BYTES;
use spillway_wire::session::{Opening, Position, Resumed};

use super::app::App;
use super::planted_fault::PlantedFault;
use super::server::{KnownSession, Link, Server, accept, altered};
use crate::attackers::is_attacker;
use crate::names::client_key;

impl Server {
    pub(super) fn handle_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(mut link) = self.links.remove(&conn) else { return };
        let mut scratch = Scratch::new();
        let mut input = link.protocol.unseal(now, bytes, &mut scratch);
        loop {
            match link.protocol.decompose(now, &mut input) {
                Ok(Some(event)) => self.handle_event(now, conn, &mut link, event),
                Ok(None) => break,
                Err(error) => {
                    if error != LinkError::HandshakeTimeout && !is_attacker(link.protocol.peer()) {
                        self.rule_violation(format!("the server's link failed: {error}"));
                    }
                    self.drop_link(now, conn, &link);
                    out.abort(conn);
                    return;
                }
            }
        }
        // The opener has sent the id of an accepted key, but may not have proved possession of the key yet.
        if link.protocol.has_named_key() {
            self.unauthenticated.named_key(conn);
        }
        link.ungranted += bytes.len() as u32; // fits: the transport delivers no more than it was granted
        self.links.insert(conn, link);
        self.dirty_links.insert(conn);
    }

    fn handle_event(&mut self, now: Time, conn: Conn, link: &mut Link, event: ServerEvent<'_>) {
        match event {
            ServerEvent::Established { .. } => {
                self.authenticated(conn);
            }
            ServerEvent::Drain { .. } => {}
            ServerEvent::Forbidden { client, .. } if is_attacker(client) => {}
            ServerEvent::Session { id, kind, client, opening } => {
                self.open_session(now, conn, link, (id, kind, client, opening));
            }
            ServerEvent::Carried { id, bytes } => {
                let Some(&session) = link.carried.get(&id.0) else { return };
                if self.strikes(PlantedFault::DropPiece, 20) {
                    return;
                }
                match self.port.handle_data(now, session, (conn, id), bytes.len()) {
                    Ok(true) => {
                        if self.strikes(PlantedFault::AlterRequest, 20) {
                            self.deliver(session, &altered(bytes));
                        } else {
                            self.deliver(session, bytes);
                        }
                        if self.strikes(PlantedFault::RepeatPiece, 20) {
                            self.deliver_unexpected(session, bytes);
                        }
                    }
                    Ok(false) if self.planted == Some(PlantedFault::DeliverOld) => {
                        self.deliver_unexpected(session, bytes);
                    }
                    Ok(false) => {}
                    Err(event) => {
                        self.rule_violation(format!("a client broke the session protocol: {event:?}"))
                    }
                }
            }
            ServerEvent::CarriedControl { id, control } => self.handle_control(now, conn, link, id, control),
            other => {
                self.rule_violation(format!("the server's link returned an unexpected event: {other:?}"))
            }
        }
    }

    fn open_session(
        &mut self,
        now: Time,
        conn: Conn,
        link: &mut Link,
        (id, kind, client, opening): (Id, Kind, SocketAddr, Opening),
    ) {
        let Some(role) = link.protocol.role() else { return };
        let message = OpeningMessage { carrier: (conn, id), kind, client, opening };
        if kind == Kind::Reconnect && self.strikes(PlantedFault::FalseGone, 4) {
            return link.protocol.refuse(id, RefuseReason::Gone);
        }
        let opened = self.port.open(now, &self.config.ring, &message, role);
        match opened {
            Opened::New { session, ref answer } => {
                if let Control::Resumed(answer) = answer {
                    self.checker.borrow_mut().server_begins(opening.session, answer);
                    if self.planted == Some(PlantedFault::AcceptStale) {
                        self.answers.insert(opening.session, *answer);
                    }
                }
                link.carried.insert(id.0, session);
                let app = App::new(opening.session, self.early_ends_per_1000, &mut self.rng);
                self.known_sessions.insert(session, KnownSession { id: opening.session, app: Some(app) });
                self.busy_sessions.insert(session);
            }
            Opened::Resumed { session, ref answer, room: has_room, replaced, .. } => {
                if let Control::Resumed(answer) = answer {
                    self.checker.borrow_mut().server_resumes(opening.session, answer);
                }
                link.carried.insert(id.0, session);
                self.left_carriers.extend(replaced);
                if has_room && self.planted != Some(PlantedFault::ForgetRoom) {
                    self.report_room(session);
                }
            }
            Opened::AlreadyClosed { .. } if self.planted == Some(PlantedFault::ForgetLast) => {
                return link.protocol.refuse(id, RefuseReason::Gone);
            }
            Opened::AlreadyClosed { ref answer, .. } => {
                if let Control::Resumed(answer) = answer {
                    self.checker.borrow_mut().server_repeats_end(opening.session, answer);
                }
            }
            Opened::Refused(RefuseReason::Gone) => {
                self.checker.borrow_mut().server_answers_gone(now, opening.session);
                if self.planted == Some(PlantedFault::FalseOver)
                    && kind == Kind::Reconnect
                    && self.checker.borrow().has_closed_in_order(opening.session)
                {
                    link.protocol.send_control(id, forged_end(&opening));
                    return link.protocol.close(id, CloseReason::Normal);
                }
            }
            Opened::Refused(reason) => {
                if reason == RefuseReason::Stale
                    && self.planted == Some(PlantedFault::AcceptStale)
                    && let Some(answer) = self.answers.get(&opening.session)
                {
                    let answer = Resumed { epoch: opening.epoch, ..*answer };
                    self.checker.borrow_mut().server_resumes(opening.session, &answer);
                }
            }
        }
        for action in opened.actions() {
            match action {
                CarrierAction::Send(control) => link.protocol.send_control(id, control),
                CarrierAction::Accept => accept(link, id, self.placement),
                CarrierAction::Close(reason) => link.protocol.close(id, reason),
                CarrierAction::Refuse(reason) => link.protocol.refuse(id, reason),
            }
        }
    }

    /// The session's application, unless the application has closed. Marks the session as busy.
    fn busy_app(&mut self, session: SessionHandle) -> Option<&mut App> {
        self.busy_sessions.insert(session);
        self.known_sessions.get_mut(&session)?.app.as_mut()
    }

    fn report_room(&mut self, session: SessionHandle) {
        if let Some(app) = self.busy_app(session) {
            app.may_write = true;
        }
    }

    fn deliver(&mut self, session: SessionHandle, bytes: &[u8]) {
        let checker = self.checker.clone();
        if let Some(app) = self.busy_app(session) {
            app.unread += bytes.len() as u64;
            let mut checker = checker.borrow_mut();
            checker.server_reads(app.id, bytes);
            checker.server_holds(app.id, app.unread);
        }
    }

    /// Planted fault: delivers bytes that the application must not receive, because they are repeated or come
    /// from an old carrier. They do not count as unread.
    fn deliver_unexpected(&mut self, session: SessionHandle, bytes: &[u8]) {
        self.deliver(session, bytes);
        if let Some(app) = self.busy_app(session) {
            app.unread -= bytes.len() as u64;
        }
    }

    fn handle_control(&mut self, now: Time, conn: Conn, link: &mut Link, id: Id, control: Control) {
        let Some(&session) = link.carried.get(&id.0) else { return };
        let ControlEffects { event, closes_carrier: client_has_left, .. } =
            self.port.handle_control(now, session, (conn, id), &control);
        let checker = self.checker.clone();
        match event {
            Some(StreamEvent::Finished) => {
                if let Some(app) = self.busy_app(session) {
                    app.client_finished = true;
                    checker.borrow_mut().server_sees_end(app.id);
                }
            }
            Some(StreamEvent::Closed(reason)) => {
                if let Some(app) =
                    self.known_sessions.get_mut(&session).and_then(|session| session.app.take())
                {
                    let mut checker = checker.borrow_mut();
                    match reason {
                        CloseReason::Normal => checker.server_sees_end(app.id),
                        CloseReason::Reset => {}
                        other => checker.server_sees_protocol_error(app.id, other),
                    }
                    checker.server_closes(app.id, reason != CloseReason::Normal);
                    self.port.close(now, session, CloseReason::Normal);
                }
            }
            Some(StreamEvent::Room) => self.report_room(session),
            None => {}
        }
        if !self.port.contains(session) {
            self.ended_sessions.push(session);
        }
        if client_has_left && self.planted != Some(PlantedFault::ForgetClose) {
            link.carried.remove(&id.0);
            link.protocol.close(id, CloseReason::Moved);
        }
    }
}

/// A forged answer that confirms all bytes which the client has sent.
fn forged_end(opening: &Opening) -> Control {
    let Position { sent, received, .. } = opening.position;
    let position = Position { sent: received, received: sent, credit: u64::MAX, finish_received: false };
    let answer = Resumed { epoch: opening.epoch, life: opening.life, position, proof: [0; PROOF_BYTES] };
    let key = client_key().derive(b"spillway session 1\0", &opening.session.0);
    let proof = prove(&key, Prover::Server, &answer.bytes_under_proof(opening.session));
    Control::Resumed(Resumed { proof, ..answer })
}
