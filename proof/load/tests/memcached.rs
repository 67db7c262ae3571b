//! Runs against the machine's memcached.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{ControlledRun, Memcached, config, run};
use spillway_load::config::{Config, Fill, RequestLoop};
use spillway_load::control::ScheduledCommand;
use spillway_load::report::{Bins, Event};
use spillway_load::{RunIo, failed};

fn assert_flawless(config: &Config, report: &spillway_load::Report) {
    let total = &report.total;
    assert!(!failed(config, report), "{:?}", report.problems);
    assert!(total.offered > 0);
    assert_eq!(total.offered, total.answered + total.dropped + total.unsent, "{total:?}");
    assert_eq!((total.wrong, total.lost, total.resets), (0, 0, 0));
}

#[test]
fn gets_and_sets_in_the_open_loop_receive_right_replies() {
    let Some(memcached) = Memcached::start() else { return };
    let mut config = config(memcached.address);
    (config.get_ratio, config.threads) = (0.8, 2);
    config.schedule = ScheduledCommand::parse("300ms=rate:4000,mark:more").unwrap();
    let report = run(&config);
    assert_flawless(&config, &report);
    assert_eq!(report.marks.len(), 1);
    let offered = |from, to| report.span(from, to).offered;
    assert!((200..400).contains(&offered(0, 300)), "{}", offered(0, 300));
    assert!((1000..1400).contains(&offered(300, 600)), "{}", offered(300, 600));
}

#[test]
fn equal_seeds_give_equal_arrivals_in_every_bin() {
    let Some(memcached) = Memcached::start() else { return };
    let mut config = config(memcached.address);
    config.schedule = ScheduledCommand::parse("200ms=rate:3000").unwrap();
    let offered = |report: spillway_load::Report| {
        report
            .bins
            .iter()
            .map(|bin| (bin.at_ms, bin.offered))
            .filter(|(_, offered)| *offered > 0)
            .collect::<Vec<_>>()
    };
    let first = offered(run(&config));
    assert_eq!(first, offered(run(&config)));
    config.seed = 2;
    assert_ne!(first, offered(run(&config)));
}

#[test]
fn closed_loops_with_several_sizes_receive_right_replies() {
    let Some(memcached) = Memcached::start() else { return };
    for (key_size, value_size, get_ratio) in [(8, 1, 1.0), (250, 8, 0.5), (32, 200_000, 0.9)] {
        let mut config = config(memcached.address);
        (config.key_size, config.value_size, config.get_ratio) = (key_size, value_size, get_ratio);
        (config.keys, config.zipf) = (50, None);
        (config.request_loop, config.duration) = (RequestLoop::Closed, Some(Duration::from_millis(200)));
        assert_flawless(&config, &run(&config));
    }
}

#[test]
fn bins_of_events_add_up_to_the_report() {
    let Some(memcached) = Memcached::start() else { return };
    let mut config = config(memcached.address);
    (config.duration, config.hold) = (None, true);
    let mut controlled = ControlledRun::start(&config);
    let lines = controlled.lines.clone();
    lines.wait_for("ready", |event| matches!(event, Event::Ready { connections: 40 }));
    controlled.command("rate 5\nstart\n");
    lines.wait_for("start", |event| matches!(event, Event::Start { .. }));
    controlled.command("rate 2000\nma");
    controlled.command("rk half\nmove helper\n");
    lines.wait_for("bins", |event| matches!(event, Event::Bins { bins, .. } if bins[0].direct.answered > 50));
    let report = controlled.stop();
    let events = lines.events();
    let mut sum = Bins::default();
    for event in &events {
        if let Event::Bins { bins, .. } = event {
            bins.iter().for_each(|bin| sum.add(bin));
        }
    }
    assert_eq!(sum.into_vec(), report.bins);
    let troubles: Vec<_> = events
        .iter()
        .filter_map(|event| if let Event::Trouble { what, .. } = event { Some(what) } else { None })
        .collect();
    assert_eq!(troubles.len(), 2, "{troubles:?}");
    assert!(troubles[0].contains("not started") && troubles[1].contains("--helper"), "{troubles:?}");
    assert_eq!(report.marks[0].name, "half");
    assert!(matches!(events.last(), Some(Event::End { report }) if report.bins.is_empty()));
}

