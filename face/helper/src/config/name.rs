//! Names of helpers and services.

const NAME_BYTES_MAX: usize = 64;

/// Whether `text` is a valid name. Names become metric labels and command arguments: only letters, digits, `-`, `_`
/// and `.` are allowed.
pub(crate) fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// The host's name, or `helper` if the host's name is not a valid name of a helper.
pub fn host_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_str().unwrap_or_default();
    if is_name(name) { name.to_owned() } else { "helper".to_owned() }
}
