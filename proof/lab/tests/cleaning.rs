//! A lab is removed completely by a drop, a panic, `exit`, a signal and `clean`. Skips without root.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use spillway_bpf::switch::PINS;
use spillway_lab::{Forwarding, HostOptions, Lab, LabOptions, Launch, unavailable};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Environment variable of the child process: `exit` makes it exit, `signal` wait for a signal, `switch-signal` wait for a
/// signal with a lab of switches.
const HOLD: &str = "SPILLWAY_LAB_TEST_HOLD";

fn skipped() -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_some()
}

/// Files, namespaces and groups of a run, and processes with one of `marks` in name or command line.
fn leftovers(run: &str, marks: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let directories =
        ["/run/netns", "/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuacct", "/tmp", PINS];
    for directory in directories {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == run || ['.', '_'].iter().any(|end| name.starts_with(&format!("{run}{end}"))) {
                found.push(format!("{directory}/{name}"));
            }
        }
    }
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let (name, command) = (read("comm"), read("cmdline"));
        if marks.iter().any(|mark| name.contains(mark.as_str()) || command.contains(mark.as_str())) {
            found.push(format!("process {} {name}", entry.path().display()));
        }
    }
    found
}

/// Waits, because the kernel removes namespaces and their interfaces' threads in the background.
fn wait_until_removed(run: &str, marks: &[String]) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let found = leftovers(run, marks);
        if found.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "not removed: {found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_dropped_lab_leaves_nothing() {
    if skipped() {
        return;
    }
    let lab = Lab::new("drop").unwrap();
    let run = lab.run_name();
    let mut marks = Vec::new();
    let mut processes = Vec::new();
    for name in ["one", "two"] {
        let host = lab.host(name, HostOptions::default()).unwrap();
        let mark = format!("{run}-{name}-mark");
        processes.push(host.spawn(&Launch::new("sh").args(["-c", "sleep 1000; :", &mark])).unwrap());
        marks.extend([host.interface().to_owned(), mark]);
    }
    assert!(
        leftovers(&run, &marks).len() >= 8,
        "at least 8 of these should exist: directory, group, 3 namespaces, 2 processes and 2 interface threads"
    );
    drop(lab);
    wait_until_removed(&run, &marks);
    for mut process in processes {
        assert_eq!(process.wait(TIMEOUT).and_then(|status| status.signal()), Some(9));
    }
}

#[test]
fn a_panic_leaves_nothing() {
    if skipped() {
        return;
    }
    let mut names = None;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let lab = Lab::new("panic").unwrap();
        let host = lab.host("one", HostOptions::default()).unwrap();
        names = Some((lab.run_name(), vec![host.interface().to_owned()]));
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    let (run, marks) = names.unwrap();
    wait_until_removed(&run, &marks);
}

#[test]
fn a_failed_host_setup_leaves_nothing() {
    if skipped() {
        return;
    }
    let lab = Lab::new("half").unwrap();
    let run = lab.run_name();
    let sysctls = vec![("net/no/such/setting".to_owned(), "1".to_owned())];
    assert!(lab.host("bad", HostOptions { sysctls, ..HostOptions::default() }).is_err());
    drop(lab);
    wait_until_removed(&run, &[]);
}

fn lab_with_switches(name: &str) -> Lab {
    let options = LabOptions { forwarding: Forwarding::Switch, more_switches: 1, ..LabOptions::default() };
    Lab::with_options(name, options).unwrap()
}

/// Makes directories as a daemon does for its pins.
fn pin_directories(run: &str) {
    for name in [run.to_owned(), format!("{run}_second")] {
        if let Err(error) = std::fs::create_dir_all(Path::new(PINS).join(name)) {
            println!("without pins: {error}");
        }
    }
}

