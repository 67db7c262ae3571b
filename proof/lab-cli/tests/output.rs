//! The exit status and the messages of `spillway-lab` when its standard output is full or closed.

use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str], stdout: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway-lab"));
    command.args(arguments).stdout(stdout).stderr(Stdio::piped());
    command.spawn().unwrap().wait_with_output().unwrap()
}

/// One of each: a table, frames that the code under test prints, and a swarm on several threads.
const SIMULATIONS: [&[&str]; 4] = [
    &["sim", "session", "--steps", "200"],
    &["sim", "tcp", "--packets", "50", "--frames"],
    &["sim", "tcp", "--packets", "50", "--seeds", "2", "--swarm"],
    &["sim", "moves", "--case", "prepare/lost", "--frames"],
];

#[test]
fn a_simulation_whose_lines_cannot_be_written_fails_with_an_error() {
    for arguments in SIMULATIONS {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = run(arguments, full);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(message.contains("spillway-lab: cannot print: "), "{arguments:?}: {message}");
        assert!(!message.contains("panicked"), "{arguments:?}: {message}");
    }
}

#[test]
fn a_reader_that_closes_the_pipe_is_not_a_failure() {
    for arguments in SIMULATIONS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = run(arguments, writer);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !message.contains("panicked"), "{arguments:?}: {message}");
    }
}
