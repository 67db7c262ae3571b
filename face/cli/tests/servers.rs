//! Commands on a server's host: `status`, `connections`, `server`, `exporter`.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use spillway_lab::Launch;
use spillway_ports::free_port;
use support::{Client, PATIENCE, SPILLWAY, Scene, Scratch, eventually, loopback, text};

fn spillway(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(SPILLWAY).args(arguments).output().unwrap();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

fn json(arguments: &[&str]) -> Value {
    let (is_fine, text, error) = spillway(arguments);
    assert!(is_fine, "{arguments:?}: {error}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

/// The server with this process id, from `spillway status --json`.
fn server_of(pid: u32) -> Option<Value> {
    let (is_fine, text, _) = spillway(&["status", "--json"]);
    let all: Value = serde_json::from_str(&text).ok().filter(|_| is_fine)?;
    all["servers"].as_array()?.iter().find(|server| server["pid"] == pid).cloned()
}

#[test]
fn helped_clients_are_listed_with_their_own_addresses() {
    let scene = Scene::start();
    let pid = scene.server.pid();
    let mut clients: Vec<Client> = (0..5).map(|_| Client::new(scene.plain_port)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.set(&format!("key{number}"), &[b'x'; 100]);
    }
    let list = |pid: u32| json(&["connections", &pid.to_string(), "--json"])["result"][0].clone();
    let listed = list(pid);
    assert_eq!((listed["pid"].as_u64(), &listed["is_fresh"]), (Some(pid.into()), &Value::Bool(true)));
    for client in &clients {
        let address = client.stream().local_addr().unwrap().to_string();
        let found = listed["connections"]
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["client"] == address.as_str());
        let found = found.unwrap_or_else(|| panic!("{address} is not in {listed:#}"));
        // "set keyN 0 0 100\r\n", the value, its end; "STORED\r\n".
        assert_eq!((found["bytes_received"].as_u64(), found["bytes_sent"].as_u64()), (Some(120), Some(8)));
        assert!(found["helper"].as_str().unwrap().starts_with("127.0.0.1:"), "{found}");
    }
    let (_, text, _) = spillway(&["connections", &pid.to_string()]);
    assert_eq!(text.lines().filter(|line| line.contains("in=120 out=8")).count(), 5, "{text}");

    let status = server_of(pid).expect("the server's status");
    assert_eq!((&status["state"], status["program"].as_str()), (&Value::from("on"), Some("memcached")));
    assert_eq!(status["link_port"], scene.link.port());
    assert_eq!(status["helped_port"], scene.direct().port());
    assert!(status["connections"].as_u64().unwrap() >= 5, "{status:#}");
    assert!(
        status["batches_received"].as_u64().unwrap() > 0 && status["messages_sent"].as_u64().unwrap() >= 5
    );
    let helpers = |link: &&Value| link["state"] == "helper";
    assert_eq!(status["links"].as_array().unwrap().iter().filter(helpers).count(), 1);

    drop(clients);
    eventually("the closed clients are not listed", || {
        list(pid)["connections"].as_array().unwrap().is_empty()
    });
    assert_eq!(json(&["connections", &format!(":{}", scene.link.port()), "--json"])["result"][0]["pid"], pid);
    let (is_fine, _, error) = spillway(&["connections", "no-such-server"]);
    assert!(!is_fine && error.contains(&pid.to_string()), "{error}");
}

#[test]
fn refusals_are_counted_by_reason() {
    use spillway_auth::Key;
    use spillway_batch::Role;
    let scene = Scene::start();
    let refused = |reason: &str| server_of(scene.server.pid()).unwrap()["refused"][reason].as_u64().unwrap();
    assert_eq!(refused("link_key"), 0);
    let unknown_key = Key::from_secret([7; 32]);
    assert!(support::link::LinkPeer::open(scene.link, Role::Helper, &unknown_key).is_err());
    eventually("the wrong key is counted", || refused("link_key") == 1);
    let mut stream = std::net::TcpStream::connect(scene.link).unwrap();
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    eventually("the malformed preamble is counted", || refused("link_malformed") == 1);
    let mut peer = support::link::LinkPeer::open(scene.link, Role::Helper, &scene.helper_key).ok().unwrap();
    assert!(peer.connect("203.0.113.9:5".parse().unwrap()).is_err());
    assert_eq!(refused("connection_forbidden"), 1);
}

#[test]
fn server_off_ends_links_and_direct_clients_stay() {
    let scene = Scene::start();
    let pid = scene.server.pid().to_string();
    let mut direct = Client::new(scene.direct());
    direct.set("k", b"v");
    let mut helped = Client::new(scene.plain_port);
    assert_eq!(helped.get("k"), Some(b"v".to_vec()));

    let (is_fine, text, error) = spillway(&["server", "off", &pid, "--within", "1s", "--wait"]);
    assert!(is_fine && text.contains("off"), "{text} {error}");
    assert!(helped.ended(), "a plain client of a helper should be reset after --within");
    assert_eq!(direct.get("k"), Some(b"v".to_vec()));
    assert_eq!(server_of(scene.server.pid()).unwrap()["connections"], 0);
    eventually("the helper's retry is refused", || {
        server_of(scene.server.pid()).unwrap()["refused"]["link_off"].as_u64().unwrap() > 0
    });
    assert!(
        Client::try_new(scene.plain_port).is_none_or(|mut client| client.version().is_none()),
        "a client should not be helped"
    );

    let (is_fine, text, error) = spillway(&["server", "on", &pid]);
    assert!(is_fine && text.contains(": on"), "{text} {error}");
    scene.await_helped();
    assert_eq!(Client::new(scene.plain_port).get("k"), Some(b"v".to_vec()));
    assert_eq!(direct.get("k"), Some(b"v".to_vec()));
}

#[test]
fn links_without_clients_end_at_once() {
    let scene = Scene::start();
    let pid = scene.server.pid().to_string();
    eventually("the scene's first client has left", || {
        server_of(scene.server.pid()).unwrap()["connections"] == 0
    });
    // With clients this command would wait for an hour.
    let (is_fine, text, error) = spillway(&["server", "off", &pid, "--within", "3600", "--wait"]);
    assert!(is_fine && text.contains("off"), "{text} {error}");
}

#[test]
fn commands_succeed_if_the_reader_closes_the_pipe() {
    let scene = Scene::start();
    let mut client = Client::new(scene.plain_port);
    client.set("key", b"value");
    let (pid, socket) = (scene.server.pid().to_string(), scene.status_socket.as_str());
    let commands: [&[&str]; 9] = [
        &["status"],
        &["status", "--json"],
        &["status", "--socket", socket],
        &["connections", &pid],
        &["connections", "cache", "--socket", socket],
        &["assess", &pid, "--seconds", "0.1"],
        &["doctor"],
        &["check", "--reference"],
        &["top", "--once", "--interval", "0.1", "--socket", socket],
    ];
    for command in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(SPILLWAY).args(command).stdout(writer).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !error.contains("panicked"), "{command:?}: {error}");
        // Other write errors are reported.
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(SPILLWAY).args(command).stdout(full).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains("No space left"), "{command:?}: {error}");
    }
}

