//! A sidecar counts each reply of the real memcached and redis, and measures the latency of most commands.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use spillway_lab::peers::{Memcached, Redis};
use support::PATIENCE;
use support::sidecar::{Deployment, Sidecar};

/// Sends requests in small pieces, and reads up to `end`, the end of the last reply.
fn exchange(address: SocketAddr, requests: &[u8], end: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut sender = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for (index, piece) in requests.chunks(61).enumerate() {
                sender.write_all(piece).unwrap();
                if index % 8 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let (mut replies, mut buffer) = (Vec::new(), [0; 4096]);
        while !replies.ends_with(end) {
            let count = stream.read(&mut buffer).unwrap_or_else(|error| {
                panic!("{error} after {}", String::from_utf8_lossy(&replies));
            });
            assert!(count > 0, "closed after {}", String::from_utf8_lossy(&replies));
            replies.extend_from_slice(&buffer[..count]);
        }
        replies
    })
}

#[track_caller]
fn assert_counts(sidecar: &Sidecar, replies: u64, measured: u64) {
    let status = sidecar.status();
    let given_up =
        status["measuring_given_up"].as_object().unwrap().values().filter_map(|count| count.as_u64());
    assert_eq!(given_up.sum::<u64>(), 0, "{status:#}");
    let replies_counted = (sidecar.number("/replies"), sidecar.number("/latency_direct/count"));
    assert_eq!(replies_counted, (replies, measured), "{status:#}");
}

