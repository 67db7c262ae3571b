//! etcd, through the JSON gateway of its client port (v3.4 and later).

mod client;
mod members;
mod messages;
mod registrar;
mod watch;

pub use registrar::{Registrar, RegistrarNotice, RegistrarStatus, Registration};
pub(crate) use watch::watch;

/// The end of the range of keys that begin with this prefix: the next text that does not.
fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // It ends with a slash.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
