//! The Debian packages in a fresh Debian: installing starts no service, and purging leaves no file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{chroot, text, tool};

/// The packages, in an order in which dpkg can remove them.
pub const PACKAGES: [&str; 4] = ["spillway-sidecar", "spillway-helper", "spillway-server", "spillway"];

/// Paths that dpkg and the system change by themselves.
const CHANGED_BY_THE_SYSTEM: [&str; 7] =
    ["var/lib/dpkg", "var/log", "var/cache", "tmp", "run", "proc", "dev"];

fn build() -> PathBuf {
    let debs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let binaries = Path::new(env!("CARGO_BIN_EXE_spillway")).parent().unwrap();
    let built = tool("packages").args([binaries, &debs]).output().unwrap();
    assert!(built.status.success(), "{} (is spillway-shim built?)", text(&built));
    assert_eq!(String::from_utf8_lossy(&built.stdout).lines().count(), PACKAGES.len());
    debs
}

/// Installs the packages, purges them, and installs them again. The error says why this host cannot do it.
pub fn install(root: &Path) -> Result<(), String> {
    let debs = build();
    remove_earlier_runs(root);
    for deb in fs::read_dir(&debs).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&deb, root.join("tmp").join(deb.file_name().unwrap())).unwrap();
    }
    let before = listing(root);
    let dpkg_install = || chroot(root, &["sh", "-c", "dpkg --force-confold -i /tmp/spillway*.deb"]);
    let added = dpkg_install();
    if text(&added).contains("libc6 (>=") {
        return Err(format!("built for a later C library than Debian 12 has: {}", text(&added)));
    }
    assert!(added.status.success(), "{}", text(&added));
    check_installed_files(root);
    // Installing twice works, and keeps an operator's configuration.
    fs::write(root.join("etc/spillway/helper.toml"), "# an operator's\n").unwrap();
    let second = dpkg_install();
    assert!(second.status.success(), "{}", text(&second));
    assert_eq!(fs::read_to_string(root.join("etc/spillway/helper.toml")).unwrap(), "# an operator's\n");

    // Enabling services works without a running system; removing the packages disables the services.
    run_successfully(root, &["systemctl", "-q", "enable", "spillway-helper", "spillway-sidecar@a"]);
    run_successfully(root, &[&["dpkg", "--remove"][..], &PACKAGES].concat());
    assert!(!root.join("usr/bin/spillway").exists() && root.join("etc/spillway/helper.toml").exists());
    purge(root);
    let differences: Vec<_> = listing(root).symmetric_difference(&before).cloned().collect();
    assert!(differences.is_empty(), "{differences:?}");

    // Purging keeps the user while its group owns a key file: a later user must not get the same number.
    run_successfully(root, &["sh", "-c", "dpkg -i /tmp/spillway*.deb"]);
    run_successfully(
        root,
        &["install", "-m", "0640", "-g", "spillway", "/dev/null", "/etc/spillway/own.key"],
    );
    purge(root);
    run_successfully(root, &["getent", "passwd", "spillway"]);
    run_successfully(root, &["rm", "/etc/spillway/own.key"]);

    run_successfully(root, &["sh", "-c", "dpkg -i /tmp/spillway*.deb && rm /tmp/spillway*.deb"]);
    Ok(())
}

pub fn purge(root: &Path) {
    run_successfully(root, &[&["dpkg", "--purge"][..], &PACKAGES].concat());
}

/// Checks the installed files, and that no service runs or is enabled.
fn check_installed_files(root: &Path) {
    for (path, mode) in [
        ("usr/bin/spillway", 0o755),
        ("usr/lib/spillway/libspillway_shim.so", 0o644),
        ("usr/share/spillway/systemd/memcached.service.d/spillway.conf", 0o644),
        ("lib/systemd/system/spillway-sidecar@.service", 0o644),
        ("etc/spillway/helper.toml", 0o644),
        ("usr/share/doc/spillway/docs/howto/helper.md", 0o644),
        ("usr/share/doc/spillway/examples/kubernetes/helper.yaml", 0o644),
    ] {
        let metadata = fs::metadata(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(metadata.permissions().mode() & 0o7777, mode, "{path}");
    }
    assert!(run_successfully(root, &["spillway", "--version"]).contains(env!("CARGO_PKG_VERSION")));
    run_successfully(root, &["getent", "passwd", "spillway"]);
    // The example configuration is valid except for the key files, which the operator creates.
    run_successfully(root, &["spillway", "check", "--without-keys", "/etc/spillway/helper.toml"]);
    let enabled = chroot(root, &["systemctl", "is-enabled", "spillway-helper"]);
    assert_eq!(text(&enabled).trim(), "disabled");
    let verified = run_successfully(
        root,
        &["systemd-analyze", "verify", "--man=no", "spillway-helper.service", "spillway-sidecar@a.service"],
    );
    assert_eq!(verified, "");
    let sums = "cd / && md5sum --quiet -c /var/lib/dpkg/info/spillway*.md5sums";
    run_successfully(root, &["sh", "-c", sums]);
}

#[track_caller]
fn run_successfully(root: &Path, command: &[&str]) -> String {
    let output = chroot(root, command);
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// Removes the packages and files of an earlier run that was interrupted.
fn remove_earlier_runs(root: &Path) {
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

/// All paths below the root, without [`CHANGED_BY_THE_SYSTEM`].
fn listing(root: &Path) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let relative = path.strip_prefix(root).unwrap().to_owned();
            if CHANGED_BY_THE_SYSTEM.iter().any(|changed| relative == Path::new(changed)) {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            }
            // `useradd` and similar tools make backup copies whose names end in a hyphen, such as `passwd-`.
            if !relative.to_string_lossy().ends_with('-') {
                paths.insert(relative);
            }
        }
    }
    paths
}
