//! Lists and registrations in Debian's etcd, which is stopped, restarted, emptied, frozen and given nonsense.

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
use support::{Etcd, next};

const PREFIX: &str = "/spillway/cache/";

/// As in production, with less patience.
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

/// A helper that is registered, and what is told of it.
struct Helper {
    registrar: Registrar,
    told: Arc<Mutex<Vec<RegistrarNotice>>>,
}

fn register(source: &str, name: &str, link: &str) -> Helper {
    register_as(EtcdAccess::default(), source, name, link)
}

fn register_as(access: EtcdAccess, source: &str, name: &str, link: &str) -> Helper {
    let registration = Registration {
        ttl: Duration::from_secs(5),
        ..Registration::new(source.parse().unwrap(), access, name, link.parse().unwrap())
    };
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let registrar =
        Registrar::start(registration, move |notice| telling.lock().unwrap().push(notice.clone()));
    Helper { registrar: registrar.unwrap(), told }
}

impl Helper {
    fn wait_registered(&self) {
        next("a registration", || self.registrar.status().since);
    }

    #[track_caller]
    fn wait_told(&self, what: impl Fn(&RegistrarNotice) -> bool) {
        next("a notice", || self.told.lock().unwrap().iter().any(&what).then_some(()));
    }
}

/// Polls until the list is this one.
#[track_caller]
fn expect(watcher: &mut Watcher, wanted: &[&str]) {
    let mut seen = Vec::new();
    let mut look = || {
        let list = watcher.poll_list()?;
        let list: Vec<String> = list.iter().map(ToString::to_string).collect();
        seen.push(list.clone());
        (list == wanted).then_some(())
    };
    let what = format!("{wanted:?}");
    next(&what, &mut look);
}

/// Polls until this is told.
#[track_caller]
fn expect_notice(watcher: &mut Watcher, what: impl Fn(&Notice) -> bool) -> Notice {
    next("a notice", || watcher.poll_notice().filter(|notice| what(notice)))
}

#[test]
fn helpers_come_and_go() {
    let Some(etcd) = Etcd::start() else { return };
    let source = etcd.source(PREFIX);
    let mut watcher = watch(&source);
    expect(&mut watcher, &[]);
    let one = register(&source, "one", "10.0.0.1:11411");
    expect(&mut watcher, &["one at 10.0.0.1:11411"]);
    let two = register(&source, "two", "[2001:db8::2]:11411");
    let _other = register(&etcd.source("/spillway/cache2"), "other", "10.0.0.9:11411");
    _other.wait_registered();
    expect(&mut watcher, &["one at 10.0.0.1:11411", "two at [2001:db8::2]:11411"]);
    let value: serde_json::Value = serde_json::from_str(&etcd.value("/spillway/cache/one").unwrap()).unwrap();
    assert_eq!(value["link"], "10.0.0.1:11411");
    assert!(value["version"].is_string());
    // Whoever comes later sees the same.
    expect(&mut watch(&source), &["one at 10.0.0.1:11411", "two at [2001:db8::2]:11411"]);

    // A helper that goes is gone at once; with the same name it may come elsewhere.
    one.registrar.withdraw();
    assert!(one.registrar.wait_withdrawn(Duration::from_secs(60)));
    assert_eq!(etcd.value("/spillway/cache/one"), None);
    expect(&mut watcher, &["two at [2001:db8::2]:11411"]);
    assert!(one.registrar.status().since.is_none());
    let told = one.told.lock().unwrap().clone();
    let (first, last) = (RegistrarNotice::Registered, RegistrarNotice::Withdrawn);
    assert!(told.first() == Some(&first) && told.last() == Some(&last), "{told:?}");
    let _again = register(&source, "one", "10.0.0.3:11411");
    expect(&mut watcher, &["one at 10.0.0.3:11411", "two at [2001:db8::2]:11411"]);

    // A key that somebody removes comes back by itself.
    etcd.remove("/spillway/cache/two");
    two.wait_told(|notice| matches!(notice, RegistrarNotice::Restored { why } if why.contains("removed")));
    // Whoever had the list may not have asked in between.
    expect(&mut watch(&source), &["one at 10.0.0.3:11411", "two at [2001:db8::2]:11411"]);
    // Two of one name take it from each other: it is told.
    let _thief = register(&source, "two", "10.0.0.4:11411");
    two.wait_told(|notice| matches!(notice, RegistrarNotice::Restored { why } if why.contains("same name")));
    assert!(watcher.trouble().is_none());
}

