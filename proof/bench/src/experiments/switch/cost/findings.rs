//! Rows and ratios of the experiment `switch-cost`.

use super::program::{ENTRIES, OWNERS, Work};
use super::site::{Joined, ROW, Trip};
use super::{Measured, Times};
use crate::experiments::common::rounds::Rounds;
use crate::results::{Ratio, Results, Row};

/// A value of each round; `None` if the round was spoilt.
type Series = Vec<Option<f64>>;

/// Adds all rows and ratios of the parts that were measured.
pub(super) fn add(measured: &Measured, results: &mut Results) {
    if !measured.works.is_empty() {
        add_packets(measured, results);
        add_messages(measured, results);
        add_entries(measured, results);
    }
    if !measured.trips.is_empty() {
        add_control_trips(measured, results);
        add_host_trips(measured, results);
    }
    add_transfers(measured, results);
}

fn add_packets(measured: &Measured, results: &mut Results) {
    for (system, work, expected) in [
        ("return", Work::Return, ""),
        ("hub", Work::Hub, ""),
        ("switch", Work::Plain, "expected ≤ 100"),
        ("switch", Work::NoEntry, "expected ≤ 120"),
        ("switch", Work::RewrittenIn, "expected ≤ 160"),
        ("switch", Work::RewrittenOut, "expected ≤ 160"),
    ] {
        let row = work_row(measured, system, "ns_per_packet", work, &measured.ns(work));
        results.rows.push(row.note(expected));
        if work != Work::Return {
            let above = measured.above_return(work);
            results.rows.push(work_row(measured, system, "ns_per_packet_above_return", work, &above));
        }
    }
}

fn add_messages(measured: &Measured, results: &mut Results) {
    let tag = measured.tag();
    let whole = [Work::Get, Work::Hold, Work::Own, Work::Heartbeat];
    let whole: Vec<Work> = whole.into_iter().chain(OWNERS.map(Work::Prepare)).collect();
    for work in [Work::NoMessage, Work::WrongTag].into_iter().chain(whole.iter().copied()) {
        let row = work_row(measured, "switch", "ns_per_control", work, &measured.ns(work));
        let expected = match work {
            Work::NoMessage | Work::WrongTag => "dropped",
            Work::Prepare(_) => "",
            _ => "expected ≤ 350",
        };
        results.rows.push(row.note(expected));
    }
    let values: Vec<f64> = tag.iter().flatten().copied().collect();
    results.rows.push(
        Row::new("switch", "ns_per_tag", "ns", &values)
            .note("a wrong tag over no message: the look-up of a key, and one tag"),
    );
    for work in whole {
        let without = combine(&measured.ns(work), &tag, |ns, tag| ns - 2.0 * tag);
        let row = work_row(measured, "switch", "ns_per_control_without_tags", work, &without);
        let expected = if matches!(work, Work::Prepare(_)) { "" } else { "; expected ≤ 200" };
        results.rows.push(row.note(format!("computed: two of `ns_per_tag` less{expected}")));
    }
}

fn add_entries(measured: &Measured, results: &mut Results) {
    for entries in ENTRIES {
        for (keys, work) in [
            ("one", Work::Hot(entries)),
            ("uniform", Work::Uniform(entries)),
            ("uniform", Work::Strange(entries)),
        ] {
            let row = work_row(measured, "switch", "ns_per_packet", work, &measured.ns(work));
            results.rows.push(row.param("keys", keys));
        }
    }
    let [few, many] = ENTRIES;
    let mut ratio = |name: &str, many: Work, few: Work, note: &str| {
        let (many, few) = (measured.above_return(many), measured.above_return(few));
        let note = format!("time above that of a program that only returns; {note}");
        results.ratios.push(Ratio::paired(name, &many, &few).note(note));
    };
    ratio(
        "ns_100000_entries_over_10",
        Work::Hot(many),
        Work::Hot(few),
        "packets of one flow; expected ≤ 1.15",
    );
    ratio(
        "ns_100000_entries_over_10_uniform",
        Work::Uniform(many),
        Work::Uniform(few),
        "packets of flows drawn at random; expected ≤ 2",
    );
}

