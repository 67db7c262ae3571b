//! The Debian packages and the unit drop-ins in a fresh Debian, under its systemd with the units' restrictions.

#[path = "units/packages.rs"]
mod packages;
#[path = "units/switch.rs"]
mod switch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Timeout of waits; long, because hosts that run tests are slow and shared.
const PATIENCE: Duration = Duration::from_secs(60);

/// The exit code of `fresh-root` if this host cannot create a Debian root.
const ROOT_UNAVAILABLE: i32 = 75;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tool(name: &str) -> Command {
    Command::new(repository().join("tools").join(name))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Creates a fresh Debian with Spillway's packages. Fails, with the reason, if this host cannot create one.
fn install_debian() -> Result<PathBuf, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("a Debian root needs the user root".into());
    }
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("debian");
    let output = tool("fresh-root").arg(&directory).output().unwrap();
    if output.status.code() == Some(ROOT_UNAVAILABLE) {
        return Err(text(&output));
    }
    assert!(output.status.success(), "{}", text(&output));
    let root = directory.join("root");
    packages::install(&root)?;
    for drop_in in DROP_INS {
        let directory = Path::new("/usr/share/spillway/systemd").join(drop_in);
        for command in commands(drop_in).iter().filter(|command| !command.starts_with("systemctl")) {
            let script = format!("cd {} && {command}", directory.display());
            let output = chroot(&root, &["sh", "-c", &script]);
            assert!(output.status.success(), "{command}: {}", text(&output));
        }
    }
    Ok(root)
}

/// The drop-ins for servers, whose comments contain the commands that activate them.
const DROP_INS: [&str; 2] = ["memcached.service.d", "redis-server.service.d"];

/// The commands in the comments of a drop-in: its indented lines.
fn commands(drop_in: &str) -> Vec<String> {
    let file = repository().join("packaging/systemd").join(drop_in).join("spillway.conf");
    let text = fs::read_to_string(file).unwrap();
    let commands: Vec<String> =
        text.lines().filter_map(|line| line.strip_prefix("#   ")).map(str::to_owned).collect();
    assert!(commands.len() >= 3, "{drop_in}: {commands:?}");
    commands
}

fn chroot(root: &Path, command: &[&str]) -> Output {
    Command::new("chroot").arg(root).args(command).output().unwrap()
}

/// A booted Debian in namespaces of its own. Its processes end when it is dropped.
struct System {
    boot_script: Child,
    /// Process id of its systemd; 0 until it is known.
    init: u32,
    name: String,
}

