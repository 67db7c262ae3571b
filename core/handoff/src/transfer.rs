//! Messages between the servers of one service, beside the switch: a connection's state on its way, and how it ended.

use alloc::vec;
use alloc::vec::Vec;

use spillway_wire::switch::{Endpoint, Flow};

/// What a server sends to another one. The path between them may lose, repeat and reorder messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// From the source: the connection's state. Empty if the target has the connection already: see [`Reclaim`](Self::Reclaim).
    State(Vec<u8>),
    /// From the target: it owns the flow.
    Owned,
    /// From the target: it will not own the flow with this generation.
    Refused,
    /// From an owner to the original owner: the switch has lost the flow's entry; requests a move to the sender.
    Reclaim,
}

/// A message with the flow and the generation of its move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransferMessage {
    pub(crate) flow: Flow,
    pub(crate) generation: u64,
    pub(crate) body: Transfer,
}

const ENDPOINT_BYTES: usize = 18;
const HEAD_BYTES: usize = 1 + 8 + 2 * ENDPOINT_BYTES;

impl TransferMessage {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let (kind, state): (u8, &[u8]) = match &self.body {
            Transfer::State(state) => (0, state),
            Transfer::Owned => (1, &[]),
            Transfer::Refused => (2, &[]),
            Transfer::Reclaim => (3, &[]),
        };
        let mut bytes = vec![kind];
        bytes.extend(self.generation.to_be_bytes());
        for end in [self.flow.client(), self.flow.service()] {
            bytes.extend(end.address());
            bytes.extend(end.port().to_be_bytes());
        }
        bytes.extend(state);
        bytes
    }

    /// `None` if the bytes are no message.
    pub(crate) fn parse(bytes: &[u8]) -> Option<TransferMessage> {
        let (head, state) = bytes.split_at_checked(HEAD_BYTES)?;
        let end = |at: usize| {
            let address: [u8; 16] = head[at..at + 16].try_into().ok()?;
            Some(Endpoint::new(address, u16::from_be_bytes([head[at + 16], head[at + 17]])))
        };
        let body = match head[0] {
            0 => Transfer::State(state.to_vec()),
            1 => Transfer::Owned,
            2 => Transfer::Refused,
            3 => Transfer::Reclaim,
            _ => return None,
        };
        let flow = Flow::new(end(9)?, end(9 + ENDPOINT_BYTES)?).ok()?;
        Some(TransferMessage { flow, generation: u64::from_be_bytes(head[1..9].try_into().ok()?), body })
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    #[test]
    fn messages_survive_their_bytes() {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap().into();
        let flow = Flow::new(end("10.0.0.2:40000"), end("10.0.0.1:80")).unwrap();
        for body in [
            Transfer::State(vec![1, 2, 3]),
            Transfer::State(Vec::new()),
            Transfer::Owned,
            Transfer::Refused,
            Transfer::Reclaim,
        ] {
            let message = TransferMessage { flow, generation: 1 << 60, body };
            let bytes = message.emit();
            assert_eq!(TransferMessage::parse(&bytes), Some(message));
            assert_eq!(TransferMessage::parse(&bytes[..HEAD_BYTES - 1]), None);
        }
        assert_eq!(TransferMessage::parse(&[9; 60]), None, "an unknown kind");
    }
}
