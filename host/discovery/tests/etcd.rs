//! Lists and registrations in Debian's etcd: stopped, restarted, emptied, frozen, with invalid entries, or malicious.

mod support;

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use spillway_discovery::{
    Entry, EtcdAccess, EtcdFiles, Notice, Registrar, RegistrarNotice, Registration, Settings, Watcher,
};
use support::{Etcd, wait_for};

const PREFIX: &str = "/spillway/cache/";

/// The default settings with shorter times.
fn settings() -> Settings {
    Settings {
        request_timeout: Duration::from_secs(2),
        etcd_interval: Duration::from_millis(500),
        grace: Duration::from_secs(2),
        ..Settings::default()
    }
}

fn watch(source: &str) -> Watcher {
    Watcher::start(source.parse().unwrap(), settings()).unwrap()
}

struct Helper {
    registrar: Registrar,
    notices: Arc<Mutex<Vec<RegistrarNotice>>>,
}

fn register(source: &str, name: &str, link: &str) -> Helper {
    register_as(EtcdAccess::default(), source, name, link)
}

fn register_as(access: EtcdAccess, source: &str, name: &str, link: &str) -> Helper {
    let registration = Registration {
        ttl: Duration::from_secs(5),
        ..Registration::new(source.parse().unwrap(), access, name, link.parse().unwrap())
    };
    let notices = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&notices);
    let registrar = Registrar::start(registration, move |notice| sink.lock().unwrap().push(notice.clone()));
    Helper { registrar: registrar.unwrap(), notices }
}

impl Helper {
    fn wait_registered(&self) {
        wait_for("a registration", || self.registrar.status().since);
    }

    #[track_caller]
    fn wait_notice(&self, is_expected: impl Fn(&RegistrarNotice) -> bool) {
        wait_for("a notice", || self.notices.lock().unwrap().iter().any(&is_expected).then_some(()));
    }
}

#[track_caller]
fn expect_list(watcher: &mut Watcher, expected: &[&str]) {
    let mut poll = || {
        let list = watcher.poll_list()?;
        let list: Vec<String> = list.iter().map(ToString::to_string).collect();
        println!("the watcher's list: {list:?}"); // shown if the test fails
        (list == expected).then_some(())
    };
    let description = format!("{expected:?}");
    wait_for(&description, &mut poll);
}

#[track_caller]
fn expect_notice(watcher: &mut Watcher, is_expected: impl Fn(&Notice) -> bool) -> Notice {
    wait_for("a notice", || watcher.poll_notice().filter(|notice| is_expected(notice)))
}

#[test]
fn list_follows_registrations() {
    let Some(etcd) = Etcd::start() else { return };
    let source = etcd.source(PREFIX);
    let mut watcher = watch(&source);
    expect_list(&mut watcher, &[]);
    let one = register(&source, "one", "10.0.0.1:11411");
    expect_list(&mut watcher, &["one at 10.0.0.1:11411"]);
    let two = register(&source, "two", "[2001:db8::2]:11411");
    let other = register(&etcd.source("/spillway/cache2"), "other", "10.0.0.9:11411");
    other.wait_registered();
    expect_list(&mut watcher, &["one at 10.0.0.1:11411", "two at [2001:db8::2]:11411"]);
    let value: serde_json::Value = serde_json::from_str(&etcd.value("/spillway/cache/one").unwrap()).unwrap();
    assert_eq!(value["link"], "10.0.0.1:11411");
    assert!(value["version"].is_string());
    // A watcher that starts later has the same list.
    expect_list(&mut watch(&source), &["one at 10.0.0.1:11411", "two at [2001:db8::2]:11411"]);

    // A withdrawn helper disappears at once; its name may be registered with another address.
    one.registrar.withdraw();
    assert!(one.registrar.wait_withdrawn(Duration::from_secs(60)));
    assert_eq!(etcd.value("/spillway/cache/one"), None);
    expect_list(&mut watcher, &["two at [2001:db8::2]:11411"]);
    assert!(one.registrar.status().since.is_none());
    let notices = one.notices.lock().unwrap().clone();
    let (first, last) = (RegistrarNotice::Registered, RegistrarNotice::Withdrawn);
    assert!(notices.first() == Some(&first) && notices.last() == Some(&last), "{notices:?}");
    let _replacement = register(&source, "one", "10.0.0.3:11411");
    expect_list(&mut watcher, &["one at 10.0.0.3:11411", "two at [2001:db8::2]:11411"]);

    etcd.remove("/spillway/cache/two");
    two.wait_notice(|notice| matches!(notice, RegistrarNotice::Restored { why } if why.contains("removed")));
    // A new watcher: the old one may have missed the removal between two requests.
    expect_list(&mut watch(&source), &["one at 10.0.0.3:11411", "two at [2001:db8::2]:11411"]);
    // Two helpers of one name overwrite each other's key, which is reported.
    let _namesake = register(&source, "two", "10.0.0.4:11411");
    two.wait_notice(
        |notice| matches!(notice, RegistrarNotice::Restored { why } if why.contains("same name")),
    );
    assert!(watcher.error().is_none());
}

