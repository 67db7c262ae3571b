//! Connections that a server has lost, one by one, for checks of the protocol. `notices` has what a log says about them.

use alloc::collections::VecDeque;

use spillway_handoff::Cause;
use spillway_wire::switch::Flow;

/// Maximum number of losses that wait for [`Server::poll_loss`](crate::Server::poll_loss). Beyond it the oldest is dropped.
const LOSSES_MAX: usize = 1024;

/// How a server has lost a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The connection was here. This server does not own its flow any more, and has dropped it without a segment.
    Dropped(Cause),
    /// The connection had ended here. Its last segments cannot be repeated any more.
    LastSegments(Cause),
    /// This end of a move has given the connection up: its source after the export, or its target. The other end may have
    /// the connection.
    GivenUp(Cause),
    /// This server owns the flow, but its stack has refused the connection's state.
    NotImported,
}

/// Losses that were not polled yet.
#[derive(Debug, Default)]
pub(crate) struct Losses(VecDeque<(Flow, Loss)>);

impl Losses {
    pub(crate) fn add(&mut self, flow: Flow, loss: Loss) {
        if self.0.len() == LOSSES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((flow, loss));
    }

    pub(crate) fn poll(&mut self) -> Option<(Flow, Loss)> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    #[test]
    fn the_oldest_losses_are_dropped_beyond_the_bound() {
        let flow = |number: u16| {
            let client = SocketAddr::from(([10, 0, 0, 2], number));
            Flow::new(client.into(), SocketAddr::from(([10, 0, 0, 1], 80)).into()).unwrap()
        };
        let mut losses = Losses::default();
        for number in 1..=1025 {
            losses.add(flow(number), Loss::Dropped(Cause::Silence));
        }
        assert_eq!(losses.poll(), Some((flow(2), Loss::Dropped(Cause::Silence))));
        assert_eq!(core::iter::from_fn(|| losses.poll()).count(), 1023);
    }
}
