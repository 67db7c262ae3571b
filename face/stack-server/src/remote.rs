//! Orders of other threads to a server's thread, and their results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use spillway_handoff::MoveResult;
use spillway_moves::{Movable, Order, OrderError, OrderResult, Override, Server, Tcp};
use spillway_net::Unreachable;
use spillway_tcp::Stack;
use spillway_wire::switch::Flow;

use crate::about::About;
use crate::status::ServerStatus;
use crate::steps::{MoveStepTimes, StepsOfMoves};

/// Maximum time that a caller waits for the results of its orders. A move whose outcome the switch does not confirm takes
/// longer.
const RESULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time that a caller waits for the server's thread.
const THREAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends the results of a caller's orders to the caller.
type ResultSender = Sender<(Flow, OrderResult)>;

/// Callers that wait for the results of orders, by flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiters(Arc<Mutex<BTreeMap<Flow, ResultSender>>>);

impl Waiters {
    fn add(&self, flow: Flow, results: ResultSender) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(flow, results);
    }

    pub(crate) fn report(&self, flow: &Flow, result: OrderResult) {
        let waiter = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(flow);
        if let Some(waiter) = waiter {
            // Fails if the caller's wait has timed out.
            let _ = waiter.send((*flow, result));
        }
    }
}

/// Why a connection has not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveFailure {
    /// No server has this name.
    UnknownServer,
    /// The server has no policy.
    NoPolicy,
    /// The order was refused.
    Order(OrderError),
    /// The order has ended, but not as a move.
    Result(OrderResult),
    /// No result within five seconds: the switch does not answer.
    Late,
    /// The server's thread does not answer.
    Unreachable,
}

impl fmt::Display for MoveFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MoveFailure::UnknownServer => f.write_str("no server has this name: see [[moves.peer]]"),
            MoveFailure::NoPolicy => f.write_str(
                "the server has no policy to override: set `policy` in [moves] and start it again",
            ),
            MoveFailure::Order(error) => error.fmt(f),
            MoveFailure::Result(result) => result.fmt(f),
            MoveFailure::Late => f.write_str(
                "the result is not known after 5 s, and the move may still end: `spillway status` counts it; check the path to \
                 the switch",
            ),
            MoveFailure::Unreachable => f.write_str("the server's thread does not answer"),
        }
    }
}

impl std::error::Error for MoveFailure {}

/// The result of each order, by client.
pub(crate) type Results = Vec<(SocketAddr, Result<(), MoveFailure>)>;

/// A handle of a server that runs on another thread.
pub struct Remote<A, S: Tcp = Stack> {
    thread: spillway_net::Remote<A, Server<S>>,
    waiters: Waiters,
    about: Arc<About>,
}

impl<A, S: Tcp> Clone for Remote<A, S> {
    fn clone(&self) -> Remote<A, S> {
        Remote { thread: self.thread.clone(), waiters: self.waiters.clone(), about: Arc::clone(&self.about) }
    }
}

impl<A: Movable + 'static, S: Tcp + 'static> Remote<A, S> {
    pub(crate) fn new(
        thread: spillway_net::Remote<A, Server<S>>,
        waiters: Waiters,
        about: Arc<About>,
    ) -> Remote<A, S> {
        Remote { thread, waiters, about }
    }

    pub(crate) fn about(&self) -> &About {
        &self.about
    }

    /// Ends the loop of the server's thread, which resets its connections.
    pub fn stop(&self) {
        self.thread.stop();
    }

    /// Whether the server's thread responds within this time.
    pub fn responds(&self, within: Duration) -> bool {
        self.thread.run_and_wait_timeout(within, |_, _, _| ()).is_ok()
    }

    /// Moves the connection of a client, and waits until the move has ended. `to`: a server's name; `None`: the switch
    /// chooses the least loaded one. The move waits for the end of a request.
    ///
    /// # Errors
    /// The connection has not moved.
    pub fn migrate(&self, client: SocketAddr, to: Option<&str>) -> Result<(), MoveFailure> {
        let results = self.migrate_all(Some(client), to)?;
        results.into_iter().next().map_or(Err(MoveFailure::Late), |(_, result)| result)
    }

    /// As [`migrate`](Self::migrate); without a client all connections. At most 1,024 move at a time.
    pub(crate) fn migrate_all(
        &self,
        client: Option<SocketAddr>,
        to: Option<&str>,
    ) -> Result<Results, MoveFailure> {
        let to = to.map(|name| self.about.id_of(name).ok_or(MoveFailure::UnknownServer)).transpose()?;
        let service = self.about.service;
        let flow = client.map(|client| flow_of(client, service)).transpose()?;
        let (sender, receiver) = channel();
        let waiters = self.waiters.clone();
        let order = move |_, _: &mut A, server: &mut Server<S>| {
            let flows: Vec<Flow> = match flow {
                Some(flow) => vec![flow],
                None => server.connections().flows().collect(),
            };
            let mut results: Results = Vec::new();
            let mut ordered = Vec::new();
            for flow in flows {
                // The result comes after this command, on this thread.
                match server.order(Order { flow, to }) {
                    Ok(()) => {
                        waiters.add(flow, sender.clone());
                        ordered.push(flow);
                    }
                    Err(error) => results.push((flow.client().into(), Err(MoveFailure::Order(error)))),
                }
            }
            (results, ordered)
        };
        let (mut results, ordered) = self
            .thread
            .run_and_wait_timeout(THREAD_TIMEOUT, order)
            .map_err(|Unreachable| MoveFailure::Unreachable)?;
        results.extend(wait_for_results(&receiver, ordered, RESULT_TIMEOUT));
        Ok(results)
    }

