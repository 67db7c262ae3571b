//! The control messages of the switch's own daemon. The daemon runs the program on frames with these messages, instead
//! of changing the table of flows itself: so each change of an entry names the generation that it replaces.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use spillway_auth::{SwitchKey, SwitchRejection};
use spillway_wire::switch::{Answer, Body, MESSAGE_BYTES, Message, Request, ServerId};

use crate::datagram;

/// Makes the daemon's requests and reads their answers.
#[derive(Debug)]
pub(crate) struct Messages {
    key: SwitchKey,
    epoch: u64,
    sequence: AtomicU64,
    exchange: Mutex<()>,
}

/// Why an answer cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The frame has no valid control message under the daemon's key.
    Rejected(SwitchRejection),
    /// The message is not an answer to the request.
    Other,
}

impl Messages {
    /// Messages for the switch with this epoch, under the key that the program's table of senders has for the daemon.
    pub(crate) fn new(key: SwitchKey, epoch: u64) -> Messages {
        Messages { key, epoch, sequence: AtomicU64::new(first_sequence()), exchange: Mutex::new(()) }
    }

    /// The key, for the program's table of senders.
    pub(crate) fn key(&self) -> &SwitchKey {
        &self.key
    }

    /// Start time of the switch in nanoseconds since 1970.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sends a request to the control endpoint `control`, and reads its answer. `handle` runs the program on a frame.
    ///
    /// One exchange at a time: the program refuses a sequence number that is 64 or more below the highest one, and
    /// several threads send.
    ///
    /// # Errors
    /// `handle` fails, or the program does not answer as it should.
    pub(crate) fn exchange(
        &self,
        control: SocketAddr,
        request: Request,
        handle: impl FnOnce(&[u8]) -> Result<Option<Vec<u8>>, String>,
    ) -> Result<Answer, String> {
        let _exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let (sequence, frame) = self.frame(control, request);
        let frame = handle(&frame)?.ok_or("the program drops the daemon's messages: restart the daemon")?;
        self.answer(sequence, &frame)
            .map_err(|error| format!("the program's answer cannot be used: {error:?}"))
    }

    /// The frame of a request to the control endpoint `control`, and its sequence number.
    pub(crate) fn frame(&self, control: SocketAddr, request: Request) -> (u64, Vec<u8>) {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let message =
            Message { sender: ServerId::DAEMON, sequence, epoch: self.epoch, body: Body::Request(request) };
        // Source and destination of the frame are the control endpoint.
        (sequence, datagram::frame(control.ip(), control.port(), control, &self.key.emit(&message)))
    }

    /// Reads the answer to the request with this sequence number from the frame that the program has returned.
    ///
    /// # Errors
    /// The frame holds no answer to this request.
    pub(crate) fn answer(&self, sequence: u64, frame: &[u8]) -> Result<Answer, NoAnswer> {
        let payload = frame.last_chunk::<MESSAGE_BYTES>().ok_or(NoAnswer::Other)?;
        let message = self.key.parse(payload).map_err(NoAnswer::Rejected)?;
        match message.body {
            Body::Answer(answer) if (message.sequence, message.epoch) == (sequence, self.epoch) => Ok(answer),
            _ => Err(NoAnswer::Other),
        }
    }
}

/// A random key for a daemon.
///
/// # Errors
/// The kernel has no random bytes.
pub(crate) fn fresh_key() -> io::Result<SwitchKey> {
    Ok(spillway_keys::fresh_key()?.switch_key())
}

