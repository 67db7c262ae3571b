//! `spillway run` as a process: errors, the command's environment, and a real server.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use spillway_ports::free_port;

const PATIENCE: Duration = Duration::from_secs(60);

fn spillway() -> Command {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_spillway"));
    let library = program.with_file_name("libspillway_shim.so");
    assert!(
        library.exists(),
        "{} is missing: run `cargo build --release -p spillway-shim` first",
        library.display()
    );
    let mut command = Command::new(program);
    command.arg("run").stdin(Stdio::null()).env_remove("LD_PRELOAD").env_remove("SPILLWAY_SHIM");
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = spillway().args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

/// A temporary file, removed when dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, content: &[u8], mode: u32) -> File {
        let path = std::env::temp_dir().join(format!("spillway-run-{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        File(path)
    }

    fn key(name: &str, mode: u32) -> File {
        File::new(name, format!("spillway-key-1 {}\n", "5a".repeat(32)).as_bytes(), mode)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn invalid_options_are_reported_before_the_command_starts() {
    let (code, _, error) = run(&["--link", ":11411", "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("needs a key") && error.contains("spillway key new"), "{error}");

    let readable_by_all = File::key("open.key", 0o644);
    let (code, _, error) = run(&["--key", readable_by_all.path(), "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("chmod 600"), "{error}");

    let (code, _, error) = run(&["--key", "/no/such.key", "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("/no/such.key"), "{error}");

    let (code, _, error) = run(&["--", "no-such-command-here"]);
    assert_eq!(code, Some(127));
    assert!(error.contains("command not found"), "{error}");

    let (code, _, error) = run(&["--allow-clients", "10.0.0.1/8", "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("10.0.0.1/8"), "{error}");
}

#[test]
fn the_command_gets_the_preload_library_and_its_settings() {
    let key = File::key("fine.key", 0o600);
    let output = spillway()
        .args(["--key", key.path(), "--allow-clients", "10.0.0.0/8", "--allow-clients", "fd00::/8"])
        .args(["--port", "11211", "--require", "--", "env"])
        .env("LD_PRELOAD", "/no/such/library.so")
        .output()
        .unwrap();
    let variables = String::from_utf8_lossy(&output.stdout).into_owned();
    let assert_has =
        |line: &str| assert!(variables.lines().any(|variable| variable == line), "no {line} in {variables}");
    assert_has("SPILLWAY_LINK=:11411");
    assert_has(&format!("SPILLWAY_KEYS={}", fs::canonicalize(key.path()).unwrap().display()));
    assert_has("SPILLWAY_ALLOW_CLIENTS=10.0.0.0/8,fd00::/8");
    assert_has("SPILLWAY_PORT=11211");
    assert_has("SPILLWAY_REQUIRE=1");
    assert!(variables.contains("libspillway_shim.so:/no/such/library.so"), "{variables}");
}

#[test]
fn command_switched_off_runs_without_spillway() {
    for command in [&mut spillway(), spillway().env("SPILLWAY_OFF", "1")] {
        let is_variable = command.get_envs().any(|(name, _)| name == "SPILLWAY_OFF");
        let off: &[&str] = if is_variable { &[] } else { &["--off"] };
        let output = command.args(off).args(["--", "env"]).output().unwrap();
        let variables = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(variables.contains("SPILLWAY_OFF=1") && !variables.contains("LD_PRELOAD"), "{variables}");
    }
}

/// A minimal static program that exits with code 7.
#[cfg(target_arch = "x86_64")]
fn static_program() -> Vec<u8> {
    let mut bytes = vec![0; 120];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    bytes[16..24].copy_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
    bytes[24..32].copy_from_slice(&0x40_0078u64.to_le_bytes());
    (bytes[32], bytes[52], bytes[54], bytes[56]) = (64, 64, 56, 1);
    (bytes[64], bytes[68]) = (1, 5);
    bytes[80..88].copy_from_slice(&0x40_0000u64.to_le_bytes());
    // mov edi, 7; mov eax, 231 (exit_group); syscall
    bytes.extend_from_slice(&[0xbf, 7, 0, 0, 0, 0xb8, 231, 0, 0, 0, 0x0f, 0x05]);
    let length = (bytes.len() as u64).to_le_bytes();
    bytes[96..104].copy_from_slice(&length);
    bytes[104..112].copy_from_slice(&length);
    bytes
}

#[test]
#[cfg(target_arch = "x86_64")]
fn static_program_runs_without_help_or_is_refused_with_require() {
    let program = File::new("static", &static_program(), 0o755);
    let (code, _, error) = run(&["--", program.path()]);
    assert_eq!(code, Some(7), "{error}");
    assert!(error.contains("statically linked") && error.contains("without helpers"), "{error}");
    let (code, _, error) = run(&["--require", "--", program.path()]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("--require was given"), "{error}");
}

/// The process, its ordinary port and its link port.
struct Server(Child, u16, u16);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn memcached() -> Server {
    for _ in 0..10 {
        let (plain, link) = (free_port(), free_port());
        let child = spillway()
            .args(["--link", &format!("127.0.0.1:{link}"), "--require", "--"])
            .args(["memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", &plain.to_string()])
            .spawn()
            .unwrap();
        let mut server = Server(child, plain, link);
        let deadline = Instant::now() + PATIENCE;
        let is_up = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        while server.0.try_wait().unwrap().is_none() {
            if is_up(plain) && is_up(link) {
                return server;
            }
            assert!(Instant::now() < deadline, "memcached should listen within 60 s");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    panic!("memcached did not start ten times in a row");
}

#[test]
fn run_executes_the_server_in_its_own_process() {
    let server = memcached();
    let name = fs::read_to_string(format!("/proc/{}/comm", server.0.id())).unwrap();
    assert_eq!(name.trim(), "memcached");
}

#[test]
fn memccapable_passes_on_the_ordinary_port() {
    if !PathBuf::from("/usr/bin/memccapable").exists() {
        println!("skipped: memccapable is not installed (libmemcached-tools)");
        return;
    }
    let server = memcached();
    for protocol in ["-a", "-b"] {
        let output = Command::new("/usr/bin/memccapable")
            .args(["-h", "127.0.0.1", "-p", &server.1.to_string(), protocol])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && !text.contains("FAIL"), "{text}");
    }
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, server.2)).is_ok());
}

#[test]
fn programs_behind_scripts_are_examined() {
    let program = File::new("behind", b"no program at all", 0o755);
    let script = File::new(
        "wrapper",
        format!("#!/bin/sh\nSERVER={}\nexec \"$SERVER\"\n", program.path()).as_bytes(),
        0o755,
    );
    let (code, _, error) = run(&["--require", "--", script.path()]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains(program.path()) && error.contains("--require was given"), "{error}");

    // `env` and the shell pass the preload library and its settings on.
    let script = File::new("env-wrapper", b"#!/usr/bin/env -S sh -e\nexec env\n", 0o755);
    let (code, output, error) = run(&["--require", "--", script.path()]);
    assert_eq!(code, Some(0), "{error}");
    let has = |name: &str| output.lines().any(|line| line.starts_with(name));
    assert!(has("LD_PRELOAD=") && has("SPILLWAY_LINK=") && has("SPILLWAY_LAUNCH="), "{output}");
}

#[test]
fn programs_that_ignore_preloads_are_refused() {
    let setuid = File::new("setuid", &fs::read("/bin/true").unwrap(), 0o4755);
    let (code, _, error) = run(&["--require", "--", setuid.path()]);
    assert!(code == Some(1) && error.contains("set-user-ID"), "{error}");

    let mut bytes = fs::read("/bin/true").unwrap();
    bytes[18..20].copy_from_slice(&[243, 0]); // RISC-V
    let foreign = File::new("other", &bytes, 0o755);
    let (code, _, error) = run(&["--require", "--", foreign.path()]);
    assert!(code == Some(1) && error.contains("another kind of processor"), "{error}");

    // Replace the path of glibc's dynamic linker by that of musl's, which is shorter.
    let mut bytes = fs::read("/bin/true").unwrap();
    let glibc = b"/lib64/ld-linux-x86-64.so.2";
    if let Some(offset) = bytes.windows(glibc.len()).position(|part| part == glibc) {
        bytes[offset..offset + glibc.len()].copy_from_slice(b"/lib/ld-musl-x86_64.so.1\0\0\0");
        let musl = File::new("musl", &bytes, 0o755);
        let (code, _, error) = run(&["--require", "--", musl.path()]);
        assert!(
            code == Some(1) && error.contains("ld-musl") && error.contains("rather than glibc"),
            "{error}"
        );
    }
}
