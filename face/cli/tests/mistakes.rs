//! Beginners' mistakes: each error names the next step.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use spillway_lab::Place;
use spillway_lab::peers::Memcached;
use spillway_ports::free_port;
use support::{SPILLWAY, Scratch};

fn run(arguments: &[&str]) -> Output {
    Command::new(SPILLWAY).args(arguments).output().unwrap()
}

fn error(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn missing_directory_of_a_key_file_is_reported() {
    let directory = Scratch::new();
    let file = directory.path("etc/cache.key");
    let message = error(&run(&["key", "new", &file]));
    assert!(message.contains("create its directory: mkdir -p") && message.contains("/etc"), "{message}");
    let message = error(&run(&["run", "--key", &file, "--", "true"]));
    assert!(message.contains("does not exist; make one with: spillway key new"), "{message}");
}

#[test]
fn key_new_writes_the_key_even_if_printing_fails() {
    let directory = Scratch::new();
    let new = |file: &str, stdout: Stdio| {
        let mut command = Command::new(SPILLWAY);
        command.args(["key", "new", &directory.path(file)]).stdout(stdout).stderr(Stdio::piped());
        command.spawn().unwrap().wait_with_output().unwrap()
    };
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let message = error(&new("a.key", full.into()));
    assert!(message.contains("cannot print") && !message.contains("panicked"), "{message}");
    let (_, closed) = std::io::pipe().unwrap();
    assert!(new("b.key", closed.into()).status.success());
    assert!(Path::new(&directory.path("a.key")).exists() && Path::new(&directory.path("b.key")).exists());
}

#[test]
fn addresses_without_brackets_or_with_a_wrong_port_are_explained() {
    let message = error(&run(&["helper", "--service", "cache=::1:11411", "--listen", "0"]));
    assert!(message.contains("an IPv6 address needs brackets: [::1]:11411"), "{message}");
    let message = error(&run(&["helper", "--service", "cache=127.0.0.1:1", "--listen", "99999"]));
    assert!(message.contains("is not a port (1 to 65535)"), "{message}");
}

#[test]
fn misspelt_commands_get_a_suggestion() {
    let message = error(&run(&["hepler"]));
    assert!(message.contains("similar") && message.contains("helper"), "{message}");
}

#[test]
fn commands_without_a_daemon_name_the_socket_they_tried() {
    let directory = Scratch::new();
    let socket = directory.path("helper.sock");
    for command in ["reload", "status"] {
        let message = error(&run(&[command, "--socket", &socket]));
        assert!(message.contains(&socket) && message.contains("--socket PATH"), "{message}");
    }
}

fn log_of(arguments: &[&str], until: &str) -> String {
    use std::io::{BufRead, BufReader};
    let mut daemon = Command::new(SPILLWAY).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    for line in BufReader::new(daemon.stderr.take().unwrap()).lines() {
        text += &(line.unwrap() + "\n");
        if text.contains(until) {
            break;
        }
    }
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    text
}

#[test]
fn load_fails_on_an_invalid_exponent_and_on_a_report_that_cannot_be_printed() {
    let server = Memcached::default().start(&Place::local().unwrap()).unwrap();
    let address = server.address().to_string();
    for exponent in ["--zipf=-1", "--zipf=nan"] {
        let message = error(&run(&["load", "--server", &address, "--duration", "200ms", exponent]));
        assert!(message.contains("--zipf") && message.contains("from 0 to 10"), "{message}");
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(SPILLWAY);
    command.args(["load", "--server", &address, "--duration", "200ms", "--keys", "10"]).stdout(full);
    let message = error(&command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap());
    assert!(message.contains("cannot print"), "{message}");
}

#[test]
fn a_sidecar_warns_if_its_link_port_is_an_ordinary_port() {
    let server = Memcached::default().start(&Place::local().unwrap()).unwrap();
    let address = server.address().to_string();
    let listen = format!("127.0.0.1:{}", free_port());
    let message = log_of(&["sidecar", "--link", &address, "--listen", &listen], "port of --link");
    assert!(message.contains(&address) && message.contains("not the server's own"), "{message}");

    let message = log_of(&["sidecar", "--server", &address, "--listen", &listen], "give --link");
    assert!(message.contains("sidecar --server is an old spelling"), "{message}");
}

#[test]
fn run_warns_about_a_program_that_never_waits_for_clients() {
    // Perl, because coreutils close standard error before they end, and shells end without calling `exit`.
    let output = run(&["run", "--", "perl", "-e", "1"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && message.matches("ended without waiting for clients").count() == 1,
        "{message}"
    );
    // No warning if a child process may have been the server.
    let output = run(&["run", "--", "perl", "-e", "system('true')"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!message.contains("without waiting"), "{message}");
    // Programs that become daemons, as redis does: a child outlives the process. The second program starts
    // the child through another child, whose end the kernel does not report.
    for daemon in [
        "select(undef, undef, undef, 0.5) if fork() == 0",
        "$SIG{CHLD} = 'IGNORE'; if (fork() == 0) { fork(); exit } select(undef, undef, undef, 0.5)",
    ] {
        let output = run(&["run", "--", "perl", "-e", daemon]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !message.contains("without waiting"), "{message}");
    }
}

#[test]
fn commands_find_a_users_helper_without_a_socket_option() {
    let directory = Scratch::new();
    let (server, port) = (free_port(), free_port());
    let (service, listen) = (format!("cache=127.0.0.1:{server}"), format!("127.0.0.1:{port}"));
    if spillway_daemon::default_socket("helper").starts_with("/run/spillway")
        && fs::exists("/run/spillway").unwrap()
    {
        println!("skipped: this user may write in /run/spillway, which comes first");
        return;
    }
    let command = |arguments: &[&str]| {
        let mut command = Command::new(SPILLWAY);
        command.args(arguments).env("XDG_RUNTIME_DIR", directory.path(""));
        command
    };
    let mut helper = command(&["helper", "--service", &service, "--listen", &listen]).spawn().unwrap();
    while !Path::new(&directory.path("spillway/helper.sock")).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = command(&["status"]).output().unwrap();
    let drained = command(&["drain", "cache", "--wait"]).output().unwrap();
    helper.kill().unwrap();
    helper.wait().unwrap();
    assert!(String::from_utf8_lossy(&status.stdout).contains("cache"), "{status:?}");
    assert!(drained.status.success(), "{drained:?}");
}

/// Another daemon has locked the runtime directory, and makes the usual socket while this daemon starts.
#[test]
fn daemon_runs_without_the_usual_socket_while_another_daemon_makes_it() {
    let directory = Scratch::new();
    if spillway_daemon::default_socket("sidecar").starts_with("/run/spillway")
        && fs::exists("/run/spillway").unwrap()
    {
        println!("skipped: this user may write in /run/spillway, which comes first");
        return;
    }
    fs::create_dir(directory.path("spillway")).unwrap();
    let other = fs::File::open(directory.path("spillway")).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let listen = free_port();
    let mut sidecar = Command::new(SPILLWAY)
        .args(["sidecar", "--link", "127.0.0.1:1", "--listen", &listen.to_string()])
        .env("XDG_RUNTIME_DIR", directory.path(""))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let bound = std::os::unix::net::UnixListener::bind(directory.path("spillway/sidecar.sock"));
    drop(other);
    while std::net::TcpStream::connect(("127.0.0.1", listen)).is_err() {
        assert_eq!(sidecar.try_wait().unwrap(), None, "the sidecar should run without an admin socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    sidecar.kill().unwrap();
    sidecar.wait().unwrap();
    assert!(bound.is_ok(), "{bound:?}");
}

#[test]
fn sidecar_check_refuses_invalid_options_without_starting() {
    let output = run(&["sidecar", "--link", "127.0.0.1:11411", "--listen", "11211", "--check"]);
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && message.contains("OK: clients at 127.0.0.1:11211"), "{output:?}");
    let message = error(&run(&["sidecar", "--link", "10.0.0.1:11411", "--listen", "11211", "--check"]));
    assert!(message.contains("--client-key"), "{message}");
    // Options that a sidecar would refuse at its start.
    for (invalid, option) in [
        (["--listen", ":11211"], "--allow-clients"),
        (["--threads", "0"], "--threads"),
        (["--sla", "1h"], "--sla"),
    ] {
        let valid = ["sidecar", "--link", "127.0.0.1:11411", "--listen", "11211", "--check"];
        let message = error(&run(&[&valid[..], &invalid].concat()));
        assert!(message.contains(option), "{message}");
    }
}
