//! Runs against faulty servers, and over both address families.

mod common;

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::{config, echo_back, run, server};
use spillway_load::config::{Assignment, Config, ProtocolKind, RequestLoop};
use spillway_load::{RunIo, failed};

fn echo_config(address: std::net::SocketAddr) -> Config {
    Config { protocol: ProtocolKind::Echo, connections: 8, ..config(address) }
}

#[test]
fn echo_runs_succeed_over_both_address_families() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(address) = server(address, |stream| echo_back(stream, |_| {})) else {
            println!("skipped: cannot listen on {address}");
            continue;
        };
        for (request_loop, size) in [(RequestLoop::Closed, 1 << 20), (Config::new(address).request_loop, 17)]
        {
            let mut config = echo_config(address);
            (config.request_loop, config.value_size, config.assignment) =
                (request_loop, size, Assignment::Random);
            let report = run(&config);
            assert!(!failed(&config, &report), "{:?}", report.problems);
            assert!(report.total.answered > 0);
        }
    }
}

#[test]
fn flipped_bit_in_a_reply_is_detected() {
    let messages = AtomicU32::new(0);
    let serve = move |stream| {
        echo_back(stream, |bytes| {
            if messages.fetch_add(1, Ordering::Relaxed) == 100 {
                bytes[bytes.len() / 2] ^= 1;
            }
        });
    };
    let config = echo_config(server("127.0.0.1:0", serve).unwrap());
    let report = run(&config);
    assert_eq!(report.total.wrong, 1, "{:?}", report.problems);
    assert_eq!(report.total.offered, report.total.answered);
    assert!(failed(&config, &report));
    assert!(report.problems[0].contains("wrong reply"), "{:?}", report.problems);
}

#[test]
fn bytes_without_a_request_are_detected() {
    let serve = |mut stream: std::net::TcpStream| {
        use std::io::Write;
        let _ = stream.write_all(b"hello");
        echo_back(stream, |_| {});
    };
    let config = echo_config(server("127.0.0.1:0", serve).unwrap());
    let report = run(&config);
    assert!(report.total.wrong > 0 && failed(&config, &report));
}

#[test]
fn requests_to_a_silent_server_are_lost_or_unsent() {
    // The kernel accepts connections, but the server never reads.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = echo_config(listener.local_addr().unwrap());
    (config.drain, config.queue) = (Duration::from_millis(200), 100);
    let report = run(&config);
    let total = &report.total;
    assert_eq!((total.answered, total.lost, total.unsent), (0, 8, 100), "{total:?}");
    assert_eq!(total.offered, total.lost + total.unsent + total.dropped);
    assert_eq!((total.p50_us, total.resets), (None, 0));
    assert!(failed(&config, &report), "an unanswered request should be a failure even without a reset");
    config.allow_resets = true;
    assert!(
        failed(&config, &report),
        "a request lost without a reset should be a failure even if resets are allowed"
    );
}

#[test]
fn latency_counts_from_the_intended_time_and_late_replies_do_not_fail_the_run() {
    // A reply takes 20 ms, so that 8 connections serve 400 of 1,000 requests/s; the other requests wait in the client.
    let serve = |stream| echo_back(stream, |_| thread::sleep(Duration::from_millis(20)));
    let config = echo_config(server("127.0.0.1:0", serve).unwrap());
    let report = run(&config);
    let total = &report.total;
    assert!(!failed(&config, &report), "{:?}", report.problems);
    assert_eq!(total.late, total.answered);
    assert!(total.unsent > 0, "{total:?}");
    // Requests that are due after half of the run wait for earlier ones.
    let late = report.span(300, 400).summary();
    assert!(late.p50_us.is_none_or(|us| us > 100_000), "{late:?}");
}

#[test]
fn runs_that_cannot_start_return_the_reason() {
    let address = spillway_ports::free_address();
    let error = |config: &Config| {
        let outcome = spillway_load::run(config, RunIo::default());
        outcome.map(|_| ()).unwrap_err().to_string()
    };
    let refused = error(&echo_config(address));
    assert!(refused.contains("refused") && refused.contains(&address.to_string()), "{refused}");
    let refused = error(&config(address));
    assert!(refused.contains("fill"), "{refused}");
    let without_connections = Config { connections: 0, ..echo_config(address) };
    assert!(error(&without_connections).contains("--connections"));
}
