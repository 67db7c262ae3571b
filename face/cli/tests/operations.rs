//! What an operator does to a helper while it is under load: reload, drain, key rotation; and what is refused.

mod support;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use spillway_lab::peers::{Memcached, Peer};
use spillway_lab::{Launch, Place, Process};
use spillway_ports::free_port;
use support::{Client, PATIENCE, SPILLWAY, Scratch, eventually, loopback};

const HUP: i32 = 1;
const INT: i32 = 2;

/// A memcached under `spillway run` that accepts two keys of helpers, and a helper with a configuration file.
struct Scene {
    // Ended in this order: helper first.
    helper: Process,
    server: Peer,
    place: Place,
    link: SocketAddr,
    raw: SocketAddr,
    client_link: SocketAddr,
    scratch: Scratch,
}

impl Scene {
    fn start() -> Scene {
        let place = Place::local().unwrap();
        let scratch = Scratch::new();
        for name in ["a.key", "b.key", "client.key"] {
            scratch.key(name);
        }
        let [link, raw, client_link] = [(); 3].map(|()| loopback(free_port()));
        let wrapper =
            ["run", "--link", &link.to_string(), "--key", &scratch.path("a.key")].map(str::to_owned);
        let more =
            ["--key", &scratch.path("b.key"), "--client-key", &scratch.path("client.key"), "--require", "--"];
        let wrapper = [SPILLWAY.to_owned()].into_iter().chain(wrapper).chain(more.map(str::to_owned));
        let server = Memcached::default().wrapper(wrapper).start(&place).unwrap();
        let config = scratch.path("helper.toml");
        fs::write(&config, text(&scratch, link, &Settings::new(raw, client_link))).unwrap();
        let launch = Launch::new(SPILLWAY).name("helper").args(["helper", "--config", &config]);
        let helper = place.spawn(&launch.open_files(65_536)).unwrap();
        let scene = Scene { helper, server, place, link, raw, client_link, scratch };
        scene.await_served();
        scene
    }

    fn await_served(&self) {
        eventually("the helper serves", || {
            Client::try_new(self.raw).is_some_and(|mut c| c.version().is_some())
        });
    }

    fn write(&self, settings: &Settings) {
        let path = self.scratch.path("helper.toml");
        fs::write(path, text(&self.scratch, self.link, settings)).unwrap();
    }

    fn settings(&self) -> Settings {
        Settings::new(self.raw, self.client_link)
    }

    /// A command to the helper.
    fn tell(&self, command: &[&str]) -> (bool, String) {
        let output = Command::new(SPILLWAY)
            .args(command)
            .args(["--socket", &self.scratch.path("h.sock")])
            .output()
            .unwrap();
        said(&output)
    }

    #[track_caller]
    fn reload(&self, settings: &Settings) -> String {
        self.write(settings);
        let (fine, said) = self.tell(&["reload"]);
        assert!(fine, "{said}");
        said
    }

