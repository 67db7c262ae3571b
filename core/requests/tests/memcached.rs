//! Conversations with memcached.

mod world;

use spillway_requests::{GaveUp, OUTSTANDING_MAX, Protocol};
use spillway_transport::Time;
use world::{Step, answers, asks, expect, expect_gave_up, outcome};

const M: Protocol = Protocol::Memcached;

#[test]
fn classic_commands() {
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
        ("touch a 0\r\n", "TOUCHED\r\n"),
        ("version\r\n", "VERSION 1.6.18\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("\r\n", "ERROR\r\n"),
        ("get a\r\n", "SERVER_ERROR out of memory writing get response\r\n"),
        ("get a\r\n", "VALUE a 0 1\r\nx\r\nSERVER_ERROR out of memory\r\n"),
        ("incr a x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
    ] {
        if reply.is_empty() {
            let outcome = outcome(M, &[asks(request)]);
            assert_eq!((outcome.gave_up, outcome.is_idle, outcome.pending_since), (None, Some(false), None));
            continue;
        }
        expect(M, &[asks(request), answers(reply)], &[10]);
        let waits = outcome(M, &[asks(request), answers(&reply[..reply.len() - 1])]);
        assert_eq!((waits.latencies.len(), waits.pending_since), (0, Some(Time(0))), "{request:?}");
    }
}

#[test]
fn operators_commands_are_not_measured() {
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
        expect(M, &[asks(request), answers(reply)], &[0]);
    }
    for request in ["watch fetchers\r\n", "lru_crawler metadump all\r\n", "lru_crawler mgdump all\r\n"] {
        expect_gave_up(M, &[asks(request), answers("OK\r\n")], GaveUp::Stream);
    }
}

#[test]
fn quiet_commands_are_not_awaited() {
    let set = "set a 0 0 1 noreply\r\nx\r\n";
    expect(M, &[asks(set)], &[]);
    expect(M, &[asks(set.repeat(3 * OUTSTANDING_MAX) + "get a\r\n"), answers("END\r\n")], &[10]);
    expect(M, &[asks("delete a noreply\r\n"), asks("quit\r\n")], &[]);
    // An error line does not say which request it belongs to.
    let error = "SERVER_ERROR object too large for cache\r\n";
    expect(M, &[asks(set), answers(error)], &[]);
    expect_gave_up(M, &[asks(set), asks("get a\r\n"), answers(error)], GaveUp::Ambiguous);
    // In this command, `noreply` is a key.
    expect(M, &[asks("get noreply\r\n"), answers("END\r\n")], &[10]);
}

#[test]
fn meta_commands() {
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
        expect(M, &[asks(request), answers(reply)], &[10]);
    }
    // Quiet requests are complete when a later request is answered.
    let pipe = "mg a q v\r\nmg b v q\r\nms c 1 q\r\nx\r\nmd d q\r\nmn\r\n";
    for reply in ["MN\r\n", "VA 1\r\nx\r\nMN\r\n", "VA 1\r\nx\r\nVA 1\r\ny\r\nNS\r\nMN\r\n"] {
        expect(M, &[asks(pipe), answers(reply)], &[10]);
    }
    let unclear = [asks("mg a q v\r\nmg b v\r\n"), answers("VA 1\r\nx\r\n")];
    expect_gave_up(M, &unclear, GaveUp::Ambiguous);
    // In this command, `q` is a key and not the quiet flag.
    expect(M, &[asks("mg q v\r\n"), answers("EN\r\n")], &[10]);
}

#[test]
fn pipelines_are_answered_in_order() {
    let steps = [
        asks("get a\r\nset b 0 0 1\r\nx\r\n"),
        asks("get b\r\nget c\r\n"),
        answers("END\r\nSTO"),
        answers("RED\r\nVALUE b 0 1\r\nx\r\nEND\r\nEND\r\n"),
    ];
    expect(M, &steps, &[20, 30, 20, 20]);
    let deep = "get a\r\n".repeat(10 * OUTSTANDING_MAX);
    let replies = "END\r\n".repeat(10 * OUTSTANDING_MAX);
    expect(M, &[asks(deep), answers(replies)], &vec![10; 10 * OUTSTANDING_MAX]);
}

