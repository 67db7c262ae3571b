//! Conversations with redis.

mod world;

use spillway_requests::{OUTSTANDING_MAX, Protocol, StopReason};
use spillway_transport::Time;
use world::{expect_latencies, expect_stop_reason, from_client, from_server, outcome};

const REDIS: Protocol = Protocol::Redis;

fn command(words: &[&str]) -> String {
    let bulk_strings: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{bulk_strings}", words.len())
}

#[test]
fn requests_as_arrays_and_as_lines_are_measured() {
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
        expect_latencies(REDIS, &[from_client(&request), from_server("+OK\r\n")], &[10]);
        let incomplete = outcome(REDIS, &[from_client(&request[..request.len() - 1])]);
        assert_eq!(
            (incomplete.pending_since, incomplete.is_idle),
            (None, Some(false)),
            "an incomplete request should not be pending: {request:?}"
        );
    }
    expect_latencies(REDIS, &[from_client("\r\n*0\r\n")], &[]);
}

#[test]
fn blocking_commands_and_requests_after_them_are_not_measured() {
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
        let blocking = command(words);
        let unanswered = outcome(REDIS, &[from_client(&blocking)]);
        assert_eq!(
            (unanswered.pending_since, unanswered.is_idle),
            (None, Some(false)),
            "a blocking command should not be measured: {words:?}"
        );
        let steps = [
            from_client("PING\r\n".to_owned() + &blocking + "PING\r\n"),
            from_server("+PONG\r\n*-1\r\n+PONG\r\n"),
        ];
        expect_latencies(REDIS, &steps, &[10, 0, 0]);
        expect_latencies(REDIS, &[from_client(words.join(" ") + "\r\n"), from_server("*-1\r\n")], &[0]);
    }
    expect_latencies(
        REDIS,
        &[from_client(command(&["XREAD", "STREAMS", "BLOCK", "0"])), from_server("*-1\r\n")],
        &[10],
    );
    expect_latencies(REDIS, &[from_client(command(&["CLIENT", "LIST"])), from_server("$0\r\n\r\n")], &[10]);
    expect_latencies(
        REDIS,
        &[from_client(command(&["SET", "BLPOP", "PAUSE"])), from_server("+OK\r\n")],
        &[10],
    );
    expect_latencies(REDIS, &[from_client(command(&["FLUSHALL"])), from_server("+OK\r\n")], &[0]);
}

#[test]
fn transactions_and_nested_replies_are_measured() {
    let steps = [
        from_client(command(&["MULTI"]) + &command(&["INCR", "a"]) + &command(&["EXEC"])),
        from_server("+OK\r\n+QUEUED\r\n"),
        from_server("*2\r\n:1\r\n%1\r\n+a\r\n*2\r\n$-1\r\n_\r\n"),
    ];
    expect_latencies(REDIS, &steps, &[10, 10, 20]);
    // Push messages are not replies.
    let push = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n";
    expect_latencies(
        REDIS,
        &[from_client("GET a\r\nGET b\r\n"), from_server(format!("{push}$-1\r\n{push}{push}$-1\r\n{push}"))],
        &[10, 10],
    );
    let pipeline = command(&["GET", "a"]).repeat(5000);
    expect_latencies(
        REDIS,
        &[from_client(pipeline), from_server("$1\r\nx\r\n".repeat(5000))],
        &vec![10; 5000],
    );
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
        expect_stop_reason(REDIS, &[from_client(command(words)), from_server("+OK\r\n")], StopReason::Stream);
    }
    for mode in ["OFF", "SKIP", "ON"] {
        expect_stop_reason(
            REDIS,
            &[from_client(command(&["CLIENT", "reply", mode]))],
            StopReason::RepliesOff,
        );
    }
}

#[test]
fn malformed_streams_stop_the_tracking() {
    for request in ["*x\r\n", "*1\r\nGET\r\n", "*1\r\n$x\r\n", "*1\r\n$-1\r\n", "*1\rx", "a\rb\r\n"] {
        expect_stop_reason(REDIS, &[from_client(request)], StopReason::Syntax);
    }
    expect_stop_reason(
        REDIS,
        &[from_server("-DENIED Redis is running in protected mode\r\n")],
        StopReason::UnsolicitedReply,
    );
    expect_stop_reason(REDIS, &[from_client("PING\r\n"), from_server("PONG\r\n")], StopReason::Syntax);
    let mut steps: Vec<_> = (0..OUTSTANDING_MAX).map(|_| from_client("PING\r\n")).collect();
    assert_eq!(outcome(REDIS, &steps).pending_since, Some(Time(0)));
    steps.push(from_client("PING\r\n"));
    expect_stop_reason(REDIS, &steps, StopReason::TooManyOutstanding);
}
