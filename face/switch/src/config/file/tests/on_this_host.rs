//! A file is compared with this host: its key files and its interfaces.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

/// A directory with key files, removed on drop.
struct Keys(PathBuf);

impl Keys {
    fn new(name: &str) -> Keys {
        let path = std::env::temp_dir().join(format!("spillway-switch-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Keys(path)
    }

    fn add(&self, name: &str, byte: u8, mode: u32) {
        let path = self.0.join(name);
        fs::write(&path, spillway_auth::Key::from_secret([byte; 32]).to_text().as_bytes()).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// The errors about this host, which does not have the interfaces.
    fn problems(&self) -> Vec<String> {
        self.read("spw-none").map_or_else(|problems| problems.iter().map(placed).collect(), |_| Vec::new())
    }

    /// [`VALID`] with other names of interfaces in place of `eth`, read with this host.
    fn read(&self, interfaces: &str) -> Result<SwitchConfig, Vec<Problem>> {
        let reading = Reading { base: self.0.clone(), reads_host: true };
        read_text(&VALID.replace("\"eth", &format!("\"{interfaces}")), &reading)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn keys_must_be_private_and_different() {
    let keys = Keys::new("keys");
    let problems = keys.problems();
    assert!(
        problems[0].starts_with("26:12: key file") && problems[0].contains("spillway key new"),
        "{problems:?}"
    );
    keys.add("a.key", 1, 0o600);
    keys.add("b.key", 2, 0o644);
    let problems = keys.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("32:12: key file") && problems[0].contains("chmod 600"), "{problems:?}");
    keys.add("b.key", 1, 0o600);
    assert!(keys.problems()[0].starts_with("32:12: server a has the same key"), "{:?}", keys.problems());
    keys.add("b.key", 2, 0o600);
    assert!(keys.problems().is_empty(), "{:?}", keys.problems());
}

/// A guest may be stopped, or a card may be added later: the file is accepted in both cases.
#[test]
fn an_interface_that_does_not_exist_is_not_an_error() {
    let keys = Keys::new("interfaces");
    keys.add("a.key", 1, 0o600);
    keys.add("b.key", 2, 0o600);
    let config = keys.read("spw-none").unwrap();
    assert_eq!(config.missing_interfaces(), ["spw-none0", "spw-none1", "spw-none2"]);
    let reading = Reading { base: keys.0.clone(), reads_host: true };
    let loopback = read_text(&VALID.replace("\"eth0\"", "\"lo\""), &reading).unwrap_err();
    assert!(loopback[0].message.contains("not an Ethernet interface"), "{loopback:?}");
}