#[test]
fn list_survives_a_stop_of_etcd_and_a_loss_of_its_data() {
    let Some(mut etcd) = Etcd::start() else { return };
    let source = etcd.source(PREFIX);
    let (one, two) = (register(&source, "one", "10.0.0.1:1"), register(&source, "two", "10.0.0.2:2"));
    one.wait_registered();
    two.wait_registered();
    let both = ["one at 10.0.0.1:1", "two at 10.0.0.2:2"];
    // Longer than the helpers take to register again.
    let long_grace = Settings { grace: Duration::from_secs(3600), ..settings() };
    let mut watcher = Watcher::start(source.parse().unwrap(), long_grace).unwrap();
    expect_list(&mut watcher, &both);

    etcd.stop();
    expect_notice(&mut watcher, |notice| matches!(notice, Notice::Failed { .. }));
    assert!(watcher.error().is_some());
    one.wait_notice(|notice| matches!(notice, RegistrarNotice::Failed { .. }));
    // After the lease's time the registrar no longer assumes that the key exists.
    wait_for("the end of the registration", || one.registrar.status().since.is_none().then_some(()));
    assert!(one.registrar.status().error.is_some() && one.registrar.status().failures > 0);

    etcd.start_again();
    expect_notice(&mut watcher, |notice| matches!(notice, Notice::Recovered { .. }));
    one.wait_registered();
    two.wait_registered();
    assert!(etcd.value("/spillway/cache/one").is_some());

    // etcd starts again without its data, and so with another cluster ID: helpers register again, and each list
    // contains them.
    etcd.stop();
    etcd.lose_data();
    etcd.start_again();
    let three = register(&source, "three", "10.0.0.3:3");
    three.wait_registered();
    wait_for("the key of one", || etcd.value("/spillway/cache/one"));
    wait_for("the key of two", || etcd.value("/spillway/cache/two"));
    let mut lists = Vec::new();
    wait_for("a list with three", || {
        let list = watcher.poll_list()?;
        let has_three = list.iter().any(|entry| entry.name.as_deref() == Some("three"));
        lists.push(list);
        has_three.then_some(())
    });
    let has = |list: &Vec<Entry>, name: &str| list.iter().any(|entry| entry.name.as_deref() == Some(name));
    assert!(lists.iter().all(|list| has(list, "one") && has(list, "two")), "{lists:?}");
    let notices: Vec<Notice> = std::iter::from_fn(|| watcher.poll_notice()).collect();
    assert!(notices.contains(&Notice::OtherCluster), "{notices:?}");
}

