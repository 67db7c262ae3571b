//! Conversations with redis.

mod world;

use spillway_requests::{GaveUp, OUTSTANDING_MAX, Protocol};
use spillway_transport::Time;
use world::{answers, asks, expect, expect_gave_up, outcome};

const R: Protocol = Protocol::Redis;

fn command(words: &[&str]) -> String {
    let each: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{each}", words.len())
}

#[test]
fn requests_in_arrays_and_in_lines() {
    for request in [
        command(&["GET", "a"]),
        command(&["SET", "a", "line\r\nline\r\n"]),
        command(&["SET", "", ""]),
        command(&["get"]),
        "PING\r\n".to_owned(),
        "set a 1\n".to_owned(),
        "\r\n\r\n*0\r\n*-1\r\nPING\r\n".to_owned(),
        command(&["NO.SUCH.MODULE.COMMAND.AT.ALL", "x"]),
    ] {
        expect(R, &[asks(&request), answers("+OK\r\n")], &[10]);
        let part = outcome(R, &[asks(&request[..request.len() - 1])]);
        assert_eq!((part.pending_since, part.is_idle), (None, Some(false)), "{request:?}");
    }
    expect(R, &[asks("\r\n*0\r\n")], &[]);
}

#[test]
fn blocking_commands_and_those_behind_them_are_not_measured() {
    for words in [
        &["BLPOP", "a", "0"][..],
        &["brpop", "a", "1"],
        &["BLMOVE", "a", "b", "LEFT", "LEFT", "0"],
        &["BLMPOP", "0", "1", "a", "LEFT"],
        &["BZPOPMIN", "a", "0"],
        &["BZMPOP", "0", "1", "a", "MIN"],
        &["XREAD", "COUNT", "1", "BLOCK", "0", "STREAMS", "a", "$"],
        &["xreadgroup", "GROUP", "g", "c", "block", "0", "STREAMS", "a", ">"],
        &["WAIT", "1", "0"],
        &["WAITAOF", "1", "0", "0"],
        &["CLIENT", "PAUSE", "100"],
        &["DEBUG", "SLEEP", "1"],
    ] {
        let blocks = command(words);
        let lone = outcome(R, &[asks(&blocks)]);
        assert_eq!((lone.pending_since, lone.is_idle), (None, Some(false)), "{words:?}");
        let steps =
            [asks("PING\r\n".to_owned() + &blocks + "PING\r\n"), answers("+PONG\r\n*-1\r\n+PONG\r\n")];
        expect(R, &steps, &[10, 0, 0]);
        expect(R, &[asks(words.join(" ") + "\r\n"), answers("*-1\r\n")], &[0]);
    }
    expect(R, &[asks(command(&["XREAD", "STREAMS", "BLOCK", "0"])), answers("*-1\r\n")], &[10]);
    expect(R, &[asks(command(&["CLIENT", "LIST"])), answers("$0\r\n\r\n")], &[10]);
    expect(R, &[asks(command(&["SET", "BLPOP", "PAUSE"])), answers("+OK\r\n")], &[10]);
    expect(R, &[asks(command(&["FLUSHALL"])), answers("+OK\r\n")], &[0]);
}

#[test]
fn transactions_and_nested_replies() {
    let steps = [
        asks(command(&["MULTI"]) + &command(&["INCR", "a"]) + &command(&["EXEC"])),
        answers("+OK\r\n+QUEUED\r\n"),
        answers("*2\r\n:1\r\n%1\r\n+a\r\n*2\r\n$-1\r\n_\r\n"),
    ];
    expect(R, &steps, &[10, 10, 20]);
    // Push messages are not replies.
    let push = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n";
    expect(
        R,
        &[asks("GET a\r\nGET b\r\n"), answers(format!("{push}$-1\r\n{push}{push}$-1\r\n{push}"))],
        &[10, 10],
    );
    let pipe = command(&["GET", "a"]).repeat(5000);
    expect(R, &[asks(pipe), answers("$1\r\nx\r\n".repeat(5000))], &vec![10; 5000]);
}

#[test]
fn subscriptions_and_disabled_replies_stop_the_tracking() {
    for words in [
        &["SUBSCRIBE", "a"][..],
        &["psubscribe", "a*"],
        &["SSUBSCRIBE", "a"],
        &["MONITOR"],
        &["PSYNC", "?", "-1"],
    ] {
        expect_gave_up(R, &[asks(command(words)), answers("+OK\r\n")], GaveUp::Stream);
    }
    for mode in ["OFF", "SKIP", "ON"] {
        expect_gave_up(R, &[asks(command(&["CLIENT", "reply", mode]))], GaveUp::RepliesOff);
    }
}

#[test]
fn malformed_streams_stop_the_tracking() {
    for request in ["*x\r\n", "*1\r\nGET\r\n", "*1\r\n$x\r\n", "*1\r\n$-1\r\n", "*1\rx", "a\rb\r\n"] {
        expect_gave_up(R, &[asks(request)], GaveUp::Syntax);
    }
    expect_gave_up(R, &[answers("-DENIED Redis is running in protected mode\r\n")], GaveUp::UnsolicitedReply);
    expect_gave_up(R, &[asks("PING\r\n"), answers("PONG\r\n")], GaveUp::Syntax);
    let mut steps: Vec<_> = (0..OUTSTANDING_MAX).map(|_| asks("PING\r\n")).collect();
    assert_eq!(outcome(R, &steps).pending_since, Some(Time(0)));
    steps.push(asks("PING\r\n"));
    expect_gave_up(R, &steps, GaveUp::TooManyOutstanding);
}
