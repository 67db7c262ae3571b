//! Faulty servers, and both address families.

mod common;

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::{config, echo_back, run, server};
use spillway_load::config::{Assignment, Config, Loop, ProtocolKind};
use spillway_load::{RunIo, failed};

fn echo_config(address: std::net::SocketAddr) -> Config {
    Config { speech: ProtocolKind::Echo, connections: 8, ..config(address) }
}

#[test]
fn echoes_are_right_on_both_address_families() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(address) = server(address, |stream| echo_back(stream, |_| {})) else {
            println!("skipped: no {address} here");
            continue;
        };
        for (pacing, size) in [(Loop::Closed, 1 << 20), (Config::new(address).pacing, 17)] {
            let mut config = echo_config(address);
            (config.pacing, config.value_size, config.assignment) = (pacing, size, Assignment::Random);
            let report = run(&config);
            assert!(!failed(&config, &report), "{:?}", report.troubles);
            assert!(report.total.answered > 0);
        }
    }
}

#[test]
fn a_flipped_bit_is_detected() {
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
    assert_eq!(report.total.wrong, 1, "{:?}", report.troubles);
    assert_eq!(report.total.offered, report.total.answered);
    assert!(failed(&config, &report));
    assert!(report.troubles[0].contains("wrong reply"), "{:?}", report.troubles);
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
    // The kernel accepts connections, and the server never reads.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = echo_config(listener.local_addr().unwrap());
    (config.drain, config.queue) = (Duration::from_millis(200), 100);
    let report = run(&config);
    let total = &report.total;
    assert_eq!((total.answered, total.lost, total.unsent), (0, 8, 100), "{total:?}");
    assert_eq!(total.offered, total.lost + total.unsent + total.dropped);
    assert_eq!((total.p50_us, total.resets), (None, 0));
    assert!(failed(&config, &report), "an unanswered request is a failure without a reset too");
    config.allow_resets = true;
    assert!(failed(&config, &report), "allowed resets do not excuse lost requests without a reset");
}

#[test]
fn latency_counts_from_the_intended_time_and_late_replies_are_not_a_failure() {
    // A reply takes 20 ms, so 8 connections serve 400 of 1,000 requests/s; the others wait in the client.
    let serve = |stream| echo_back(stream, |_| thread::sleep(Duration::from_millis(20)));
    let config = echo_config(server("127.0.0.1:0", serve).unwrap());
    let report = run(&config);
    let total = &report.total;
    assert!(!failed(&config, &report), "{:?}", report.troubles);
    assert_eq!(total.late, total.answered);
    assert!(total.unsent > 0, "{total:?}");
    // Requests due late in the run waited for earlier ones.
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
    let none = Config { connections: 0, ..echo_config(address) };
    assert!(error(&none).contains("--connections"));
}
