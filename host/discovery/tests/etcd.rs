//! Lists and registrations in Debian's etcd, which is stopped, restarted, emptied, frozen and given nonsense.

mod support;

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spillway_discovery::{Entry, Notice, Registrar, RegistrarNotice, Registration, Settings, Watcher};
use support::{Etcd, next};

const PREFIX: &str = "/spillway/cache/";

/// As in production, with less patience.
fn settings() -> Settings {
    Settings {
        request_timeout: Duration::from_secs(2),
        check_interval: Duration::from_millis(500),
        retry_max: Duration::from_millis(500),
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
    let registration = Registration {
        ttl: Duration::from_secs(5),
        ..Registration::new(source.parse().unwrap(), name, link.parse().unwrap())
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
    expect(&mut watcher, &["one at 10.0.0.3:11411", "two at [2001:db8::2]:11411"]);
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
    // Revisions that are compacted away are none of a watch's business.
    etcd.compact();
    etcd.remove("/spillway/cache/fine");
    expect(&mut watcher, &["new at 10.0.0.5:1"]);
    // The last one stays for a while, then the list is empty.
    etcd.remove("/spillway/cache/new");
    expect(&mut watcher, &[]);
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
