//! etcd, through the JSON gateway of its client port (v3.4 and later).

mod access;
mod client;
mod helper_list;
mod messages;
mod poll;
mod registrar;

pub use access::{AccessError, EtcdAccess, EtcdFiles};
pub(crate) use client::Client;
pub(crate) use poll::poll;
pub use registrar::{Registrar, RegistrarNotice, RegistrarStatus, Registration};

#[cfg(test)]
#[path = "../../tests/support/mod.rs"]
mod support;