#[test]
fn reports_of_two_generators_with_one_key_space_merge() {
    let Some(memcached) = Memcached::start() else { return };
    let mut generators = Vec::new();
    for index in 0..2 {
        let mut config = config(memcached.address);
        (config.share, config.get_ratio, config.seed) = ((index, 2), 0.5, 1);
        // The first generator fills the key space. Then both run at the same time; each sets its own keys.
        config.fill = if index == 0 { Fill::Set } else { Fill::Verify };
        config.hold = true;
        let controlled = ControlledRun::start(&config);
        controlled.lines.wait_for("ready", |event| matches!(event, Event::Ready { .. }));
        generators.push((config, controlled));
    }
    let zero_ns = spillway_load::monotonic_ns() + 50_000_000;
    generators.iter_mut().for_each(|(_, controlled)| controlled.command(&format!("start {zero_ns}\n")));
    let mut reports = generators.into_iter().map(|(config, controlled)| {
        let report = controlled.report();
        assert_flawless(&config, &report);
        report
    });
    let (mut merged, other) = (reports.next().unwrap(), reports.next().unwrap());
    assert_eq!((merged.zero_monotonic_ns, other.zero_monotonic_ns), (zero_ns, zero_ns));
    let offered = merged.total.offered + other.total.offered;
    merged.merge(&other);
    assert_eq!((merged.connections, merged.total.offered), (80, offered));
}

#[test]
fn values_altered_or_deleted_by_another_client_are_wrong_replies() {
    let Some(memcached) = Memcached::start() else { return };
    let mut config = config(memcached.address);
    config.keys = 10;
    assert_flawless(&config, &run(&config));
    // Appends a byte to the value of one key, whose name `metadump` lists.
    let mut stream = TcpStream::connect(memcached.address).unwrap();
    stream.write_all(b"lru_crawler metadump all\r\n").unwrap();
    let mut dump = Vec::new();
    while !dump.ends_with(b"END\r\n") {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        dump.extend_from_slice(&bytes[..count]);
    }
    let dump = String::from_utf8(dump).unwrap();
    let key = dump.split_whitespace().find_map(|word| word.strip_prefix("key=")).unwrap();
    stream.write_all(format!("append {key} 0 0 1\r\nx\r\n").as_bytes()).unwrap();
    let mut stored = [0; 8];
    stream.read_exact(&mut stored).unwrap();
    (config.fill, config.allow_resets) = (Fill::Skip, true);
    let report = run(&config);
    assert!(report.total.wrong > 0 && failed(&config, &report), "{:?}", report.total);
    config.fill = Fill::Verify;
    let error = spillway_load::run(&config, RunIo::default()).unwrap_err().to_string();
    assert!(error.contains("wrong reply"), "{error}");
    stream.write_all(format!("delete {key}\r\n").as_bytes()).unwrap();
    stream.read_exact(&mut [0; 9]).unwrap();
    config.fill = Fill::Skip;
    let report = run(&config);
    assert!(report.total.wrong > 0 && report.total.resets == 0);
    assert!(report.problems[0].contains("missing"), "{:?}", report.problems);
}

#[test]
fn connections_reset_by_a_killed_server_reopen_after_its_restart() {
    let Some(mut memcached) = Memcached::start() else { return };
    let mut config = config(memcached.address);
    (config.duration, config.request_loop) = (None, RequestLoop::Closed);
    // The restarted server is empty: all replies are misses. The test checks only the connections.
    config.keys = 1;
    let controlled = ControlledRun::start(&config);
    let lines = &controlled.lines;
    let has_replies = |wrong| {
        move |event: &Event| match event {
            Event::Bins { bins, .. } => {
                bins.iter().any(|bin| if wrong { bin.direct.wrong > 0 } else { bin.direct.answered > 0 })
            }
            _ => false,
        }
    };
    lines.wait_for("answers", has_replies(false));
    memcached.kill();
    lines.wait_for("trouble", |event| matches!(event, Event::Trouble { .. }));
    let address = memcached.address;
    let _memcached = Memcached::start_on(address).unwrap();
    lines.wait_for("replies (misses) of the new server", has_replies(true));
    let report = controlled.stop();
    assert!(report.total.resets >= 40, "{:?}", report.total);
    assert!(report.total.lost <= report.total.resets, "{:?}", report.total);
    assert!(failed(&config, &report));
}
