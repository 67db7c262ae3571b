//! An interrupted experiment writes its results so far. Needs root, memcached, and the `spillway` command and
//! its preload library in the directory of this test.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use spillway_bench::results::Results;
use support::programs;

#[test]
fn an_interrupted_experiment_writes_its_results_and_fails() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let file = std::env::temp_dir().join(format!("spillway-bench-incomplete-{}.json", std::process::id()));
    // Restore SIGINT's default action: the tests may run as a background job of a shell, which ignores SIGINT.
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
    // Wait for the end of two measurements; the third has begun.
    let measured = lines.by_ref().filter(|line| line.as_ref().unwrap().contains(" lost")).take(2).count();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(measured, 2, "{rest:?} {errors}");
    assert_eq!(status.code(), Some(2), "{errors}");
    assert!(errors.contains("loss is incomplete: interrupted by signal 2"), "{errors}");

    let results: Results = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    fs::remove_file(&file).unwrap();
    assert!(results.incomplete && results.why.contains("interrupted by signal 2"), "{}", results.why);
    let has_values = results.rows.iter().any(|row| row.metric == "p99_ms" && row.runs > 0);
    let has_spoilt = results.rows.iter().any(|row| row.why.contains("spoilt"));
    assert!(has_values || has_spoilt, "finished measurements should be in the results: {:?}", results.rows);
}