#[test]
fn requests_move_from_a_frozen_member_to_another() {
    let Some(members) = Etcd::cluster(3) else { return };
    let endpoints: Vec<String> = members.iter().map(Etcd::endpoint).collect();
    let source = format!("etcd:{}{PREFIX}", endpoints.join(","));
    let mut watcher = watch(&source);
    let one = register(&source, "one", "10.0.0.1:1");
    one.wait_registered();
    expect_list(&mut watcher, &["one at 10.0.0.1:1"]);
    // Freeze each member in turn: requests move to another one.
    for (round, member) in members.iter().enumerate() {
        member.freeze();
        let port = round + 10;
        let moved = register(&source, "moved", &format!("10.0.0.2:{port}"));
        expect_list(&mut watcher, &["one at 10.0.0.1:1", &format!("moved at 10.0.0.2:{port}")]);
        // A watcher and a registration end while the member is frozen.
        drop(watch(&source));
        moved.registrar.withdraw();
        member.thaw();
        member.wait_answers();
        expect_list(&mut watcher, &["one at 10.0.0.1:1"]);
    }
    // All members stop answering, then all answer again.
    members.iter().for_each(Etcd::freeze);
    expect_notice(&mut watcher, |notice| matches!(notice, Notice::Failed { .. }));
    members.iter().for_each(Etcd::thaw);
    expect_notice(&mut watcher, |notice| matches!(notice, Notice::Recovered { .. }));
    one.wait_registered();
}

#[test]
fn invalid_entries_are_ignored_and_reported() {
    let Some(etcd) = Etcd::start() else { return };
    // A later version may add fields: `new_field` is ignored.
    etcd.put("/spillway/cache/fine", "{\"link\": \"10.0.0.1:1\", \"version\": \"9\", \"new_field\": [1]}");
    // Each of the following names says what is invalid.
    etcd.put("/spillway/cache/not-json", "10.0.0.2:1");
    etcd.put("/spillway/cache/host-name", "{\"link\": \"host:1\"}");
    etcd.put("/spillway/cache/unspecified-address", "{\"link\": \"0.0.0.0:1\"}");
    etcd.put("/spillway/cache/", "{\"link\": \"10.0.0.3:1\"}");
    etcd.put_bytes("/spillway/cache/not-utf8", &[0xff, 0xfe]);
    etcd.put(
        "/spillway/cache/too-long",
        &format!("{{\"link\": \"10.0.0.4:1\", \"x\": \"{}\"}}", "x".repeat(100_000)),
    );
    let mut watcher = watch(&etcd.source(PREFIX));
    expect_list(&mut watcher, &["fine at 10.0.0.1:1"]);
    let notice = expect_notice(&mut watcher, |notice| matches!(notice, Notice::Skipped { .. }));
    assert!(matches!(notice, Notice::Skipped { entries: 6, .. }), "{notice}");
    // A helper whose value becomes invalid keeps its last entry.
    etcd.put("/spillway/cache/fine", "nonsense");
    let notice = expect_notice(&mut watcher, |notice| matches!(notice, Notice::Skipped { .. }));
    assert!(notice.to_string().contains("/spillway/cache/fine"), "{notice}");
    etcd.put("/spillway/cache/new", "{\"link\": \"10.0.0.5:1\"}");
    expect_list(&mut watcher, &["fine at 10.0.0.1:1", "new at 10.0.0.5:1"]);
    // Compaction of old revisions does not disturb the watcher.
    etcd.compact();
    etcd.remove("/spillway/cache/fine");
    expect_list(&mut watcher, &["new at 10.0.0.5:1"]);
    // The last helper stays for the grace time, then the list is empty.
    etcd.remove("/spillway/cache/new");
    expect_list(&mut watcher, &[]);
}

