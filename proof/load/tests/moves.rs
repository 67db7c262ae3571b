//! Moves between requests: to helpers and back, refused, and followed by the loss of a helper.

mod common;

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use common::link::link_port;
use common::{ControlledRun, config, echo_back, run, server};
use spillway_auth::Key;
use spillway_load::config::{Config, Helpers, ProtocolKind, RequestLoop};
use spillway_load::control::ScheduledCommand;
use spillway_load::report::{Bin, Event, Target};
use spillway_load::{Report, failed};

fn key() -> Key {
    Key::from_secret([5; 32])
}

/// Options of a run against an echo server, with these helpers.
fn echo_config(helpers: &[SocketAddr]) -> Config {
    let address = server("127.0.0.1:0", |stream| echo_back(stream, |_| {})).unwrap();
    let helpers = Helpers { addresses: helpers.to_vec(), key: Some(key()), ..Helpers::default() };
    Config { protocol: ProtocolKind::Echo, connections: 40, helpers, ..config(address) }
}

fn assert_flawless(config: &Config, report: &Report) {
    assert!(!failed(config, report), "{:?} {:?}", report.total, report.problems);
    assert_eq!(report.total.offered, report.total.answered + report.total.unsent);
}

#[test]
fn connections_move_to_helpers_and_back_in_both_loops() {
    let (helpers, _streams): (Vec<_>, Vec<_>) = (0..2).map(|_| link_port(key())).unzip();
    for (request_loop, size, threads) in [
        (RequestLoop::Closed, 100, 1),
        (RequestLoop::Closed, 300_000, 2),
        (Config::new(helpers[0]).request_loop, 64, 2),
    ] {
        let mut config = echo_config(&helpers);
        (config.request_loop, config.value_size, config.threads) = (request_loop, size, threads);
        // The time between moves suffices for a busy machine; a move that is still incomplete is printed below.
        config.schedule = ["100ms=move:helper:pace=50us", "1s=move:direct", "1900ms=move:helper,mark:again"]
            .into_iter()
            .flat_map(|text| ScheduledCommand::parse(text).unwrap())
            .collect();
        config.duration = Some(Duration::from_millis(2800));
        let report = run(&config);
        assert_flawless(&config, &report);
        assert_eq!(report.moves.len(), 3);
        for (one_move, target) in report.moves.iter().zip([Target::Helper, Target::Direct, Target::Helper]) {
            assert_eq!(one_move.target, target);
            if one_move.complete {
                assert_eq!(
                    (one_move.connections, one_move.failed, one_move.first_replies_us.len()),
                    (40, 0, 40)
                );
                assert!(one_move.first_replies_us.is_sorted() && one_move.moved_ms() > 0.0);
            } else {
                println!("not checked: the machine was too busy to complete {one_move:?}");
            }
        }
        assert!(report.total.helped > 0 && report.total.helped < report.total.answered);
    }
}

#[test]
fn moves_are_limited_by_a_count_and_superseded_by_the_next_move() {
    let (helper, _streams) = link_port(key());
    let mut config = echo_config(&[helper]);
    config.schedule = ["100ms=move:helper:count=5", "300ms=move:helper:pace=1h,move:direct"]
        .into_iter()
        .flat_map(|text| ScheduledCommand::parse(text).unwrap())
        .collect();
    let report = run(&config);
    assert_flawless(&config, &report);
    let connections: Vec<_> = report.moves.iter().map(|one_move| one_move.connections).collect();
    // The second move starts at most one connection before the third supersedes it.
    assert_eq!(connections[..2], [5, 35]);
    assert!((5..=6).contains(&connections[2]), "{connections:?}");
    assert!(!report.moves[1].complete);
}

#[test]
fn refused_move_leaves_all_connections_direct() {
    let (wrong_key, _streams) = link_port(Key::from_secret([6; 32]));
    let unused = spillway_ports::free_address();
    for helper in [wrong_key, unused] {
        let mut config = echo_config(&[helper]);
        config.schedule = ScheduledCommand::parse("100ms=move:helper").unwrap();
        let report = run(&config);
        assert_flawless(&config, &report);
        let refused = &report.moves[0];
        assert!(refused.failed > 0 && refused.first_replies_us.is_empty(), "{refused:?}");
        assert_eq!(report.total.helped, 0);
        assert!(report.problems[0].contains("cannot be moved"), "{:?}", report.problems);
    }
}

#[test]
fn silent_helper_does_not_stop_requests_to_the_server() {
    // The kernel accepts connections, but the helper never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = echo_config(&[silent.local_addr().unwrap()]);
    config.schedule = ScheduledCommand::parse("100ms=move:helper").unwrap();
    config.duration = Some(Duration::from_secs(2));
    let report = run(&config);
    assert_flawless(&config, &report);
    // A busy machine leaves some requests waiting at the end. If the move stopped connections, most of their requests would
    // wait: those after the first 100 ms of 2 s.
    assert!(report.total.answered > report.total.offered / 2, "{:?}", report.total);
    assert!(!report.moves[0].complete && report.total.helped == 0);
}

#[test]
fn connections_of_a_lost_helper_fall_back_and_lose_pending_replies() {
    let (helper, streams) = link_port(key());
    let mut config = echo_config(&[helper]);
    (config.duration, config.request_loop, config.allow_resets) = (None, RequestLoop::Closed, true);
    let mut controlled = ControlledRun::start(&config);
    let lines = controlled.lines.clone();
    lines.wait_for("start", |event| matches!(event, Event::Start { .. }));
    controlled.command("move helper\n");
    lines.wait_for("all helped", |event| matches!(event, Event::Bins { helped_now: 40, .. }));
    for stream in streams.lock().unwrap().iter() {
        let _ = stream.shutdown(Shutdown::Both);
    }
    let has_resets = |bins: &[Bin]| bins.iter().any(|bin| bin.direct.resets + bin.helped.resets > 0);
    lines.wait_for(
        "all direct",
        |event| matches!(event, Event::Bins { helped_now: 0, bins, .. } if has_resets(bins)),
    );
    controlled.command("mark after\n");
    lines
        .wait_for("mark", |event| matches!(event, Event::Command { command, .. } if command == "mark after"));
    let events_at_mark = lines.events().len();
    lines.wait_for("direct answers", |_| {
        lines.events()[events_at_mark..]
            .iter()
            .any(|event| matches!(event, Event::Bins { bins, .. } if bins.iter().any(|bin| bin.direct.answered > 0)))
    });
    let report = controlled.stop();
    assert_eq!((report.total.resets, report.total.wrong), (40, 0), "{:?}", report.problems);
    assert!(report.total.lost <= 40);
    assert!(!failed(&config, &report), "allowed resets should not fail the run");
}