/// A command under `spillway run`, with a directory of its own for status pages.
struct Run {
    child: Child,
    pages: Rc<Scratch>,
    log: PathBuf,
}

impl Run {
    fn start(command: &str, link: u16) -> Run {
        Run::start_in(Rc::new(Scratch::new()), command, link)
    }

    /// Starts another command with the same directory.
    fn start_another(&self, command: &str, link: u16) -> Run {
        Run::start_in(Rc::clone(&self.pages), command, link)
    }

    fn start_in(pages: Rc<Scratch>, command: &str, link: u16) -> Run {
        let log = PathBuf::from(pages.path("../")).join(format!("spillway-servers-{link}.log"));
        let child = Command::new(SPILLWAY)
            .args(["run", "--link", &loopback(link).to_string(), "--require", "--", "sh", "-c", command])
            .env("SPILLWAY_STATUS_DIR", pages.path("."))
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        // Servers that change their user must be able to write there.
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        fs::set_permissions(pages.path("."), permissions).unwrap();
        Run { child, pages, log }
    }

    fn pages(&self) -> Vec<PathBuf> {
        fs::read_dir(self.pages.path(".")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.log);
    }
}

fn is_up(port: u16) -> bool {
    Client::try_new(loopback(port)).is_some_and(|mut client| client.version().is_some())
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn status_page_is_removed_by_its_server_or_by_a_later_reader() {
    let (port, link) = (free_port(), free_port());
    let command = format!("exec memcached -u nobody -l 127.0.0.1 -p {port}");
    let mut run = Run::start(&command, link);
    eventually("memcached serves", || is_up(port) && is_up_link(link));
    assert_eq!(run.pages().len(), 1, "{}", run.log());
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&run.pages()[0]).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    signal(run.child.id(), rustix::process::Signal::TERM);
    run.child.wait().unwrap();
    assert!(run.pages().is_empty(), "{:?}", run.pages());

    let run = Run::start(&command, link);
    eventually("memcached serves again", || is_up(port) && is_up_link(link));
    let pages = run.pages.path(".");
    let status = || {
        let output = Command::new(SPILLWAY)
            .args(["status", "--json"])
            .env("SPILLWAY_STATUS_DIR", &pages)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(status().contains(&format!("\"link_port\": {link}")), "{}", status());
    signal(run.child.id(), rustix::process::Signal::KILL);
    eventually("the killed server is not shown, and its page is removed", || {
        !status().contains(&format!("\"link_port\": {link}")) && run.pages().is_empty()
    });
}

/// A reader in another PID namespace does not see the process. The page's lock shows that the process runs.
#[test]
fn status_page_is_read_from_another_pid_namespace_and_stays() {
    let (port, link) = (free_port(), free_port());
    let mut run = Run::start(&format!("exec memcached -u nobody -l 127.0.0.1 -p {port}"), link);
    eventually("memcached serves", || is_up(port) && is_up_link(link));
    let pages = run.pages.path(".");
    let in_other_namespace = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", SPILLWAY]).args(arguments);
        let output = command.env("SPILLWAY_STATUS_DIR", &pages).output().unwrap();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    for _ in 0..2 {
        let (is_fine, text, error) = in_other_namespace(&["status", "--json"]);
        let status: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{is_fine} {text} {error}"));
        let server = &status["servers"][0];
        assert_eq!(
            (&server["program"], &server["link_port"]),
            (&"memcached".into(), &link.into()),
            "{status:#}"
        );
        assert_eq!((&server["is_visible"], &server["pid"]), (&false.into(), &run.child.id().into()));
        assert!(server["pid_namespace"].as_u64().is_some_and(|inode| inode > 0), "{server:#}");
        assert_eq!(run.pages().len(), 1, "the page should stay");
    }
    let (is_fine, text, error) = in_other_namespace(&["server", "off", &format!("port:{link}"), "--wait"]);
    assert!(is_fine && text.ends_with(": off\n") && error.contains("in PID namespace"), "{text} {error}");
    // After the server's end, a reader in the other namespace removes the page.
    signal(run.child.id(), rustix::process::Signal::KILL);
    run.child.wait().unwrap();
    in_other_namespace(&["status"]);
    assert!(run.pages().is_empty(), "{:?}", run.pages());
}

/// A forged page whose process name has terminal escape sequences, and whose process never answers.
#[test]
fn a_forged_page_sends_no_escape_sequences_to_terminals_and_blocks_no_command() {
    const FORGE: &str = "import ctypes, fcntl, os, struct, sys; path, words = sys.argv[1], int(sys.argv[2]); \
        ctypes.CDLL(None).prctl(15, b'evil\\x1b[2J\\nx', 0, 0, 0); \
        f = open(path, 'w+b'); f.truncate(words * 8); f.write(b'spilpage' + struct.pack('QQ', 4, os.getpid())); \
        f.flush(); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()";
    let pages = Scratch::new();
    let page_words = 512 + 4096 * 32 + 65_536 * 8;
    let mut forger = Command::new("/usr/bin/python3")
        .args(["-c", FORGE, &pages.path("spillway-server-f"), &page_words.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(forger.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "held\n");
    let command = |arguments: &[&str]| {
        let output = Command::new(SPILLWAY)
            .args(arguments)
            .env("SPILLWAY_STATUS_DIR", pages.path("."))
            .output()
            .unwrap();
        let printed = [output.stdout, output.stderr].concat();
        assert!(
            printed.iter().all(|byte| *byte == b'\n' || !byte.is_ascii_control()),
            "{arguments:?}: {printed:?}"
        );
        (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
    };
    let pid = format!("pid:{}", forger.id());
    let (_, text) = command(&["status"]);
    assert!(text.contains("evil\\u{1b}[2J\\nx"), "{text}");
    let (_, text) = command(&["status", "--json"]);
    assert!(text.contains("evil"), "{text}");
    let (is_fine, text) = command(&["server", "off", &pid, "--wait"]);
    assert!(!is_fine && text.contains("has not answered in time"), "{text}");
    let (is_fine, text) = command(&["relief", &pid, "off"]);
    assert!(!is_fine && text.contains("has not answered in time"), "{text}");
    forger.kill().unwrap();
    forger.wait().unwrap();
}

#[test]
fn server_that_does_not_answer_does_not_block_switching_off_others() {
    let [first, second, first_link, second_link] = [(); 4].map(|()| free_port());
    let command = |port: u16| format!("exec memcached -u nobody -l 127.0.0.1 -p {port}");
    let first_run = Run::start(&command(first), first_link);
    let second_run = first_run.start_another(&command(second), second_link);
    eventually("both serve", || {
        is_up(first) && is_up(second) && is_up_link(first_link) && is_up_link(second_link)
    });
    let pages = first_run.pages.path(".");
    let command = |arguments: &[&str]| {
        let output =
            Command::new(SPILLWAY).args(arguments).env("SPILLWAY_STATUS_DIR", &pages).output().unwrap();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    // The name is ambiguous: nothing changes.
    for arguments in
        [&["server", "off", "memcached"][..], &["relief", "memcached", "off"], &["connections", "memcached"]]
    {
        let (is_fine, text, error) = command(arguments);
        let listed = |run: &Run, port: u16, link: u16| {
            error.contains(&format!("pid {}, memcached, port {port}, link port {link}", run.child.id()))
        };
        let are_listed = listed(&first_run, first, first_link) && listed(&second_run, second, second_link);
        assert!(
            !is_fine && text.is_empty() && are_listed && error.contains("--all"),
            "{arguments:?}: {text} {error}"
        );
    }
    let by_port = format!("port:{second_link}");
    let (is_fine, text, error) = command(&["server", "off", &by_port, "--wait"]);
    assert!(
        is_fine && text == format!("server {} memcached: off\n", second_run.child.id()),
        "{text} {error}"
    );
    assert!(error.contains("switching off: pid"), "{error}");
    let (is_fine, text, error) = command(&["server", "on", &format!("pid:{}", second_run.child.id())]);
    assert!(is_fine && text.ends_with(": on\n"), "{text} {error}");
    // Stop the server that gets the request first: the one with the lower process id.
    let (stopped, running) = match (first_run.child.id(), second_run.child.id()) {
        (first_pid, second_pid) if first_pid < second_pid => (first_pid, second_pid),
        (first_pid, second_pid) => (second_pid, first_pid),
    };
    signal(stopped, rustix::process::Signal::STOP);
    let (is_fine, text, error) = command(&["server", "off", "memcached", "--all", "--wait"]);
    signal(stopped, rustix::process::Signal::CONT);
    assert!(!is_fine && error.contains(&format!("server {stopped} has not answered in time")), "{error}");
    assert_eq!(text, format!("server {running} memcached: off\n"), "{error}");
    let states = || {
        let status: Value = serde_json::from_str(&command(&["status", "--json"]).1).unwrap();
        let servers = status["servers"].as_array().unwrap().clone();
        servers.iter().map(|server| server["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    eventually("the stopped server acts on the request later", || states() == ["off", "off"]);
    let (is_fine, text, error) = command(&["server", "on", "--all"]);
    assert!(is_fine && text.matches(": on\n").count() == 2, "{text} {error}");
}

fn is_up_link(port: u16) -> bool {
    std::net::TcpStream::connect(loopback(port)).is_ok()
}

/// Both processes have the preload library and the same link port. The process that first waits for clients
/// gets the port; the other one runs without help, although `--require` was given.
#[test]
fn other_servers_of_the_same_launch_run_without_help() {
    let (first, second, link) = (free_port(), free_port(), free_port());
    let command = format!(
        "memcached -u nobody -l 127.0.0.1 -p {first} & \
         while ! ls \"$SPILLWAY_STATUS_DIR\"/spillway-server-* >/dev/null 2>&1; do sleep 0.02; done; \
         memcached -u nobody -l 127.0.0.1 -p {second} & wait"
    );
    let run = Run::start(&command, link);
    eventually("both serve", || is_up(first) && is_up(second) && is_up_link(link));
    eventually("the second logs the reason", || run.log().contains("has the link port"));
    assert_eq!(run.pages().len(), 1, "{}", run.log());
    assert_eq!(run.log().matches("helpers of port").count(), 1, "{}", run.log());
    // Ending the shell would not end its children.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.child.id())).unwrap();
    for pid in children.split_ascii_whitespace() {
        signal(pid.parse().unwrap(), rustix::process::Signal::TERM);
    }
    eventually("both have ended", || !is_up(first) && !is_up(second));
}

#[test]
fn the_exporter_serves_metrics_of_servers() {
    use std::io::{Read, Write};
    let scene = Scene::start();
    let address = loopback(free_port());
    let exporter =
        Launch::new(SPILLWAY).name("exporter").args(["exporter", "--listen", &address.to_string()]);
    let _exporter = scene.place.spawn(&exporter).unwrap();
    let scrape = || {
        let mut stream = std::net::TcpStream::connect(address).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    };
    let labels = format!("pid=\"{}\"", scene.server.pid());
    let shows_the_link = |text: &String| {
        let links =
            text.lines().find(|line| line.starts_with("spillway_server_links{") && line.contains(&labels));
        links.is_some_and(|line| line.ends_with(" 1"))
    };
    let deadline = Instant::now() + PATIENCE;
    let mut last = None;
    while !last.as_ref().is_some_and(shows_the_link) {
        assert!(Instant::now() < deadline, "{last:?}");
        std::thread::sleep(Duration::from_millis(20));
        last = scrape();
    }
    let text = last.unwrap();
    assert!(text.contains("spillway_server_helped{program=\"memcached\""), "{text}");
    assert!(text.contains("reason=\"link_key\"") && text.contains("process_cpu_seconds_total"), "{text}");
}