    fn status(&self) -> Value {
        let (fine, said) = self.tell(&["status", "--json"]);
        assert!(fine, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    /// The names of the keys of links that take clients.
    fn keys_in_use(&self) -> Vec<String> {
        let status = self.status();
        let links = status["services"][0]["links"].as_array().unwrap();
        let current = links.iter().filter(|link| link["state"] == "up" && link["replaced"] == false);
        current.map(|link| link["key"].as_str().unwrap().to_owned()).collect()
    }

    /// Starts a load that goes on until it is stopped.
    fn load(&self, name: &str, more: &[&str]) -> Load {
        let report = self.scratch.path(&format!("{name}.json"));
        let launch = Launch::new(SPILLWAY)
            .name(name)
            .args(["load", "-d", "0s", "--rate", "800", "--keys", "500", "--sla", "1s", "--json", &report])
            .args(more);
        Load { process: self.place.spawn(&launch).unwrap(), report }
    }

    /// Library clients, which soon move to the helper.
    fn library_load(&self) -> Load {
        let (direct, helper) = (self.server.address().to_string(), self.client_link.to_string());
        let key = self.scratch.path("client.key");
        self.load(
            "library",
            &[
                "--server",
                &direct,
                "-c",
                "30",
                "--helper",
                &helper,
                "--client-key",
                &key,
                "--at",
                "300ms=move:helper",
            ],
        )
    }

    fn raw_load(&self) -> Load {
        let keys = ["--server", &self.raw.to_string(), "-c", "15", "--key-size", "24"];
        self.load("raw", &keys)
    }

    fn clients(&self, kind: &str) -> u64 {
        self.status()["services"][0][kind].as_u64().unwrap()
    }
}

struct Load {
    process: Process,
    report: String,
}

impl Load {
    /// It has moved before, so that it knows the signal.
    fn move_to_helper(&mut self) {
        self.process.signal(10).unwrap(); // SIGUSR1
    }

    /// Stops it: no request was lost, answered wrongly, or reset.
    #[track_caller]
    fn end_well(mut self) -> Value {
        self.process.signal(INT).unwrap();
        let status = self.process.wait(PATIENCE).expect("it ends");
        assert!(status.success(), "{}\n{}", self.process.stdout().unwrap(), self.process.stderr().unwrap());
        let report: Value = serde_json::from_slice(&fs::read(&self.report).unwrap()).unwrap();
        for failure in ["wrong", "lost", "resets"] {
            assert_eq!(report["total"][failure], 0, "{failure}: {}", self.process.stdout().unwrap());
        }
        assert!(report["total"]["answered"].as_u64().unwrap() > 0);
        report
    }
}

fn said(output: &Output) -> (bool, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

/// What tests change.
#[derive(Clone)]
struct Settings {
    listen: Vec<SocketAddr>,
    client_link: SocketAddr,
    keys: Vec<&'static str>,
    helper: String,
    service: String,
    batch: String,
    more: String,
}

impl Settings {
    fn new(raw: SocketAddr, client_link: SocketAddr) -> Settings {
        let text = String::new;
        let (listen, keys) = (vec![raw], vec!["a.key"]);
        Settings { listen, client_link, keys, helper: text(), service: text(), batch: text(), more: text() }
    }
}

fn text(scratch: &Scratch, link: SocketAddr, settings: &Settings) -> String {
    let Settings { listen, client_link, keys, helper, service, batch, more } = settings;
    let listen: Vec<String> = listen.iter().map(ToString::to_string).collect();
    format!(
        "[helper]\nname = \"here\"\nthreads = 1\nsocket = \"{}\"\n{helper}\n[service.cache]\nserver = \"{link}\"\n\
         listen = {listen:?}\nlink_listen = [\"{client_link}\"]\nkey_files = {keys:?}\n\
         client_key_files = [\"client.key\"]\n{service}\n[service.cache.batch]\n{batch}\n{more}\n",
        scratch.path("h.sock")
    )
}

#[test]
fn settings_change_under_load_without_a_failed_request() {
    let scene = Scene::start();
    let (library, raw) = (scene.library_load(), scene.raw_load());
    eventually("plain clients", || scene.clients("raw_clients") == 15);
    eventually("library clients are moved", || scene.clients("library_clients") == 30);

    let said = scene.reload(&Settings {
        batch: "policy = \"fixed\"\nmax_delay = \"1ms\"".into(),
        service: "client_keepalive = \"10s\"\nclients = [\"127.0.0.0/8\"]".into(),
        helper: "max_connections = 2000\nmax_memory = \"64MiB\"".into(),
        ..scene.settings()
    });
    for words in
        ["cache: policy = \"fixed\"", "cache: client_keepalive = \"10s\"", "helper: max_connections = 2000"]
    {
        assert!(said.contains(words), "{said}");
    }

    // Links of another shape: new ones are opened, and the clients of the old one stay on it.
    scene.reload(&Settings { service: "links_per_thread = 2".into(), ..scene.settings() });
    eventually("new links", || scene.keys_in_use().len() == 2);
    assert_eq!((scene.clients("raw_clients"), scene.clients("library_clients")), (15, 30));

    // A service and a listener come and go.
    let (more_raw, second) = (loopback(free_port()), loopback(free_port()));
    let more = format!(
        "[service.second]\nserver = \"{}\"\nlisten = [\"{second}\"]\nkey_files = [\"b.key\"]",
        scene.link
    );
    let grown = Settings { listen: vec![scene.raw, more_raw], more, ..scene.settings() };
    let said = scene.reload(&grown);
    assert!(said.contains("second: added"), "{said}");
    for address in [more_raw, second] {
        eventually("a new listener serves", || {
            Client::try_new(address).is_some_and(|mut client| client.version().is_some())
        });
    }
    let mut stays = Client::new(second);
    assert!(stays.version().is_some());
    let said = scene.reload(&scene.settings());
    assert!(said.contains("second: removed"), "{said}");
    eventually("gone listeners refuse", || {
        [more_raw, second].iter().all(|address| Client::try_new(*address).is_none())
    });
    assert!(stays.version().is_some(), "its client is served to its end");
    assert_eq!(scene.status()["services"][1]["removed"], true);
    drop(stays);
    eventually("the service is gone", || scene.status()["services"].as_array().unwrap().len() == 1);

    // What is wrong changes nothing, and is said by whoever asked; by signal, in the log.
    scene.write(&Settings { batch: "max_delay = \"5\"".into(), ..scene.settings() });
    let (fine, said) = scene.tell(&["reload"]);
    assert!(!fine && said.contains("everything stays as it was") && said.contains("helper.toml:"), "{said}");
    assert!(said.contains("give a time with its unit"), "{said}");
    let mut scene = scene;
    scene.helper.signal(HUP).unwrap();
    eventually("the log says so", || {
        scene.helper.stderr().unwrap().contains("refused, everything stays as it was")
    });
    // An address that is taken: neither is the rest in force.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = vec![scene.raw, taken.local_addr().unwrap()];
    scene.write(&Settings { listen, batch: "max_delay = \"2ms\"".into(), ..scene.settings() });
    let (fine, said) = scene.tell(&["reload"]);
    assert!(!fine && said.contains("another program listens there"), "{said}");
    let said = scene.reload(&Settings { helper: "engine = \"auto\"".into(), ..scene.settings() });
    assert!(said.contains("helper.engine: its new value needs a restart"), "{said}");
    assert!(said.contains("reloaded, 0 changes"), "{said}");

    assert_eq!((scene.clients("raw_clients"), scene.clients("library_clients")), (15, 30));
    library.end_well();
    raw.end_well();
}

#[test]
fn keys_are_rotated_under_load_without_a_failed_request() {
    let scene = Scene::start();
    let (library, raw) = (scene.library_load(), scene.raw_load());
    eventually("plain clients", || scene.clients("raw_clients") == 15);
    eventually("library clients are moved", || scene.clients("library_clients") == 30);
    let id = |name: &str| {
        let text = fs::read_to_string(scene.scratch.path(name)).unwrap();
        spillway_auth::Key::parse(&text).unwrap().id().to_string()
    };
    assert_eq!(scene.keys_in_use(), [id("a.key")]);

    // The server accepts both: the helper begins to use the second.
    let said = scene.reload(&Settings { keys: vec!["b.key", "a.key"], ..scene.settings() });
    assert!(said.contains(&format!("key_files: key {}, key {}", id("b.key"), id("a.key"))), "{said}");
    eventually("a link with the second key", || scene.keys_in_use() == [id("b.key")]);

    // The first is replaced on the server, which does not stop: its file is read again at the next link.
    scene.scratch.key("c.key");
    fs::rename(scene.scratch.path("c.key"), scene.scratch.path("a.key")).unwrap();
    let third = id("a.key");
    // A helper that is ahead of its server tries the older one.
    scene.scratch.key("unknown.key");
    scene.reload(&Settings { keys: vec!["unknown.key", "a.key", "b.key"], ..scene.settings() });
    eventually("a link with the third key", || scene.keys_in_use() == [third.clone()]);
    let log = scene.helper.stderr().unwrap();
    assert!(log.contains(&format!("does not accept key {}", id("unknown.key"))), "{log}");

    assert_eq!((scene.clients("raw_clients"), scene.clients("library_clients")), (15, 30));
    library.end_well();
    raw.end_well();

    // None that the server knows: new clients are refused once the old links are gone, and the log says why.
    scene.reload(&Settings { keys: vec!["unknown.key"], ..scene.settings() });
    eventually("the log says so", || {
        scene.helper.stderr().unwrap().contains("the server does not accept our key for this role")
    });
    assert!(Client::new(scene.raw).version().is_some(), "the old link stands in");
}

#[test]
fn a_service_is_drained_under_load_without_a_failed_request() {
    let scene = Scene::start();
    let mut library = scene.library_load();
    eventually("library clients are moved", || scene.clients("library_clients") == 30);
    let (mut leaves, mut stays) = (Client::new(scene.raw), Client::new(scene.raw));
    assert!(leaves.version().is_some() && stays.version().is_some());

    let mut waiting = Command::new(SPILLWAY)
        .args(["drain", "cache", "--deadline", "4s", "--wait", "--socket", &scene.scratch.path("h.sock")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("health checks fail", || Client::try_new(scene.raw).is_none());
    assert!(stays.version().is_some() && leaves.version().is_some(), "those that are there are served");
    drop(leaves);
    eventually("library clients have moved", || scene.clients("library_clients") == 0);
    // The last one is reset at the deadline, and counted as a failure.
    assert!(stays.ended());
    let status = waiting.wait().unwrap();
    let (_, said) = said(&waiting.wait_with_output().unwrap());
    // A health check that was just in time has left, too.
    let is_told = said.contains("cache: 30 moved, ") && said.contains(" left, 1 failed, 0 to go");
    assert!(!status.success() && is_told && !said.contains(", 0 left"), "{said}");

    // It comes back with the next reload.
    scene.reload(&scene.settings());
    scene.await_served();
    eventually("library clients are moved again", || {
        library.move_to_helper();
        scene.clients("library_clients") == 30
    });
    // The helper as a whole, by its name. Nobody fails this time.
    let (fine, said) = scene.tell(&["drain", "here", "--deadline", "20s", "--wait"]);
    assert!(fine && said.contains("30 moved, ") && said.contains(" 0 failed, 0 to go"), "{said}");
    library.end_well();

    for (target, words) in
        [("nobody", "no service nobody here; this is helper here, with cache"), ("", "no service")]
    {
        let (fine, said) = scene.tell(&["drain", target]);
        assert!(!fine && said.contains(words), "{said}");
    }
}

#[test]
fn who_may_not_come_is_refused_counted_and_told() {
    let scene = Scene::start();
    let mut before = Client::new(scene.raw);
    assert!(before.version().is_some());
    scene.reload(&Settings { service: "clients = [\"10.0.0.0/8\"]".into(), ..scene.settings() });
    let mut refused = Client::try_new(scene.raw).expect("the host accepts");
    assert!(refused.version().is_none());
    assert!(before.version().is_some(), "who was there stays");
    let log = || scene.helper.stderr().unwrap();
    eventually("the log says so", || log().contains("refused: its address is outside the ranges of clients"));
    assert_eq!(scene.status()["services"][0]["refused"]["address"], 1);

    // As many as are there already.
    let helper = "max_connections = 1".to_owned();
    scene.reload(&Settings { helper, ..scene.settings() });
    assert!(Client::try_new(scene.raw).is_none_or(|mut client| client.version().is_none()));
    eventually("the log says so", || log().contains("as many clients as it may (max_connections)"));
    assert!(before.version().is_some());
    scene.reload(&scene.settings());
    assert!(Client::new(scene.raw).version().is_some());
}

#[test]
fn the_admin_socket_is_for_owner_and_group() {
    let scene = Scene::start();
    let path = scene.scratch.path("h.sock");
    assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777, 0o660);
    let ask = |line: &str| spillway_daemon::ask(path.as_ref(), line, PATIENCE).unwrap();
    for (line, words) in [
        ("", "not a request"),
        ("status", "not a request"),
        ("{\"command\":\"stop\"}", "not a request"),
        ("{\"command\":\"drain\",\"target\":\"cache\",\"deadline\":1}", "not a request"),
        (&"x".repeat(100_000), "too long"),
    ] {
        let answer: Value = serde_json::from_str(&ask(line)).unwrap();
        assert!(answer["error"].as_str().unwrap().contains(words), "{line} says {answer}");
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: another user's attempt needs root to become one");
        return;
    }
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", SPILLWAY, "status", "--socket", &path])
        .output();
    match output {
        Ok(output) => {
            let (fine, said) = said(&output);
            // The program itself may lie where others cannot run it.
            assert!(!fine, "{said}");
            assert!(said.contains("owner and group") || said.contains("failed to execute"), "{said}");
        }
        Err(error) => println!("skipped: setpriv: {error}"),
    }
}

#[test]
fn a_second_helper_does_not_take_the_socket() {
    let scene = Scene::start();
    let settings = Settings::new(loopback(free_port()), loopback(free_port()));
    let config = scene.scratch.path("second.toml");
    fs::write(&config, text(&scene.scratch, scene.link, &settings)).unwrap();
    let output = Command::new(SPILLWAY).args(["helper", "--config", &config]).output().unwrap();
    let (fine, said) = said(&output);
    assert!(!fine && said.contains("another helper answers there"), "{said}");
    assert_eq!(scene.status()["name"], "here");
}

/// A service manager, as far as `sd_notify` goes.
#[test]
fn the_service_manager_is_told() {
    use std::os::unix::net::UnixDatagram;
    let (scratch, place) = (Scratch::new(), Place::local().unwrap());
    let socket = UnixDatagram::bind(scratch.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).expect("a message in time");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let next = |word: &str| loop {
        let message = heard();
        if message.contains(word) {
            return message;
        }
    };
    let config = scratch.path("helper.toml");
    let listen = loopback(free_port());
    // No server is there: the helper is ready for one.
    let settings = format!(
        "[helper]\nthreads = 1\nsocket = \"{}\"\n[service.a]\nserver = \"127.0.0.1:1\"\nlisten = [\"{listen}\"]\n",
        scratch.path("h.sock")
    );
    fs::write(&config, &settings).unwrap();
    let launch = Launch::new(SPILLWAY).name("helper").args(["helper", "--config", &config]);
    let launch = launch.env("NOTIFY_SOCKET", scratch.path("notify")).env("WATCHDOG_USEC", "200000");
    let mut helper = place.spawn(&launch).unwrap();
    let ready = next("READY=1");
    assert!(ready.contains("STATUS=0 of 1 services with a link, 0 clients"), "{ready}");
    next("WATCHDOG=1");
    helper.signal(HUP).unwrap();
    assert!(next("RELOADING=1").contains("MONOTONIC_USEC="));
    next("READY=1");
    // Refused, and in force as before: ready all the same.
    fs::write(&config, "nonsense").unwrap();
    helper.signal(HUP).unwrap();
    next("RELOADING=1");
    next("READY=1");
    helper.signal(15).unwrap();
    next("STOPPING=1");
    assert!(helper.wait(PATIENCE).expect("it ends").success());
}

#[test]
fn a_watchdog_is_not_told_for_another_process() {
    let (scratch, place) = (Scratch::new(), Place::local().unwrap());
    let socket = std::os::unix::net::UnixDatagram::bind(scratch.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let listen = loopback(free_port());
    let launch = Launch::new(SPILLWAY).name("helper");
    let launch = launch.args(["helper", "--service", "a=127.0.0.1:1", "--listen", &listen.to_string()]);
    let launch = launch.env("NOTIFY_SOCKET", scratch.path("notify"));
    let mut helper = place.spawn(&launch.env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1")).unwrap();
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).expect("a message");
    assert!(buffer[..length].starts_with(b"READY=1"));
    std::thread::sleep(Duration::from_millis(100));
    helper.signal(15).unwrap();
    let length = socket.recv(&mut buffer).expect("a message");
    assert!(buffer[..length].starts_with(b"STOPPING=1"), "no word of a watchdog");
    assert!(helper.wait(PATIENCE).expect("it ends").success());
}
