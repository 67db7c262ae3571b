//! The default name of a helper.

use spillway_values::is_name;

/// The host's name, or `helper` if the host's name is not a valid name of a helper.
pub fn host_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_str().unwrap_or_default();
    if is_name(name) { name.to_owned() } else { "helper".to_owned() }
}
