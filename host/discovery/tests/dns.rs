//! Lists from DNS names. A hosts file that only the test's process sees changes what the system's resolver returns.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use spillway_discovery::{HELPERS_MAX, Notice, Settings, Watcher};
use support::wait_for;

const HOSTS_VARIABLE: &str = "SPILLWAY_TEST_HOSTS";

fn watch(source: &str) -> Watcher {
    let settings = Settings { dns_interval: Duration::from_millis(50), ..Settings::default() };
    Watcher::start(source.parse().unwrap(), settings).unwrap()
}

fn list(watcher: &mut Watcher) -> Vec<String> {
    let list = wait_for("a list", || watcher.poll_list());
    list.iter().map(ToString::to_string).collect()
}

#[test]
fn unknown_name_is_reported_as_failed() {
    let mut watcher = watch("dns:no.such.host.invalid:11411");
    let notice = wait_for("a notice", || watcher.poll_notice());
    assert!(matches!(notice, Notice::Failed { .. }), "{notice}");
    assert!(notice.to_string().contains("dns:no.such.host.invalid:11411"), "{notice}");
    assert!(watcher.error().is_some() && watcher.poll_list().is_none());
}

#[test]
fn list_follows_the_name_and_stays_when_the_name_disappears() {
    const TEST_NAME: &str = "list_follows_the_name_and_stays_when_the_name_disappears";
    const UNSHARE_FAILED: i32 = 1;
    const MOUNT_FAILED: i32 = 75; // chosen in `script`
    let Some(hosts) = std::env::var_os(HOSTS_VARIABLE) else {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let hosts = directory.join(format!("hosts-{}", std::process::id()));
        fs::write(&hosts, "10.0.0.1 helpers.test\n").unwrap();
        let script = "mount --bind \"$0\" /etc/hosts || exit 75; exec \"$@\"";
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(&hosts)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", TEST_NAME, "--nocapture"])
            .env(HOSTS_VARIABLE, &hosts)
            .output();
        let _ = fs::remove_file(&hosts);
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) if matches!(output.status.code(), Some(UNSHARE_FAILED | MOUNT_FAILED)) => {
                println!(
                    "skipped: only root can mount another /etc/hosts: {}",
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
    let write_hosts = |text: &str| fs::write(&hosts, text).unwrap();
    write_hosts("10.0.0.3 helpers.test\n10.0.0.1 helpers.test\n2001:db8::9 helpers.test\n");
    // Writing the file takes more than one step, so shorter lists may come first.
    wait_for("a list of three", || watcher.poll_list().filter(|list| list.len() == 3));
    write_hosts("");
    let notice = wait_for("a notice", || watcher.poll_notice());
    assert!(matches!(notice, Notice::Failed { .. }), "{notice}");
    write_hosts("10.0.0.3 helpers.test\n");
    assert_eq!(wait_for("a list of one", || watcher.poll_list()).len(), 1);
    wait_for("a recovery notice", || {
        watcher.poll_notice().filter(|notice| matches!(notice, Notice::Recovered { .. }))
    });
    let line = |n: usize| format!("10.{}.{}.1 helpers.test\n", n / 256, n % 256);
    write_hosts(&(0..=HELPERS_MAX).map(line).collect::<String>());
    wait_for("a list of HELPERS_MAX", || watcher.poll_list().filter(|list| list.len() == HELPERS_MAX));
    wait_for("a notice of too many", || watcher.poll_notice().filter(|notice| *notice == Notice::TooMany));
}
