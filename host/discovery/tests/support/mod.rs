//! Debian's etcd on loopback with a temporary directory, and requests of tests to it.
#![allow(dead_code, reason = "each test uses some of it")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Long, because machines that run tests are slow and shared.
const TIMEOUT: Duration = Duration::from_secs(120);

const ANY_KEY: &str = "eA=="; // base64 of "x", which need not exist

/// Polls until there is a value; panics with `what` after [`TIMEOUT`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(began.elapsed() < TIMEOUT, "{what} should come within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Accepts one connection and answers its request with `reply(path)`. Returns the path.
pub fn answer(listener: &TcpListener, reply: impl FnOnce(&str) -> &'static str) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = String::new();
    while !request.ends_with('}') {
        let mut buffer = [0; 1000];
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "the request should be complete: {request}");
        request.push_str(str::from_utf8(&buffer[..read]).unwrap());
    }
    let path = request.split(' ').nth(1).unwrap().to_owned();
    write!(stream, "HTTP/1.1 200 OK\r\n\r\n{}", reply(&path)).unwrap();
    path
}

/// A member of a cluster; killed on drop.
pub struct Etcd {
    directory: PathBuf,
    name: String,
    client_port: u16,
    peer_port: u16,
    cluster: String,
    is_secure: bool,
    process: Option<Child>,
}

impl Etcd {
    /// A running cluster of one member; `None` if etcd is not installed.
    pub fn start() -> Option<Etcd> {
        Etcd::cluster(1).map(|mut all| all.remove(0))
    }

    /// A running cluster; `None` if etcd is not installed.
    pub fn cluster(members: usize) -> Option<Vec<Etcd>> {
        Etcd::start_members(members, false)
    }

    /// A running cluster of one member with https, client certificates (see [`file`](Self::file)) and passwords:
    /// `helper` with `open sesame` may use keys under the prefix; a token lives for 1 s.
    pub fn secure(prefix: &str) -> Option<Etcd> {
        let etcd = Etcd::start_members(1, true)?.remove(0);
        etcd.request("/v3/auth/user/add", &json!({ "name": "root", "password": "root" }));
        etcd.request("/v3/auth/role/add", &json!({ "name": "root" }));
        etcd.request("/v3/auth/user/grant", &json!({ "user": "root", "role": "root" }));
        etcd.request("/v3/auth/role/add", &json!({ "name": "helpers" }));
        // The smallest key after all keys under the prefix: "0" follows "/" in ASCII.
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let (key, range_end) = (STANDARD.encode(prefix), STANDARD.encode(end));
        let permission = json!({ "permType": "READWRITE", "key": key, "range_end": range_end });
        etcd.request("/v3/auth/role/grant", &json!({ "name": "helpers", "perm": permission }));
        etcd.request("/v3/auth/user/add", &json!({ "name": "helper", "password": "open sesame" }));
        etcd.request("/v3/auth/user/grant", &json!({ "user": "helper", "role": "helpers" }));
        etcd.request("/v3/auth/enable", &json!({}));
        Some(etcd)
    }

