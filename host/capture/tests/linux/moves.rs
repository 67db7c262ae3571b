//! Moves in each situation of a request, and with each set of negotiated options.

use std::net::TcpStream;
use std::os::fd::OwnedFd;

use rustix::net::sockopt;

use crate::cable::{Cable, Family, wait_until};
use crate::kernel::{info, unacknowledged, unsent};
use crate::moving::{Moving, assert_unseen, moves};
use crate::stream::{Pattern, unread};

/// Bits of `tcpi_options`.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;

/// What the connection has negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variety {
    Usual,
    WithoutSack,
    WithoutTimestamps,
    WithoutScale,
    Ipv6,
}

impl Variety {
    fn cable(self, name: &str) -> Cable {
        let (family, sysctl) = match self {
            Variety::Usual => (Family::V4, None),
            Variety::WithoutSack => (Family::V4, Some("net/ipv4/tcp_sack")),
            Variety::WithoutTimestamps => (Family::V4, Some("net/ipv4/tcp_timestamps")),
            Variety::WithoutScale => (Family::V4, Some("net/ipv4/tcp_window_scaling")),
            Variety::Ipv6 => (Family::V6, None),
        };
        let sysctls: Vec<_> = sysctl.map(|name| (name, "0")).into_iter().collect();
        let short = match self {
            Variety::Usual => "u",
            Variety::WithoutSack => "s",
            Variety::WithoutTimestamps => "t",
            Variety::WithoutScale => "w",
            Variety::Ipv6 => "6",
        };
        Cable::new(&format!("cap-{name}-{short}"), family, &sysctls)
    }

    /// Bytes of data in the longest segment, in packets of 1,500 bytes.
    fn segment_bytes(self) -> usize {
        match self {
            Variety::Ipv6 => 1_428,
            Variety::WithoutTimestamps => 1_460,
            _ => 1_448,
        }
    }

    /// Checks that a socket has negotiated this.
    fn check(self, stream: &TcpStream) {
        let info = info(stream);
        let has = |bit| info.tcpi_options & bit != 0;
        assert_eq!(has(SACK), self != Variety::WithoutSack);
        assert_eq!(has(TIMESTAMPS), self != Variety::WithoutTimestamps);
        assert_eq!(info.tcpi_snd_rcv_wscale == 0, self == Variety::WithoutScale);
    }
}

/// The two directions of a connection.
struct Streams {
    client: TcpStream,
    requests: (Pattern, Pattern),
    replies: (Pattern, Pattern),
}

impl Streams {
    fn request(&mut self, length: usize) {
        self.requests.0.write(&self.client, length);
    }

    fn take_request(&mut self, server: &TcpStream, length: usize) {
        self.requests.1.read(server, length);
    }

    fn reply(&mut self, server: &TcpStream, length: usize) {
        self.replies.0.write(server, length);
    }

    fn take_reply(&mut self, length: usize) {
        self.replies.1.read(&self.client, length);
    }
}

/// Moves one connection many times: `before` brings it into the situation, `after` continues. Returns the bytes of the longest
/// segment that moved sockets have sent.
fn repeat(
    name: &str,
    variety: Variety,
    prepare: impl Fn(&OwnedFd) + Send + Sync,
    before: impl Fn(&mut Streams, &TcpStream) + Send + Sync,
    after: impl Fn(&mut Streams, &TcpStream) + Send + Sync,
) -> usize {
    let cable = variety.cable(name);
    let (client, server) = cable.connection(&prepare);
    let work = || {
        let patterns = |seed| (Pattern::new(seed), Pattern::new(seed));
        let mut streams = Streams { client, requests: patterns(1), replies: patterns(2) };
        let mut moving = Moving::new(&cable, server);
        let mut longest = 0;
        for _ in 0..moves() {
            variety.check(&moving.stream);
            before(&mut streams, &moving.stream);
            let scales = info(&moving.stream).tcpi_snd_rcv_wscale;
            cable.longest_segment();
            (moving, _) = moving.step();
            assert_eq!(info(&moving.stream).tcpi_snd_rcv_wscale, scales);
            after(&mut streams, &moving.stream);
            longest = longest.max(cable.longest_segment());
        }
        longest
    };
    let longest = cable.server.run_inside(work).unwrap();
    assert_unseen(&cable);
    longest
}

