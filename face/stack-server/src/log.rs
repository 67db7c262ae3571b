//! What a server's thread says in the log, and the results of orders for those who wait for them.

use std::sync::Arc;

use spillway_moves::{Decision, Order, OrderResult, Server, Target, Tcp};
use spillway_transport::Time;
use spillway_wire::switch::Flow;
use tracing::{info, warn};

use crate::about::About;
use crate::notices::{Notice, Notices, Report};
use crate::remote::{Remote, Waiters};
use crate::settings::EngineSettings;
use crate::switch_watch::SwitchWatch;

/// The log of a server's thread.
pub(crate) struct Log {
    about: Arc<About>,
    waiters: Waiters,
    /// Incidents that wait.
    notices: Notices,
    /// `None`: no connection moves.
    switch_watch: Option<SwitchWatch>,
}

impl Log {
    pub(crate) fn new(now: Time, settings: &EngineSettings, about: About) -> Log {
        Log {
            about: Arc::new(about),
            waiters: Waiters::default(),
            notices: Notices::default(),
            switch_watch: settings.moves.as_ref().map(|moves| SwitchWatch::new(now, moves.switch)),
        }
    }

    /// A handle by which other threads give orders, and wait for their results.
    pub(crate) fn remote<A: spillway_moves::Movable + 'static, S: Tcp + 'static>(
        &self,
        thread: spillway_net::Remote<A, Server<S>>,
    ) -> Remote<A, S> {
        Remote::new(thread, self.waiters.clone(), Arc::clone(&self.about))
    }

    /// When to call [`report`](Self::report) if nothing arrives.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.notices.poll_timeout()
    }

    /// Reports what has happened since the last call.
    pub(crate) fn report<S: Tcp>(&mut self, now: Time, server: &mut Server<S>) {
        while let Some((flow, decision)) = server.poll_decision() {
            self.report_decision(&flow, &decision);
        }
        while let Some(incident) = server.poll_incident() {
            self.notices.add(incident);
        }
        while let Some(report) = self.notices.poll(now) {
            self.report_notice(&report);
        }
        while let Some((order, result)) = server.poll_result() {
            self.report_result(&order, result);
        }
    }

    /// Says when the switch does not answer any more, and when it answers again.
    pub(crate) fn check_switch<S: Tcp>(&mut self, now: Time, server: &Server<S>) {
        let Some((watch, agent)) = self.switch_watch.as_mut().zip(server.agent()) else { return };
        if let Some(notice) = watch.check(now, agent.is_confirmed(now)) {
            if notice.is_silent { warn!("{notice}") } else { info!("{notice}") }
        }
    }

    fn report_decision(&self, flow: &Flow, decision: &Decision) {
        let to = match decision.target {
            Target::LeastLoaded(_) => None,
            Target::Server(server) => Some(server),
        };
        let (client, to, reason) = (flow.client(), self.about.name_of(to), decision.reason);
        info!(%client, to, %reason, "policy moves connection");
    }

    fn report_result(&self, order: &Order, result: OrderResult) {
        let (client, to) = (order.flow.client(), self.about.name_of(order.to));
        match result {
            OrderResult::Ended(spillway_handoff::MoveResult::Moved) => info!(%client, to, "connection moved"),
            other => warn!(%client, to, "connection not moved: {other}"),
        }
        self.waiters.report(&order.flow, result);
    }

    fn report_notice(&self, report: &Report) {
        let Report { notice, count, client } = *report;
        let client = client.map(|client| client.to_string());
        match notice {
            Notice::NotAuthentic(peer) => warn!(
                count,
                "datagrams from {} fail authentication: is its peers_key_file the same?",
                self.about.name_of(Some(peer))
            ),
            Notice::UnknownVersion => warn!(
                count,
                "datagrams of an unknown version: upgrade all servers; if all have this version, somebody forges datagrams"
            ),
            Notice::Refused(source, reason) => {
                let from = self.about.name_of(Some(source));
                warn!(count, client, from, "moves to this server refused, the connections stay: {reason}");
            }
            Notice::GivenUp(cause) => warn!(count, client, "connections given up: {cause}"),
            Notice::NotImported => {
                warn!(count, client, "connections given up: the stack could not continue them after a move");
            }
        }
    }
}