#[test]
fn too_many_groups_of_requests_stop_the_tracking() {
    let mut steps: Vec<Step> = (0..OUTSTANDING_MAX).map(|_| asks("get a\r\n")).collect();
    assert_eq!(outcome(M, &steps).gave_up, None);
    steps.push(asks("get a\r\n"));
    expect_gave_up(M, &steps, GaveUp::TooManyOutstanding);
}

#[test]
fn malformed_streams_stop_the_tracking() {
    let long = format!("set {} 0 0 1\r\n", "k".repeat(251));
    for (request, why) in [
        ("GET / HTTP/1.1\r\n", GaveUp::UnknownCommand),
        ("frobnicate\r\n", GaveUp::UnknownCommand),
        ("set a 0 0 x\r\n", GaveUp::Syntax),
        ("set a 0 0 -1\r\n", GaveUp::Syntax),
        ("set a 0 0\r\n", GaveUp::Syntax),
        ("set a 0 0 1\r\nxy\r\n", GaveUp::Syntax),
        ("ms a S1\r\n", GaveUp::Syntax),
        ("get a\rb\r\n", GaveUp::Syntax),
        (&long, GaveUp::Syntax),
    ] {
        expect_gave_up(M, &[asks(request)], why);
    }
    expect_gave_up(M, &[answers("ERROR Too many open connections\r\n")], GaveUp::UnsolicitedReply);
    expect_gave_up(M, &[asks("get a\r\n"), answers("STORED\r\n")], GaveUp::UnsolicitedReply);
    expect_gave_up(M, &[asks("get a\r\n"), answers("END\r\nEND\r\n")], GaveUp::UnsolicitedReply);
    expect_gave_up(M, &[asks("get a\r\n"), answers("VALUE a 0\r\n")], GaveUp::Syntax);
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
fn the_binary_protocol() {
    let (get, getq, setq, noop, stat) = (0x00, 0x09, 0x11, 0x0a, 0x10);
    expect(M, &[asks(request(get, "a")), answers(reply(get, "value"))], &[10]);
    // Quiet requests with and without replies, up to a request that must have one.
    let many = [request(getq, "a"), request(getq, "b"), request(setq, "c"), request(noop, "")].concat();
    for replies in [
        vec![reply(noop, "")],
        vec![reply(getq, "x"), reply(noop, "")],
        vec![reply(getq, "x"), reply(getq, "y"), packet(0x81, setq, "", 3, "too large"), reply(noop, "")],
    ] {
        expect(M, &[asks(&many), answers(replies.concat())], &[10]);
    }
    let last = [request(getq, "a"), request(get, "b")].concat();
    expect(M, &[asks(last), answers([reply(getq, "x"), reply(get, "y")].concat())], &[10]);
    let statistics = [packet(0x81, stat, "pid", 0, "1"), packet(0x81, stat, "", 0, "")].concat();
    expect(M, &[asks(request(stat, "")), answers(statistics)], &[0]);
    expect(M, &[asks(request(0x07, "")), answers(reply(0x07, ""))], &[0]);
    expect(M, &[asks(request(0x17, ""))], &[]);
    expect_gave_up(M, &[asks(request(0x77, ""))], GaveUp::UnknownCommand);
    expect_gave_up(M, &[asks([request(get, "a"), b"get a\r\n".to_vec()].concat())], GaveUp::Syntax);
    expect_gave_up(M, &[asks(request(get, "a")), answers("END\r\n")], GaveUp::Syntax);
    expect_gave_up(M, &[asks(request(get, "a")), answers(reply(noop, ""))], GaveUp::UnsolicitedReply);
}
