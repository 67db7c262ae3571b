//! Commands on a host with a daemon that accepts connections and never answers, as a stopped process does.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

use support::terminal::Terminal;
use support::{SPILLWAY, Scratch, text};

/// A host whose admin sockets are `hung.sock`, which never answers, and `switch.sock`, which answers with a status.
struct Host {
    scratch: Scratch,
    _hung: UnixListener,
}

impl Host {
    fn new() -> Host {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path("spillway")).unwrap();
        let listener = UnixListener::bind(scratch.path("spillway/switch.sock")).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                let status = spillway_switch::SwitchStatus { kind: "switch".into(), ..Default::default() };
                writeln!(stream, r#"{{"ok": {}}}"#, status.to_json()).unwrap();
            }
        });
        let hung = UnixListener::bind(scratch.path("spillway/hung.sock")).unwrap();
        Host { scratch, _hung: hung }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(SPILLWAY);
        command
            .args(arguments)
            .env("SPILLWAY_STATUS_DIR", self.scratch.path(""))
            .env("XDG_RUNTIME_DIR", self.scratch.path(""));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn hung(&self) -> String {
        self.scratch.path("spillway/hung.sock")
    }
}

#[test]
fn a_hung_daemon_is_named_and_hides_no_other() {
    let host = Host::new();
    let all = host.run(&["status"]);
    assert!(all.status.success() && text(&all.stdout).contains("switch"), "{all:?}");
    let warning = text(&all.stderr);
    assert!(warning.contains("hung.sock") && warning.contains("no answer in time"), "{warning}");
    let top = host.run(&["top", "--once", "--interval", "0.1"]);
    let lines = text(&top.stdout);
    assert!(top.status.success() && lines.contains("no answer in time"), "{lines}");
    assert!(lines.contains("0 of 0 ports"), "{lines}");
    let flows = host.run(&["flows", "--socket", &host.hung()]);
    assert_eq!(flows.status.code(), Some(1));
    assert!(text(&flows.stderr).contains("no answer in time"), "{flows:?}");
}

#[test]
fn long_requests_say_that_they_wait() {
    let host = Host::new();
    for request in [&["reload"][..], &["flows", "clear", "--all"]] {
        let hung = host.hung();
        let arguments = [request, &["--socket", &hung]].concat();
        let mut command = host.command(&arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(command.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("still waiting") && line.contains("hung.sock"), "{line}");
        assert!(command.try_wait().unwrap().is_none(), "the request should still wait");
        command.kill().unwrap();
        command.wait().unwrap();
    }
}

/// The key works before any daemon has answered: the command queries one daemon only, which never answers.
#[test]
fn the_key_q_ends_top_while_a_daemon_hangs() {
    let host = Host::new();
    let mut terminal = Terminal::new();
    let [input, output, errors] = terminal.streams();
    // In a session of its own, whose terminal this is.
    let mut top = Command::new("setsid")
        .args(["--ctty", "--wait", SPILLWAY, "top", "--interval", "3600", "--socket", &host.hung()])
        .stdin(input)
        .stdout(output)
        .stderr(errors)
        .spawn()
        .unwrap();
    let mut shown = String::new();
    while !shown.contains("waiting for the first answers") {
        shown += &terminal.read(4096).expect("the first frame");
    }
    terminal.master.write_all(b"q").unwrap();
    let rest = terminal.rest();
    assert!(rest.ends_with("\x1b[?25h\x1b[?1049l"), "{rest:?}");
    assert!(top.wait().unwrap().success());
}
