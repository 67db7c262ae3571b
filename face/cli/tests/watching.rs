//! Observing a helper of a real memcached: top, connections, metrics, logs, and clients behind haproxy.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use spillway_ports::free_port;
use support::terminal::Terminal;
use support::{Client, Options, PATIENCE, SPILLWAY, Scene, Scratch, SetOnDrop, eventually, loopback, text};

fn spillway(arguments: &[&str]) -> Output {
    Command::new(SPILLWAY).args(arguments).output().unwrap()
}

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

#[test]
fn top_shows_rates_and_restores_the_terminal() {
    let scene = Scene::start();
    let mut client = Client::new(scene.plain_port);
    client.set("key", b"value");
    let socket = ["--socket", &scene.status_socket];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                client.get("key");
            }
        });
        let ending = SetOnDrop(&done);
        let output = spillway(&[&["top", "--once", "--json", "--interval", "0.5"], &socket[..]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let helper = &document["helpers"][0];
        let service = &helper["rates"]["services"][0];
        assert_eq!((&service["name"], &helper["status"]["clients"]), (&"cache".into(), &1.into()));
        assert!(service["requests_per_second"].as_f64().unwrap() > 1.0, "{service}");
        assert!(service["delay_p99_us"].is_number() && helper["rates"]["thread_cpu_percent"][0].is_number());

        let output = spillway(&[&["top", "--once", "--interval", "0.2"], &socket[..]].concat());
        let plain = text(&output.stdout);
        assert!(plain.contains("cache") && plain.contains("1/1") && !plain.contains('\x1b'), "{plain:?}");
        check_top_on_a_terminal(&scene.status_socket);

        // Without --socket, `top` shows all of this host, including other tests' servers.
        let output = spillway(&["top", "--once", "--json", "--interval", "0.5"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let pid = scene.server.pid();
        let servers = document["servers"].as_array().unwrap();
        let server = servers.iter().find(|server| server["pid"] == pid).expect("server in the list");
        assert_eq!((&server["program"], &server["state"]), (&"memcached".into(), &"on".into()), "{server}");
        assert_eq!((&server["links"], &server["connections"]), (&1.into(), &1.into()), "{server}");
        let rates = &server["rates"];
        let rate = |name: &str| rates[name].as_f64().unwrap_or_else(|| panic!("{name} of {rates}"));
        assert!(rate("messages_per_second") > 1.0 && rate("batches_per_second") > 1.0, "{rates}");
        assert!(rate("messages_per_batch") >= 1.0, "{rates}");
        assert_eq!((rate("stalls_per_second"), rate("refused_per_second")), (0.0, 0.0));
        let plain = text(&spillway(&["top", "--once", "--interval", "0.2"]).stdout);
        assert!(plain.contains("\nserver ") || plain.starts_with("server "), "{plain}");
        assert!(plain.lines().any(|line| line.starts_with("memcached ")), "{plain}");
        drop(ending);
    });
    let pid = scene.server.pid().to_string();
    assert!(spillway(&["server", "off", &pid, "--within", "0", "--wait"]).status.success());
    let plain = text(&spillway(&["top", "--once", "--interval", "0.1"]).stdout);
    assert!(plain.contains(&format!("  process {pid}: off")), "{plain}");
    let output = spillway(&["top", "--once", "--interval", "0.1", "--socket", "/no/such/socket"]);
    assert!(!output.status.success() && text(&output.stdout).contains("/no/such/socket"));
}

/// Runs `top` on a terminal of 80 columns until Ctrl-C.
fn check_top_on_a_terminal(status_socket: &str) {
    let mut terminal = Terminal::new();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal.master, size).unwrap();
    let [input, output, errors] = terminal.streams();
    let mut top = Command::new(SPILLWAY)
        .args(["top", "--interval", "0.2", "--socket", status_socket])
        .stdin(input)
        .stdout(output)
        .stderr(errors)
        .spawn()
        .unwrap();
    let mut shown = String::new();
    // Wait for at least two frames.
    while shown.matches("\x1b[H").count() < 3 || !shown.contains("cache") {
        shown += &terminal.read(4096).expect("a frame");
    }
    assert!(shown.starts_with("\x1b[?1049h\x1b[?25l"), "{shown:?}");
    for frame in shown.split("\x1b[H").skip(1) {
        let lines = frame.replace("\x1b[2K", "").replace("\x1b[J", "");
        assert!(lines.split("\r\n").all(|line| line.chars().count() <= 80), "{lines:?}");
    }
    kill_process(Pid::from_child(&top), Signal::INT).unwrap();
    shown += &terminal.rest();
    assert!(shown.ends_with("\x1b[?25h\x1b[?1049l"), "{:?}", &shown[shown.len().saturating_sub(80)..]);
    assert!(top.wait().unwrap().success());
}