fn idle(variety: Variety) {
    let nothing = |_: &mut Streams, _: &TcpStream| {};
    repeat(
        "idle",
        variety,
        |_| {},
        nothing,
        |streams, server| {
            streams.request(1_000);
            streams.take_request(server, 1_000);
            streams.reply(server, 4_000);
            streams.take_reply(4_000);
        },
    );
}

fn mid_request(variety: Variety) {
    let before = |streams: &mut Streams, server: &TcpStream| {
        streams.request(700);
        streams.take_request(server, 700);
    };
    repeat(
        "mid",
        variety,
        |_| {},
        before,
        |streams, server| {
            streams.request(3_000);
            streams.take_request(server, 3_000);
            streams.reply(server, 1_000);
            streams.take_reply(1_000);
        },
    );
}

fn unread_bytes(variety: Variety) {
    const BYTES: usize = 20_000;
    let before = |streams: &mut Streams, server: &TcpStream| {
        streams.request(BYTES);
        wait_until("the request arrives", || unread(server) == BYTES as u64);
    };
    repeat(
        "unread",
        variety,
        |_| {},
        before,
        |streams, server| {
            assert_eq!(unread(server), BYTES as u64);
            streams.request(100);
            streams.take_request(server, BYTES + 100);
            streams.reply(server, 100);
            streams.take_reply(100);
        },
    );
}

fn small_receive_buffer(client: &OwnedFd) {
    sockopt::set_socket_recv_buffer_size(client, 16 << 10).unwrap();
}

fn large_send_buffer(server: &TcpStream) {
    sockopt::set_socket_send_buffer_size(server, 1 << 20).unwrap();
}

fn much_unsent(variety: Variety) {
    const BYTES: usize = 400 << 10;
    let before = |streams: &mut Streams, server: &TcpStream| {
        large_send_buffer(server);
        streams.reply(server, BYTES);
        assert!(unsent(server) >= 256 << 10);
    };
    let longest = repeat("unsent", variety, small_receive_buffer, before, |streams, server| {
        streams.take_reply(BYTES);
        streams.request(10);
        streams.take_request(server, 10);
    });
    assert_eq!(longest, variety.segment_bytes(), "segments are as long as before a move");
}

fn closed_window(variety: Variety) {
    const BYTES: usize = 100 << 10;
    let before = |streams: &mut Streams, server: &TcpStream| {
        large_send_buffer(server);
        streams.reply(server, BYTES);
        wait_until("the window closes", || unacknowledged(server) == unsent(server));
        assert!(unsent(server) > 0);
    };
    repeat("closed", variety, small_receive_buffer, before, |streams, server| {
        streams.take_reply(BYTES);
        streams.request(10);
        streams.take_request(server, 10);
    });
}

/// Makes a test of each situation and each set of options.
macro_rules! situations {
    ($($situation:ident,)*) => {
        $(mod $situation {
            use super::Variety;

            #[test]
            fn usual() {
                if !crate::cable::skipped() {
                    super::$situation(Variety::Usual);
                }
            }

            #[test]
            fn without_sack() {
                if !crate::cable::skipped() {
                    super::$situation(Variety::WithoutSack);
                }
            }

            #[test]
            fn without_timestamps() {
                if !crate::cable::skipped() {
                    super::$situation(Variety::WithoutTimestamps);
                }
            }

            #[test]
            fn without_window_scale() {
                if !crate::cable::skipped() {
                    super::$situation(Variety::WithoutScale);
                }
            }

            #[test]
            fn over_ipv6() {
                if !crate::cable::skipped() {
                    super::$situation(Variety::Ipv6);
                }
            }
        })*
    };
}

situations! {
    idle,
    mid_request,
    unread_bytes,
    much_unsent,
    closed_window,
}