    /// Overrides the server's policy, for the time `lasts` or without limit.
    ///
    /// # Errors
    /// The server has no policy, or its thread does not answer.
    pub fn set_override(
        &self,
        manual_override: Override,
        lasts: Option<Duration>,
    ) -> Result<(), MoveFailure> {
        let set = move |now, _: &mut A, server: &mut Server<S>| {
            server.set_override(now, manual_override, lasts);
            server.has_policy()
        };
        let has_policy = self
            .thread
            .run_and_wait_timeout(THREAD_TIMEOUT, set)
            .map_err(|Unreachable| MoveFailure::Unreachable)?;
        if has_policy { Ok(()) } else { Err(MoveFailure::NoPolicy) }
    }

    /// Removes and returns the steps of moves that have ended. Empty unless they are recorded
    /// ([`Measuring::moves`](crate::Measuring::moves)).
    pub(crate) fn take_steps(&self) -> Result<StepsOfMoves, MoveFailure> {
        let take = |_, _: &mut A, server: &mut Server<S>| server.take_traced();
        let traced = self
            .thread
            .run_and_wait_timeout(THREAD_TIMEOUT, take)
            .map_err(|Unreachable| MoveFailure::Unreachable)?;
        Ok(StepsOfMoves { moves: traced.iter().map(MoveStepTimes::of).collect() })
    }

    /// The server's status.
    ///
    /// # Errors
    /// The thread does not answer.
    pub fn status(&self) -> Result<ServerStatus, MoveFailure> {
        let about = Arc::clone(&self.about);
        let status = move |now, _: &mut A, server: &mut Server<S>| ServerStatus::of(&about, server, now);
        self.thread
            .run_and_wait_timeout(THREAD_TIMEOUT, status)
            .map_err(|Unreachable| MoveFailure::Unreachable)
    }
}

/// The flow of a client's connection. Fails if client and service have addresses of two families.
fn flow_of(client: SocketAddr, service: SocketAddr) -> Result<Flow, MoveFailure> {
    Flow::new(client.into(), service.into()).map_err(|_| MoveFailure::Order(OrderError::NotHere))
}

/// Waits for the result of each order, at most for `timeout`. Orders without a result by then are [`MoveFailure::Late`].
fn wait_for_results(
    receiver: &Receiver<(Flow, OrderResult)>,
    ordered: Vec<Flow>,
    timeout: Duration,
) -> Results {
    let until = Instant::now() + timeout;
    let mut pending: BTreeSet<Flow> = ordered.into_iter().collect();
    let mut results = Vec::with_capacity(pending.len());
    while !pending.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let Ok((flow, result)) = receiver.recv_timeout(left) else { break };
        pending.remove(&flow);
        let result = match result {
            OrderResult::Ended(MoveResult::Moved) => Ok(()),
            other => Err(MoveFailure::Result(other)),
        };
        results.push((flow.client().into(), result));
    }
    results.extend(pending.into_iter().map(|flow| (flow.client().into(), Err(MoveFailure::Late))));
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_without_a_result_are_named() {
        let flows: Vec<Flow> = (1..=3)
            .map(|port| SocketAddr::from(([10, 0, 0, 7], port)))
            .map(|client| flow_of(client, "10.0.0.5:11211".parse().unwrap()).unwrap())
            .collect();
        let (sender, receiver) = channel();
        sender.send((flows[1], OrderResult::Ended(MoveResult::Moved))).unwrap();
        sender.send((flows[2], OrderResult::Busy)).unwrap();
        let results = wait_for_results(&receiver, flows.clone(), Duration::from_millis(10));
        let client = |at: usize| SocketAddr::from(flows[at].client());
        let busy = Err(MoveFailure::Result(OrderResult::Busy));
        assert_eq!(results, [(client(1), Ok(())), (client(2), busy), (client(0), Err(MoveFailure::Late))]);
    }

    #[test]
    fn a_client_that_cannot_have_a_connection_is_an_error() {
        let flow = |client: &str| flow_of(client.parse().unwrap(), "10.0.0.5:11211".parse().unwrap());
        assert!(flow("10.0.0.7:5").is_ok());
        assert_eq!(flow("[::1]:5"), Err(MoveFailure::Order(OrderError::NotHere)));
    }
}