    fn start_members(members: usize, is_secure: bool) -> Option<Vec<Etcd>> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("skipped: etcd does not run here; it is in Debian's etcd-server");
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut all: Vec<Etcd> = (0..members)
            .map(|_| {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let name = format!("spillway-etcd-{}-{number}", std::process::id());
                let (client_port, peer_port) = (spillway_ports::free_port(), spillway_ports::free_port());
                let directory = std::env::temp_dir().join(&name);
                Etcd {
                    directory,
                    name,
                    client_port,
                    peer_port,
                    cluster: String::new(),
                    is_secure,
                    process: None,
                }
            })
            .collect();
        let list: Vec<String> = all
            .iter()
            .map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer_port))
            .collect();
        for member in &mut all {
            member.cluster = list.join(",");
            if is_secure {
                member.make_certificates();
            }
            member.run();
        }
        all.iter().for_each(Etcd::wait_answers);
        Some(all)
    }

    fn run(&mut self) {
        let (client, peer) = (self.endpoint(), format!("http://127.0.0.1:{}", self.peer_port));
        fs::create_dir_all(&self.directory).unwrap();
        let mut command = Command::new("etcd");
        if self.is_secure {
            command.args(["--client-cert-auth", "--auth-token-ttl", "1"]);
            for (option, file) in
                [("--cert-file", "etcd.pem"), ("--key-file", "etcd.key"), ("--trusted-ca-file", "ca.pem")]
            {
                command.arg(option).arg(self.file(file));
            }
        }
        let child = command
            .args(["--name", &self.name, "--logger", "zap", "--log-level", "fatal"])
            .arg("--data-dir")
            .arg(self.directory.join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.cluster, "--initial-cluster-token", &self.cluster])
            .args(["--heartbeat-interval", "100", "--election-timeout", "1000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.process = Some(child.unwrap());
    }

    /// Makes an authority, and its certificates for a helper and for etcd (whose gateway is also a client of etcd); and
    /// another authority. The certificates have no common names, because the gateway of an etcd with users rejects
    /// client certificates that have one.
    fn make_certificates(&self) {
        fs::create_dir_all(&self.directory).unwrap();
        let new_key = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        let make = |name: &str, more: &[&str]| {
            let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
            let output = Command::new("openssl")
                .current_dir(&self.directory)
                .args(new_key)
                .args(["-days", "2", "-keyout", &key, "-out", &certificate, "-subj", &format!("/O={name}")])
                .args(more)
                .output()
                .expect("openssl should be installed");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        let signed_by_ca =
            ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"];
        let key_usage = |by: &str| format!("extendedKeyUsage={by}");
        make("ca", &[]);
        make("other", &[]);
        let both_uses = key_usage("serverAuth,clientAuth");
        make(
            "etcd",
            &[&signed_by_ca[..], &["-addext", "subjectAltName=IP:127.0.0.1", "-addext", &both_uses]].concat(),
        );
        make("helper", &[&signed_by_ca[..], &["-addext", &key_usage("clientAuth")]].concat());
    }

    /// Path of a file in the member's directory: `ca.pem`, `helper.pem`, `helper.key`, `other.pem` and others.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn wait_answers(&self) {
        wait_for("an answer of etcd", || self.try_request("/v3/kv/range", &json!({ "key": ANY_KEY })));
    }

    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts the member again with the data in its directory.
    pub fn start_again(&mut self) {
        self.run();
        self.wait_answers();
    }

    pub fn lose_data(&mut self) {
        assert!(self.process.is_none());
        fs::remove_dir_all(&self.directory).unwrap();
        // Another cluster token makes another cluster.
        self.name.push('x');
        self.cluster = self.cluster.replacen('=', "x=", 1);
    }

    /// Stops the process: it answers nothing, and its connections stay open.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let id = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    pub fn endpoint(&self) -> String {
        format!("http{}://127.0.0.1:{}", if self.is_secure { "s" } else { "" }, self.client_port)
    }

    pub fn source(&self, prefix: &str) -> String {
        format!("etcd:{}{prefix}", self.endpoint())
    }

    pub fn put(&self, key: &str, value: &str) {
        self.put_bytes(key, value.as_bytes());
    }

    pub fn put_bytes(&self, key: &str, value: &[u8]) {
        self.request("/v3/kv/put", &json!({ "key": STANDARD.encode(key), "value": STANDARD.encode(value) }));
    }

    pub fn remove(&self, key: &str) {
        self.request("/v3/kv/deleterange", &json!({ "key": STANDARD.encode(key) }));
    }

    pub fn value(&self, key: &str) -> Option<String> {
        let range = self.request("/v3/kv/range", &json!({ "key": STANDARD.encode(key) }));
        let value = range["kvs"][0]["value"].as_str()?;
        Some(String::from_utf8(STANDARD.decode(value).unwrap()).unwrap())
    }

    /// Removes all revisions except the newest.
    pub fn compact(&self) {
        let range = self.request("/v3/kv/range", &json!({ "key": ANY_KEY }));
        self.request(
            "/v3/kv/compaction",
            &json!({ "revision": range["header"]["revision"], "physical": true }),
        );
    }

    #[track_caller]
    fn request(&self, path: &str, body: &Value) -> Value {
        self.try_request(path, body).unwrap_or_else(|| panic!("etcd should accept {path} {body}"))
    }

    fn try_request(&self, path: &str, body: &Value) -> Option<Value> {
        if self.is_secure {
            let output = Command::new("curl")
                .current_dir(&self.directory)
                .args(["-sf", "--cacert", "ca.pem", "--cert", "helper.pem", "--key", "helper.key"])
                .args(["-d", &body.to_string(), &format!("{}{path}", self.endpoint())])
                .output()
                .expect("curl should be installed");
            return serde_json::from_slice(&output.stdout).ok();
        }
        let mut stream = TcpStream::connect(("127.0.0.1", self.client_port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let body = body.to_string();
        let length = body.len();
        // HTTP/1.0: the answer is not chunked.
        write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let is_ok = head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200");
        if is_ok { serde_json::from_str(body).ok() } else { None }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