#[test]
fn while_etcd_is_stopped_the_last_list_stays_and_an_empty_one_fills_itself() {
    let Some(mut etcd) = Etcd::start() else { return };
    let source = etcd.source(PREFIX);
    let (one, two) = (register(&source, "one", "10.0.0.1:1"), register(&source, "two", "10.0.0.2:2"));
    one.wait_registered();
    two.wait_registered();
    let both = ["one at 10.0.0.1:1", "two at 10.0.0.2:2"];
    // However long the helpers take to come back.
    let patient = Settings { grace: Duration::from_secs(3600), ..settings() };
    let mut watcher = Watcher::start(source.parse().unwrap(), patient).unwrap();
    expect(&mut watcher, &both);

    etcd.stop();
    expect_notice(&mut watcher, |notice| matches!(notice, Notice::Failed { .. }));
    assert!(watcher.trouble().is_some());
    one.wait_told(|notice| matches!(notice, RegistrarNotice::Failed { .. }));
    // Longer than the lease lives: nothing is known of the key any more.
    next("not registered", || one.registrar.status().since.is_none().then_some(()));
    assert!(one.registrar.status().trouble.is_some() && one.registrar.status().failures > 0);

    // With its data.
    etcd.start_again();
    expect_notice(&mut watcher, |notice| matches!(notice, Notice::Back { .. }));
    one.wait_registered();
    two.wait_registered();
    assert!(etcd.value("/spillway/cache/one").is_some());

    // With all data lost: helpers register again, one after the other, and clients notice nothing.
    etcd.stop();
    etcd.lose_data();
    etcd.start_again();
    let kept = register(&source, "three", "10.0.0.3:3");
    kept.wait_registered();
    next("one is back", || etcd.value("/spillway/cache/one"));
    next("two is back", || etcd.value("/spillway/cache/two"));
    let mut lists = Vec::new();
    next("three is seen", || {
        let list = watcher.poll_list()?;
        let is_there = list.iter().any(|entry| entry.name.as_deref() == Some("three"));
        lists.push(list);
        is_there.then_some(())
    });
    let has = |list: &Vec<Entry>, name: &str| list.iter().any(|entry| entry.name.as_deref() == Some(name));
    assert!(lists.iter().all(|list| has(list, "one") && has(list, "two")), "{lists:?}");
    let told: Vec<Notice> = std::iter::from_fn(|| watcher.poll_notice()).collect();
    assert!(told.contains(&Notice::OtherCluster), "{told:?}");
}

#[test]
fn a_member_that_stands_still_is_left_for_another_and_blocks_nobody() {
    let Some(all) = Etcd::cluster(3) else { return };
    let endpoints: Vec<String> = all.iter().map(Etcd::endpoint).collect();
    let source = format!("etcd:{}{PREFIX}", endpoints.join(","));
    let mut watcher = watch(&source);
    let one = register(&source, "one", "10.0.0.1:1");
    one.wait_registered();
    expect(&mut watcher, &["one at 10.0.0.1:1"]);
    // Each in turn: whichever was asked, another goes on.
    for (round, member) in all.iter().enumerate() {
        member.freeze();
        let port = round + 10;
        let next = register(&source, "next", &format!("10.0.0.2:{port}"));
        expect(&mut watcher, &["one at 10.0.0.1:1", &format!("next at 10.0.0.2:{port}")]);
        // Neither does it hold up whoever ends.
        drop(watch(&source));
        next.registrar.withdraw();
        member.thaw();
        member.wait();
        expect(&mut watcher, &["one at 10.0.0.1:1"]);
    }
    // None answers, then all do.
    all.iter().for_each(Etcd::freeze);
    expect_notice(&mut watcher, |notice| matches!(notice, Notice::Failed { .. }));
    all.iter().for_each(Etcd::thaw);
    expect_notice(&mut watcher, |notice| matches!(notice, Notice::Back { .. }));
    one.wait_registered();
}

