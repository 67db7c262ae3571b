//! An experiment that is stopped writes what it has. It needs root, the peers, and the `spillway` command and its shim
//! built beside this test.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use spillway_bench::results::Results;
use support::programs;

#[test]
fn an_interrupted_experiment_writes_what_it_has_and_fails() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let file = std::env::temp_dir().join(format!("spillway-bench-incomplete-{}.json", std::process::id()));
    // Whatever these tests themselves are started with: a background job of a shell ignores SIGINT.
    let mut child = Command::new("env")
        .arg("--default-signal=INT")
        .arg(programs.lab)
        .args(["bench", "loss", "--json"])
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Two measurements are over, and the third has begun.
    let measured = lines.by_ref().filter(|line| line.as_ref().unwrap().contains(" lost")).take(2).count();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let told: Vec<String> = lines.map(Result::unwrap).collect();
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(measured, 2, "{told:?} {complaint}");
    assert_eq!(status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("loss is incomplete: interrupted by signal 2"), "{complaint}");

    let results: Results = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    fs::remove_file(&file).unwrap();
    assert!(results.incomplete && results.why.contains("interrupted by signal 2"), "{}", results.why);
    let measured = results.rows.iter().any(|row| row.metric == "p99_ms" && row.runs > 0);
    let spoilt = results.rows.iter().any(|row| row.why.contains("spoilt"));
    assert!(measured || spoilt, "what was measured is kept: {:?}", results.rows);
}
