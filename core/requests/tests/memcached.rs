//! Conversations with memcached.

mod world;

use spillway_requests::{OUTSTANDING_MAX, Protocol, StopReason};
use spillway_transport::Time;
use world::{Step, expect_latencies, expect_stop_reason, from_client, from_server, outcome};

const MEMCACHED: Protocol = Protocol::Memcached;

#[test]
fn replies_to_classic_commands_are_measured() {
    for (request, reply) in [
        ("get a\r\n", "END\r\n"),
        ("get a b c\r\n", "VALUE a 0 5\r\nEND\r\n\r\nVALUE b 1 0\r\n\r\nEND\r\n"),
        ("gets a\r\n", "VALUE a 0 1 77\r\nx\r\nEND\r\n"),
        ("gat 10 a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n"),
        ("gats 10 a\n", "END\r\n"),
        ("set a 0 0 5\r\nget \r\r\n", "STORED\r\n"),
        ("set a 0 0 0\r\n\r\n", "STORED\r\n"),
        ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("cas a 0 0 1 77\r\nx\r\n", "EXISTS\r\n"),
        ("set a 0 0 9999999\r\n", ""),
        ("incr a 1\r\n", "2\r\n"),
        ("decr a 1\r\n", "1 \r\n"),
        ("delete a\r\n", "NOT_FOUND\r\n"),
        ("delete noreply\r\n", "NOT_FOUND\r\n"),
        ("touch a 0\r\n", "TOUCHED\r\n"),
        ("version\r\n", "VERSION 1.6.18\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("\r\n", "ERROR\r\n"),
        ("get a\r\n", "SERVER_ERROR out of memory writing get response\r\n"),
        ("get a\r\n", "VALUE a 0 1\r\nx\r\nSERVER_ERROR out of memory\r\n"),
        ("incr a x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
    ] {
        if reply.is_empty() {
            let outcome = outcome(MEMCACHED, &[from_client(request)]);
            assert_eq!(
                (outcome.stop_reason, outcome.is_idle, outcome.pending_since),
                (None, Some(false), None)
            );
            continue;
        }
        expect_latencies(MEMCACHED, &[from_client(request), from_server(reply)], &[10]);
        let incomplete = outcome(MEMCACHED, &[from_client(request), from_server(&reply[..reply.len() - 1])]);
        assert_eq!(
            (incomplete.latencies.len(), incomplete.pending_since),
            (0, Some(Time(0))),
            "an incomplete reply should not end the request {request:?}"
        );
    }
}

#[test]
fn administration_commands_are_not_measured() {
    for (request, reply) in [
        ("stats\r\n", "STAT pid 1\r\nSTAT version OK\r\nEND\r\n"),
        ("stats reset\r\n", "RESET\r\n"),
        ("stats detail on\r\n", "OK\r\n"),
        ("stats detail dump\r\n", "PREFIX a get 1 hit 1 set 1 del 0\r\nEND\r\n"),
        ("stats cachedump 1 1\r\n", "ITEM a [1 b; 0 s]\r\nEND\r\n"),
        ("verbosity 1\r\n", "OK\r\n"),
        ("flush_all\r\n", "OK\r\n"),
        ("cache_memlimit 64\r\n", "OK\r\n"),
        ("lru tune 10 25 0.1 2.0\r\n", "OK\r\n"),
        ("lru_crawler crawl all\r\n", "BUSY currently processing crawler request\r\n"),
        ("slabs automove 0\r\n", "OK\r\n"),
    ] {
        expect_latencies(MEMCACHED, &[from_client(request), from_server(reply)], &[0]);
    }
    for request in ["watch fetchers\r\n", "lru_crawler metadump all\r\n", "lru_crawler mgdump all\r\n"] {
        expect_stop_reason(MEMCACHED, &[from_client(request), from_server("OK\r\n")], StopReason::Stream);
    }
}

#[test]
fn quiet_commands_may_have_no_reply() {
    let set = "set a 0 0 1 noreply\r\nx\r\n";
    expect_latencies(MEMCACHED, &[from_client(set)], &[]);
    expect_latencies(
        MEMCACHED,
        &[from_client(set.repeat(3 * OUTSTANDING_MAX) + "get a\r\n"), from_server("END\r\n")],
        &[10],
    );
    expect_latencies(MEMCACHED, &[from_client("delete a noreply\r\n"), from_client("quit\r\n")], &[]);
    // An error line may belong to the quiet request or to the next one.
    let error = "SERVER_ERROR object too large for cache\r\n";
    expect_latencies(MEMCACHED, &[from_client(set), from_server(error)], &[]);
    expect_stop_reason(
        MEMCACHED,
        &[from_client(set), from_client("get a\r\n"), from_server(error)],
        StopReason::Ambiguous,
    );
    // In this command, `noreply` is a key.
    expect_latencies(MEMCACHED, &[from_client("get noreply\r\n"), from_server("END\r\n")], &[10]);
}

#[test]
fn replies_to_meta_commands_are_measured() {
    for (request, reply) in [
        ("mg a v\r\n", "VA 5\r\nEN\r\n1\r\n"),
        ("mg a s v t\r\n", "VA 0 s0 t-1\r\n\r\n"),
        ("mg a\r\n", "EN\r\n"),
        ("mg a t\r\n", "HD t-1\r\n"),
        ("ms a 5 T0\r\nhello\r\n", "HD\r\n"),
        ("ms a 2\r\nqq\r\n", "NS\r\n"),
        ("md a\r\n", "NF\r\n"),
        ("ma a v\r\n", "VA 2\r\n10\r\n"),
        ("me a\r\n", "ME a exp=-1 la=1\r\n"),
        ("mn\r\n", "MN\r\n"),
        ("mg\r\n", "CLIENT_ERROR bad command line format\r\n"),
    ] {
        expect_latencies(MEMCACHED, &[from_client(request), from_server(reply)], &[10]);
    }
    // Quiet requests are complete when a later request is answered.
    let pipeline = "mg a q v\r\nmg b v q\r\nms c 1 q\r\nx\r\nmd d q\r\nmn\r\n";
    for reply in ["MN\r\n", "VA 1\r\nx\r\nMN\r\n", "VA 1\r\nx\r\nVA 1\r\ny\r\nNS\r\nMN\r\n"] {
        expect_latencies(MEMCACHED, &[from_client(pipeline), from_server(reply)], &[10]);
    }
    let ambiguous = [from_client("mg a q v\r\nmg b v\r\n"), from_server("VA 1\r\nx\r\n")];
    expect_stop_reason(MEMCACHED, &ambiguous, StopReason::Ambiguous);
    // In this command, `q` is a key and not the quiet flag.
    expect_latencies(MEMCACHED, &[from_client("mg q v\r\n"), from_server("EN\r\n")], &[10]);
}

#[test]
fn replies_to_pipelined_requests_are_matched_in_order() {
    let steps = [
        from_client("get a\r\nset b 0 0 1\r\nx\r\n"),
        from_client("get b\r\nget c\r\n"),
        from_server("END\r\nSTO"),
        from_server("RED\r\nVALUE b 0 1\r\nx\r\nEND\r\nEND\r\n"),
    ];
    expect_latencies(MEMCACHED, &steps, &[20, 30, 20, 20]);
    let requests = "get a\r\n".repeat(10 * OUTSTANDING_MAX);
    let replies = "END\r\n".repeat(10 * OUTSTANDING_MAX);
    expect_latencies(
        MEMCACHED,
        &[from_client(requests), from_server(replies)],
        &vec![10; 10 * OUTSTANDING_MAX],
    );
}

#[test]
fn too_many_groups_of_requests_stop_the_tracking() {
    let mut steps: Vec<Step> = (0..OUTSTANDING_MAX).map(|_| from_client("get a\r\n")).collect();
    assert_eq!(outcome(MEMCACHED, &steps).stop_reason, None);
    steps.push(from_client("get a\r\n"));
    expect_stop_reason(MEMCACHED, &steps, StopReason::TooManyOutstanding);
}

#[test]
fn malformed_streams_stop_the_tracking() {
    let long_key = format!("set {} 0 0 1\r\n", "k".repeat(251));
    for (request, reason) in [
        ("GET / HTTP/1.1\r\n", StopReason::UnknownCommand),
        ("frobnicate\r\n", StopReason::UnknownCommand),
        ("set a 0 0 x\r\n", StopReason::Syntax),
        ("set a 0 0 -1\r\n", StopReason::Syntax),
        ("set a 0 0\r\n", StopReason::Syntax),
        ("set a 0 0 1\r\nxy\r\n", StopReason::Syntax),
        ("ms a S1\r\n", StopReason::Syntax),
        ("get a\rb\r\n", StopReason::Syntax),
        (&long_key, StopReason::Syntax),
    ] {
        expect_stop_reason(MEMCACHED, &[from_client(request)], reason);
    }
    expect_stop_reason(
        MEMCACHED,
        &[from_server("ERROR Too many open connections\r\n")],
        StopReason::UnsolicitedReply,
    );
    expect_stop_reason(
        MEMCACHED,
        &[from_client("get a\r\n"), from_server("STORED\r\n")],
        StopReason::UnsolicitedReply,
    );
    expect_stop_reason(
        MEMCACHED,
        &[from_client("get a\r\n"), from_server("END\r\nEND\r\n")],
        StopReason::UnsolicitedReply,
    );
    expect_stop_reason(
        MEMCACHED,
        &[from_client("get a\r\n"), from_server("VALUE a 0\r\n")],
        StopReason::Syntax,
    );
}

fn packet(magic: u8, opcode: u8, key: &str, status: u16, value: &str) -> Vec<u8> {
    let (key_length, body) = (key.len() as u16, (key.len() + value.len()) as u32);
    let mut bytes = vec![magic, opcode];
    bytes.extend(key_length.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(status.to_be_bytes());
    bytes.extend(body.to_be_bytes());
    bytes.extend([0; 12]);
    bytes.extend(key.bytes().chain(value.bytes()));
    bytes
}

fn request(opcode: u8, key: &str) -> Vec<u8> {
    packet(0x80, opcode, key, 0, "")
}

fn reply(opcode: u8, value: &str) -> Vec<u8> {
    packet(0x81, opcode, "", 0, value)
}

#[test]
fn replies_of_the_binary_protocol_are_matched() {
    let (get, getq, setq, noop, stat) = (0x00, 0x09, 0x11, 0x0a, 0x10);
    let (quit, quitq, unknown) = (0x07, 0x17, 0x77);
    expect_latencies(MEMCACHED, &[from_client(request(get, "a")), from_server(reply(get, "value"))], &[10]);
    // Quiet requests with and without replies, up to a request that must have one.
    let pipeline = [request(getq, "a"), request(getq, "b"), request(setq, "c"), request(noop, "")].concat();
    for replies in [
        vec![reply(noop, "")],
        vec![reply(getq, "x"), reply(noop, "")],
        vec![reply(getq, "x"), reply(getq, "y"), packet(0x81, setq, "", 3, "too large"), reply(noop, "")],
    ] {
        expect_latencies(MEMCACHED, &[from_client(&pipeline), from_server(replies.concat())], &[10]);
    }
    let quiet_and_get = [request(getq, "a"), request(get, "b")].concat();
    expect_latencies(
        MEMCACHED,
        &[from_client(quiet_and_get), from_server([reply(getq, "x"), reply(get, "y")].concat())],
        &[10],
    );
    let statistics = [packet(0x81, stat, "pid", 0, "1"), packet(0x81, stat, "", 0, "")].concat();
    expect_latencies(MEMCACHED, &[from_client(request(stat, "")), from_server(statistics)], &[0]);
    expect_latencies(MEMCACHED, &[from_client(request(quit, "")), from_server(reply(quit, ""))], &[0]);
    expect_latencies(MEMCACHED, &[from_client(request(quitq, ""))], &[]);
    expect_stop_reason(MEMCACHED, &[from_client(request(unknown, ""))], StopReason::UnknownCommand);
    expect_stop_reason(
        MEMCACHED,
        &[from_client([request(get, "a"), b"get a\r\n".to_vec()].concat())],
        StopReason::Syntax,
    );
    expect_stop_reason(
        MEMCACHED,
        &[from_client(request(get, "a")), from_server("END\r\n")],
        StopReason::Syntax,
    );
    expect_stop_reason(
        MEMCACHED,
        &[from_client(request(get, "a")), from_server(reply(noop, ""))],
        StopReason::UnsolicitedReply,
    );
}
