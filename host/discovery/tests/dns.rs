//! Names of the system's resolver, changed by a hosts file that only this process sees.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use spillway_discovery::{HELPERS_MAX, Notice, Settings, Watcher};
use support::next;

const INSIDE: &str = "SPILLWAY_TEST_HOSTS";

fn watch(source: &str) -> Watcher {
    let settings = Settings { dns_interval: Duration::from_millis(50), ..Settings::default() };
    Watcher::start(source.parse().unwrap(), settings).unwrap()
}

fn list(watcher: &mut Watcher) -> Vec<String> {
    let list = next("a list", || watcher.poll_list());
    list.iter().map(ToString::to_string).collect()
}

#[test]
fn an_unknown_name_is_reported() {
    let mut watcher = watch("dns:no.such.host.invalid:11411");
    let notice = next("a notice", || watcher.poll_notice());
    assert!(matches!(notice, Notice::Failed { .. }), "{notice}");
    assert!(notice.to_string().contains("dns:no.such.host.invalid:11411"), "{notice}");
    assert!(watcher.trouble().is_some() && watcher.poll_list().is_none());
}

#[test]
fn the_list_follows_the_name_and_stays_when_the_name_disappears() {
    const NAME: &str = "the_list_follows_the_name_and_stays_when_the_name_disappears";
    let Some(hosts) = std::env::var_os(INSIDE) else {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let hosts = directory.join(format!("hosts-{}", std::process::id()));
        fs::write(&hosts, "10.0.0.1 helpers.test\n").unwrap();
        let script = "mount --bind \"$0\" /etc/hosts || exit 75; exec \"$@\"";
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(&hosts)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(INSIDE, &hosts)
            .output();
        let _ = fs::remove_file(&hosts);
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) if matches!(output.status.code(), Some(1 | 75)) => {
                println!(
                    "skipped: needs root to mount a hosts file of its own: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
            Ok(output) => panic!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => println!("skipped: unshare does not run here: {error}"),
        }
        return;
    };
    let mut watcher = watch("dns:helpers.test:11411");
    assert_eq!(list(&mut watcher), ["10.0.0.1:11411"]);
    let now = |text: &str| fs::write(&hosts, text).unwrap();
    now("10.0.0.3 helpers.test\n10.0.0.1 helpers.test\n2001:db8::9 helpers.test\n");
    let three = ["10.0.0.1:11411", "10.0.0.3:11411", "[2001:db8::9]:11411"];
    // Writing the file takes more than one step, so shorter lists may come first.
    next("three", || watcher.poll_list().filter(|list| list.len() == 3));
    now("");
    let notice = next("a notice", || watcher.poll_notice());
    assert!(matches!(notice, Notice::Failed { .. }), "{notice}");
    now("10.0.0.3 helpers.test\n");
    assert_eq!(next("one is left", || watcher.poll_list()).len(), 1, "neither {three:?} nor an empty list");
    next("it is back", || watcher.poll_notice().filter(|notice| matches!(notice, Notice::Back { .. })));
    let too_many = |n: usize| format!("10.{}.{}.1 helpers.test\n", n / 256, n % 256);
    now(&(0..=HELPERS_MAX).map(too_many).collect::<String>());
    next("the most", || watcher.poll_list().filter(|list| list.len() == HELPERS_MAX));
    next("a notice of too many", || watcher.poll_notice().filter(|notice| *notice == Notice::TooMany));
}
