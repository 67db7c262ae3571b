//! Runs against the machine's redis.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{TIMEOUT, config, run};
use spillway_load::config::{Fill, ProtocolKind, RequestLoop};
use spillway_load::failed;

/// A redis on loopback, in memory only, killed when dropped.
struct Redis {
    child: Child,
    address: SocketAddr,
}

impl Redis {
    /// `None`, with the reason printed, where redis is not installed.
    fn start() -> Option<Redis> {
        let address = spillway_ports::free_address();
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"])
            .arg(address.port().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            println!("skipped: redis-server is not installed (apt-get install redis-server)");
            return None;
        };
        let mut redis = Redis { child, address };
        let deadline = Instant::now() + TIMEOUT;
        while !common::answers(address, b"PING\r\n", b"+PONG") {
            assert_eq!(redis.child.try_wait().unwrap(), None, "redis should run until the end of the test");
            assert!(Instant::now() < deadline, "redis does not listen on {address}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn gets_and_sets_receive_right_replies_in_both_loops_and_misses_are_reported() {
    let Some(redis) = Redis::start() else { return };
    let mut config = config(redis.address);
    (config.protocol, config.get_ratio) = (ProtocolKind::Redis, 0.8);
    for request_loop in [config.request_loop, RequestLoop::Closed] {
        config.request_loop = request_loop;
        let report = run(&config);
        assert!(!failed(&config, &report), "{:?}", report.problems);
        assert!(report.total.answered > 100, "{:?}", report.total);
        assert_eq!((report.total.wrong, report.total.lost, report.protocol.as_str()), (0, 0, "redis"));
    }
    let mut stream = TcpStream::connect(redis.address).unwrap();
    stream.write_all(b"FLUSHALL\r\n").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    (config.fill, config.get_ratio) = (Fill::Skip, 1.0);
    let report = run(&config);
    assert!(report.total.wrong > 0 && failed(&config, &report), "{:?}", report.total);
    assert!(report.problems[0].contains("missing"), "{:?}", report.problems);
}
