//! The `spillway load` command as a process: exit status, outputs and signals.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn echo_server(alter: fn(&mut [u8])) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    alter(&mut buffer[..count]);
                    if stream.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

fn load(server: SocketAddr, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway"));
    command.args(["load", "--protocol", "echo", "-c", "5", "--rate", "500", "--server", &server.to_string()]);
    command.args(extra);
    command
}

fn run(server: SocketAddr, extra: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = load(server, extra).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn successful_run_prints_a_table_and_writes_a_json_report() {
    let file = std::env::temp_dir().join(format!("spillway-cli-load-{}.json", std::process::id()));
    let path = file.to_str().unwrap();
    let (status, table, progress) =
        run(echo_server(|_| {}), &["-d", "1500ms", "--json", path, "--progress", "--at", "100ms=mark:now"]);
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(status, Some(0), "{table}{progress}");
    assert!(table.contains("0 wrong, 0 lost, 0 resets"), "{table}");
    assert!(progress.contains("on time") && progress.contains("mark now"), "{progress}");
    let answered = document["total"]["answered"].as_u64().unwrap();
    assert!(answered > 500 && table.contains(&answered.to_string()));
    assert_eq!(document["marks"][0]["name"], "now");
}

#[test]
fn the_exit_status_distinguishes_wrong_replies_from_runs_that_failed() {
    let (status, table, _) = run(echo_server(|bytes| bytes[0] ^= 1), &["-d", "300ms"]);
    assert_eq!(status, Some(1), "{table}");
    assert!(table.contains("wrong reply"), "{table}");
    let unused = spillway_ports::free_address();
    for (extra, word) in [
        (&["-d", "300ms"][..], "refused"),
        (&["--at", "1s=move:helper"], "--helper"),
        (&["--at", "1s=jump"], "jump"),
        (&["--duration", "10"], "duration"),
        (&["--helper", "127.0.0.1:1", "--client-key", "/no/such/key"], "/no/such/key"),
    ] {
        let (status, _, error) = run(unused, extra);
        assert_eq!(status, Some(2), "{error}");
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn descriptor_limits_are_raised_or_explained() {
    let server = echo_server(|_| {});
    let run_with_limit = |limit: &str, connections: &str| {
        let command = format!("ulimit {limit} && exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            &command,
            env!("CARGO_BIN_EXE_spillway"),
            "load",
            "--protocol",
            "echo",
            "-d",
            "100ms",
        ]);
        shell.args(["--rate", "500", "--server", &server.to_string(), "-c", connections]).output().unwrap()
    };
    let raised = run_with_limit("-S -n 50", "100");
    assert_eq!(raised.status.code(), Some(0), "{raised:?}");
    let refused = run_with_limit("-n 50", "100");
    assert_eq!(refused.status.code(), Some(2));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("164 file descriptors") && error.contains("limit is 50"), "{error}");
}

fn start(extra: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut command = load(echo_server(|_| {}), &["-d", "0s", "--events"]);
    let mut child = command.args(extra).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

fn wait_for(lines: &mut impl BufRead, event: &str) -> Value {
    loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "no event {event}");
        let value: Value = serde_json::from_str(&line).unwrap();
        if value["event"] == event {
            return value;
        }
    }
}

#[test]
fn signals_move_connections_and_stop_the_run() {
    for stop_signal in [Signal::INT, Signal::TERM] {
        let (mut child, mut lines) = start(&[]);
        let send = |signal| kill_process(Pid::from_child(&child), signal).unwrap();
        wait_for(&mut lines, "bins");
        send(Signal::USR1);
        let trouble = wait_for(&mut lines, "trouble");
        assert!(trouble["what"].as_str().unwrap().contains("no --helper"), "{trouble}");
        send(Signal::USR2);
        let moved = wait_for(&mut lines, "moved");
        assert_eq!(
            moved["move"]["connections"], 0,
            "no connection should move, because all are direct: {moved}"
        );
        send(stop_signal);
        let end = wait_for(&mut lines, "end");
        assert!(end["report"]["total"]["answered"].as_u64().unwrap() > 0);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn commands_on_standard_input_control_the_load() {
    let (mut child, mut lines) = start(&["--control", "stdin", "--hold"]);
    let mut input = child.stdin.take().unwrap();
    wait_for(&mut lines, "ready");
    input.write_all(b"start\nrate 2000\n").unwrap();
    assert_eq!(wait_for(&mut lines, "command")["command"], "rate 2000");
    wait_for(&mut lines, "bins");
    input.write_all(b"stop\n").unwrap();
    wait_for(&mut lines, "end");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn held_run_ends_at_the_end_of_standard_input_or_at_stop() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for server in [echo_server(|_| {}), silent.local_addr().unwrap()] {
        let mut held = load(server, &["--hold", "--control", "stdin", "-d", "10s"]);
        let mut child =
            held.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdin.take());
        // Hangs if the run does not end.
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // A stop that arrives while connections are being opened.
    let mut held = load(echo_server(|_| {}), &["--hold", "--control", "stdin", "-d", "10s"]);
    let mut child = held.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"stop\n").unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
}