#[test]
fn all_replies_of_memcached_are_counted() {
    let deployment =
        Deployment::start(0, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    let sidecar = deployment.sidecar(&["--protocol", "memcached"]);
    let measured = [
        "set a 0 0 5\r\nEND\r\n\r\n",
        "add a 0 0 1\r\nx\r\n",
        "replace a 1 0 3\r\nabc\r\n",
        "append a 0 0 1\r\nd\r\n",
        "prepend a 0 0 1\r\nz\r\n",
        "cas a 0 0 1 1\r\nx\r\n",
        "cas none 0 0 1 1\r\nx\r\n",
        "get a\r\n",
        "get none\r\n",
        "get a none a a\r\n",
        "gets a none\r\n",
        "gat 100 a\r\n",
        "gats 100 a none\r\n",
        "set n 0 0 2\r\n41\r\n",
        "incr n 1\r\n",
        "decr n 40\r\n",
        "incr a 1\r\n",
        "incr none 1\r\n",
        "touch a 100\r\n",
        "touch none 1\r\n",
        "delete a\r\n",
        "delete a\r\n",
        "version\r\n",
        "get\r\n",
        "set empty 0 0 0\r\n\r\n",
        "get empty\r\n",
        "delete empty 0\r\n",
        "mg n v\r\n",
        "mg n s v t f\r\n",
        "mg none v\r\n",
        "mg n\r\n",
        "ms m 4 T100\r\nMN\r\n\r\n",
        "mg m v k\r\n",
        "ma n\r\n",
        "ma n v\r\n",
        "ma none\r\n",
        "md m\r\n",
        "md m\r\n",
        "me n\r\n",
        "me none\r\n",
        "mn\r\n",
    ];
    let quiet = [
        "set q 0 0 1 noreply\r\nx\r\n",
        "delete q noreply\r\n",
        "incr n 1 noreply\r\n",
        "touch n 100 noreply\r\n",
        "flush_all 1000 noreply\r\n",
        "verbosity 0 noreply\r\n",
        "mn\r\n",
        "mg n v q\r\n",
        "mg none v q\r\n",
        "ms q 1 q\r\nx\r\n",
        "md q q\r\n",
        "md none q\r\n",
        "mn\r\n",
    ];
    let operators = [
        "stats\r\n",
        "stats items\r\n",
        "stats slabs\r\n",
        "stats settings\r\n",
        "stats conns\r\n",
        "stats reset\r\n",
        "stats cachedump 1 10\r\n",
        "stats detail on\r\n",
        "stats detail dump\r\n",
        "stats detail off\r\n",
        "stats sizes\r\n",
        "stats nonsense\r\n",
        "verbosity 0\r\n",
        "cache_memlimit 64\r\n",
        "lru tune 10 25 0.1 2.0\r\n",
        "slabs automove 0\r\n",
        "lru_crawler enable\r\n",
        "lru_crawler crawl all\r\n",
        "flush_all 1000\r\n",
    ];
    let end = "mn\r\n";
    let requests = [measured.concat(), quiet.concat(), operators.concat(), end.to_owned()].concat();
    exchange(sidecar.address, requests.as_bytes(), b"OK\r\nMN\r\n");
    let measured_count = measured.len() as u64 + 2 + 1; // `quiet` has two `mn`, and `end` is one
    assert_counts(&sidecar, measured_count + operators.len() as u64, measured_count);
    let pipelined = "get n\r\n".repeat(30_000) + "mn\r\n";
    exchange(sidecar.address, pipelined.as_bytes(), b"END\r\nMN\r\n");
    assert_counts(&sidecar, measured_count + operators.len() as u64 + 30_001, measured_count + 30_001);
}

#[test]
fn all_replies_of_redis_are_counted() {
    let deployment = Deployment::start(0, |place, run| {
        Redis::default().args(["--enable-debug-command", "yes"]).wrapper(run).start(place).unwrap()
    });
    let sidecar = deployment.sidecar(&["--protocol", "redis"]);
    let measured_commands = [
        "SET a 1",
        "GET a",
        "GET none",
        "INCR a",
        "INCR",
        "NONSENSE",
        "MSET b 1 c 2",
        "MGET a b none c",
        "HSET h f 1 g 2",
        "HGETALL h",
        "RPUSH l 1 2 3",
        "LRANGE l 0 -1",
        "LRANGE none 0 -1",
        "SADD s 1 2",
        "SMEMBERS s",
        "ZADD z 1.5 one 2 two",
        "ZSCORE z one",
        "ZRANGE z 0 -1 WITHSCORES",
        "SCAN 0",
        "TYPE a",
        "EVAL {eval} 0",
        "MULTI",
        "INCR a",
        "LRANGE l 0 -1",
        "HGETALL h",
        "EXEC",
        "EXEC",
        "XADD x * f 1",
        "XRANGE x - +",
        "XREAD COUNT 1 STREAMS x 0",
        "XINFO STREAM x FULL",
        "INFO",
        "CONFIG GET *",
        "CLIENT LIST",
        "CLIENT ID",
        "CLIENT TRACKING on",
        "GET a",
        "INCR a",
        "COMMAND DOCS get",
        "COMMAND COUNT",
        "OBJECT ENCODING a",
        "ECHO {lines}",
        "LATENCY LATEST",
        "MEMORY STATS",
        "SLOWLOG GET",
        "GEOADD geo 13.3 38.1 p",
        "GEOSEARCH geo FROMMEMBER p BYRADIUS 1 km WITHCOORD",
    ];
    let unmeasured = [
        "KEYS *",
        "DEBUG SLEEP 0",
        "WAIT 0 0",
        "BLPOP l 0",
        "BLPOP none 0.01",
        "BLMPOP 0.01 1 none LEFT",
        "BZPOPMIN none 0.01",
        "XREAD BLOCK 10 STREAMS x $",
    ];
    let kinds = [
        "string", "integer", "double", "null", "array", "set", "map", "attrib", "push", "verbatim", "true",
        "false", "bignum",
    ];
    let command = |line: &str| {
        let arguments: Vec<String> = line
            .split(' ')
            .map(|word| {
                word.replace("{eval}", "return {1, {2, {}, 'x'}, {3}}")
                    .replace("{lines}", "+1\r\n$-1\r\n*3\r\n")
            })
            .collect();
        let bulk_strings: String =
            arguments.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{bulk_strings}", arguments.len())
    };
    let requests_of_connection = |hello: &str, end: &str| {
        let mut requests = String::from(hello) + "\r\n";
        measured_commands.iter().chain(&unmeasured).for_each(|line| requests += &command(line));
        // Attributes and push messages exist in RESP3 only; with RESP2 redis sends none.
        kinds.iter().for_each(|kind| requests += &command(&format!("DEBUG PROTOCOL {kind}")));
        requests + "PING\r\n" + &command(&format!("ECHO {end}"))
    };
    for (round, version) in [(1, "HELLO 2"), (2, "HELLO 3")] {
        let end = format!("end-{round}");
        exchange(
            sidecar.address,
            requests_of_connection(version, &end).as_bytes(),
            format!("{end}\r\n").as_bytes(),
        );
        let measured_replies = 1 + measured_commands.len() as u64 + 2;
        let others = (unmeasured.len() + kinds.len()) as u64;
        let replies_counted = sidecar.number("/replies");
        assert_eq!(replies_counted, round * (measured_replies + others), "{version}: {:#}", sidecar.status());
    }
    // A reply behind a command that may block is measured only if it did not wait for that command, so the number
    // varies.
    let (replies, measured) = (sidecar.number("/replies"), sidecar.number("/latency_direct/count"));
    assert_counts(&sidecar, replies, measured);
    assert!(
        (2 * (measured_commands.len() as u64 + 1)..=2 * (measured_commands.len() as u64 + 3))
            .contains(&measured),
        "{measured}"
    );
}

#[test]
fn streams_of_messages_are_forwarded_and_not_measured() {
    let deployment = Deployment::start(0, |place, run| Redis::default().wrapper(run).start(place).unwrap());
    let sidecar = deployment.sidecar(&["--protocol", "redis"]);
    let subscribed = exchange(sidecar.address, b"SUBSCRIBE news\r\nPING\r\n", b"pong\r\n$0\r\n\r\n");
    assert!(subscribed.starts_with(b"*3\r\n$9\r\nsubscribe\r\n"));
    let monitored = exchange(sidecar.address, b"MONITOR\r\n", b"+OK\r\n");
    assert_eq!(monitored, b"+OK\r\n");
    let off = exchange(sidecar.address, b"CLIENT REPLY OFF\r\nPING\r\nCLIENT REPLY ON\r\n", b"+OK\r\n");
    assert_eq!(off, b"+OK\r\n", "bytes should be forwarded unchanged");
    assert_eq!(
        (sidecar.number("/measuring_given_up/stream"), sidecar.number("/measuring_given_up/replies_off")),
        (2, 1)
    );
}
