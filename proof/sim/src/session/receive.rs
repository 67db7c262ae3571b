//! The server's input from its links: opening messages, bytes and control messages of sessions.

use std::net::SocketAddr;

use spillway_auth::{Prover, prove};
use spillway_batch::{CloseReason, Control, Id, Kind, LinkError, RefuseReason, Scratch, ServerEvent};
use spillway_session::{Heard, Opened, OpeningMessage, Order, SessionHandle, StreamEvent};
use spillway_transport::{Conn, Time, Transport};
use spillway_wire::preamble::PROOF_BYTES;
use spillway_wire::session::{Opening, Position, Resumed};

use super::app::App;
use super::canary::Canary;
use super::server::{Known, Link, Server, accept, altered};
use crate::attackers::is_attacker;
use crate::names::client_key;

impl Server {
    pub(super) fn data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(mut link) = self.links.remove(&conn) else { return };
        let mut scratch = Scratch::new();
        let mut input = link.end.unseal(now, bytes, &mut scratch);
        loop {
            match link.end.decompose(now, &mut input) {
                Ok(Some(event)) => self.event(now, conn, &mut link, event),
                Ok(None) => break,
                Err(error) => {
                    if error != LinkError::HandshakeTimeout && !is_attacker(link.end.peer()) {
                        self.wrong(format!("the server's link failed: {error}"));
                    }
                    self.drop_link(now, conn, &link);
                    out.abort(conn);
                    return;
                }
            }
        }
        // The opener has sent the id of an accepted key, and may not have proved yet that it has the key.
        if link.end.has_named_key() {
            self.unauthenticated.named_key(conn);
        }
        link.ungranted += bytes.len() as u32; // fits: the transport delivers no more than it was granted
        self.links.insert(conn, link);
        self.dirty.insert(conn);
    }

    fn event(&mut self, now: Time, conn: Conn, link: &mut Link, event: ServerEvent<'_>) {
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
                if self.strikes(Canary::DropPiece, 20) {
                    return;
                }
                match self.port.handle_data(now, session, (conn, id), bytes.len()) {
                    Ok(true) => {
                        if self.strikes(Canary::AlterRequest, 20) {
                            self.receive(session, &altered(bytes));
                        } else {
                            self.receive(session, bytes);
                        }
                        if self.strikes(Canary::RepeatPiece, 20) {
                            self.receive_wrongly(session, bytes);
                        }
                    }
                    Ok(false) if self.canary == Some(Canary::DeliverOld) => {
                        self.receive_wrongly(session, bytes);
                    }
                    Ok(false) => {}
                    Err(event) => self.wrong(format!("a client broke the session protocol: {event:?}")),
                }
            }
            ServerEvent::CarriedControl { id, control } => self.control(now, conn, link, id, control),
            other => self.wrong(format!("the server's link returned an unexpected event: {other:?}")),
        }
    }

    fn open_session(
        &mut self,
        now: Time,
        conn: Conn,
        link: &mut Link,
        (id, kind, client, opening): (Id, Kind, SocketAddr, Opening),
    ) {
        let Some(role) = link.end.role() else { return };
        let message = OpeningMessage { carrier: (conn, id), kind, client, opening };
        if kind == Kind::Reconnect && self.strikes(Canary::FalseGone, 4) {
            return link.end.refuse(id, RefuseReason::Gone);
        }
        let opened = self.port.open(now, &self.config.ring, &message, role);
        match opened {
            Opened::New { session, ref answer } => {
                if let Control::Resumed(answer) = answer {
                    self.books.borrow_mut().server_begins(opening.session, answer);
                    if self.canary == Some(Canary::AcceptStale) {
                        self.answers.insert(opening.session, *answer);
                    }
                }
                link.carried.insert(id.0, session);
                let app = App::new(opening.session, self.early_ends_in_1000, &mut self.rng);
                self.known.insert(session, Known { id: opening.session, app: Some(app) });
                self.busy.insert(session);
            }
            Opened::Resumed { session, ref answer, room, replaced, .. } => {
                if let Control::Resumed(answer) = answer {
                    self.books.borrow_mut().server_resumes(opening.session, answer);
                }
                link.carried.insert(id.0, session);
                self.moved.extend(replaced);
                if room && self.canary != Some(Canary::ForgetRoom) {
                    self.may_write(session);
                }
            }
            Opened::Over { .. } if self.canary == Some(Canary::ForgetLast) => {
                return link.end.refuse(id, RefuseReason::Gone);
            }
            Opened::Over { ref answer, .. } => {
                if let Control::Resumed(answer) = answer {
                    self.books.borrow_mut().server_repeats_end(opening.session, answer);
                }
            }
            Opened::Refused(RefuseReason::Gone) => {
                self.books.borrow_mut().server_answers_gone(now, opening.session);
                if self.canary == Some(Canary::FalseOver)
                    && kind == Kind::Reconnect
                    && self.books.borrow().has_closed_in_order(opening.session)
                {
                    link.end.say(id, false_over(&opening));
                    return link.end.close(id, CloseReason::Normal);
                }
            }
            Opened::Refused(reason) => {
                if reason == RefuseReason::Stale
                    && self.canary == Some(Canary::AcceptStale)
                    && let Some(answer) = self.answers.get(&opening.session)
                {
                    let answer = Resumed { epoch: opening.epoch, ..*answer };
                    self.books.borrow_mut().server_resumes(opening.session, &answer);
                }
            }
        }
        for order in opened.orders() {
            match order {
                Order::Say(control) => link.end.say(id, control),
                Order::Accept => accept(link, id, self.placement),
                Order::Close(reason) => link.end.close(id, reason),
                Order::Refuse(reason) => link.end.refuse(id, reason),
            }
        }
    }

    /// The session's application, unless it has closed; marks the session as busy.
    fn app(&mut self, session: SessionHandle) -> Option<&mut App> {
        self.busy.insert(session);
        self.known.get_mut(&session)?.app.as_mut()
    }

    fn may_write(&mut self, session: SessionHandle) {
        if let Some(app) = self.app(session) {
            app.may_write = true;
        }
    }

    fn receive(&mut self, session: SessionHandle, bytes: &[u8]) {
        let books = self.books.clone();
        if let Some(app) = self.app(session) {
            app.waiting += bytes.len() as u64;
            let mut books = books.borrow_mut();
            books.server_reads(app.id, bytes);
            books.server_holds(app.id, app.waiting);
        }
    }

    /// Plants a fault: delivers bytes that the application must not get, repeated ones or ones from an old carrier. Leaves the
    /// application's count of unread bytes as it was.
    fn receive_wrongly(&mut self, session: SessionHandle, bytes: &[u8]) {
        self.receive(session, bytes);
        if let Some(app) = self.app(session) {
            app.waiting -= bytes.len() as u64;
        }
    }

    fn control(&mut self, now: Time, conn: Conn, link: &mut Link, id: Id, control: Control) {
        let Some(&session) = link.carried.get(&id.0) else { return };
        let Heard { event, leaves, .. } = self.port.handle_control(now, session, (conn, id), &control);
        let books = self.books.clone();
        match event {
            Some(StreamEvent::Finished) => {
                if let Some(app) = self.app(session) {
                    app.client_finished = true;
                    books.borrow_mut().server_sees_end(app.id);
                }
            }
            Some(StreamEvent::Closed(reason)) => {
                if let Some(app) = self.known.get_mut(&session).and_then(|known| known.app.take()) {
                    let mut books = books.borrow_mut();
                    match reason {
                        CloseReason::Normal => books.server_sees_end(app.id),
                        CloseReason::Reset => {}
                        other => books.server_sees_break(app.id, other),
                    }
                    books.server_closes(app.id, reason != CloseReason::Normal);
                    self.port.close(now, session, CloseReason::Normal);
                }
            }
            Some(StreamEvent::Room) => self.may_write(session),
            None => {}
        }
        if !self.port.contains(session) {
            self.over.push(session);
        }
        if leaves && self.canary != Some(Canary::ForgetClose) {
            link.carried.remove(&id.0);
            link.end.close(id, CloseReason::Moved);
        }
    }
}

/// A forged answer that confirms every byte that the client has sent.
fn false_over(opening: &Opening) -> Control {
    let Position { sent, received, .. } = opening.position;
    let position = Position { sent: received, received: sent, credit: u64::MAX, finish_received: false };
    let answer = Resumed { epoch: opening.epoch, life: opening.life, position, proof: [0; PROOF_BYTES] };
    let key = client_key().derive(b"spillway session 1\0", &opening.session.0);
    let proof = prove(&key, Prover::Server, &answer.proven(opening.session));
    Control::Resumed(Resumed { proof, ..answer })
}
