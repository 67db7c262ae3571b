//! A laboratory of one system: three servers, each with a part of the targets, and a host for clients.

use std::sync::Arc;

use spillway_load::monotonic_ns;

use super::client::{Client, Fault};
use super::counts::Counts;
use super::system::System;
use super::targets::Targets;
use crate::error::Error;
use crate::experiments::moves::site::{NAMES, Site, SiteOptions};
use crate::machine::Machine;
use crate::scene::Setting;

/// A request that takes this long has waited for a retransmission timeout, of which Linux has none below 200 ms.
const TIMEOUT_US: f64 = 190_000.0;
/// Connections that may break before the experiment ends.
const BROKEN_MAX: u64 = 10;

/// The laboratory of a system.
#[derive(Debug)]
pub(super) struct Stand {
    pub system: System,
    pub site: Site,
    targets: Arc<Targets>,
    timeouts_before: u64,
    resets_before: u64,
}

/// What one request took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Timed {
    /// The server that had the connection before, and the one that has answered.
    pub servers: (usize, usize),
    pub us: f64,
}

/// Cores of the servers. The original owner and the third server share one, the second server shares the other with the clients:
/// most hand-offs go from core to core.
pub(super) fn server_cores(setting: &Setting) -> [usize; NAMES.len()] {
    let (first, second) = (setting.placement.server, setting.placement.clients);
    [first, second, first]
}

impl Stand {
    /// Starts the servers. `traces`: number of hand-offs whose steps each server keeps. `receive_inline`: the sender's thread does
    /// the receive work.
    pub(super) fn start(
        system: System,
        setting: &Setting,
        (traces, receive_inline): (usize, bool),
        machine: &mut Machine,
    ) -> Result<Stand, Error> {
        let options = SiteOptions {
            command: "http",
            tcp: system.tcp(),
            is_partitioned: true,
            servers: NAMES.len(),
            server_cores: server_cores(setting),
            clients: 1,
            client_core: setting.placement.clients,
            receive_inline,
            policy: "none",
            arguments: vec!["--trace-moves".into(), traces.to_string()],
        };
        let site = Site::create(&format!("handoff-{}", system.name()), &setting.programs, &options)?;
        site.describe(machine, &options)?;
        let mut client = Client::connect(&site.clients[0], site.service())?;
        let targets = Arc::new(Targets::find(&mut client)?);
        let (timeouts_before, resets_before) = (site.client_timeouts()?, site.client_resets()?);
        let mut stand = Stand { system, site, targets, timeouts_before, resets_before };
        drop(client);
        stand.site.wait_until_empty()?;
        Ok(stand)
    }

    /// A new client, whose connection is at the first server.
    pub(super) fn connect(&self) -> Result<Client, Error> {
        Client::connect(&self.site.clients[0], self.site.service())
    }

    /// Sends requests one after the other on one connection, to these servers. If the connection breaks, the rest is left out and the
    /// client gets another one.
    pub(super) fn walk(
        &mut self,
        mut client: Client,
        servers: Vec<usize>,
        counts: &mut Counts,
    ) -> Result<(Client, Vec<Timed>), Error> {
        self.site.check()?;
        let targets = Arc::clone(&self.targets);
        let work = move || {
            let mut timed = Vec::with_capacity(servers.len());
            let outcome = servers.iter().enumerate().try_for_each(|(number, server)| {
                let target = targets.of(*server, number);
                let (from, begun) = (client.server, monotonic_ns());
                client.send(target)?;
                client.receive(target)?;
                let us = monotonic_ns().saturating_sub(begun) as f64 / 1000.0;
                timed.push(Timed { servers: (from, *server), us });
                Ok(())
            });
            (client, timed, outcome)
        };
        let (mut client, timed, outcome) = self.on_clients_core(work)?;
        counts.requests += timed.len() as u64;
        counts.hand_offs += timed.iter().filter(|timed| timed.servers.0 != timed.servers.1).count() as u64;
        counts.late += timed.iter().filter(|timed| timed.us >= TIMEOUT_US).count() as u64;
        if let Err(fault) = outcome {
            self.count_fault(&fault, counts)?;
            client = self.connect()?;
        }
        Ok((client, timed))
    }

    /// Sends requests on many connections: all of them send one, then all wait for their responses. `server_of`: the server of
    /// each connection and step.
    pub(super) fn walk_together(
        &mut self,
        mut clients: Vec<Client>,
        steps: usize,
        server_of: impl Fn(usize, usize) -> usize + Send + 'static,
        counts: &mut Counts,
    ) -> Result<(Vec<Client>, u64), Error> {
        self.site.check()?;
        let targets = Arc::clone(&self.targets);
        let work = move || {
            let (mut requests, mut hand_offs) = (0, 0);
            let mut exchange = |step: usize| -> Result<(), Fault> {
                for (number, client) in clients.iter_mut().enumerate() {
                    client.send(targets.of(server_of(number, step), step))?;
                }
                for (number, client) in clients.iter_mut().enumerate() {
                    let target = targets.of(server_of(number, step), step);
                    hand_offs += u64::from(client.server != target.server);
                    client.receive(target)?;
                    requests += 1;
                }
                Ok(())
            };
            let outcome = (0..steps).try_for_each(&mut exchange);
            (clients, requests, hand_offs, outcome)
        };
        let (clients, requests, hand_offs, outcome): (_, u64, u64, _) = self.on_clients_core(work)?;
        counts.requests += requests;
        counts.hand_offs += hand_offs;
        if let Err(fault) = outcome {
            self.count_fault(&fault, counts)?;
            let why =
                format!("clients of the {} have not completed their requests: {fault}", self.system.name());
            return Err(Error::process(why, ""));
        }
        Ok((clients, hand_offs))
    }

    fn on_clients_core<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        match self.site.clients[0].thread(work)?.join() {
            Ok(done) => Ok(done?),
            Err(_) => Err(Error::process("a client's thread has panicked", "")),
        }
    }

    /// # Errors
    /// Too many connections have broken.
    fn count_fault(&self, fault: &Fault, counts: &mut Counts) -> Result<(), Error> {
        match fault {
            Fault::Wrong(_) => counts.wrong += 1,
            Fault::Broken(_) => counts.broken += 1,
        }
        if counts.wrong + counts.broken > BROKEN_MAX {
            let why = format!(
                "more than {BROKEN_MAX} connections of the {} have failed: {fault}",
                self.system.name()
            );
            return Err(Error::process(why, ""));
        }
        Ok(())
    }

    /// Ends the programs, and counts what they and the client's kernel have counted.
    pub(super) fn close(self, counts: &mut Counts) -> Result<(), Error> {
        counts.timeouts += self.site.client_timeouts()? - self.timeouts_before;
        counts.resets += self.site.client_resets()? - self.resets_before;
        counts.lost += self.site.sum(|status| status.moves.lost + status.moves.let_go)?;
        self.site.close()
    }
}
