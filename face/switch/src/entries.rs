//! The daemon's requests about single entries.

use std::net::SocketAddr;

use spillway_bpf::switch::FlowEntry;
use spillway_wire::switch::{Answer, Flow, FlowState, Request, Status};

use crate::messages::Messages;
use crate::tables::Tables;

/// Sends the daemon's requests about entries.
#[derive(Clone, Copy)]
pub(crate) struct Requests<'a, T> {
    tables: &'a T,
    messages: &'a Messages,
    /// The endpoint to which the daemon's messages go.
    control: SocketAddr,
}

/// The outcome of a *release* by the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The flow has no entry now.
    Ended,
    /// The entry has another generation than the request, and stays.
    Changed { generation: u64 },
}

impl<'a, T: Tables> Requests<'a, T> {
    /// `control`: a control endpoint of the configuration in force.
    pub(crate) fn new(tables: &'a T, messages: &'a Messages, control: SocketAddr) -> Requests<'a, T> {
        Requests { tables, messages, control }
    }

    pub(crate) fn tables(&self) -> &'a T {
        self.tables
    }

    /// Ends an entry unless it has changed since it was read. Returns whether the entry has ended: true also if it had
    /// ended before.
    ///
    /// # Errors
    /// The program does not answer as it should.
    pub(crate) fn release(&self, entry: &FlowEntry) -> Result<bool, String> {
        self.release_at(entry, entry.generation).map(|outcome| outcome == Outcome::Ended)
    }

    /// Ends an entry, also if it has changed since it was read; not if it changes again. Before *release* the program
    /// settles the entry, which gives a flow of a silent owner, or one whose move is late, a new generation. Returns as
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// The program does not answer as it should.
    pub(crate) fn clear(&self, entry: &FlowEntry) -> Result<bool, String> {
        let outcome = match self.release_at(entry, entry.generation)? {
            Outcome::Changed { generation } => self.release_at(entry, generation)?,
            ended => ended,
        };
        Ok(outcome == Outcome::Ended)
    }

    fn release_at(&self, entry: &FlowEntry, generation: u64) -> Result<Outcome, String> {
        // The program never creates an entry whose flow is invalid. Tables that another program wrote may hold one: skip
        // this entry instead of failing, so that the daemon can still end valid entries.
        let Ok(flow) = Flow::new(entry.client, entry.service) else {
            return Ok(Outcome::Changed { generation });
        };
        let answer = self.ask(Request::Release { flow, generation })?;
        match answer.status {
            // No entry: it has ended meanwhile.
            Status::Ok | Status::NoEntry => Ok(Outcome::Ended),
            Status::Stale => Ok(Outcome::Changed { generation: answer.generation }),
            status => Err(format!("the program refuses `release`: {status}; restart the daemon")),
        }
    }

    /// Makes the program settle an entry. Returns the entry's state after that; `None` if it has ended.
    ///
    /// # Errors
    /// The program does not answer as it should.
    pub(crate) fn settle(&self, entry: &FlowEntry) -> Result<FlowState, String> {
        let Ok(flow) = Flow::new(entry.client, entry.service) else { return Ok(entry.state) };
        let answer = self.ask(Request::Get { flow })?;
        match answer.status {
            Status::Ok => Ok(answer.state),
            Status::NoEntry => Ok(FlowState::None),
            status => Err(format!("the program refuses `get`: {status}; restart the daemon")),
        }
    }

    /// Advances the clock of silence, which stands still while no heartbeat and no *hello* arrives.
    ///
    /// # Errors
    /// The program does not answer as it should.
    pub(crate) fn hello(&self) -> Result<(), String> {
        match self.ask(Request::Hello)?.status {
            Status::Ok => Ok(()),
            status => Err(format!("the program refuses `hello`: {status}; restart the daemon")),
        }
    }

    fn ask(&self, request: Request) -> Result<Answer, String> {
        self.messages.exchange(self.control, request, |frame| self.tables.handle(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::fresh_key;
    use crate::tables::memory::Memory;

    #[test]
    fn a_flow_that_has_changed_stays() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = Memory::new(messages.key());
        let requests = Requests::new(&tables, &messages, "10.0.0.1:9511".parse().unwrap());
        tables.add("10.0.0.7:1", 2, |_| ());
        let entry = tables.only();
        tables.add("10.0.0.7:1", 2, |entry| entry.generation = 8);
        assert_eq!(requests.release(&entry), Ok(false));
        assert_eq!(tables.clients().len(), 1);
        tables.flows.lock().unwrap().clear();
        assert_eq!(requests.release(&entry), Ok(true));
        assert_eq!(requests.settle(&entry), Ok(FlowState::None));
    }
    #[test]
    fn flows_that_the_program_settles_first_can_be_cleared() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = Memory::new(messages.key());
        let requests = Requests::new(&tables, &messages, "10.0.0.1:9511".parse().unwrap());
        tables.silence(2);
        tables.add("10.0.0.7:1", 2, |_| ());
        let entry = tables.only();
        assert_eq!(requests.release(&entry), Ok(false), "the entry returns to the original owner");
        assert_eq!((tables.only().generation, requests.clear(&entry)), (8, Ok(true)));
        assert!(tables.clients().is_empty());
        tables.add("10.0.0.7:1", 2, |_| ());
        assert_eq!(requests.clear(&entry), Ok(true), "a new entry of the same flow");
    }
}