fn add_control_trips(measured: &Measured, results: &mut Results) {
    for trip in [Trip::Program, Trip::Daemon, Trip::DaemonAcross] {
        let expected = if trip == Trip::Program { "expected ≤ 6" } else { "" };
        let row = trip_row(measured, trip, "control_round_trip_us", |times| times.median);
        results.rows.push(row.note(expected));
        results.rows.push(trip_row(measured, trip, "control_round_trip_p99_us", |times| times.p99));
    }
    let mut ratio = |name: &str, trip: Trip, note: &str| {
        let (daemon, program) = (measured.medians(trip), measured.medians(Trip::Program));
        results.ratios.push(Ratio::paired(name, &daemon, &program).note(note));
    };
    let one_core =
        "agent and daemon on one core; expected ≥ 3; Prism: hand-offs of up to 828 µs through a controller";
    ratio("daemon_over_in_program", Trip::Daemon, one_core);
    ratio("daemon_over_in_program_across_cores", Trip::DaemonAcross, "on two cores; expected ≥ 8");
}

fn add_host_trips(measured: &Measured, results: &mut Results) {
    for trip in [Trip::Bridge, Trip::OneSwitch, Trip::FiveSwitches] {
        results.rows.push(trip_row(measured, trip, "host_round_trip_us", |times| times.median));
    }
    let (one, five) = (measured.medians(Trip::OneSwitch), measured.medians(Trip::FiveSwitches));
    // A round trip passes each of the further switches twice.
    let hops = 2.0 * (ROW - 1) as f64;
    let values: Vec<f64> =
        combine(&five, &one, |five, one| (five - one) / hops).into_iter().flatten().collect();
    results.rows.push(
        Row::new("switch", "added_delay_per_hop_us", "µs", &values)
            .param("switches", ROW)
            .note("a switch and a cable, one way"),
    );
    let name = "host_round_trip_over_bridge";
    results.ratios.push(Ratio::paired(name, &one, &measured.medians(Trip::Bridge)).note("one switch"));
}

fn add_transfers(measured: &Measured, results: &mut Results) {
    if measured.transfers.iter().all(Rounds::is_empty) {
        return;
    }
    for (joined, rounds) in Joined::ALL.into_iter().zip(&measured.transfers) {
        let values: Vec<f64> = rounds.valid().map(|transfer| transfer.gbit_per_s()).collect();
        let row = Row::new(joined.name(), "throughput_gbit_per_s", "Gbit/s", &values);
        results.rows.push(row.note(rounds.left_out()));
    }
    let rates = measured.transfers.each_ref().map(|rounds| rounds.each(|transfer| transfer.gbit_per_s()));
    let [bridge, bridge_with_gro, switch, without_pass] = &rates;
    let pass = "one TCP connection, equal offloads, pass programs at the hosts; expected ≥ 1.2";
    let no_pass = "no programs at the hosts; expected ≥ 1.2";
    let gro = "pass programs at the hosts; the bridge's ports join packets before it forwards them";
    for (name, switch, bridge, note) in [
        ("throughput_over_bridge", switch, bridge, pass),
        ("throughput_over_bridge_without_pass", without_pass, bridge, no_pass),
        ("throughput_over_bridge_with_gro", switch, bridge_with_gro, gro),
    ] {
        results.ratios.push(Ratio::paired(name, switch, bridge).note(note));
    }
}

impl Measured {
    /// Time of a run, in ns.
    fn ns(&self, work: Work) -> Series {
        self.works.get(&work).map(|rounds| rounds.each(|ns| *ns)).unwrap_or_default()
    }

    fn above_return(&self, work: Work) -> Series {
        combine(&self.ns(work), &self.ns(Work::Return), |ns, nothing| ns - nothing)
    }

    /// Time of one tag, in ns.
    fn tag(&self) -> Series {
        combine(&self.ns(Work::WrongTag), &self.ns(Work::NoMessage), |with, without| with - without)
    }

    fn medians(&self, trip: Trip) -> Series {
        self.trips.get(&trip).map(|rounds| rounds.each(|times| times.median)).unwrap_or_default()
    }
}

/// A figure of two series of the same rounds.
fn combine(first: &Series, second: &Series, figure: impl Fn(f64, f64) -> f64) -> Series {
    first.iter().zip(second).map(|(a, b)| Some(figure((*a)?, (*b)?))).collect()
}

/// A row with the conditions of the work.
fn work_row(measured: &Measured, system: &str, metric: &str, work: Work, series: &Series) -> Row {
    let values: Vec<f64> = series.iter().flatten().copied().collect();
    let row = Row::new(system, metric, "ns", &values).param("kind", work.kind());
    let row = match work {
        Work::Prepare(owners) => row.param("owners", owners),
        Work::Hot(entries) | Work::Uniform(entries) | Work::Strange(entries) => row.param("entries", entries),
        _ => row,
    };
    row.note(measured.works.get(&work).map(|rounds| rounds.left_out()).unwrap_or_default())
}