#[test]
fn nonsense_is_passed_over_and_told() {
    let Some(etcd) = Etcd::start() else { return };
    etcd.put("/spillway/cache/fine", "{\"link\": \"10.0.0.1:1\", \"version\": \"9\", \"later\": [1]}");
    etcd.put("/spillway/cache/text", "10.0.0.2:1");
    etcd.put("/spillway/cache/name", "{\"link\": \"host:1\"}");
    etcd.put("/spillway/cache/open", "{\"link\": \"0.0.0.0:1\"}");
    etcd.put("/spillway/cache/", "{\"link\": \"10.0.0.3:1\"}");
    etcd.put_bytes("/spillway/cache/bytes", &[0xff, 0xfe]);
    etcd.put(
        "/spillway/cache/long",
        &format!("{{\"link\": \"10.0.0.4:1\", \"x\": \"{}\"}}", "x".repeat(100_000)),
    );
    let mut watcher = watch(&etcd.source(PREFIX));
    expect(&mut watcher, &["fine at 10.0.0.1:1"]);
    let notice = expect_notice(&mut watcher, |notice| matches!(notice, Notice::Skipped { .. }));
    assert!(matches!(notice, Notice::Skipped { entries: 6, .. }), "{notice}");
    // What was known of a helper stays when its value becomes nonsense.
    etcd.put("/spillway/cache/fine", "nonsense");
    let notice = expect_notice(&mut watcher, |notice| matches!(notice, Notice::Skipped { .. }));
    assert!(notice.to_string().contains("/spillway/cache/fine"), "{notice}");
    etcd.put("/spillway/cache/new", "{\"link\": \"10.0.0.5:1\"}");
    expect(&mut watcher, &["fine at 10.0.0.1:1", "new at 10.0.0.5:1"]);
    // Revisions that are compacted away are not asked for.
    etcd.compact();
    etcd.remove("/spillway/cache/fine");
    expect(&mut watcher, &["new at 10.0.0.5:1"]);
    // The last one stays for a while, then the list is empty.
    etcd.remove("/spillway/cache/new");
    expect(&mut watcher, &[]);
}

/// As `helper`, by https.
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
fn over_https_with_a_certificate_and_a_password() {
    let Some(etcd) = Etcd::secure(PREFIX) else { return };
    let source = etcd.source(PREFIX);
    let access = |files: &EtcdFiles| EtcdAccess::read(files, &source.parse().unwrap());
    let right = files(&etcd, "open sesame");
    let watch_as = |access: EtcdAccess| {
        Watcher::start(source.parse().unwrap(), Settings { etcd_access: access, ..settings() }).unwrap()
    };
    let mut watcher = watch_as(access(&right).unwrap());
    expect(&mut watcher, &[]);
    let one = register_as(access(&right).unwrap(), &source, "one", "10.0.0.1:1");
    expect(&mut watcher, &["one at 10.0.0.1:1"]);

    // Its requests are rarer than a token lives.
    std::thread::sleep(Duration::from_secs(5));
    let status = one.registrar.status();
    assert!(status.since.is_some() && status.failures == 0, "{status:?}");

    // What is wrong is told, without the password.
    let trouble = |files: &EtcdFiles| {
        let mut watcher = watch_as(access(files).unwrap());
        let notice = expect_notice(&mut watcher, |notice| matches!(notice, Notice::Failed { .. }));
        assert!(watcher.poll_list().is_none());
        notice.to_string()
    };
    let told = trouble(&files(&etcd, "wrong-password"));
    assert!(told.contains("authentication failed") && !told.contains("wrong-password"), "{told}");
    let told = trouble(&EtcdFiles { user: None, password_file: None, ..right.clone() });
    assert!(told.contains("user name is empty"), "{told}");
    let told = trouble(&EtcdFiles { ca_file: Some(etcd.file("other.pem")), ..right.clone() });
    assert!(told.contains("certificate") && told.contains("UnknownIssuer"), "{told}");
    // In TLS 1.3 the refusal may come after the request was begun: then its reason is lost with the connection.
    let told = trouble(&EtcdFiles { cert_file: None, key_file: None, ..right.clone() });
    assert!(["ertificate", "Broken pipe", "reset"].iter().any(|why| told.contains(why)), "{told}");

    // A password that others can read is refused.
    let password = right.password_file.as_ref().unwrap();
    fs::set_permissions(password, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(access(&right).unwrap_err().to_string().contains("chmod 600"));

    // A helper that goes is gone at once.
    one.registrar.withdraw();
    assert!(one.registrar.wait_withdrawn(Duration::from_secs(60)));
    assert_eq!(one.told.lock().unwrap().last(), Some(&RegistrarNotice::Withdrawn));
    expect(&mut watcher, &[]);
}

#[test]
fn files_that_do_not_fit_are_refused_with_the_next_step() {
    let Some(etcd) = Etcd::secure(PREFIX) else { return };
    let (https, http) = (etcd.source(PREFIX), "etcd:http://127.0.0.1:1/a/".to_owned());
    let both = format!("etcd:https://127.0.0.1:1,http://127.0.0.1:2{PREFIX}");
    let right = files(&etcd, "open sesame");
    let none = EtcdFiles::default();
    let empty = Some(etcd.file("password-"));
    files(&etcd, "");
    for (files, source, step) in [
        (&none, &https, "--etcd-ca-file"),
        (&right, &http, "with https only"),
        (&right, &both, "in clear text"),
        (&EtcdFiles { key_file: None, ..right.clone() }, &https, "--etcd-key-file"),
        (&EtcdFiles { user: None, ..right.clone() }, &https, "--etcd-user"),
        (&EtcdFiles { key_file: Some(etcd.file("other.key")), ..right.clone() }, &https, "belongs to"),
        (&EtcdFiles { key_file: Some(etcd.file("ca.pem")), ..right.clone() }, &https, "chmod 600"),
        (&EtcdFiles { ca_file: Some(etcd.file("ca.key")), ..right.clone() }, &https, "holds no certificate"),
        (&EtcdFiles { ca_file: Some("/dev/zero".into()), ..right.clone() }, &https, "not a regular file"),
        (&EtcdFiles { password_file: empty, ..right.clone() }, &https, "on one line"),
    ] {
        let error = EtcdAccess::read(files, &source.parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains(step), "{error}");
    }
    assert!(EtcdAccess::read(&none, &http.parse().unwrap()).is_ok());
}

/// Takes connections, and answers each with `said` for as long as somebody reads.
fn malicious(said: &'static [u8], pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = format!("etcd:http://{}{PREFIX}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let head = b"HTTP/1.1 200 OK\r\nX: ";
                // Bounded, in case that somebody reads for ever.
                let ends = Instant::now() + Duration::from_secs(60);
                let _ = stream.write_all(if said.is_empty() { &[] } else { head });
                while Instant::now() < ends && stream.write_all(said).is_ok() {
                    std::thread::sleep(pause);
                }
            });
        }
    });
    source
}