/// Files of the user `helper`, for https.
fn files(etcd: &Etcd, password: &str) -> EtcdFiles {
    let path = etcd.file(&format!("password-{}", password.replace(' ', "-")));
    fs::write(&path, format!("{password}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    EtcdFiles {
        ca_file: Some(etcd.file("ca.pem")),
        cert_file: Some(etcd.file("helper.pem")),
        key_file: Some(etcd.file("helper.key")),
        user: Some("helper".into()),
        password_file: Some(path),
    }
}

#[test]
fn watcher_and_registrar_use_https_with_a_certificate_and_a_password() {
    let Some(etcd) = Etcd::secure(PREFIX) else { return };
    let source = etcd.source(PREFIX);
    let access = |files: &EtcdFiles| EtcdAccess::read(files, &source.parse().unwrap());
    let valid = files(&etcd, "open sesame");
    let watch_as = |access: EtcdAccess| {
        Watcher::start(source.parse().unwrap(), Settings { etcd_access: access, ..settings() }).unwrap()
    };
    let mut watcher = watch_as(access(&valid).unwrap());
    expect_list(&mut watcher, &[]);
    let one = register_as(access(&valid).unwrap(), &source, "one", "10.0.0.1:1");
    expect_list(&mut watcher, &["one at 10.0.0.1:1"]);

    // The token, which lives for 1 s, expires between the helper's requests.
    std::thread::sleep(Duration::from_secs(5));
    let status = one.registrar.status();
    assert!(status.since.is_some() && status.failures == 0, "{status:?}");

    // Errors are reported without the password.
    let failure_with = |files: &EtcdFiles| {
        let mut watcher = watch_as(access(files).unwrap());
        let notice = expect_notice(&mut watcher, |notice| matches!(notice, Notice::Failed { .. }));
        assert!(watcher.poll_list().is_none());
        notice.to_string()
    };
    let error = failure_with(&files(&etcd, "wrong-password"));
    assert!(error.contains("authentication failed") && !error.contains("wrong-password"), "{error}");
    let error = failure_with(&EtcdFiles { user: None, password_file: None, ..valid.clone() });
    assert!(error.contains("user name is empty"), "{error}");
    let error = failure_with(&EtcdFiles { ca_file: Some(etcd.file("other.pem")), ..valid.clone() });
    assert!(error.contains("certificate") && error.contains("UnknownIssuer"), "{error}");
    // In TLS 1.3 the rejection may arrive after the request was begun: then its reason is lost with the connection.
    let error = failure_with(&EtcdFiles { cert_file: None, key_file: None, ..valid.clone() });
    assert!(
        ["certificate", "broken pipe", "reset"].iter().any(|why| error.to_lowercase().contains(why)),
        "{error}"
    );

    // A password file that others can read is an error.
    let password = valid.password_file.as_ref().unwrap();
    fs::set_permissions(password, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(access(&valid).unwrap_err().to_string().contains("chmod 600"));

    // A withdrawn helper disappears at once.
    one.registrar.withdraw();
    assert!(one.registrar.wait_withdrawn(Duration::from_secs(60)));
    assert_eq!(one.notices.lock().unwrap().last(), Some(&RegistrarNotice::Withdrawn));
    expect_list(&mut watcher, &[]);
}

#[test]
fn unusable_credential_files_give_an_error_with_the_next_step() {
    let Some(etcd) = Etcd::secure(PREFIX) else { return };
    let (https, http) = (etcd.source(PREFIX), "etcd:http://127.0.0.1:1/a/".to_owned());
    let mixed = format!("etcd:https://127.0.0.1:1,http://127.0.0.1:2{PREFIX}");
    let valid = files(&etcd, "open sesame");
    let no_files = EtcdFiles::default();
    let empty_password_file = files(&etcd, "").password_file;
    for (files, source, step) in [
        (&no_files, &https, "--etcd-ca-file"),
        (&valid, &http, "with https only"),
        (&valid, &mixed, "in clear text"),
        (&EtcdFiles { key_file: None, ..valid.clone() }, &https, "--etcd-key-file"),
        (&EtcdFiles { user: None, ..valid.clone() }, &https, "--etcd-user"),
        (&EtcdFiles { key_file: Some(etcd.file("other.key")), ..valid.clone() }, &https, "belongs to"),
        (&EtcdFiles { key_file: Some(etcd.file("ca.pem")), ..valid.clone() }, &https, "chmod 600"),
        (&EtcdFiles { ca_file: Some(etcd.file("ca.key")), ..valid.clone() }, &https, "holds no certificate"),
        (&EtcdFiles { ca_file: Some("/dev/zero".into()), ..valid.clone() }, &https, "not a regular file"),
        (&EtcdFiles { password_file: empty_password_file, ..valid.clone() }, &https, "on one line"),
    ] {
        let error = EtcdAccess::read(files, &source.parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains(step), "{error}");
    }
    assert!(EtcdAccess::read(&no_files, &http.parse().unwrap()).is_ok());
}

/// Accepts connections. Writes to each a head that ends within a header (`X: `), then `rest` repeatedly until the peer
/// closes the connection: `rest` may continue the header, or end the head and begin a body. Writes nothing if `rest` is
/// empty.
fn start_malicious_server(rest: &'static [u8], pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = format!("etcd:http://{}{PREFIX}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let head = b"HTTP/1.1 200 OK\r\nX: ";
                // Bounded, in case the peer does not close the connection.
                let ends = Instant::now() + Duration::from_secs(60);
                let _ = stream.write_all(if rest.is_empty() { &[] } else { head });
                while Instant::now() < ends && stream.write_all(rest).is_ok() {
                    std::thread::sleep(pause);
                }
            });
        }
    });
    source
}

