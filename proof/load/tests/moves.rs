//! Moves between requests: to helpers and back, refused, and interrupted by a helper's end.

mod common;

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use common::link::link_port;
use common::{ControlledRun, config, echo_back, run, server};
use spillway_auth::Key;
use spillway_load::config::{Config, Helpers, Loop, ProtocolKind};
use spillway_load::control::Order;
use spillway_load::report::{Event, Target};
use spillway_load::{Report, failed};

fn key() -> Key {
    Key::from_secret([5; 32])
}

/// A run against an echo server, with these helpers.
fn echo_config(helpers: &[SocketAddr]) -> Config {
    let address = server("127.0.0.1:0", |stream| echo_back(stream, |_| {})).unwrap();
    let helpers = Helpers { addresses: helpers.to_vec(), key: Some(key()), ..Helpers::default() };
    Config { speech: ProtocolKind::Echo, connections: 40, helpers, ..config(address) }
}

fn assert_flawless(config: &Config, report: &Report) {
    assert!(!failed(config, report), "{:?} {:?}", report.total, report.troubles);
    assert_eq!(report.total.offered, report.total.answered + report.total.unsent);
}

#[test]
fn connections_move_to_helpers_and_back_in_both_loops() {
    let (helpers, _streams): (Vec<_>, Vec<_>) = (0..2).map(|_| link_port(key())).unzip();
    for (pacing, size, threads) in
        [(Loop::Closed, 100, 1), (Loop::Closed, 300_000, 2), (Config::new(helpers[0]).pacing, 64, 2)]
    {
        let mut config = echo_config(&helpers);
        (config.pacing, config.value_size, config.threads) = (pacing, size, threads);
        // Enough time between moves for a busy machine; an incomplete move is printed below.
        config.schedule = ["100ms=move:helper:pace=50us", "1s=move:direct", "1900ms=move:helper,mark:again"]
            .into_iter()
            .flat_map(|text| Order::parse(text).unwrap())
            .collect();
        config.duration = Some(Duration::from_millis(2800));
        let report = run(&config);
        assert_flawless(&config, &report);
        assert_eq!(report.moves.len(), 3);
        for (m, target) in report.moves.iter().zip([Target::Helper, Target::Direct, Target::Helper]) {
            assert_eq!(m.target, target);
            if m.complete {
                assert_eq!((m.connections, m.failed, m.first_replies_us.len()), (40, 0, 40));
                assert!(m.first_replies_us.is_sorted() && m.moved_ms() > 0.0);
            } else {
                println!("not judged: the machine was too busy to complete {m:?}");
            }
        }
        assert!(report.total.helped > 0 && report.total.helped < report.total.answered);
    }
}

#[test]
fn a_move_can_be_limited_or_superseded() {
    let (helper, _streams) = link_port(key());
    let mut config = echo_config(&[helper]);
    config.schedule = ["100ms=move:helper:count=5", "300ms=move:helper:pace=1h,move:direct"]
        .into_iter()
        .flat_map(|text| Order::parse(text).unwrap())
        .collect();
    let report = run(&config);
    assert_flawless(&config, &report);
    let concerned: Vec<_> = report.moves.iter().map(|m| m.connections).collect();
    // The second move starts at most one connection before the third supersedes it.
    assert_eq!(concerned[..2], [5, 35]);
    assert!((5..=6).contains(&concerned[2]), "{concerned:?}");
    assert!(!report.moves[1].complete);
}

#[test]
fn a_refused_move_leaves_all_connections_direct() {
    let (wrong_key, _streams) = link_port(Key::from_secret([6; 32]));
    let unused = spillway_ports::free_address();
    for helper in [wrong_key, unused] {
        let mut config = echo_config(&[helper]);
        config.schedule = Order::parse("100ms=move:helper").unwrap();
        let report = run(&config);
        assert_flawless(&config, &report);
        let m = &report.moves[0];
        assert!(m.failed > 0 && m.first_replies_us.is_empty(), "{m:?}");
        assert_eq!(report.total.helped, 0);
        assert!(report.troubles[0].contains("cannot be moved"), "{:?}", report.troubles);
    }
}

#[test]
fn a_silent_helper_does_not_stop_requests_to_the_server() {
    // The kernel accepts connections, and the helper never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = echo_config(&[silent.local_addr().unwrap()]);
    config.schedule = Order::parse("100ms=move:helper").unwrap();
    config.duration = Some(Duration::from_secs(2));
    let report = run(&config);
    assert_flawless(&config, &report);
    assert_eq!(report.total.unsent, 0, "{:?}", report.total);
    assert!(!report.moves[0].complete && report.total.helped == 0);
}

#[test]
fn connections_of_a_lost_helper_fall_back_and_lose_pending_replies() {
    let (helper, streams) = link_port(key());
    let mut config = echo_config(&[helper]);
    (config.duration, config.pacing, config.allow_resets) = (None, Loop::Closed, true);
    let mut controlled = ControlledRun::start(&config);
    let lines = controlled.lines.clone();
    lines.wait_for("start", |event| matches!(event, Event::Start { .. }));
    controlled.command("move helper\n");
    lines.wait_for("all helped", |event| matches!(event, Event::Bins { helped_now: 40, .. }));
    for stream in streams.lock().unwrap().iter() {
        let _ = stream.shutdown(Shutdown::Both);
    }
    lines.wait_for("all direct", |event| {
        matches!(event, Event::Bins { helped_now: 0, bins, .. } if bins.iter().any(|b| b.direct.resets + b.helped.resets > 0))
    });
    controlled.command("mark after\n");
    lines
        .wait_for("mark", |event| matches!(event, Event::Command { command, .. } if command == "mark after"));
    let after = lines.events().len();
    lines.wait_for("direct answers", |_| {
        lines.events()[after..]
            .iter()
            .any(|e| matches!(e, Event::Bins { bins, .. } if bins.iter().any(|b| b.direct.answered > 0)))
    });
    let report = controlled.stop();
    assert_eq!((report.total.resets, report.total.wrong), (40, 0), "{:?}", report.troubles);
    assert!(report.total.lost <= 40);
    assert!(!failed(&config, &report), "resets are allowed");
}