#[test]
fn an_etcd_that_hangs_drips_or_floods_holds_nobody_up() {
    let slow = Duration::from_millis(100);
    for (said, pause, why) in [
        (&b""[..], slow, "does not answer in time"),
        (b"x", slow, "does not answer in time"),
        (b"\r\n\r\n {", slow, "does not answer in time"),
        (&[b'x'; 1 << 14], Duration::ZERO, "header is too big"),
        (b"x\r\n\r\n                                            ", Duration::ZERO, "more than 8388608 bytes"),
    ] {
        let source = malicious(said, pause);
        let mut watcher = watch(&source);
        let helper = register(&source, "one", "10.0.0.1:1");
        let notice = expect_notice(&mut watcher, |notice| matches!(notice, Notice::Failed { .. }));
        assert!(notice.to_string().contains(why), "{notice}");
        assert!(watcher.poll_list().is_none());
        let began = Instant::now();
        helper.registrar.withdraw();
        assert!(helper.registrar.wait_withdrawn(Duration::from_secs(60)));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}

/// Killed, not told to go, also where the test fails.
struct Mortal(Child);

impl Drop for Mortal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_helper_that_is_killed_disappears_with_its_lease() {
    const NAME: &str = "a_helper_that_is_killed_disappears_with_its_lease";
    const INSIDE: &str = "SPILLWAY_TEST_REGISTER";
    if let Ok(source) = std::env::var(INSIDE) {
        let _helper = register(&source, "mortal", "10.0.0.1:1");
        std::thread::sleep(Duration::from_secs(3600));
        return;
    }
    let Some(etcd) = Etcd::start() else { return };
    let source = etcd.source(PREFIX);
    let mut watcher = watch(&source);
    let other = register(&source, "other", "10.0.0.2:1");
    other.wait_registered();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME])
        .env(INSIDE, &source)
        .stdout(Stdio::null())
        .spawn();
    let child = Mortal(child.unwrap());
    expect(&mut watcher, &["mortal at 10.0.0.1:1", "other at 10.0.0.2:1"]);
    drop(child);
    expect(&mut watcher, &["other at 10.0.0.2:1"]);
    assert_eq!(etcd.value("/spillway/cache/mortal"), None);
}