#[test]
fn requests_fail_if_the_server_is_silent_slow_or_sends_too_much() {
    let slow = Duration::from_millis(100);
    for (rest, pause, why) in [
        (&b""[..], slow, "does not answer in time"),
        (b"x", slow, "does not answer in time"),
        (b"\r\n\r\n {", slow, "does not answer in time"),
        (&[b'x'; 1 << 14], Duration::ZERO, "header is too big"),
        (b"x\r\n\r\n                                            ", Duration::ZERO, "more than 8388608 bytes"),
    ] {
        let source = start_malicious_server(rest, pause);
        let mut watcher = watch(&source);
        let helper = register(&source, "one", "10.0.0.1:1");
        let notice = expect_notice(&mut watcher, |notice| matches!(notice, Notice::Failed { .. }));
        assert!(notice.to_string().contains(why), "{notice}");
        assert!(watcher.poll_list().is_none());
        let began = Instant::now();
        helper.registrar.withdraw();
        assert!(helper.registrar.wait_withdrawn(Duration::from_secs(60)));
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(1),
            "a withdrawal should end a request in progress, but took {took:?}"
        );
    }
}

/// Kills its process on drop, also when the test fails.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn killed_helper_disappears_when_its_lease_expires() {
    const TEST_NAME: &str = "killed_helper_disappears_when_its_lease_expires";
    const SOURCE_VARIABLE: &str = "SPILLWAY_TEST_REGISTER";
    if let Ok(source) = std::env::var(SOURCE_VARIABLE) {
        let _helper = register(&source, "killed", "10.0.0.1:1");
        std::thread::sleep(Duration::from_secs(3600));
        return;
    }
    let Some(etcd) = Etcd::start() else { return };
    let source = etcd.source(PREFIX);
    let mut watcher = watch(&source);
    let other = register(&source, "other", "10.0.0.2:1");
    other.wait_registered();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST_NAME])
        .env(SOURCE_VARIABLE, &source)
        .stdout(Stdio::null())
        .spawn();
    let child = KillOnDrop(child.unwrap());
    expect_list(&mut watcher, &["killed at 10.0.0.1:1", "other at 10.0.0.2:1"]);
    drop(child);
    expect_list(&mut watcher, &["other at 10.0.0.2:1"]);
    assert_eq!(etcd.value("/spillway/cache/killed"), None);
}
