//! How moves to this server have ended. A source that has no answer of the switch asks its target.

use spillway_wire::switch::Flow;

use crate::recent::Recent;

/// The end of the last move of a flow to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) generation: u64,
    /// This server became the owner.
    pub(crate) is_owned: bool,
}

/// What this server knows about the end of a move to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// This server became the owner.
    Owned,
    /// It did not, and never will by this move.
    Refused,
    /// A later move of the flow came here. So the flow had an owner after this move, who is not the source that asks.
    Over,
    /// This server has forgotten the ends of moves as old as this one.
    Nothing,
}

/// The ends of the last moves to this server, one for each flow.
#[derive(Clone, Debug)]
pub(crate) struct FinishedMoves {
    recent: Recent<Finished>,
    /// The latest generation of the moves that were displaced.
    forgotten_through: u64,
}

impl FinishedMoves {
    pub(crate) fn new(flows_max: usize) -> FinishedMoves {
        FinishedMoves { recent: Recent::new(flows_max), forgotten_through: 0 }
    }

    pub(crate) fn insert(&mut self, flow: Flow, finished: Finished) {
        if let Some(displaced) = self.recent.insert(flow, finished) {
            self.forgotten_through = self.forgotten_through.max(displaced.generation);
        }
    }

    pub(crate) fn get(&self, flow: &Flow) -> Option<&Finished> {
        self.recent.get(flow)
    }

    /// What is known about a move that is not under way.
    pub(crate) fn end_of(&self, flow: &Flow, generation: u64) -> Known {
        match self.recent.get(flow) {
            Some(last) if last.generation == generation && last.is_owned => Known::Owned,
            Some(last) if last.generation == generation => Known::Refused,
            Some(last) if last.generation > generation => Known::Over,
            _ if generation <= self.forgotten_through => Known::Nothing,
            // The move never began here, or this server would have a record of it.
            _ => Known::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_flow::flow;

    #[test]
    fn a_refusal_is_certain_or_is_not_stated() {
        let mut moves = FinishedMoves::new(2);
        let mut end =
            |port, generation, is_owned| moves.insert(flow(port), Finished { generation, is_owned });
        end(1, 10, true);
        end(2, 11, false);
        assert_eq!(moves.end_of(&flow(1), 10), Known::Owned);
        assert_eq!(moves.end_of(&flow(2), 11), Known::Refused);
        assert_eq!(moves.end_of(&flow(3), 9), Known::Refused, "no move of this flow was ever here");
        // The server became the owner in generation 10, passed the flow on, and refused it later.
        moves.insert(flow(1), Finished { generation: 20, is_owned: false });
        assert_eq!(moves.end_of(&flow(1), 10), Known::Over);
        assert_eq!(moves.end_of(&flow(1), 21), Known::Refused);
    }

    #[test]
    fn displaced_ends_are_unknown() {
        let mut moves = FinishedMoves::new(1);
        moves.insert(flow(1), Finished { generation: 10, is_owned: true });
        moves.insert(flow(2), Finished { generation: 12, is_owned: true });
        assert_eq!((moves.get(&flow(1)), moves.end_of(&flow(1), 10)), (None, Known::Nothing));
        assert_eq!(moves.end_of(&flow(1), 11), Known::Refused, "it is later than all that was forgotten");
    }
}