impl System {
    fn boot(root: &Path) -> Result<System, String> {
        let name = format!("spillway-units-{}", std::process::id());
        let boot_script = tool("boot-root")
            .args([Path::new("start"), root, Path::new(&name)])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut system = System { boot_script, init: 0, name };
        let began = Instant::now();
        loop {
            // The script's last child is the system's init; its earlier children are commands.
            let child = fs::read_to_string(format!("/proc/{0}/task/{0}/children", system.boot_script.id()));
            system.init = child.unwrap_or_default().trim().parse().unwrap_or(0);
            let is_up = |system: &System| text(&system.run(&["systemctl", "is-active", "basic.target"]));
            if is_in_another_namespace(system.init) && is_up(&system).starts_with("active") {
                return Ok(system);
            }
            if system.boot_script.try_wait().unwrap().is_some() || began.elapsed() > PATIENCE {
                let _ = system.boot_script.kill();
                let stderr = system.boot_script.stderr.take().unwrap();
                return Err(format!(
                    "this host cannot boot the system: {}",
                    std::io::read_to_string(stderr).unwrap()
                ));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn run(&self, command: &[&str]) -> Output {
        let init = self.init.to_string();
        Command::new("nsenter")
            .args([
                "--target", &init, "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--root",
                "--wd",
            ])
            .args(["/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"])
            .args(command)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    #[track_caller]
    fn run_successfully(&self, command: &[&str]) -> String {
        let output = self.run(command);
        if !output.status.success() {
            let journal = text(&self.run(&["journalctl", "--no-pager", "-n", "40"]));
            panic!("{command:?}: {}\n{journal}", text(&output));
        }
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sends a request to a port inside the system; returns the first line of the answer.
    fn request(&self, port: u16, request: &str) -> String {
        let script =
            format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{request}\\r\\n' >&3; head -n 1 <&3");
        text(&self.run(&["timeout", "5", "bash", "-c", &script]))
    }

    #[track_caller]
    fn eventually(&self, description: &str, mut condition: impl FnMut(&System) -> bool) {
        let began = Instant::now();
        while !condition(self) {
            if began.elapsed() > PATIENCE {
                panic!(
                    "{description}: not within {PATIENCE:?}\n{}",
                    text(&self.run(&["journalctl", "--no-pager", "-n", "40"]))
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Whether the process is the systemd of another PID namespace; the host's own systemd must not be touched.
fn is_in_another_namespace(pid: u32) -> bool {
    let pid_namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let namespace = pid_namespace(&pid.to_string());
    pid > 0 && name.trim_end() == "systemd" && namespace.is_some() && namespace != pid_namespace("self")
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = self.boot_script.kill();
        let _ = self.boot_script.wait();
        // The processes of the system end shortly after the script.
        for _ in 0..100 {
            if clean(&self.name) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn clean(name: &str) -> bool {
    tool("boot-root")
        .args(["clean", name])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn debians_memcached_and_redis_are_adopted_and_restored() {
    let system = match install_debian().and_then(|root| {
        let checked = chroot(
            &root,
            &["systemd-analyze", "verify", "--man=no", "memcached.service", "redis-server.service"],
        );
        assert!(checked.status.success() && text(&checked).is_empty(), "{}", text(&checked));
        System::boot(&root)
    }) {
        Ok(system) => system,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    for command in DROP_INS.iter().flat_map(|drop_in| commands(drop_in)) {
        if command.starts_with("systemctl") {
            system.run_successfully(&["sh", "-c", &command]);
        }
    }

    // Both servers serve their own ports, and write status pages although their units restrict them.
    system.eventually("both are helped", |system| {
        let output = system.run(&["spillway", "status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let programs: Vec<&str> = status["servers"]
            .as_array()
            .map(|servers| servers.iter().filter_map(|entry| entry["program"].as_str()).collect())
            .unwrap_or_default();
        programs.contains(&"memcached") && programs.contains(&"redis-server")
    });
    assert!(system.request(11211, "version").starts_with("VERSION "));
    assert!(system.request(6379, "PING").starts_with("+PONG"));
    let doctor: Value =
        serde_json::from_str(&system.run_successfully(&["spillway", "doctor", "--json"])).unwrap();
    let units: Vec<&str> = doctor["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["what"] == "unit")
        .filter_map(|entry| entry["found"].as_str())
        .collect();
    assert!(units.len() == 2 && units.iter().all(|found| found.contains("under Spillway")), "{units:?}");

    // A helper reaches both servers with the same keys.
    for (service, link, listen, key, request, answer) in [
        ("cache", "11411", "21211", "cache.key", "version", "VERSION "),
        ("redis", "6579", "26379", "redis.key", "PING", "+PONG"),
    ] {
        let (service, listen_on) = (format!("{service}=127.0.0.1:{link}"), format!("127.0.0.1:{listen}"));
        let key = format!("/etc/spillway/{key}");
        let unit = format!("--unit=helper-{listen}");
        system.run_successfully(&[
            "systemd-run",
            &unit,
            "spillway",
            "helper",
            "--service",
            &service,
            "--listen",
            &listen_on,
            "--key",
            &key,
            "--threads",
            "1",
        ]);
        system.eventually("a helped client is answered", |system| {
            system.request(listen.parse().unwrap(), request).starts_with(answer)
        });
    }

    helper_unit(&system);
    sidecar_unit(&system);
    switch::switch_unit(&system);

    // Without the drop-ins, restarted servers run without Spillway.
    for (unit, port) in [("memcached", 11411), ("redis-server", 6579)] {
        system.run_successfully(&["rm", &format!("/etc/systemd/system/{unit}.service.d/spillway.conf")]);
        system.run_successfully(&["systemctl", "daemon-reload"]);
        system.run_successfully(&["systemctl", "restart", unit]);
        let pid = system.run_successfully(&["systemctl", "show", "-P", "MainPID", unit]);
        let maps = system.run_successfully(&["cat", &format!("/proc/{}/maps", pid.trim())]);
        assert!(!maps.contains("spillway"), "{unit} should run without the preload library");
        assert!(!system.run(&["bash", "-c", &format!("exec 3<>/dev/tcp/127.0.0.1/{port}")]).status.success());
    }
    system.eventually("memcached serves as before", |system| {
        system.request(11211, "version").starts_with("VERSION ")
    });
    system.eventually("redis serves as before", |system| system.request(6379, "PING").starts_with("+PONG"));
}

/// The sidecar's unit: a dynamic user without capabilities.
fn sidecar_unit(system: &System) {
    system.run_successfully(&["spillway", "key", "new", "/etc/spillway/client.key"]);
    let server = "systemd-run --unit=other spillway run --link 127.0.0.1:12411 --client-key /etc/spillway/client.key \
                  -- memcached -u memcache -l 127.0.0.1 -p 12211";
    system.run_successfully(&["sh", "-c", server]);
    let settings = "SPILLWAY_SIDECAR_SERVER=127.0.0.1:12411\nSPILLWAY_SIDECAR_LISTEN=41211\n\
                    SPILLWAY_SIDECAR_PROTOCOL=memcached\n";
    system.run_successfully(&["sh", "-c", &format!("printf '{settings}' >/etc/spillway/sidecar-a.env")]);
    system.run_successfully(&["systemctl", "-q", "enable", "--now", "spillway-sidecar@a"]);
    system.eventually("a client of the sidecar is answered", |system| {
        system.request(41211, "version").starts_with("VERSION ")
    });
    system.run_successfully(&["spillway", "status", "--socket", "/run/spillway-sidecar-a/status.sock"]);
    let pid = system.run_successfully(&["systemctl", "show", "-P", "MainPID", "spillway-sidecar@a"]);
    let status = system.run_successfully(&["cat", &format!("/proc/{}/status", pid.trim())]);
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("CapBnd:").ends_with("0000000000000000") && !line("Uid:").contains("\t0"), "{status}");

    system.run_successfully(&["dpkg", "--purge", "spillway-sidecar"]);
    assert!(!system.run(&["systemctl", "-q", "is-active", "spillway-sidecar@a"]).status.success());
    system.run_successfully(&["systemctl", "stop", "other"]);
}

/// The helper's unit: a user without capabilities, reload with its outcome, a stop that drains.
fn helper_unit(system: &System) {
    let write = |extra: &str| {
        let config = format!(
            "[helper]\nthreads = 1\n[service.cache]\nserver = \"127.0.0.1:11411\"\n\
             listen = [\"127.0.0.1:31211\"]\nkey_files = [\"cache.key\"]\n{extra}\n"
        );
        system.run_successfully(&[
            "bash",
            "-c",
            &format!("cat >/etc/spillway/helper.toml <<'END'\n{config}END"),
        ]);
    };
    write("");
    system.run_successfully(&["spillway", "check", "/etc/spillway/helper.toml"]);
    system.run_successfully(&["systemctl", "start", "spillway-helper"]);
    system.eventually("a client of the unit is answered", |system| {
        system.request(31211, "version").starts_with("VERSION ")
    });
    let show = |property: &str| {
        system.run_successfully(&["systemctl", "show", "-P", property, "spillway-helper"]).trim().to_owned()
    };
    let pid = show("MainPID");
    let status = system.run_successfully(&["cat", &format!("/proc/{pid}/status")]);
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(
        line("CapEff:").ends_with("0000000000000000") && line("CapBnd:").ends_with("0000000000000000"),
        "{status}"
    );
    assert!(line("NoNewPrivs:").ends_with('1') && !line("Uid:").contains("\t0"), "{status}");
    assert_eq!(
        system.run_successfully(&["stat", "-c", "%a %U %G", "/run/spillway/helper.sock"]).trim(),
        "660 spillway spillway"
    );

    // A reload reports its outcome; a refused one leaves the previous settings in force.
    write("links_per_thread = 2");
    system.run_successfully(&["systemctl", "reload", "spillway-helper"]);
    assert!(show("StatusText").starts_with("1 of 1 services with a link"), "{}", show("StatusText"));
    write("links_per_thread = \"many\"");
    assert!(!system.run(&["systemctl", "reload", "spillway-helper"]).status.success());
    let journal = text(&system.run(&["journalctl", "--no-pager", "-u", "spillway-helper"]));
    assert!(journal.contains("helper.toml:7:20: give a whole number from 1 to 64"), "{journal}");
    assert!(system.request(31211, "version").starts_with("VERSION "));
    assert_eq!(show("MainPID"), pid);

    system.run_successfully(&["systemctl", "stop", "spillway-helper"]);
    assert_eq!((show("Result").as_str(), show("NRestarts").as_str()), ("success", "0"));
    assert!(!system.run(&["test", "-e", "/run/spillway/helper.sock"]).status.success());

    // Removing a package stops its service first.
    write("");
    system.run_successfully(&["systemctl", "-q", "enable", "--now", "spillway-helper"]);
    system.run_successfully(&["dpkg", "--purge", "spillway-helper"]);
    assert_eq!(show("LoadState"), "not-found");
    assert!(!system.run(&["systemctl", "-q", "is-active", "spillway-helper"]).status.success());
    assert!(!system.run(&["test", "-e", "/etc/spillway/helper.toml"]).status.success());
}
