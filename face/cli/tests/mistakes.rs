//! Beginners' mistakes: each gets a message that says what to do.

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
fn a_key_in_a_directory_that_does_not_exist() {
    let directory = Scratch::new();
    let file = directory.path("etc/cache.key");
    let told = error(&run(&["key", "new", &file]));
    assert!(told.contains("create its directory: mkdir -p") && told.contains("/etc"), "{told}");
    let told = error(&run(&["run", "--key", &file, "--", "true"]));
    assert!(told.contains("does not exist; make one with: spillway key new"), "{told}");
}

#[test]
fn a_key_is_made_although_nobody_reads_what_is_printed() {
    let directory = Scratch::new();
    let new = |file: &str, stdout: Stdio| {
        let mut command = Command::new(SPILLWAY);
        command.args(["key", "new", &directory.path(file)]).stdout(stdout).stderr(Stdio::piped());
        command.spawn().unwrap().wait_with_output().unwrap()
    };
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let told = error(&new("a.key", full.into()));
    assert!(told.contains("cannot print") && !told.contains("panicked"), "{told}");
    let (_, closed) = std::io::pipe().unwrap();
    assert!(new("b.key", closed.into()).status.success());
    assert!(Path::new(&directory.path("a.key")).exists() && Path::new(&directory.path("b.key")).exists());
}

#[test]
fn addresses_without_brackets_or_with_a_wrong_port() {
    let told = error(&run(&["helper", "--service", "cache=::1:11411", "--listen", "0"]));
    assert!(told.contains("an IPv6 address needs brackets: [::1]:11411"), "{told}");
    let told = error(&run(&["helper", "--service", "cache=127.0.0.1:1", "--listen", "99999"]));
    assert!(told.contains("is not a port (1 to 65535)"), "{told}");
}

#[test]
fn misspelt_commands_get_a_suggestion() {
    let told = error(&run(&["hepler"]));
    assert!(told.contains("similar") && told.contains("helper"), "{told}");
}

#[test]
fn commands_without_a_daemon_name_the_socket_they_tried() {
    let directory = Scratch::new();
    let socket = directory.path("helper.sock");
    for command in ["reload", "status"] {
        let told = error(&run(&[command, "--socket", &socket]));
        assert!(told.contains(&socket) && told.contains("--socket PATH"), "{told}");
    }
}

/// The first lines that a daemon logs; the daemon is ended then.
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
fn a_load_whose_report_cannot_be_printed_or_whose_exponent_is_none_fails() {
    let server = Memcached::default().start(&Place::local().unwrap()).unwrap();
    let address = server.address().to_string();
    for exponent in ["--zipf=-1", "--zipf=nan"] {
        let told = error(&run(&["load", "--server", &address, "--duration", "200ms", exponent]));
        assert!(told.contains("--zipf") && told.contains("from 0 to 10"), "{told}");
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(SPILLWAY);
    command.args(["load", "--server", &address, "--duration", "200ms", "--keys", "10"]).stdout(full);
    let told = error(&command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap());
    assert!(told.contains("cannot print"), "{told}");
}

#[test]
fn a_sidecar_with_an_ordinary_port_is_told_at_its_start() {
    let server = Memcached::default().start(&Place::local().unwrap()).unwrap();
    let address = server.address().to_string();
    let listen = format!("127.0.0.1:{}", free_port());
    let told = log_of(&["sidecar", "--link", &address, "--listen", &listen], "port of --link");
    assert!(told.contains(&address) && told.contains("not the server's own"), "{told}");

    let told = log_of(&["sidecar", "--server", &address, "--listen", &listen], "give --link");
    assert!(told.contains("sidecar --server is an old spelling"), "{told}");
}

#[test]
fn a_program_that_never_waits_for_clients_is_told_of_at_its_end() {
    // No program of coreutils, which closes standard error before it ends, and no shell, which ends without `exit`.
    let output = run(&["run", "--", "perl", "-e", "1"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && told.matches("ended without waiting for clients").count() == 1,
        "{told}"
    );
    // A program whose child may have been the server.
    let output = run(&["run", "--", "perl", "-e", "system('true')"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!told.contains("without waiting"), "{told}");
    // A daemon that leaves its child behind, as redis does: the child outlives this process.
    // Or starts it by a child in between, of whose end the kernel tells nothing.
    for daemon in [
        "select(undef, undef, undef, 0.5) if fork() == 0",
        "$SIG{CHLD} = 'IGNORE'; if (fork() == 0) { fork(); exit } select(undef, undef, undef, 0.5)",
    ] {
        let output = run(&["run", "--", "perl", "-e", daemon]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !told.contains("without waiting"), "{told}");
    }
}

#[test]
fn a_users_helper_is_found_without_a_socket_being_named() {
    let directory = Scratch::new();
    let (server, port) = (free_port(), free_port());
    let (service, listen) = (format!("cache=127.0.0.1:{server}"), format!("127.0.0.1:{port}"));
    if spillway_daemon::usual_socket("helper").starts_with("/run/spillway")
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

/// Another daemon has chosen the usual socket, and makes it while this one starts.
#[test]
fn a_daemon_that_starts_beside_another_one_runs_without_the_usual_socket() {
    let directory = Scratch::new();
    if spillway_daemon::usual_socket("sidecar").starts_with("/run/spillway")
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
    let made = std::os::unix::net::UnixListener::bind(directory.path("spillway/sidecar.sock"));
    drop(other);
    while std::net::TcpStream::connect(("127.0.0.1", listen)).is_err() {
        assert_eq!(sidecar.try_wait().unwrap(), None, "it runs without an admin socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    sidecar.kill().unwrap();
    sidecar.wait().unwrap();
    assert!(made.is_ok(), "{made:?}");
}

#[test]
fn a_sidecars_options_are_checked_without_starting_it() {
    let output = run(&["sidecar", "--link", "127.0.0.1:11411", "--listen", "11211", "--check"]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("OK: clients at 127.0.0.1:11211"), "{output:?}");
    let told = error(&run(&["sidecar", "--link", "10.0.0.1:11411", "--listen", "11211", "--check"]));
    assert!(told.contains("--client-key"), "{told}");
    // What a sidecar would refuse at its start.
    for (wrong, option) in [
        (["--listen", ":11211"], "--allow-clients"),
        (["--threads", "0"], "--threads"),
        (["--sla", "1h"], "--sla"),
    ] {
        let usual = ["sidecar", "--link", "127.0.0.1:11411", "--listen", "11211", "--check"];
        let told = error(&run(&[&usual[..], &wrong].concat()));
        assert!(told.contains(option), "{told}");
    }
}
