//! Where the program can be attached, and how long.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use spillway_bpf::{AttachError, Mode, Pass, attached_program};

use super::link::{CLIENT, Frames, SERVER, ip, isolated};
use super::{BUDGET, LOCAL, PEER, frame, hold, loaded, released};

const PATIENCE: Duration = Duration::from_secs(30);
/// Set for the process that is killed: the test runs itself.
const CHILD: &str = "SPILLWAY_TEST_HOLD_CHILD";

#[test]
fn packets_are_held_in_the_driver_and_behind_it() {
    let Some(mut held) = loaded(8, 1 << 20) else { return };
    if !isolated() {
        return;
    }
    // The driver of this kind of interface runs no programs. The address is that of the frames.
    ip(&format!("link add link {SERVER} name virtual0 address 02:00:00:00:00:01 type macvlan mode bridge"));
    ip("link set virtual0 up");
    let client = Frames::at(CLIENT);
    for (interface, mode) in [(SERVER, Mode::Native), ("virtual0", Mode::Generic)] {
        if mode == Mode::Generic {
            held = loaded(8, 1 << 20).expect("loaded before");
        }
        assert_eq!(held.attach(interface).unwrap(), mode);
        let server = Frames::at(interface);
        // Frames are lost until the interfaces are running.
        wait_for(mode, || {
            client.send(&frame(0));
            server.next().is_some()
        });
        let hold = hold(&mut held, LOCAL, PEER, BUDGET).unwrap();
        let mut expected = Vec::new();
        for payload in [0, 100, 1_400] {
            client.send(&frame(payload));
            expected.push(frame(payload)[14..].to_vec());
        }
        wait_for(mode, || held.waiting(hold).unwrap().frames == 3);
        while let Some(earlier) = server.next() {
            assert_eq!(earlier, frame(0), "{mode:?}: nothing passes");
        }
        assert_eq!(released(&mut held, hold), expected, "{mode:?}");
        client.send(&frame(50));
        let mut passed = None;
        wait_for(mode, || {
            passed = server.next();
            passed.is_some()
        });
        assert_eq!(passed, Some(frame(50)), "{mode:?}: after the release packets pass");
    }
}

fn wait_for(mode: Mode, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{mode:?}");
    }
}

#[test]
fn interfaces_with_another_program_and_lo_are_refused() {
    let Some(mut held) = loaded(1, 0) else { return };
    if !isolated() {
        return;
    }
    let error = held.attach("lo").unwrap_err();
    assert!(matches!(error, AttachError::Loopback { .. }), "{error}");
    assert!(error.to_string().contains("name the interfaces on which clients' packets arrive"), "{error}");
    let error = held.attach("none0").unwrap_err();
    assert!(matches!(error, AttachError::Unknown { .. }), "{error}");
    let other = Pass::load().unwrap().attach(SERVER).unwrap();
    let error = held.attach(SERVER).unwrap_err();
    assert!(matches!(error, AttachError::Occupied { program_id, .. } if program_id == other.program_id()));
    assert_eq!(attached_program(SERVER).unwrap(), Some(other.program_id()), "it stays");
    drop(other);
    held.attach(SERVER).unwrap();
    held.attach(CLIENT).expect("several interfaces");
    assert_eq!(attached_program(SERVER).unwrap(), Some(held.attachments()[0].program_id()));
    drop(held);
    for interface in [SERVER, CLIENT] {
        assert_eq!(attached_program(interface).unwrap(), None, "a drop detaches the program");
    }
}

/// What the killed process does. A test of its own, so that the process can name it.
#[test]
fn child_that_holds_a_flow_until_it_is_killed() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mut held = loaded(1, 0).expect("the parent could load it");
    held.attach(SERVER).unwrap();
    hold(&mut held, LOCAL, PEER, BUDGET).unwrap();
    println!("attached");
    std::thread::sleep(10 * PATIENCE);
}

#[test]
fn the_end_of_the_process_detaches_the_program() {
    if loaded(1, 0).is_none() || !isolated() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "interfaces::child_that_holds_a_flow_until_it_is_killed", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("attached") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child has ended");
    }
    assert!(attached_program(SERVER).unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    output.read_to_end(&mut Vec::new()).unwrap();
    let start = Instant::now();
    while attached_program(SERVER).unwrap().is_some() {
        assert!(start.elapsed() < PATIENCE);
    }
}
