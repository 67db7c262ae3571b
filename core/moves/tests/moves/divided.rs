//! An application on two servers, each of which executes every other request of a connection. A request has a fixed length,
//! and is answered by its own bytes.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use spillway_moves::{Arrival, Attachment, Movable, Purpose, RequestCommand, RequestEvent, RequestOutcome};
use spillway_transport::{Application, Conn, Event, Time, Transport};
use spillway_wire::switch::ServerId;

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 100;
const WINDOW_BYTES: u32 = 16 * 1024;
const PROTOCOL: &str = "divided";

/// What a server does when it has executed a request of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afterwards {
    /// The connection stays.
    Stays,
    /// It returns to the origin.
    Returns,
    /// The server executes no request of the other one, and returns it.
    Declines,
}

#[derive(Debug)]
pub struct Divided {
    number: u8,
    afterwards: Afterwards,
    clients: BTreeMap<Conn, Client>,
    commands: VecDeque<(Conn, RequestCommand)>,
    /// Numbers of the requests that were executed, with their servers: of both servers together.
    pub executed: Rc<RefCell<Vec<(u64, u8)>>>,
    /// How requests of this server ended elsewhere.
    pub outcomes: Vec<RequestOutcome>,
    /// Requests that have stayed here, and have been executed here.
    pub stayed: u32,
    /// Requests that came back without having been executed.
    pub declined: u32,
    /// This server executes requests of the other one.
    pub serves: bool,
    /// The server executes nothing, as one that waits for its disk.
    pub is_stuck: bool,
    /// Aborts the connection after this number of requests.
    pub aborts_after: Option<u64>,
}

#[derive(Debug, Default)]
struct Client {
    /// Number of the next request.
    next: u64,
    /// Bytes that are not executed.
    input: Vec<u8>,
    /// The next request has come with the connection.
    has_come: bool,
    /// It was read by the other server.
    is_foreign: bool,
    /// The next request is executed here, although the other server should have it: it could not be handed off, or has
    /// returned.
    is_forced: bool,
    /// A command waits for its result.
    is_moving: bool,
}

impl Divided {
    pub fn pair(afterwards: Afterwards) -> [Divided; 2] {
        let executed = Rc::new(RefCell::new(Vec::new()));
        [1, 2].map(|number| Divided {
            number,
            afterwards,
            clients: BTreeMap::new(),
            commands: VecDeque::new(),
            executed: executed.clone(),
            outcomes: Vec::new(),
            stayed: 0,
            declined: 0,
            serves: true,
            is_stuck: false,
            aborts_after: None,
        })
    }

    fn work<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let Some(client) = self.clients.get_mut(&conn).filter(|_| !self.is_stuck) else { return };
        while client.input.len() >= REQUEST_BYTES && !client.is_moving {
            let owner = if client.next.is_multiple_of(2) { 1 } else { 2 };
            let declines = client.is_foreign && self.afterwards == Afterwards::Declines;
            if !client.is_forced && (owner != self.number || declines) {
                let command = match declines {
                    true => RequestCommand::Return { is_served: false },
                    false => RequestCommand::HandOff(ServerId(owner)),
                };
                client.is_moving = true;
                return self.commands.push_back((conn, command));
            }
            let request: Vec<u8> = client.input.drain(..REQUEST_BYTES).collect();
            self.executed.borrow_mut().push((client.next, self.number));
            assert_eq!(out.send(conn, &request), REQUEST_BYTES);
            client.next += 1;
            client.is_forced = false;
            if std::mem::take(&mut client.has_come) {
                let returns = client.is_foreign && self.afterwards == Afterwards::Returns;
                let command = match returns {
                    true => RequestCommand::Return { is_served: true },
                    false => RequestCommand::Served,
                };
                (client.is_foreign, client.is_moving) = (false, returns);
                self.commands.push_back((conn, command));
            }
            if self.aborts_after == Some(client.next) {
                self.clients.remove(&conn);
                return out.abort(conn);
            }
        }
    }
}

impl Application for Divided {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                self.clients.insert(conn, Client::default());
                out.grant(conn, WINDOW_BYTES);
            }
            Event::Data { bytes, .. } => {
                let client = self.clients.get_mut(&conn).expect("bytes of a connection that is here");
                client.input.extend_from_slice(bytes);
                out.grant(conn, bytes.len() as u32);
                self.work(conn, out);
            }
            Event::Finished => out.finish(conn),
            Event::Lost(_) => _ = self.clients.remove(&conn),
            Event::Room | Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

impl Movable for Divided {
    fn is_at_safe_point(&self, _conn: Conn) -> bool {
        false
    }

    fn leave(&mut self, _now: Time, conn: Conn) -> Option<Attachment> {
        let client = self.clients.remove(&conn).expect("a connection that is here leaves");
        let bytes = [&client.next.to_be_bytes()[..], &client.input].concat();
        Attachment::new(PROTOCOL, bytes).ok()
    }

    fn knows_protocol(&self, protocol: &str) -> bool {
        protocol == PROTOCOL
    }

    fn serves_requests(&self) -> bool {
        self.serves
    }

    fn poll_request_command(&mut self, _now: Time) -> Option<(Conn, RequestCommand)> {
        self.commands.pop_front()
    }

    fn on_request<T: Transport>(&mut self, _now: Time, event: RequestEvent, out: &mut T) {
        match event {
            RequestEvent::Stays { conn, .. } => {
                self.stayed += 1;
                if let Some(client) = self.clients.get_mut(&conn) {
                    (client.is_moving, client.is_forced) = (false, true);
                    self.work(conn, out);
                }
            }
            RequestEvent::Ended { outcome, .. } => self.outcomes.push(outcome),
        }
    }

    fn on_migrated<T: Transport>(&mut self, _now: Time, conn: Conn, arrival: &Arrival<'_>, out: &mut T) {
        let attachment = arrival.attachment.expect("each connection leaves with an attachment");
        let (next, input) = attachment.bytes().split_first_chunk().expect("a number and the input");
        let mut client =
            Client { next: u64::from_be_bytes(*next), input: input.to_vec(), ..Client::default() };
        match arrival.request.map(|request| request.purpose) {
            Some(Purpose::Serve) => (client.has_come, client.is_foreign) = (true, true),
            Some(Purpose::NotServed) => {
                self.declined += 1;
                (client.has_come, client.is_forced) = (true, true);
            }
            // `Stays` follows for a connection that comes back.
            Some(Purpose::Served) | None => client.is_moving = arrival.is_return,
        }
        self.clients.insert(conn, client);
        self.work(conn, out);
    }
}
