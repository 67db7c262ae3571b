//! Operations on a helper under load: reload, drain, key rotation; refused clients; the admin socket.

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
    // Fields are dropped in this order: the helper ends first.
    helper: Process,
    server: Peer,
    place: Place,
    link: SocketAddr,
    plain_port: SocketAddr,
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
        let [link, plain_port, client_link] = [(); 3].map(|()| loopback(free_port()));
        let wrapper =
            ["run", "--link", &link.to_string(), "--key", &scratch.path("a.key")].map(str::to_owned);
        let extra =
            ["--key", &scratch.path("b.key"), "--client-key", &scratch.path("client.key"), "--require", "--"];
        let wrapper = [SPILLWAY.to_owned()].into_iter().chain(wrapper).chain(extra.map(str::to_owned));
        let server = Memcached::default().wrapper(wrapper).start(&place).unwrap();
        let config = scratch.path("helper.toml");
        fs::write(&config, config_text(&scratch, link, &Settings::new(plain_port, client_link))).unwrap();
        let launch = Launch::new(SPILLWAY).name("helper").args(["helper", "--config", &config]);
        let helper = place.spawn(&launch.open_files(65_536)).unwrap();
        let scene = Scene { helper, server, place, link, plain_port, client_link, scratch };
        scene.await_served();
        scene
    }

    fn await_served(&self) {
        eventually("the helper serves", || {
            Client::try_new(self.plain_port).is_some_and(|mut client| client.version().is_some())
        });
    }

    fn write(&self, settings: &Settings) {
        let path = self.scratch.path("helper.toml");
        fs::write(path, config_text(&self.scratch, self.link, settings)).unwrap();
    }

    fn settings(&self) -> Settings {
        Settings::new(self.plain_port, self.client_link)
    }

    fn command(&self, arguments: &[&str]) -> (bool, String) {
        let output = Command::new(SPILLWAY)
            .args(arguments)
            .args(["--socket", &self.scratch.path("h.sock")])
            .output()
            .unwrap();
        outcome(&output)
    }

    #[track_caller]
    fn reload(&self, settings: &Settings) -> String {
        self.write(settings);
        let (is_ok, message) = self.command(&["reload"]);
        assert!(is_ok, "{message}");
        message
    }

    fn status(&self) -> Value {
        let (is_ok, message) = self.command(&["status", "--json"]);
        assert!(is_ok, "{message}");
        serde_json::from_str(&message).unwrap()
    }

    /// Ids of the keys of links that accept clients.
    fn keys_in_use(&self) -> Vec<String> {
        let status = self.status();
        let links = status["services"][0]["links"].as_array().unwrap();
        let current = links.iter().filter(|link| link["state"] == "up" && link["replaced"] == false);
        current.map(|link| link["key"].as_str().unwrap().to_owned()).collect()
    }

    /// Starts a load that runs until it is stopped.
    fn load(&self, name: &str, extra: &[&str]) -> Load {
        let report = self.scratch.path(&format!("{name}.json"));
        let launch = Launch::new(SPILLWAY)
            .name(name)
            .args(["load", "-d", "0s", "--rate", "800", "--keys", "500", "--sla", "1s", "--json", &report])
            .args(extra);
        Load { process: self.place.spawn(&launch).unwrap(), report }
    }

    /// Starts a load of library clients, which move to the helper after 300 ms.
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

    fn plain_load(&self) -> Load {
        let keys = ["--server", &self.plain_port.to_string(), "-c", "15", "--key-size", "24"];
        self.load("plain", &keys)
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
    fn move_to_helper(&mut self) {
        self.process.signal(10).unwrap(); // SIGUSR1
    }

    /// Stops the load and checks that no request was lost, answered wrongly or reset.
    #[track_caller]
    fn stop_and_check(mut self) -> Value {
        self.process.signal(INT).unwrap();
        let status = self.process.wait(PATIENCE).expect("exit status");
        assert!(status.success(), "{}\n{}", self.process.stdout().unwrap(), self.process.stderr().unwrap());
        let report: Value = serde_json::from_slice(&fs::read(&self.report).unwrap()).unwrap();
        for failure in ["wrong", "lost", "resets"] {
            assert_eq!(report["total"][failure], 0, "{failure}: {}", self.process.stdout().unwrap());
        }
        assert!(report["total"]["answered"].as_u64().unwrap() > 0);
        report
    }
}