fn trip_row(measured: &Measured, trip: Trip, metric: &str, value: impl Fn(&Times) -> f64) -> Row {
    let rounds = measured.trips.get(&trip);
    let values: Vec<f64> = rounds.into_iter().flat_map(|rounds| rounds.valid()).map(value).collect();
    let left_out = rounds.map(|rounds| rounds.left_out()).unwrap_or_default();
    Row::new(trip.name(), metric, "µs", &values).note(left_out)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiments::switch::cost::bulk::Transfer;
    use crate::machine::Machine;

    fn rounds<T: Copy>(value: T) -> Rounds<T> {
        vec![Some(value); 7].into_iter().collect()
    }

    fn results() -> Results {
        let mut measured = Measured::default();
        let ns = [
            (Work::Return, 40.0),
            (Work::Hub, 60.0),
            (Work::Plain, 90.0),
            (Work::NoMessage, 80.0),
            (Work::WrongTag, 160.0),
            (Work::Get, 300.0),
            (Work::Prepare(255), 700.0),
            (Work::Hot(10), 140.0),
            (Work::Hot(100_000), 150.0),
            (Work::Uniform(10), 140.0),
            (Work::Uniform(100_000), 240.0),
        ];
        measured.works.extend(ns.map(|(work, ns)| (work, rounds(ns))));
        let us = [
            (Trip::Program, 5.0),
            (Trip::Daemon, 15.0),
            (Trip::DaemonAcross, 50.0),
            (Trip::Bridge, 12.0),
            (Trip::OneSwitch, 10.0),
            (Trip::FiveSwitches, 18.0),
        ];
        let times = |median| rounds(Times { median, p99: 2.0 * median });
        measured.trips.extend(us.map(|(trip, us)| (trip, times(us))));
        let transfer =
            |bytes| rounds(Transfer { sent: bytes, arrived: bytes, wrong: 0, time: Duration::from_secs(1) });
        measured.transfers = [500_000_000, 1_500_000_000, 750_000_000, 1_000_000_000].map(transfer);
        let mut results = Results::new("switch-cost", Machine::default());
        add(&measured, &mut results);
        results
    }

    #[test]
    fn ratios_have_the_names_of_the_plan() {
        let results = results();
        let median = |name: &str| {
            let ratio = results.ratios.iter().find(|ratio| ratio.name == name);
            ratio.unwrap_or_else(|| panic!("no ratio {name}")).median.unwrap()
        };
        assert!((median("ns_100000_entries_over_10") - 1.1).abs() < 1e-9);
        assert_eq!(median("ns_100000_entries_over_10_uniform"), 2.0);
        assert_eq!(median("daemon_over_in_program"), 3.0);
        assert_eq!(median("daemon_over_in_program_across_cores"), 10.0);
        assert_eq!(median("throughput_over_bridge"), 1.5);
        assert_eq!(median("throughput_over_bridge_without_pass"), 2.0);
        assert_eq!(median("throughput_over_bridge_with_gro"), 0.5);
    }

    #[test]
    fn tags_and_the_empty_program_are_subtracted() {
        let results = results();
        let median = |metric: &str, kind: Option<&str>| {
            let is_row = |row: &&Row| {
                row.metric == metric && kind.is_none_or(|kind| row.params.get("kind") == Some(&kind.into()))
            };
            results.rows.iter().find(is_row).and_then(|row| row.median)
        };
        assert_eq!(median("ns_per_packet", Some("plain L2")), Some(90.0));
        assert_eq!(median("ns_per_packet_above_return", Some("plain L2")), Some(50.0));
        assert_eq!(median("ns_per_tag", None), Some(80.0));
        assert_eq!(median("ns_per_control", Some("get")), Some(300.0));
        assert_eq!(median("ns_per_control_without_tags", Some("get")), Some(140.0));
        assert_eq!(median("added_delay_per_hop_us", None), Some(1.0));
        // A row that was not measured is present, and says so.
        let missing = results.rows.iter().find(|row| row.params.get("kind") == Some(&"hold".into())).unwrap();
        assert!(!missing.valid && missing.why.contains("no valid run"));
    }
}
