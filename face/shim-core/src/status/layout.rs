//! The layout of a server's status page: 64-bit words at fixed places, in the machine's own byte order.
//!
//! A reader rejects a page with an unknown [`LAYOUT`]. An added field needs a new layout number, unless 0 means that
//! the field is not known. From layout 4 on, a running server holds a lock on its page. Readers before layout 4 removed
//! a page if its process id was not in use; pages had another first word then, so that older and newer readers do not
//! remove each other's pages.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use spillway_policy::Override;

/// The first word of every page.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"spilpage");
/// The first word of pages before layout 4, which are not locked.
pub(crate) const MAGIC_UNLOCKED: u64 = u64::from_le_bytes(*b"spillway");
/// The number of this layout.
pub(crate) const LAYOUT: u64 = 4;

/// Number of words of the header.
pub(crate) const HEADER_WORDS: usize = 512;

/// Indexes of the header's words.
pub(crate) mod header {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const LAYOUT: usize = 1;
    /// The process id in the server's own PID namespace.
    pub(crate) const PID: usize = 2;
    /// In pages before layout 4: when the process started, in clock ticks since the machine booted.
    pub(crate) const START_TICKS: usize = 3;
    /// When the page was created, in nanoseconds of the monotonic clock.
    pub(crate) const BEGAN_NS: usize = 4;
    pub(crate) const STATE: usize = 5;
    /// The last request; see [`super::Request`]. Every process that may write the file may set it.
    pub(crate) const REQUEST: usize = 6;
    /// The last request that was carried out.
    pub(crate) const ANSWERED: usize = 7;
    /// The port that helpers connect to.
    pub(crate) const LINK_PORT: usize = 8;
    /// Address of the link port, two words; all zeros for all addresses.
    pub(crate) const LINK_ADDRESS: usize = 9;
    /// The server's ordinary port.
    pub(crate) const HELPED_PORT: usize = 11;
    /// Number of slots with memory in each of the two tables.
    pub(crate) const LINKS_ALLOCATED: usize = 12;
    pub(crate) const CONNECTIONS_ALLOCATED: usize = 13;
    /// The operator's override of relief, and when it ends, in nanoseconds of the monotonic clock; 0 for never.
    pub(crate) const RELIEF: usize = 14;
    pub(crate) const RELIEF_UNTIL_NS: usize = 15;
    /// Inodes of the server's PID and network namespaces; 0 if they are not known.
    pub(crate) const PID_NAMESPACE: usize = 16;
    pub(crate) const NET_NAMESPACE: usize = 17;
    /// The program's name when the page was created: two words of bytes, padded with zeros.
    pub(crate) const PROGRAM: usize = 18;
    /// [`super::Counter`]s begin here.
    pub(crate) const COUNTERS: usize = 64;
    /// [`super::Traffic`] of links that have ended begins here.
    pub(crate) const ENDED_TRAFFIC: usize = 128;
}

/// Number of links with a slot; further links are only counted.
pub(crate) const LINKS: usize = 4096;
pub(crate) const LINK_WORDS: usize = 32;
/// Number of virtual connections with a slot; further connections are only counted.
pub(crate) const CONNECTIONS: usize = 65_536;
pub(crate) const CONNECTION_WORDS: usize = 8;

/// Number of slots for which memory is allocated at a time: 16 KiB.
pub(crate) const LINKS_CHUNK: usize = 64;
pub(crate) const CONNECTIONS_CHUNK: usize = 256;

const LINKS_AT: usize = HEADER_WORDS;
const CONNECTIONS_AT: usize = LINKS_AT + LINKS * LINK_WORDS;
/// Number of words of the whole page.
pub(crate) const WORDS: usize = CONNECTIONS_AT + CONNECTIONS * CONNECTION_WORDS;

/// Words of a link's slot. Word 0 counts changes, and is odd while the slot is being changed.
pub(crate) mod link {
    /// 0 vacant, 1 authenticating, 2 established by a helper, 3 by a library client.
    pub(crate) const STATE: usize = 1;
    /// Three words, see [`super::address_words`].
    pub(crate) const PEER: usize = 2;
    pub(crate) const SINCE_NS: usize = 5;
    pub(crate) const KEY: usize = 6;
    /// Number of virtual connections on the link.
    pub(crate) const CONNECTIONS: usize = 7;
    /// [`super::Traffic`] begins here.
    pub(crate) const TRAFFIC: usize = 8;
    /// 1 once the link is established and encrypted.
    pub(crate) const ENCRYPTED: usize = 16;
    /// Number of virtual connections on the link that carry sessions, plus 1; 0 before the first batch and on pages of
    /// older versions, which did not write this word.
    pub(crate) const SESSIONS: usize = 17;
}

