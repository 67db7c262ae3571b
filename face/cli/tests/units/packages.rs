//! The Debian packages in a fresh Debian: they come, do nothing before they are told, and go without a trace.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{chroot, text, tool};

/// In the order in which they may be taken away.
pub const PACKAGES: [&str; 4] = ["spillway-sidecar", "spillway-helper", "spillway-server", "spillway"];

/// What dpkg and the system change by themselves.
const THEIRS: [&str; 7] = ["var/lib/dpkg", "var/log", "var/cache", "tmp", "run", "proc", "dev"];

/// Built from the programs under test.
fn build() -> PathBuf {
    let debs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let binaries = Path::new(env!("CARGO_BIN_EXE_spillway")).parent().unwrap();
    let built = tool("packages").args([binaries, &debs]).output().unwrap();
    assert!(built.status.success(), "{} (is spillway-shim built?)", text(&built));
    assert_eq!(String::from_utf8_lossy(&built.stdout).lines().count(), PACKAGES.len());
    debs
}

/// Installs the packages, takes them away again, and installs them for what follows. Or why not.
pub fn install(root: &Path) -> Result<(), String> {
    let debs = build();
    forget_earlier_runs(root);
    for deb in fs::read_dir(&debs).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&deb, root.join("tmp").join(deb.file_name().unwrap())).unwrap();
    }
    let before = listing(root);
    let add = || chroot(root, &["sh", "-c", "dpkg --force-confold -i /tmp/spillway*.deb"]);
    let added = add();
    if text(&added).contains("libc6 (>=") {
        return Err(format!("built for a later C library than Debian 12 has: {}", text(&added)));
    }
    assert!(added.status.success(), "{}", text(&added));
    there(root);
    // Scripts may run again, and an operator's configuration is kept.
    fs::write(root.join("etc/spillway/helper.toml"), "# an operator's\n").unwrap();
    let again = add();
    assert!(again.status.success(), "{}", text(&again));
    assert_eq!(fs::read_to_string(root.join("etc/spillway/helper.toml")).unwrap(), "# an operator's\n");

    // Without a running system, services are enabled all the same; they go with their packages.
    must(root, &["systemctl", "-q", "enable", "spillway-helper", "spillway-sidecar@a"]);
    must(root, &[&["dpkg", "--remove"][..], &PACKAGES].concat());
    assert!(!root.join("usr/bin/spillway").exists() && root.join("etc/spillway/helper.toml").exists());
    purge(root);
    let left: Vec<_> = listing(root).symmetric_difference(&before).cloned().collect();
    assert!(left.is_empty(), "{left:?}");

    // As long as there are keys that it may read, its number must not become another's.
    must(root, &["sh", "-c", "dpkg -i /tmp/spillway*.deb"]);
    must(root, &["install", "-m", "0640", "-g", "spillway", "/dev/null", "/etc/spillway/own.key"]);
    purge(root);
    must(root, &["getent", "passwd", "spillway"]);
    must(root, &["rm", "/etc/spillway/own.key"]);

    must(root, &["sh", "-c", "dpkg -i /tmp/spillway*.deb && rm /tmp/spillway*.deb"]);
    Ok(())
}

pub fn purge(root: &Path) {
    must(root, &[&["dpkg", "--purge"][..], &PACKAGES].concat());
}

/// Everything is in its place, and nothing runs or will run by itself.
fn there(root: &Path) {
    for (path, mode) in [
        ("usr/bin/spillway", 0o755),
        ("usr/lib/spillway/libspillway_shim.so", 0o644),
        ("usr/share/spillway/systemd/memcached.service.d/spillway.conf", 0o644),
        ("lib/systemd/system/spillway-sidecar@.service", 0o644),
        ("etc/spillway/helper.toml", 0o644),
        ("usr/share/doc/spillway/docs/howto/helper.md", 0o644),
        ("usr/share/doc/spillway/examples/kubernetes/helper.yaml", 0o644),
    ] {
        let found = fs::metadata(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(found.permissions().mode() & 0o7777, mode, "{path}");
    }
    assert!(must(root, &["spillway", "--version"]).contains(env!("CARGO_PKG_VERSION")));
    must(root, &["getent", "passwd", "spillway"]);
    // The example is right; that its server and key are an operator's to fill in is not its fault.
    must(root, &["spillway", "check", "--without-keys", "/etc/spillway/helper.toml"]);
    let enabled = chroot(root, &["systemctl", "is-enabled", "spillway-helper"]);
    assert_eq!(text(&enabled).trim(), "disabled");
    let verified = must(
        root,
        &["systemd-analyze", "verify", "--man=no", "spillway-helper.service", "spillway-sidecar@a.service"],
    );
    assert_eq!(verified, "");
    let sums = "cd / && md5sum --quiet -c /var/lib/dpkg/info/spillway*.md5sums";
    must(root, &["sh", "-c", sums]);
}

#[track_caller]
fn must(root: &Path, command: &[&str]) -> String {
    let output = chroot(root, command);
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// The root may be one of an earlier run, that ended in the midst.
fn forget_earlier_runs(root: &Path) {
    let _ = chroot(root, &[&["dpkg", "--force-all", "--purge"][..], &PACKAGES].concat());
    let _ = chroot(root, &["userdel", "spillway"]);
    for path in [
        "etc/spillway",
        "etc/sysusers.d/spillway.conf",
        "etc/systemd/system/memcached.service.d",
        "etc/systemd/system/redis-server.service.d",
        "etc/systemd/system/spillway-helper.service",
        "usr/bin/spillway",
        "usr/lib/spillway",
    ] {
        let path = root.join(path);
        let _ = fs::remove_dir_all(&path);
        let _ = fs::remove_file(&path);
    }
}

/// Every path below, but for what is not ours.
fn listing(root: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let inside = path.strip_prefix(root).unwrap().to_owned();
            if THEIRS.iter().any(|theirs| inside == Path::new(theirs)) {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            }
            // Copies that tools for users keep of the files before.
            if !inside.to_string_lossy().ends_with('-') {
                all.insert(inside);
            }
        }
    }
    all
}