/// Nanoseconds since the host's start: above the last sequence number of the previous daemon, which pinned tables
/// remember, because no daemon sends a message each nanosecond. A restart of the host removes the tables.
fn first_sequence() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanoseconds) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use spillway_wire::packet::{ethernet, ipv4, ipv6, udp};
    use spillway_wire::switch::{Endpoint, Flow, FlowState, Kind, Status, Subject};

    use super::*;

    fn fresh() -> Messages {
        Messages::new(fresh_key().unwrap(), 7)
    }

    fn flow() -> Flow {
        let endpoint = |text: &str| Endpoint::from(text.parse::<SocketAddr>().unwrap());
        Flow::new(endpoint("10.0.0.7:4000"), endpoint("10.0.0.5:11211")).unwrap()
    }

    /// The frame with its message turned into an answer.
    fn answered(messages: &Messages, frame: &[u8], change: impl FnOnce(&mut Message)) -> Vec<u8> {
        let start = frame.len() - MESSAGE_BYTES;
        let mut message = messages.key.parse(&frame[start..]).unwrap();
        message.body = Body::Answer(Answer {
            kind: Kind::Get,
            status: Status::NoEntry,
            state: FlowState::None,
            generation: 0,
            subject: Subject::Flow(flow()),
            owner: None,
            load: 0,
            lifetime_ms: 0,
            free_places: 0,
            weight: 0,
        });
        change(&mut message);
        [&frame[..start], &messages.key.emit(&message)].concat()
    }

    #[test]
    fn frames_are_valid_datagrams_of_both_families() {
        let messages = fresh();
        for control in ["10.0.0.1:9511", "[2001:db8::1]:9511"] {
            let control: SocketAddr = control.parse().unwrap();
            let (sequence, frame) = messages.frame(control, Request::Get { flow: flow() });
            let (head, packet) = ethernet::Header::parse(&frame).unwrap();
            let (header, payload) = match control.ip() {
                IpAddr::V4(ip) => {
                    let (header, _, payload) = ipv4::Header::parse(packet).unwrap();
                    assert_eq!((head.kind, header.target), (ethernet::KIND_IPV4, ip));
                    udp::Header::parse_v4(payload, ip, ip).unwrap()
                }
                IpAddr::V6(ip) => {
                    let (header, _, payload) = ipv6::Header::parse(packet).unwrap();
                    assert_eq!((head.kind, header.target), (ethernet::KIND_IPV6, ip));
                    udp::Header::parse_v6(payload, ip, ip).unwrap()
                }
            };
            assert_eq!(header.target, 9511);
            let message = messages.key.parse(payload).unwrap();
            assert_eq!((message.sender, message.sequence, message.epoch), (ServerId::DAEMON, sequence, 7));
            assert_eq!(message.body, Body::Request(Request::Get { flow: flow() }));
        }
    }

    #[test]
    fn sequence_numbers_grow_also_over_a_restart() {
        let control = "10.0.0.1:9511".parse().unwrap();
        let first = fresh();
        let numbers: Vec<u64> = (0..100).map(|_| first.frame(control, Request::Hello).0).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next));
        let second = fresh();
        assert!(second.frame(control, Request::Hello).0 > numbers[99]);
        assert_ne!(first.key, second.key);
    }

    #[test]
    fn only_the_answer_to_the_request_is_accepted() {
        let messages = fresh();
        let (sequence, frame) =
            messages.frame("10.0.0.1:9511".parse().unwrap(), Request::Get { flow: flow() });
        let answer = messages.answer(sequence, &answered(&messages, &frame, |_| ()));
        assert_eq!(answer.map(|answer| answer.status), Ok(Status::NoEntry));
        assert_eq!(messages.answer(sequence, &frame), Err(NoAnswer::Other), "a request is not an answer");
        let later = answered(&messages, &frame, |message| message.sequence += 1);
        assert_eq!(messages.answer(sequence, &later), Err(NoAnswer::Other));
        let foreign = answered(&messages, &frame, |message| message.epoch += 1);
        assert_eq!(messages.answer(sequence, &foreign), Err(NoAnswer::Other));
        let other = fresh();
        let forged = answered(&messages, &frame, |_| ());
        assert_eq!(other.answer(sequence, &forged), Err(NoAnswer::Rejected(SwitchRejection::Tag)));
        assert_eq!(messages.answer(sequence, &frame[..100]), Err(NoAnswer::Other));
    }
}