/// Words of a virtual connection's slot. Word 0 counts changes, and is odd while the slot is being changed.
pub(crate) mod connection {
    /// Three words, all zeros while the slot is vacant.
    pub(crate) const CLIENT: usize = 1;
    pub(crate) const SINCE_NS: usize = 4;
    /// The link's index in the upper half, and the connection's id on that link in the lower half.
    pub(crate) const LINK: usize = 5;
    pub(crate) const BYTES_RECEIVED: usize = 6;
    pub(crate) const BYTES_SENT: usize = 7;
}

/// The first word of a link's slot.
pub(crate) fn link_at(index: usize) -> usize {
    LINKS_AT + index * LINK_WORDS
}

/// The first word of a connection's slot.
pub(crate) fn connection_at(index: usize) -> usize {
    CONNECTIONS_AT + index * CONNECTION_WORDS
}

/// Whether links are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The link port is about to open.
    Opening,
    /// Links are accepted.
    On,
    /// Switched off; the links drain until their deadline.
    Draining,
    /// Switched off.
    Off,
}

impl State {
    pub(crate) fn word(self) -> u64 {
        match self {
            State::Opening => 0,
            State::On => 1,
            State::Draining => 2,
            State::Off => 3,
        }
    }

    pub(crate) fn of(word: u64) -> State {
        match word {
            1 => State::On,
            2 => State::Draining,
            3 => State::Off,
            _ => State::Opening,
        }
    }

    /// The name that operators read.
    pub fn name(self) -> &'static str {
        match self {
            State::Opening => "opening",
            State::On => "on",
            State::Draining => "draining",
            State::Off => "off",
        }
    }
}

/// A request to the server by a local process that may write the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Write each connection's bytes into the table.
    Refresh,
    /// Accept no more links; existing links drain within this time.
    Off {
        /// The time in milliseconds.
        within_ms: u32,
    },
    /// Accept links again.
    On,
    /// Set the operator's override of relief.
    SetOverride {
        /// The override.
        manual_override: Override,
        /// How long the override lasts, in seconds, less than 2²⁴; 0 for no limit.
        lasts_s: u32,
    },
}

/// The number of an override.
pub(crate) fn override_number(manual_override: Override) -> u64 {
    match manual_override {
        Override::Auto => 0,
        Override::On => 1,
        Override::Off => 2,
    }
}

/// The override with this number; `Auto` for unknown numbers.
pub(crate) fn override_of(word: u64) -> Override {
    match word {
        1 => Override::On,
        2 => Override::Off,
        _ => Override::Auto,
    }
}

/// Number of bits for the seconds in a request's argument; the override is in the bits above.
const SECONDS_BITS: u32 = 24;
const SECONDS_MAX: u32 = (1 << SECONDS_BITS) - 1;

impl Request {
    /// The request as one 64-bit word of the page. `sequence` tells two equal requests apart.
    pub(crate) fn word(self, sequence: u64) -> u64 {
        let (kind, argument) = match self {
            Request::Refresh => (1, 0),
            Request::Off { within_ms } => (2, within_ms),
            Request::On => (3, 0),
            Request::SetOverride { manual_override, lasts_s } => {
                (4, (override_number(manual_override) as u32) << SECONDS_BITS | lasts_s.min(SECONDS_MAX))
            }
        };
        kind << 56 | (sequence & 0xff_ffff) << 32 | u64::from(argument)
    }

    pub(crate) fn of(word: u64) -> Option<Request> {
        match word >> 56 {
            1 => Some(Request::Refresh),
            2 => Some(Request::Off { within_ms: word as u32 }),
            3 => Some(Request::On),
            4 => {
                let argument = word as u32;
                let manual_override = override_of((argument >> SECONDS_BITS).into());
                Some(Request::SetOverride { manual_override, lasts_s: argument & SECONDS_MAX })
            }
            _ => None,
        }
    }
}

/// The sequence number in a request's word.
pub(crate) fn sequence_of(word: u64) -> u64 {
    word >> 32 & 0xff_ffff
}

