//! Short runs of the demo. Needs root, memcached, and the `spillway` command and its preload library in the
//! directory of this test.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use spillway_bench::demo::{self, Options};
use spillway_bench::generator::Engine;
use spillway_bench::results::Results;
use spillway_bench::scene::Setting;
use spillway_lab::browser::{View, inspect_page};
use support::programs;

/// Long enough for a machine that compiles at the same time.
const TIMEOUT: Duration = Duration::from_secs(120);

fn directory(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("spillway-bench-{name}-{}", std::process::id()))
}

/// Namespaces, control groups and files that demos of process `pid` have created and not removed.
fn leftovers(pid: u32) -> Vec<String> {
    let prefix = format!("spillway-demo-{pid}-");
    let mut found = Vec::new();
    for location in ["/run/netns", "/var/run/netns", "/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/tmp"] {
        let entries = fs::read_dir(location).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        found.extend(names.filter(|name| name.starts_with(&prefix)).map(|name| format!("{location}/{name}")));
    }
    found
}

#[test]
fn a_short_demo_completes_and_removes_everything() {
    // One after the other, because `leftovers` finds those of all demos of this process.
    run_short_demo(Engine::Sockets);
    run_short_demo(Engine::Xdp);
}

fn run_short_demo(engine: Engine) {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let directory = directory(engine.name());
    let setting = Setting { connections: 40, keys: 2_000, ..Setting::new(programs) }.with_engine(engine);
    let options = Options {
        light_s: 2,
        burst_s: 2,
        relieved_s: 4,
        after_s: 2,
        direct_per_s: Some(300.0),
        report: directory.join("report.html"),
        ..Options::new(setting)
    };
    let mut output = Vec::new();
    let demo = demo::run(&options, &mut output).unwrap();
    let output = String::from_utf8(output).unwrap();
    for check in &demo.results.checks {
        assert!(check.ok, "{}: {}\n{output}", check.name, check.detail);
    }
    let names: Vec<_> = demo.results.checks.iter().map(|check| check.name.as_str()).collect();
    assert_eq!(names, ["wrong", "lost", "resets", "not_moved", "all_moved"]);
    assert!(output.contains("40 moved") && output.contains("0 wrong, 0 lost, 0 resets"), "{output}");
    let html = fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(html.contains("<svg") && !html.contains("http"));
    for view in View::ALL {
        match inspect_page(&html, view) {
            Ok(seen) => assert_eq!(seen.problems(view), Vec::<String>::new(), "{view:?}"),
            Err(error) => println!("skipped the look at the report: {error}"),
        }
    }
    let results = fs::read_to_string(directory.join("report.json")).unwrap();
    let results: Results = serde_json::from_str(&results).unwrap();
    assert!(results.rows.iter().any(|row| row.metric == "messages_per_batch" && row.median > Some(0.0)));
    fs::remove_dir_all(directory).unwrap();
    assert_eq!(leftovers(std::process::id()), Vec::<String>::new());
}

#[test]
fn an_interrupted_demo_fails_and_removes_everything() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let directory = directory("interrupted");
    // Restore SIGINT's default action: the tests may run as a background job of a shell, which ignores SIGINT.
    let mut child = Command::new("env")
        .arg("--default-signal=INT")
        .arg(programs.lab)
        .args([
            "demo",
            "--connections",
            "20",
            "--keys",
            "500",
            "--capacity",
            "200",
            "--times",
            "4,20,20,4",
            "--report",
        ])
        .arg(directory.join("report.html"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // In the first second of the run all hosts and processes exist.
    assert!(lines.any(|line| line.unwrap().contains("light load")), "the demo ended early");
    assert!(!leftovers(pid).is_empty(), "`leftovers` should find files of the running demo");
    let pid_for_signal = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid_for_signal, rustix::process::Signal::INT).unwrap();
    let is_success = wait_for_success(&mut child);
    assert!(!is_success, "an interrupted demo must not exit with success");
    let deadline = Instant::now() + TIMEOUT;
    while !leftovers(pid).is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(leftovers(pid), Vec::<String>::new());
    assert!(!directory.exists());
}

fn wait_for_success(child: &mut Child) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        assert!(Instant::now() < deadline, "the demo did not end within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
