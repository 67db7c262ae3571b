//! The stream oracle checks the bytes of every stream, outside the code under test.
//!
//! Each virtual connection has a token, which is also the first eight bytes that its client sends. Every
//! other byte in both directions is a function of token and offset ([`pattern`](crate::pattern)). The
//! delivered bytes must be a prefix of the sent ones; a stream that ends in good order must be complete.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use crate::pattern::{TOKEN_BYTES, Token, first_wrong, reply_word, request_word};
use crate::violations::Violations;

/// The state of one virtual connection.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The client's address, as the server must see it.
    pub client: SocketAddr,
    /// Whether the client and the server's application both intend to end the stream in good order.
    pub ends_in_order: bool,
    sent: u64,
    sent_all: bool,
    received_by_server: u64,
    has_reached_server: bool,
    replied: u64,
    replied_all: bool,
    received_by_client: u64,
    client_done: bool,
    server_done: bool,
}

/// All streams, and the violations found.
#[derive(Debug, Default)]
pub struct Oracle {
    streams: BTreeMap<Token, Stream>,
    violations: Violations<String>,
    /// Clients that the server refused, perhaps before their streams began.
    refused: BTreeSet<SocketAddr>,
    /// Bytes delivered in both directions.
    pub delivered: u64,
    /// Number of checks of the replies that the server keeps.
    pub kept_looks: u64,
    /// Number of checks of the bytes that were acknowledged to clients.
    pub acknowledged_looks: u64,
    /// Clients that helpers closed because memory was short.
    pub closed_for_memory: u64,
    /// Streams that ended complete and in good order at their client.
    pub completed: u64,
    /// Streams that ended incomplete, or with a reset.
    pub broken: u64,
    /// Whether only its two ends may break a stream, and no fault of the world.
    pub is_faultless: bool,
    /// Whether broken streams are judged at the end, by [`judge`](Oracle::judge).
    pub judges_late: bool,
    suspects: Vec<Token>,
}

/// Shared by the clients' and the server's applications of one world.
pub type SharedOracle = Rc<RefCell<Oracle>>;

impl Oracle {
    /// An oracle without streams; for `is_faultless` see [`Oracle::is_faultless`].
    pub fn new(is_faultless: bool) -> Oracle {
        Oracle { is_faultless, ..Oracle::default() }
    }

    /// Records a violation.
    pub fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    /// The first violations found; later ones are dropped.
    pub fn violations(&self) -> &[String] {
        self.violations.as_slice()
    }

    /// Streams that have not ended on both sides.
    pub fn open(&self) -> usize {
        self.streams
            .values()
            .filter(|stream| !stream.client_done || (stream.has_reached_server && !stream.server_done))
            .count()
    }

    /// Grows with every delivered byte and every ended stream.
    pub fn progress(&self) -> u64 {
        self.delivered + self.completed + self.broken
    }