fn outcome(output: &Output) -> (bool, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

#[derive(Clone)]
struct Settings {
    listen: Vec<SocketAddr>,
    client_link: SocketAddr,
    keys: Vec<&'static str>,
    helper: String,
    service: String,
    batch: String,
    extra: String,
}

impl Settings {
    fn new(plain_port: SocketAddr, client_link: SocketAddr) -> Settings {
        let (listen, keys) = (vec![plain_port], vec!["a.key"]);
        let [helper, service, batch, extra] = [(); 4].map(|()| String::new());
        Settings { listen, client_link, keys, helper, service, batch, extra }
    }
}

fn config_text(scratch: &Scratch, link: SocketAddr, settings: &Settings) -> String {
    let Settings { listen, client_link, keys, helper, service, batch, extra } = settings;
    let listen: Vec<String> = listen.iter().map(ToString::to_string).collect();
    format!(
        "[helper]\nname = \"here\"\nthreads = 1\nsocket = \"{}\"\n{helper}\n[service.cache]\nserver = \"{link}\"\n\
         listen = {listen:?}\nlink_listen = [\"{client_link}\"]\nkey_files = {keys:?}\n\
         client_key_files = [\"client.key\"]\n{service}\n[service.cache.batch]\n{batch}\n{extra}\n",
        scratch.path("h.sock")
    )
}

#[test]
fn settings_change_under_load_without_a_failed_request() {
    let scene = Scene::start();
    let (library, plain) = (scene.library_load(), scene.plain_load());
    eventually("plain clients", || scene.clients("plain_clients") == 15);
    eventually("library clients are moved", || scene.clients("library_clients") == 30);

    let message = scene.reload(&Settings {
        batch: "policy = \"fixed\"\nmax_delay = \"1ms\"".into(),
        service: "client_keepalive = \"10s\"\nclients = [\"127.0.0.0/8\"]".into(),
        helper: "max_connections = 2000\nmax_memory = \"64MiB\"".into(),
        ..scene.settings()
    });
    for expected in
        ["cache: policy = \"fixed\"", "cache: client_keepalive = \"10s\"", "helper: max_connections = 2000"]
    {
        assert!(message.contains(expected), "{message}");
    }

    // A changed number of links: new links are opened, and clients stay on the old one.
    scene.reload(&Settings { service: "links_per_thread = 2".into(), ..scene.settings() });
    eventually("new links", || scene.keys_in_use().len() == 2);
    assert_eq!((scene.clients("plain_clients"), scene.clients("library_clients")), (15, 30));

    let (added_port, second) = (loopback(free_port()), loopback(free_port()));
    let extra = format!(
        "[service.second]\nserver = \"{}\"\nlisten = [\"{second}\"]\nkey_files = [\"b.key\"]",
        scene.link
    );
    let with_added = Settings { listen: vec![scene.plain_port, added_port], extra, ..scene.settings() };
    let message = scene.reload(&with_added);
    assert!(message.contains("second: added"), "{message}");
    for address in [added_port, second] {
        eventually("a new listener serves", || {
            Client::try_new(address).is_some_and(|mut client| client.version().is_some())
        });
    }
    let mut staying = Client::new(second);
    assert!(staying.version().is_some());
    let message = scene.reload(&scene.settings());
    assert!(message.contains("second: removed"), "{message}");
    eventually("removed listeners refuse", || {
        [added_port, second].iter().all(|address| Client::try_new(*address).is_none())
    });
    assert!(staying.version().is_some(), "clients of a removed service should be served until they close");
    assert_eq!(scene.status()["services"][1]["removed"], true);
    drop(staying);
    eventually("the service is removed", || scene.status()["services"].as_array().unwrap().len() == 1);

    // Wrong settings change nothing. The command prints the mistake; after SIGHUP the log contains it.
    scene.write(&Settings { batch: "max_delay = \"5\"".into(), ..scene.settings() });
    let (is_ok, message) = scene.command(&["reload"]);
    assert!(!is_ok && message.contains("the previous settings stay in force"), "{message}");
    assert!(message.contains("helper.toml:"), "{message}");
    assert!(message.contains("give a time with its unit"), "{message}");
    let mut scene = scene;
    scene.helper.signal(HUP).unwrap();
    eventually("the log has the error", || {
        scene.helper.stderr().unwrap().contains("refused, everything stays as it was")
    });
    // With an address that is in use, the other settings are not applied either.
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = vec![scene.plain_port, occupied.local_addr().unwrap()];
    scene.write(&Settings { listen, batch: "max_delay = \"2ms\"".into(), ..scene.settings() });
    let (is_ok, message) = scene.command(&["reload"]);
    assert!(!is_ok && message.contains("another program listens there"), "{message}");
    let message = scene.reload(&Settings { helper: "engine = \"auto\"".into(), ..scene.settings() });
    assert!(message.contains("helper.engine: its new value needs a restart"), "{message}");
    assert!(message.contains("reloaded, 0 changes"), "{message}");

    assert_eq!((scene.clients("plain_clients"), scene.clients("library_clients")), (15, 30));
    library.stop_and_check();
    plain.stop_and_check();
}

#[test]
fn keys_are_rotated_under_load_without_a_failed_request() {
    let scene = Scene::start();
    let (library, plain) = (scene.library_load(), scene.plain_load());
    eventually("plain clients", || scene.clients("plain_clients") == 15);
    eventually("library clients are moved", || scene.clients("library_clients") == 30);
    let id = |name: &str| {
        let text = fs::read_to_string(scene.scratch.path(name)).unwrap();
        spillway_auth::Key::parse(&text).unwrap().id().to_string()
    };
    assert_eq!(scene.keys_in_use(), [id("a.key")]);

    // The server accepts both keys: the helper uses the second from now on.
    let message = scene.reload(&Settings { keys: vec!["b.key", "a.key"], ..scene.settings() });
    assert!(message.contains(&format!("key_files: key {}, key {}", id("b.key"), id("a.key"))), "{message}");
    eventually("a link with the second key", || scene.keys_in_use() == [id("b.key")]);

    // Replace the first key on the running server, which reads the file again at the next link.
    scene.scratch.key("c.key");
    fs::rename(scene.scratch.path("c.key"), scene.scratch.path("a.key")).unwrap();
    let third = id("a.key");
    // A helper with a newer key than its server tries the older key, too.
    scene.scratch.key("unknown.key");
    scene.reload(&Settings { keys: vec!["unknown.key", "a.key", "b.key"], ..scene.settings() });
    eventually("a link with the third key", || scene.keys_in_use() == [third.clone()]);
    let log = scene.helper.stderr().unwrap();
    assert!(log.contains(&format!("does not accept key {}", id("unknown.key"))), "{log}");

    assert_eq!((scene.clients("plain_clients"), scene.clients("library_clients")), (15, 30));
    library.stop_and_check();
    plain.stop_and_check();

    // With no key that the server accepts, the old links stay, and the log has the reason.
    scene.reload(&Settings { keys: vec!["unknown.key"], ..scene.settings() });
    eventually("the log has the reason", || {
        scene.helper.stderr().unwrap().contains("the server does not accept our key for this role")
    });
    assert!(Client::new(scene.plain_port).version().is_some(), "the old link should still carry clients");
}

#[test]
fn a_service_is_drained_under_load_without_a_failed_request() {
    let scene = Scene::start();
    let mut library = scene.library_load();
    eventually("library clients are moved", || scene.clients("library_clients") == 30);
    let (mut leaving, mut staying) = (Client::new(scene.plain_port), Client::new(scene.plain_port));
    assert!(leaving.version().is_some() && staying.version().is_some());

    let mut waiting = Command::new(SPILLWAY)
        .args(["drain", "cache", "--deadline", "4s", "--wait", "--socket", &scene.scratch.path("h.sock")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("health checks fail", || Client::try_new(scene.plain_port).is_none());
    assert!(staying.version().is_some() && leaving.version().is_some(), "present clients should be served");
    drop(leaving);
    eventually("library clients have moved", || scene.clients("library_clients") == 0);
    assert!(staying.ended());
    let status = waiting.wait().unwrap();
    let (_, message) = outcome(&waiting.wait_with_output().unwrap());
    // More than one client may have left: health checks are clients, too.
    let is_counted = message.contains("cache: 30 moved, ") && message.contains(" left, 1 failed, 0 to go");
    assert!(!status.success() && is_counted && !message.contains(", 0 left"), "{message}");

    // A reload makes the service accept clients again.
    scene.reload(&scene.settings());
    scene.await_served();
    eventually("library clients are moved again", || {
        library.move_to_helper();
        scene.clients("library_clients") == 30
    });
    // Drain the helper as a whole, by its name; no client is reset this time.
    let (is_ok, message) = scene.command(&["drain", "here", "--deadline", "20s", "--wait"]);
    assert!(is_ok && message.contains("30 moved, ") && message.contains(" 0 failed, 0 to go"), "{message}");
    library.stop_and_check();

    for (target, expected) in
        [("nobody", "no service nobody here; this is helper here, with cache"), ("", "no service")]
    {
        let (is_ok, message) = scene.command(&["drain", target]);
        assert!(!is_ok && message.contains(expected), "{message}");
    }
}

#[test]
fn refused_clients_are_counted_and_logged() {
    let scene = Scene::start();
    let mut before = Client::new(scene.plain_port);
    assert!(before.version().is_some());
    scene.reload(&Settings { service: "clients = [\"10.0.0.0/8\"]".into(), ..scene.settings() });
    let mut refused = Client::try_new(scene.plain_port).expect("connection that the host accepts");
    assert!(refused.version().is_none());
    assert!(before.version().is_some(), "present clients should stay");
    let log = || scene.helper.stderr().unwrap();
    eventually("the log has the reason", || {
        log().contains("refused: its address is outside the ranges of clients")
    });
    assert_eq!(scene.status()["services"][0]["refused"]["address"], 1);

    let helper = "max_connections = 1".to_owned();
    scene.reload(&Settings { helper, ..scene.settings() });
    assert!(Client::try_new(scene.plain_port).is_none_or(|mut client| client.version().is_none()));
    eventually("the log has the reason", || log().contains("as many clients as it may (max_connections)"));
    assert!(before.version().is_some());
    scene.reload(&scene.settings());
    assert!(Client::new(scene.plain_port).version().is_some());
}

#[test]
fn the_admin_socket_is_for_owner_and_group() {
    let scene = Scene::start();
    let path = scene.scratch.path("h.sock");
    assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777, 0o660);
    let request = |line: &str| spillway_daemon::send_request(path.as_ref(), line, PATIENCE).unwrap();
    for (line, expected) in [
        ("", "not a request"),
        ("status", "not a request"),
        ("{\"command\":\"stop\"}", "not a request"),
        ("{\"command\":\"drain\",\"target\":\"cache\",\"deadline\":1}", "not a request"),
        (&"x".repeat(100_000), "too long"),
    ] {
        let answer: Value = serde_json::from_str(&request(line)).unwrap();
        assert!(answer["error"].as_str().unwrap().contains(expected), "{line}: {answer}");
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to run a command as another user");
        return;
    }
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", SPILLWAY, "status", "--socket", &path])
        .output();
    match output {
        Ok(output) => {
            let (is_ok, message) = outcome(&output);
            // The other user may not be able to run the program, because it lies in the build directory.
            assert!(!is_ok, "{message}");
            assert!(
                message.contains("owner and group") || message.contains("failed to execute"),
                "{message}"
            );
        }
        Err(error) => println!("skipped: setpriv: {error}"),
    }
}

#[test]
fn a_second_helper_does_not_take_the_socket() {
    let scene = Scene::start();
    let settings = Settings::new(loopback(free_port()), loopback(free_port()));
    let config = scene.scratch.path("second.toml");
    fs::write(&config, config_text(&scene.scratch, scene.link, &settings)).unwrap();
    let output = Command::new(SPILLWAY).args(["helper", "--config", &config]).output().unwrap();
    let (is_ok, message) = outcome(&output);
    assert!(!is_ok && message.contains("another helper answers there"), "{message}");
    assert_eq!(scene.status()["name"], "here");
}

#[test]
fn the_service_manager_is_notified() {
    use std::os::unix::net::UnixDatagram;
    let (scratch, place) = (Scratch::new(), Place::local().unwrap());
    let socket = UnixDatagram::bind(scratch.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let receive = || {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).expect("notification");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let next = |text: &str| loop {
        let message = receive();
        if message.contains(text) {
            return message;
        }
    };
    let config = scratch.path("helper.toml");
    let listen = loopback(free_port());
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
    // After a refused reload the helper is ready with the previous settings.
    fs::write(&config, "nonsense").unwrap();
    helper.signal(HUP).unwrap();
    next("RELOADING=1");
    next("READY=1");
    helper.signal(15).unwrap();
    next("STOPPING=1");
    assert!(helper.wait(PATIENCE).expect("exit status").success());
}

#[test]
fn helper_sends_no_watchdog_messages_for_another_process() {
    let (scratch, place) = (Scratch::new(), Place::local().unwrap());
    let socket = std::os::unix::net::UnixDatagram::bind(scratch.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let listen = loopback(free_port());
    let launch = Launch::new(SPILLWAY).name("helper");
    let launch = launch.args(["helper", "--service", "a=127.0.0.1:1", "--listen", &listen.to_string()]);
    let launch = launch.env("NOTIFY_SOCKET", scratch.path("notify"));
    let mut helper = place.spawn(&launch.env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1")).unwrap();
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).expect("notification");
    assert!(buffer[..length].starts_with(b"READY=1"));
    std::thread::sleep(Duration::from_millis(100));
    helper.signal(15).unwrap();
    let length = socket.recv(&mut buffer).expect("notification");
    assert!(buffer[..length].starts_with(b"STOPPING=1"), "the helper should send no watchdog message");
    assert!(helper.wait(PATIENCE).expect("exit status").success());
}