#[test]
fn a_lab_with_switches_leaves_nothing() {
    if skipped() {
        return;
    }
    let lab = lab_with_switches("switches");
    let run = lab.run_name();
    let options = HostOptions { tx_checksums: false, switch: 1, ..HostOptions::default() };
    let mut marks = vec![lab.host("one", options).unwrap().interface().to_owned()];
    for switch in lab.switches() {
        marks.extend(switch.ports().iter().map(|port| port.interface().to_owned()));
    }
    pin_directories(&run);
    let held = lab.switches()[0].spawn(&Launch::new("sleep").args(["1000"])).unwrap();
    assert!(leftovers(&run, &marks).len() >= 8, "{:?}", leftovers(&run, &marks));
    let running =
        lab.switches().iter().map(|switch| switch.load(&switch.config())).collect::<Result<Vec<_>, _>>();
    drop(lab);
    wait_until_removed(&run, &marks);
    drop((running.unwrap(), held));
}

/// Not a test: the child process of the tests below, which has a lab until it ends.
#[test]
fn child_that_holds_a_lab() {
    let Some(end) = std::env::var_os(HOLD) else { return };
    let lab = match end.to_str() {
        Some("switch-signal") => lab_with_switches("hold"),
        _ => Lab::new("hold").unwrap(),
    };
    pin_directories(&lab.run_name());
    let host = lab.host("one", HostOptions { tx_checksums: false, ..HostOptions::default() }).unwrap();
    let mark = format!("{}-mark", lab.run_name());
    // With `setsid`, a grandchild outlives its parent, and neither its group nor its death signal ends it.
    let script = "setsid sh -c 'sleep 1000; :' \"$0\" & wait";
    let process = host.spawn(&Launch::new("sh").args(["-c", script, &mark])).unwrap();
    // The blank line ends the test harness's own line.
    println!("\nholding {} {} {mark}", lab.run_name(), host.interface());
    if end == "exit" {
        std::process::exit(0);
    }
    std::thread::sleep(TIMEOUT * 10);
    drop((process, lab));
}

/// Starts a child that has a lab. Returns the child, the run's name, and marks for `leftovers`.
fn hold(end: &str) -> (Child, String, Vec<String>) {
    // These tests may be a background job of a shell, which ignores SIGINT.
    let mut child = Command::new("env")
        .arg("--default-signal=INT")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_holds_a_lab", "--nocapture"])
        .env(HOLD, end)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        if let Some(rest) = line.strip_prefix("holding ") {
            let mut fields = rest.split(' ').map(str::to_owned);
            let run = fields.next().unwrap();
            return (child, run, fields.collect());
        }
    }
    panic!("the child ended before it held a lab: {:?}", child.wait());
}

#[test]
fn a_terminated_lab_leaves_nothing() {
    if skipped() {
        return;
    }
    for (signal, end) in
        [(libc::SIGTERM, "signal"), (libc::SIGINT, "signal"), (libc::SIGINT, "switch-signal")]
    {
        let (mut child, run, marks) = hold(end);
        assert!(!leftovers(&run, &marks).is_empty(), "the lab should exist before the signal");
        // SAFETY: `kill` has no memory effects. The child is not reaped yet, so its id is not reused.
        assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
        assert_eq!(child.wait().unwrap().signal(), Some(signal), "the exit status should be the signal");
        wait_until_removed(&run, &marks);
    }
}

#[test]
fn an_exit_without_unwinding_leaves_nothing() {
    if skipped() {
        return;
    }
    let (mut child, run, marks) = hold("exit");
    assert!(child.wait().unwrap().success());
    wait_until_removed(&run, &marks);
}

#[test]
fn clean_removes_a_killed_lab_and_keeps_a_live_one() {
    if skipped() {
        return;
    }
    let living = Lab::new("living").unwrap();
    let host = living.host("one", HostOptions::default()).unwrap();
    let (mut child, run, marks) = hold("signal");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        Path::new("/run/netns").join(format!("{run}.one")).exists(),
        "the namespace should outlive SIGKILL"
    );

    // Does not check `report.removed`: the `clean` of another test may remove the run first.
    let report = spillway_lab::clean().unwrap();
    println!("{report}\n{}", serde_json::to_string(&report).unwrap());
    assert_eq!(report.failures, Vec::<String>::new());
    let kept: Vec<_> = report.kept.iter().map(|kept| kept.run.as_str()).collect();
    assert!(kept.contains(&living.run_name().as_str()), "{kept:?}");
    wait_until_removed(&run, &marks);
    assert!(host.cpu().is_ok());
    assert!(host.run_inside(|| ()).is_ok());
}