macro_rules! counters {
    ($(#[$attribute:meta])* $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$doc])* $variant,)*
        }

        impl $type {
            /// All of them, in the order of the page.
            pub const ALL: &[$type] = &[$($type::$variant),*];

            /// The name that programs read.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Events counted since the page was created.
    Counter {
        /// Links that authenticated.
        LinksAccepted = "links_accepted",
        /// Authenticated links that ended.
        LinksEnded = "links_ended",
        /// Links refused: too many.
        LinkFull = "link_full",
        /// Links dropped before they had authenticated, because newer ones came and too many were waiting.
        LinkEvicted = "link_strangers",
        /// Links refused: the key is not accepted, or not known to the peer.
        LinkKey = "link_key",
        /// Links refused: no version in common.
        LinkVersion = "link_version",
        /// Links refused: the peer did not authenticate in time.
        LinkTimeout = "link_timeout",
        /// Links refused: the peer sent no valid handshake, or ended the connection too early.
        LinkMalformed = "link_malformed",
        /// Links refused: helping is off.
        LinkOff = "link_off",
        /// Links refused: no descriptor is free for them, or the socket cannot be watched.
        LinkDescriptors = "link_descriptors",
        /// Virtual connections queued for the application to accept.
        ConnectionsAccepted = "connections_accepted",
        /// Virtual connections refused: the client's address is not allowed.
        ConnectionForbidden = "connection_forbidden",
        /// Virtual connections refused: too many, or too many wait to be accepted.
        ConnectionFull = "connection_full",
        /// Virtual connections refused: the application does not listen any more.
        ConnectionUnserved = "connection_unserved",
        /// Sessions resumed, on another link or the same.
        SessionsResumed = "sessions_resumed",
        /// Sessions refused: they are over or of an earlier start of this server, or the first message is old or does
        /// not match.
        SessionRefused = "session_refused",
        /// Helped sessions sent back to the server's port because the load had become low.
        SessionsReleased = "sessions_released",
        /// Log lines that were not written: too many within a second, or standard error had no room.
        LogLinesDropped = "log_lines_dropped",
    }
}

counters! {
    /// Traffic of a link.
    Traffic {
        /// Batches received: receives that found messages.
        BatchesReceived = "batches_received",
        /// Batches sent.
        BatchesSent = "batches_sent",
        /// Messages received.
        MessagesReceived = "messages_received",
        /// Messages sent.
        MessagesSent = "messages_sent",
        /// Bytes of requests received.
        BytesReceived = "bytes_received",
        /// Bytes sent, headers and control included.
        BytesSent = "bytes_sent",
        /// Number of times that a reply had to wait for credit, or for room on the link.
        Stalls = "credit_stalls",
        /// Frames ignored because their connections had ended.
        UnknownFrames = "strays",
    }
}

/// An address as three words. No address is all zeros.
pub(crate) fn address_words(address: SocketAddr) -> [u64; 3] {
    let (kind, ip) = match address.ip() {
        IpAddr::V4(v4) => (4, v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => (6, v6),
    };
    let bits = ip.to_bits();
    [(bits >> 64) as u64, bits as u64, kind << 32 | u64::from(address.port())]
}

/// The address in three words; `None` if they hold none.
pub(crate) fn address_of(words: [u64; 3]) -> Option<SocketAddr> {
    let ip = Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1]));
    let ip = match words[2] >> 32 {
        4 => IpAddr::V4(ip.to_ipv4_mapped()?),
        6 => IpAddr::V6(ip),
        _ => return None,
    };
    Some(SocketAddr::new(ip, words[2] as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        for text in ["192.0.2.7:11211", "[2001:db8::1]:65535", "[::ffff:10.0.0.1]:1", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(address_of(address_words(address)), Some(address));
        }
        assert_eq!(address_of([0; 3]), None);
    }

    #[test]
    fn requests_survive_a_round_trip_and_differ_by_sequence_number() {
        let overrides = [Override::Auto, Override::On, Override::Off]
            .map(|manual_override| Request::SetOverride { manual_override, lasts_s: SECONDS_MAX });
        let others = [Request::Refresh, Request::Off { within_ms: u32::MAX }, Request::On];
        for request in others.into_iter().chain(overrides) {
            let word = request.word(0xff_ffff);
            assert_eq!((Request::of(word), sequence_of(word)), (Some(request), 0xff_ffff));
            assert_ne!(word, request.word(7));
        }
        assert_eq!(Request::of(0), None);
        assert_eq!(Request::of(u64::MAX), None);
    }

    #[test]
    fn words_of_the_page_do_not_overlap() {
        assert!(header::COUNTERS + Counter::ALL.len() <= header::ENDED_TRAFFIC);
        assert!(header::ENDED_TRAFFIC + Traffic::ALL.len() <= HEADER_WORDS);
        assert!(link::TRAFFIC + Traffic::ALL.len() <= link::ENCRYPTED && link::ENCRYPTED < LINK_WORDS);
        assert_eq!(link_at(LINKS), connection_at(0));
        assert_eq!(connection_at(CONNECTIONS), WORDS);
    }
}