#[test]
fn connections_are_listed_with_their_counts() {
    let scene = Scene::start();
    let mut clients: Vec<_> = (0..3).map(|_| Client::new(scene.plain_port)).collect();
    clients[1].set("key", b"0123456789");
    let list_connections = |arguments: &[&str]| {
        let output =
            spillway(&[&["connections", "cache", "--socket", &scene.status_socket], arguments].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let mut list = Value::Null;
    eventually("only these clients are listed", || {
        list = serde_json::from_str(&list_connections(&["--json"])).expect("JSON");
        list["total"] == 3
    });
    let address = clients[1].stream().local_addr().unwrap().to_string();
    let rows = list["connections"].as_array().unwrap();
    let row = rows.iter().find(|row| row["client"] == *address).expect("row of the client");
    assert_eq!((&row["client_kind"], &row["bytes_out"]), (&"plain".into(), &8.into()), "{row}");
    assert_eq!(row["bytes_in"], "set key 0 0 10\r\n0123456789\r\n".len());
    assert_eq!((&row["buffered_bytes"], &row["stalled_ms"]), (&0.into(), &Value::Null));
    let lines = list_connections(&[]);
    assert_eq!(lines.lines().count(), 3);
    assert!(lines.contains(&format!("addr={address} ")) && lines.contains("kind=plain"), "{lines}");
    let limited: Value = serde_json::from_str(&list_connections(&["--json", "--limit", "2"])).unwrap();
    assert_eq!((limited["connections"].as_array().unwrap().len(), &limited["total"]), (2, &3.into()));
    let output = spillway(&["connections", "nothing", "--socket", &scene.status_socket]);
    assert!(text(&output.stderr).contains("there are: cache"), "{}", text(&output.stderr));
}

#[test]
fn curl_reads_metrics_status_and_health() {
    let metrics = loopback(free_port()).to_string();
    let helper_arguments = vec!["--metrics", leaked(metrics.clone())];
    let scene = Scene::with(Options { helper_arguments, ..Options::default() });
    let curl = |path: &str, extra: &[&str]| {
        let url = format!("http://{metrics}{path}");
        let output = Command::new("curl").args(["-sS", "--max-time", "30"]).args(extra).arg(url).output();
        text(&output.expect("run curl").stdout)
    };
    Client::new(scene.plain_port).set("key", b"value");
    let metrics_text = curl("/metrics", &[]);
    assert!(
        metrics_text
            .contains("spillway_helper_links{service=\"cache\",thread=\"0\",context=\"0\",state=\"up\"} 1\n"),
        "{metrics_text}"
    );
    assert!(curl("/metrics", &["--head"]).starts_with("HTTP/1.1 200 OK"));
    assert!(curl("/metrics", &["-d", "x", "-o", "/dev/null", "-w", "%{http_code}"]).ends_with("405"));
    let status: Value = serde_json::from_str(&curl("/status", &[])).expect("JSON");
    assert_eq!(status["services"][0]["name"], "cache");
    assert_eq!(curl("/health", &[]), "healthy\n");
    assert!(curl("/", &[]).contains("<h1>Spillway helper</h1>"));
    // The helper is healthy while it accepts new clients.
    let set_override = |name: &str| {
        let arguments = ["relief", "cache", name, "--socket", &scene.status_socket];
        assert!(spillway(&arguments).status.success());
    };
    set_override("off");
    assert_eq!(curl("/health", &["-w", "%{http_code}"]), "cache: relief is off: no new clients\n503");
    assert!(curl("/", &[]).contains("<p class=\"bad\">cache: relief is off"));
    set_override("auto");
    assert_eq!(curl("/health", &[]), "healthy\n");
    let staying = Client::new(scene.plain_port);
    assert!(
        spillway(&["drain", "cache", "--deadline", "60s", "--socket", &scene.status_socket]).status.success()
    );
    let why = curl("/health", &[]);
    assert!(why.starts_with("cache: draining: no new clients"), "{why}");
    drop(staying);
    assert!(spillway(&["reload", "--socket", &scene.status_socket]).status.success());
    eventually("healthy again", || curl("/health", &[]) == "healthy\n");
    drop(scene.server);
    eventually("unhealthy", || curl("/health", &["-o", "/dev/null", "-w", "%{http_code}"]) == "503");
}

/// A helper whose log the test reads, and whose server does not run.
struct HelperWithoutServer {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
}

impl HelperWithoutServer {
    fn start(arguments: &[&str]) -> HelperWithoutServer {
        let mut child =
            Command::new(SPILLWAY).arg("helper").args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        HelperWithoutServer { child, log }
    }

    fn line(&mut self, text: &str) -> String {
        let mut lines = self.log.by_ref().lines().map_while(Result::ok);
        lines.find(|line| line.contains(text)).unwrap_or_else(|| panic!("no log line contains {text:?}"))
    }

    /// The fields of the next line of a JSON log that contains this text.
    fn fields(&mut self, text: &str) -> Value {
        serde_json::from_str(&self.line(text)).expect("JSON object on the line")
    }
}

impl Drop for HelperWithoutServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn decisions_are_logged_as_text_or_json() {
    for (arguments, is_json) in [(&["--log", "json"][..], true), (&["-v"][..], false)] {
        let server = format!("cache={}", loopback(free_port()));
        let common = ["--service", &server, "--listen", "127.0.0.1:0", "--threads", "1"];
        let line = HelperWithoutServer::start(&[&common, arguments].concat()).line("link down");
        if is_json {
            let fields: Value = serde_json::from_str(&line).expect("JSON object on the line");
            assert_eq!((&fields["level"], &fields["service"]), (&"WARN".into(), &"cache".into()), "{line}");
            assert_eq!((&fields["reason"], &fields["link"]), (&"lost".into(), &0.into()), "{line}");
            assert!(fields["message"].as_str().unwrap().contains("the server refused"), "{line}");
            assert!(fields["retry_ms"].is_number() && fields["left_out"].is_null(), "{line}");
        } else {
            assert!(
                line.contains("WARN link down: the server refused") && line.contains("service=cache"),
                "{line}"
            );
        }
    }
}

#[test]
fn reloads_and_drains_are_logged_with_fields() {
    let scratch = Scratch::new();
    let (config, socket) = (scratch.path("helper.toml"), scratch.path("h.sock"));
    let (server, listen) = (loopback(free_port()), loopback(free_port()));
    let write = |helper: &str, service: &str| {
        let text = format!(
            "[helper]\nsocket = \"{socket}\"\n{helper}\n[service.cache]\nserver = \"{server}\"\n\
             listen = [\"{listen}\"]\n{service}\n"
        );
        fs::write(&config, text).unwrap();
    };
    write("threads = 1", "");
    let mut helper = HelperWithoutServer::start(&["--config", &config, "--log", "json"]);
    let succeeds = |command: &[&str]| spillway(&[command, &["--socket", &socket]].concat()).status.success();
    eventually("the admin socket answers", || succeeds(&["status"]));

    write("threads = 2\nmax_connections = 7", "client_keepalive = \"10s\"");
    assert!(succeeds(&["reload"]));
    assert!(helper.fields("reload: max_connections = 7")["service"].is_null());
    assert_eq!(helper.fields("reload: client_keepalive")["service"], "cache");
    assert_eq!(helper.fields("needs a restart")["setting"], "helper.threads");
    let reloaded = helper.fields("reload: in force");
    assert_eq!((&reloaded["changes"], &reloaded["need_restart"]), (&2.into(), &1.into()), "{reloaded}");

    write("threads = 1\ndrain_deadline = \"5\"", "client_keepalive = \"10\"");
    assert!(!succeeds(&["reload"]));
    let refused = helper.fields("refused, everything stays as it was");
    assert_eq!(refused["level"], "ERROR");
    let problem = refused["problem"].as_str().unwrap();
    assert!(problem.contains("helper.toml:4:18: give a time with its unit"), "{problem}");
    assert!(problem.contains("; ") && problem.contains("helper.toml:8:20:"), "{problem}");
    assert!(!problem.contains('\n'), "{problem}");

    assert!(succeeds(&["drain", "cache", "--deadline", "2s"]));
    let drained = helper.fields("draining: no new clients;");
    assert_eq!((&drained["service"], &drained["deadline_ms"]), (&"cache".into(), &2000.into()), "{drained}");
    kill_process(Pid::from_child(&helper.child), Signal::TERM).unwrap();
    assert!(helper.fields("draining: no new clients,")["deadline_ms"].is_number());
    assert!(helper.child.wait().unwrap().success());
}

/// haproxy with a front for each version of the PROXY protocol; it connects to the helper from 127.0.0.2.
struct Haproxy {
    child: Child,
    fronts: [SocketAddr; 2],
}

impl Haproxy {
    fn start(scene: &Scene) -> Haproxy {
        let fronts = [(); 2].map(|()| loopback(free_port()));
        let mut config = String::from(
            "defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 60s\n  timeout server 60s\n",
        );
        let options = ["send-proxy", "send-proxy-v2 proxy-v2-options crc32c,unique-id"];
        for (index, (front, option)) in fronts.iter().zip(options).enumerate() {
            config.push_str(&format!(
                "listen front{index}\n  bind {front}\n  unique-id-format %ci-%cp\n  server helper {} source 127.0.0.2 \
                 {option}\n",
                scene.plain_port
            ));
        }
        let path = scene.scratch.path("haproxy.cfg");
        fs::write(&path, config).unwrap();
        let child = Command::new("haproxy").args(["-db", "-f", &path]).spawn().expect("run haproxy");
        Haproxy { child, fronts }
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect_from(source: &str, target: SocketAddr) -> Option<TcpStream> {
    let socket: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::new(source.parse::<IpAddr>().unwrap(), 0)).unwrap();
    connect(&socket, &target).ok()?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(stream)
}

/// Sends a request and reads a line. `None`: the connection has ended.
fn send_line(stream: &mut TcpStream, request: &[u8]) -> Option<String> {
    stream.write_all(request).ok()?;
    let mut line = String::new();
    BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).ok()?;
    (!line.is_empty()).then_some(line)
}

#[test]
fn clients_behind_haproxy_keep_their_addresses() {
    let helper_arguments = vec!["--proxy-protocol-from", "127.0.0.2/32"];
    let scene = Scene::with(Options { helper_arguments, ..Options::default() });
    let haproxy = Haproxy::start(&scene);
    let mut clients = Vec::new();
    for front in haproxy.fronts {
        let mut stream = None;
        eventually("a reply through haproxy", || {
            stream = connect_from("127.0.0.3", front);
            let answer = stream.as_mut().and_then(|stream| send_line(stream, b"version\r\n"));
            answer.is_some_and(|line| line.starts_with("VERSION"))
        });
        clients.push(stream.unwrap());
    }
    for client in &mut clients {
        assert_eq!(send_line(client, b"set key 0 0 5\r\nvalue\r\n").as_deref(), Some("STORED\r\n"));
        let address = client.local_addr().unwrap();
        // The server and the helper show the client's own address.
        let mut server = Client::new(scene.direct());
        server.send(b"stats conns\r\n");
        let lines: Vec<String> =
            std::iter::repeat_with(|| server.line()).take_while(|line| line != "END").collect();
        assert!(
            lines.iter().any(|line| line.ends_with(&format!("addr tcp:{address}"))),
            "{address} of {lines:#?}"
        );
        let list = spillway(&["connections", "cache", "--json", "--socket", &scene.status_socket]);
        let list: Value = serde_json::from_slice(&list.stdout).expect("JSON");
        let row =
            list["connections"].as_array().unwrap().iter().find(|row| row["client"] == address.to_string());
        let via = row.expect("row of the client")["via"].as_str().expect("address of haproxy").to_owned();
        assert!(via.starts_with("127.0.0.2:"), "{via}");
    }
    // A load balancer must send the header; headers of other clients are not trusted.
    let mut without_header = connect_from("127.0.0.2", scene.plain_port).unwrap();
    assert_eq!(send_line(&mut without_header, b"version\r\n"), None, "the connection should be reset");
    let mut untrusted = connect_from("127.0.0.4", scene.plain_port).unwrap();
    let line = b"PROXY TCP4 127.0.0.9 127.0.0.1 1 2\r\n";
    assert_eq!(
        send_line(&mut untrusted, line).as_deref(),
        Some("ERROR\r\n"),
        "the line should count as a request"
    );
    let mut forbidden = connect_from("127.0.0.2", scene.plain_port).unwrap();
    assert_eq!(
        send_line(&mut forbidden, b"PROXY TCP4 8.8.8.8 127.0.0.1 1 2\r\nversion\r\n"),
        None,
        "a client outside the ranges should be refused"
    );
    let refused = scene.status()["services"][0]["refused"].clone();
    assert_eq!((&refused["proxy_header"], &refused["address"]), (&1.into(), &1.into()), "{refused}");
}

#[test]
fn status_finds_all_admin_sockets_where_units_put_them() {
    // In a mount namespace with its own /run.
    let script = r#"
        mount -t tmpfs none /run && mkdir /run/spillway /run/spillway-sidecar-a || exit 1
        "$1" helper --service a=127.0.0.1:1 --listen 127.0.0.1:0 --threads 1 \
            --status-socket /run/spillway/other.sock 2>/dev/null &
        helper=$!
        "$1" sidecar --link 127.0.0.1:1 --listen 127.0.0.1:0 \
            --status-socket /run/spillway-sidecar-a/status.sock 2>/dev/null &
        sidecar=$!
        until "$1" status --json >/run/status 2>/dev/null && grep -q '"kind": "sidecar"' /run/status &&
            grep -q threads_silent /run/status; do sleep 0.1; done
        cat /run/status
        kill $helper $sidecar; wait"#;
    let mut command = Command::new("timeout");
    command.args(["60", "unshare", "-m", "sh", "-c", script, "sh", SPILLWAY]);
    let output = command.output().unwrap();
    if text(&output.stderr).contains("not permitted") {
        eprintln!("skipped: no mount namespace without root");
        return;
    }
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let count = |list: &str| status[list].as_array().expect("list").len();
    assert_eq!((count("helpers"), count("sidecars")), (1, 1), "{status:#}");
    assert_eq!((&status["helper"], &status["sidecar"]), (&status["helpers"][0], &status["sidecars"][0]));
}