    /// Streams begun so far.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    fn stream(&mut self, token: Token) -> Option<&mut Stream> {
        self.streams.get_mut(&token)
    }

    /// A client begins a stream.
    pub fn begin(&mut self, token: Token, client: SocketAddr, ends_in_order: bool) {
        let stream = Stream {
            client,
            ends_in_order: ends_in_order && !self.refused.contains(&client),
            sent: 0,
            sent_all: false,
            received_by_server: 0,
            has_reached_server: false,
            replied: 0,
            replied_all: false,
            received_by_client: 0,
            client_done: false,
            server_done: false,
        };
        if self.streams.insert(token, stream).is_some() {
            self.violation(format!("token {token:x} used twice: a bug of the simulator"));
        }
    }

    /// The client's transport accepted this many bytes.
    pub fn sent(&mut self, token: Token, bytes: u64) {
        if let Some(stream) = self.stream(token) {
            stream.sent += bytes;
        }
    }

    /// The client has sent the end of its stream.
    pub fn sent_all(&mut self, token: Token) {
        if let Some(stream) = self.stream(token) {
            stream.sent_all = true;
        }
    }

    /// The client received bytes.
    pub fn client_received(&mut self, token: Token, bytes: &[u8]) {
        self.delivered += bytes.len() as u64;
        let Some(stream) = self.stream(token) else { return };
        let from = stream.received_by_client;
        stream.received_by_client += bytes.len() as u64;
        let (end, replied) = (stream.received_by_client, stream.replied);
        if let Some(offset) = first_wrong(reply_word, token, from, bytes) {
            self.violation(format!("reply stream {token:x}: wrong byte at {offset} of {from}..{end}"));
        } else if end > replied {
            self.violation(format!("reply stream {token:x}: {end} bytes were received, but {replied} sent"));
        }
    }

    /// The client saw the end of the replies: it must have received all of them.
    pub fn client_saw_end(&mut self, token: Token) {
        let Some(stream) = self.stream(token) else { return };
        let (received, replied, has_ended) = (stream.received_by_client, stream.replied, stream.replied_all);
        if !has_ended {
            self.violation(format!(
                "reply stream {token:x}: ended in good order, but the server had not ended it"
            ));
        } else if received != replied {
            self.violation(format!(
                "reply stream {token:x}: ended in good order with {received} of {replied} bytes"
            ));
        }
    }

    /// The stream has ended for the client; `is_complete`: the client saw the end of the replies, and was not reset.
    pub fn client_done(&mut self, token: Token, is_complete: bool) {
        let is_faultless = self.is_faultless;
        let Some(stream) = self.stream(token) else { return };
        if std::mem::replace(&mut stream.client_done, true) {
            return;
        }
        let ends_in_order = stream.ends_in_order;
        if is_complete {
            self.completed += 1;
        } else {
            self.broken += 1;
            if is_faultless && ends_in_order {
                self.suspects.push(token);
                if !self.judges_late {
                    self.judge(&BTreeSet::new());
                }
            }
        }
    }

    /// Records each stream that was broken since the last call as a violation, unless it is excused.
    pub fn judge(&mut self, excused: &BTreeSet<Token>) {
        for token in std::mem::take(&mut self.suspects) {
            if !excused.contains(&token) {
                let stream = self.streams.get(&token);
                self.violation(format!(
                    "stream {token:x}: broken, but no fault of this world may break it: {stream:?}"
                ));
            }
        }
    }

    /// A helper closed this client because memory was short: bytes from or to the client must have been in flight.
    pub fn closed_for_memory(&mut self, client: SocketAddr) {
        self.closed_for_memory += 1;
        let held_nothing = |stream: &&Stream| {
            let is_whole =
                stream.sent == stream.received_by_server && stream.replied == stream.received_by_client;
            stream.client == client && stream.has_reached_server && !stream.client_done && is_whole
        };
        if let Some(stream) = self.streams.values().find(held_nothing) {
            let what = format!("{client} was closed for memory although it held nothing: {stream:?}");
            self.violation(what);
        }
    }

    /// The server's application received a token from `client`. Returns true if a client has sent this token,
    /// and the server receives it for the first time.
    pub fn recognise(&mut self, token: Token, client: SocketAddr) -> bool {
        let Some(stream) = self.stream(token) else {
            self.violation(format!("the server received token {token:x}, which no client sent"));
            return false;
        };
        let (expected, is_repeated) =
            (stream.client, std::mem::replace(&mut stream.has_reached_server, true));
        if is_repeated {
            self.violation(format!("stream {token:x} reached the server on two connections"));
        }
        if expected != client {
            self.violation(format!(
                "stream {token:x} of {expected} reached the server with the address {client}"
            ));
        }
        !is_repeated
    }

    /// The server's application received bytes (the token included).
    pub fn server_received(&mut self, token: Token, bytes: &[u8]) {
        self.delivered += bytes.len() as u64;
        let Some(stream) = self.stream(token) else { return };
        let from = stream.received_by_server;
        stream.received_by_server += bytes.len() as u64;
        let (end, sent) = (stream.received_by_server, stream.sent);
        if let Some(offset) = first_wrong(request_word, token, from, bytes) {
            self.violation(format!("request stream {token:x}: wrong byte at {offset} of {from}..{end}"));
        } else if end > sent {
            self.violation(format!("request stream {token:x}: {end} bytes were received, but {sent} sent"));
        }
    }

    /// The client's TCP received an acknowledgement of `through` bytes: the server's application must have
    /// received them. Not checked while the server lacks the whole token, after the stream has ended for the
    /// server, and if one of the stream's ends intends to end it early.
    pub fn acknowledged(&mut self, token: Token, through: u64) {
        self.acknowledged_looks += 1;
        let Some(stream) = self.stream(token) else { return };
        let (received, may_differ) = (stream.received_by_server, stream.server_done || !stream.ends_in_order);
        if through > received && through >= TOKEN_BYTES && !may_differ {
            self.violation(format!(
                "request stream {token:x}: {through} bytes acknowledged to the client, but the server has {received}"
            ));
        }
    }

    /// The server saw the end of the requests: it must have received all of them.
    pub fn server_saw_end(&mut self, token: Token) {
        let Some(stream) = self.stream(token) else { return };
        let (received, sent, has_ended) = (stream.received_by_server, stream.sent, stream.sent_all);
        if !has_ended {
            self.violation(format!(
                "request stream {token:x}: ended in good order, but the client had not ended it"
            ));
        } else if received != sent {
            self.violation(format!(
                "request stream {token:x}: ended in good order with {received} of {sent} bytes"
            ));
        }
    }

    /// The server's link accepted this many bytes of replies.
    pub fn replied(&mut self, token: Token, bytes: u64) {
        if let Some(stream) = self.stream(token) {
            stream.replied += bytes;
        }
    }

    /// The server keeps `bytes` from the client's acknowledged offset on: they must reach to the end of the last reply.
    pub fn kept(&mut self, token: Token, acknowledged: u64, bytes: &[u8], bytes_max: usize) {
        self.kept_looks += 1;
        let Some(stream) = self.stream(token) else { return };
        let (replied, end) = (stream.replied, acknowledged + bytes.len() as u64);
        if end != replied {
            self.violation(format!(
                "reply stream {token:x}: {replied} bytes were sent, but replies are kept up to {end}"
            ));
        } else if let Some(offset) = first_wrong(reply_word, token, acknowledged, bytes) {
            self.violation(format!("reply stream {token:x}: a wrong byte is kept at {offset}"));
        } else if bytes.len() > bytes_max {
            let kept = bytes.len();
            self.violation(format!(
                "reply stream {token:x}: {kept} bytes are kept, but the bound is {bytes_max}"
            ));
        }
    }

    /// The server has sent the end of the replies.
    pub fn replied_all(&mut self, token: Token) {
        if let Some(stream) = self.stream(token) {
            stream.replied_all = true;
        }
    }

    /// The server's application refuses all streams of this client, present and future.
    pub fn server_refuses(&mut self, client: SocketAddr) {
        self.refused.insert(client);
        let streams = self.streams.values_mut().filter(|stream| stream.client == client);
        streams.for_each(|stream| stream.ends_in_order = false);
    }

    /// The server's application intends to end this stream early or not at all.
    pub fn server_ends_early(&mut self, token: Token) {
        if let Some(stream) = self.stream(token) {
            stream.ends_in_order = false;
        }
    }

    /// The stream has ended for the server's application.
    pub fn server_done(&mut self, token: Token) {
        if let Some(stream) = self.stream(token) {
            stream.server_done = true;
        }
    }

    /// Records each stream that has not ended as a violation, at most three.
    pub fn all_ended(&mut self) {
        let open: Vec<String> = self
            .streams
            .iter()
            .filter(|(_, stream)| !stream.client_done || (stream.has_reached_server && !stream.server_done))
            .take(3)
            .map(|(token, stream)| format!("{token:x}: {stream:?}"))
            .collect();
        for stream in open {
            self.violation(format!("a stream has not ended after the calm phase: {stream}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::bytes_of;

    fn oracle_with_stream() -> (Oracle, Token) {
        let (mut oracle, token) = (Oracle::default(), 0x1234);
        oracle.begin(token, "10.0.0.1:1".parse().unwrap(), true);
        oracle.sent(token, 100);
        (oracle, token)
    }

    #[test]
    fn acknowledged_bytes_that_the_server_lacks_are_a_violation() {
        let (mut oracle, token) = oracle_with_stream();
        assert!(oracle.recognise(token, "10.0.0.1:1".parse().unwrap()));
        oracle.server_received(token, &bytes_of(request_word, token, 0, 60));
        oracle.acknowledged(token, 60);
        assert!(oracle.violations().is_empty(), "{:?}", oracle.violations());
        oracle.acknowledged(token, 61);
        assert!(oracle.violations()[0].contains("the server has 60"));
    }

    #[test]
    fn complete_streams_cause_no_violation() {
        let (mut oracle, token) = oracle_with_stream();
        assert!(oracle.recognise(token, "10.0.0.1:1".parse().unwrap()));
        oracle.server_received(token, &bytes_of(request_word, token, 0, 60));
        oracle.server_received(token, &bytes_of(request_word, token, 60, 40));
        oracle.sent_all(token);
        oracle.server_saw_end(token);
        oracle.replied(token, 10);
        oracle.replied_all(token);
        oracle.client_received(token, &bytes_of(reply_word, token, 0, 10));
        oracle.client_saw_end(token);
        assert!(oracle.violations().is_empty(), "{:?}", oracle.violations());
    }

    /// Bytes are lost, repeated, reordered, altered, invented, missing at the end, or of another stream.
    #[test]
    fn every_kind_of_damaged_stream_is_a_violation() {
        let right = |from, length| bytes_of(request_word, 0x1234, from, length);
        let altered = right(0, 50).iter().map(|byte| byte ^ 1).collect();
        let damages: [Vec<Vec<u8>>; 6] = [
            vec![right(0, 20), right(21, 20)],
            vec![right(0, 20), right(0, 20)],
            vec![right(20, 20), right(0, 20)],
            vec![altered],
            vec![right(0, 101)],
            vec![right(0, 99)],
        ];
        for (index, pieces) in damages.iter().enumerate() {
            let (mut oracle, token) = oracle_with_stream();
            pieces.iter().for_each(|piece| oracle.server_received(token, piece));
            oracle.sent_all(token);
            oracle.server_saw_end(token);
            assert!(!oracle.violations().is_empty(), "damage {index} was not detected");
        }
        let (mut oracle, token) = oracle_with_stream();
        assert!(oracle.recognise(token, "10.0.0.1:1".parse().unwrap()));
        assert!(!oracle.recognise(token, "10.0.0.1:2".parse().unwrap()));
        assert!(!oracle.recognise(7, "10.0.0.1:1".parse().unwrap()));
        assert_eq!(oracle.violations().len(), 3);
    }
}
