//! The C examples against each other, through helpers that are killed: shared, static, under sanitizers and valgrind.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use support::helper::HelperProcess;
use support::process::Process;
use support::{Flavour, Workbench};

#[test]
#[ignore = "entry point of the helper process that the other tests start"]
fn helper_process() {
    support::helper::run_helper();
}

/// Kills the first helper, then the second: the session moves to the second helper, then to the server.
fn session_survives_killed_helpers(flavour: Flavour) {
    let bench = Workbench::get();
    let echo = bench.echo_server(flavour);
    let helpers = [0; 2].map(|_| HelperProcess::start(&bench, &echo.links));
    let list = format!("{}, {}", helpers[0].links, helpers[1].links);
    let mut client = bench.client(flavour, &echo.links, &list, "0");
    // The line that names the present carrier. On a slow machine the session may have left the first helper already.
    let mut carried = client.line_with("carried by ");
    // The client sends messages without a pause.
    let mut carrier_after_messages = |client: &mut Process| {
        client.line("messages", |line| {
            if line.starts_with("carried by ") {
                carried = line.to_owned();
            }
            line.ends_with(" messages")
        });
        carried.clone()
    };
    carrier_after_messages(&mut client);
    let [first, second] = helpers;
    for helper in [first, second] {
        let killed = helper.links.clone();
        helper.kill();
        while carrier_after_messages(&mut client).ends_with(&killed) {}
    }
    while !carrier_after_messages(&mut client).contains("by the server") {}
    client.close_input();
    let lines = client.succeed();
    assert!(lines.iter().any(|line| line.contains("every byte right")), "{lines:?}");
    echo.stop();
}

#[test]
fn session_survives_killed_helpers_with_the_shared_library() {
    session_survives_killed_helpers(Flavour::Shared);
}

#[test]
fn session_survives_killed_helpers_with_the_static_library() {
    session_survives_killed_helpers(Flavour::Static);
}

#[test]
fn session_survives_killed_helpers_under_sanitizers() {
    session_survives_killed_helpers(Flavour::Sanitized);
}

#[test]
fn session_survives_killed_helpers_under_valgrind() {
    session_survives_killed_helpers(Flavour::Valgrind);
}

#[test]
fn lines_are_echoed_directly_and_through_a_helper() {
    let bench = Workbench::get();
    let echo = bench.echo_server(Flavour::Shared);
    let helper = HelperProcess::start(&bench, &echo.links);
    for helpers in [helper.links.as_str(), ""] {
        let mut client = bench.client(Flavour::Shared, &echo.links, helpers, "");
        client.write("one\ntwo\n");
        client.line_with("two");
        client.write("three\n");
        client.close_input();
        let lines = client.succeed();
        assert_eq!(lines.iter().filter(|line| ["one", "two", "three"].contains(&line.as_str())).count(), 3);
    }
    echo.stop();
}

#[test]
fn plain_clients_are_served_directly_and_through_a_helper() {
    let bench = Workbench::get();
    let echo = bench.echo_server(Flavour::Sanitized);
    let helper = HelperProcess::start(&bench, &echo.links);
    for address in [&echo.plain, &helper.plain] {
        // Send far more than windows and buffers hold, so that back-pressure occurs in both directions.
        let mut stream = TcpStream::connect(address).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|at| (at ^ at >> 9) as u8).collect();
        let mut received = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(&sent).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            stream.read_to_end(&mut received).unwrap();
        });
        assert!(
            received == sent,
            "all {} bytes should be echoed unchanged; {} bytes were received",
            sent.len(),
            received.len()
        );
        // A client that closes its connection without reading the reply.
        TcpStream::connect(address).unwrap().write_all(b"not read").unwrap();
    }
    echo.stop();
}

#[test]
fn readme_program_runs() {
    let bench = Workbench::get();
    let echo = bench.echo_server_with(Flavour::Shared, &[]);
    let readme = include_str!("../README.md");
    let program = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let unused = spillway_ports::free_address().to_string();
    let program = program.replace("127.0.0.1:7400", &echo.links).replace("127.0.0.1:7411", &unused);
    bench.write_program("hello", &program);
    for flavour in [Flavour::Shared, Flavour::Static, Flavour::Sanitized] {
        assert_eq!(support::succeed(&mut bench.command("hello", flavour)), "hello\n");
    }
    echo.stop();
}

#[test]
fn missing_key_file_is_reported() {
    let bench = Workbench::get();
    let port = spillway_ports::free_address().to_string();
    let mut command = bench.command("client", Flavour::Sanitized);
    command.args(["--server", &port, "--key", "/nonexistent"]);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("does not exist; make one with: spillway key new"), "{stderr}");
}

/// Runs a program that is server and client, with a helper between the two.
fn run_with_helper_between(program: &str, last_line: &str) {
    let bench = Workbench::get();
    for flavour in [Flavour::Shared, Flavour::Sanitized, Flavour::Valgrind] {
        let mut command = bench.command(program, flavour);
        command.args([bench.key("helper.key"), bench.key("client.key")]);
        let mut process = Process::start(command);
        let server = process.line_with("127.0.0.1:");
        let helper = HelperProcess::start(&bench, &server);
        process.write(&format!("{}\n", helper.links));
        assert_eq!(process.succeed().last().unwrap(), last_line);
    }
}

#[test]
fn client_and_server_in_one_loop_use_a_helper_between_them() {
    run_with_helper_between("both_ends", "both ends are right");
}

#[test]
fn relief_moves_sessions_on_late_replies_and_by_override() {
    run_with_helper_between("relief", "relief is right");
}

#[test]
fn client_moves_to_a_helper_when_replies_are_late() {
    let bench = Workbench::get();
    let echo = bench.echo_server(Flavour::Shared);
    let helper = HelperProcess::start(&bench, &echo.links);
    // Every reply takes longer than this SLA.
    let sla = ["--sla-us", "10"];
    let mut client = bench.client_with(Flavour::Sanitized, &echo.links, &helper.links, "0", &sla);
    let first = client.line_with("carried by ");
    assert!(first.contains("by the server"), "{first}");
    client.line_with("carried by helper 0");
    client.close_input();
    let lines = client.succeed();
    assert!(lines.iter().any(|line| line.contains("every byte right")), "{lines:?}");
    echo.stop();
}

#[test]
fn two_threads_share_one_link_port() {
    let bench = Workbench::get();
    for flavour in [Flavour::Shared, Flavour::Sanitized, Flavour::Valgrind] {
        let mut command = bench.command("shared_port", flavour);
        assert_eq!(support::succeed(&mut command), "the port is shared\n");
    }
}

#[test]
fn misuse_is_reported_as_errors() {
    let bench = Workbench::get();
    for flavour in [Flavour::Shared, Flavour::Static, Flavour::Sanitized, Flavour::Valgrind] {
        let mut command = bench.command("misuse", flavour);
        assert_eq!(support::succeed(&mut command), "every mistake was reported\n");
    }
}
