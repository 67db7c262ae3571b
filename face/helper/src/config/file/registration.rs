//! Reads where a service registers itself: its prefix in etcd, and the access to etcd.

use std::net::SocketAddr;

use spillway_config::{Any, Reading, Values};
use spillway_discovery::{EtcdAccess, EtcdFiles};
use spillway_values::server_address;

use crate::config::Register;
use crate::config::schema::{EtcdSection, ServiceSection};

/// The files and the user for etcd.
pub(super) fn etcd_files(values: &mut Values<'_>, reading: &Reading, section: &EtcdSection) -> EtcdFiles {
    let mut file = |setting: &Any| values.string(setting).map(|(text, _)| reading.key_file(&text));
    EtcdFiles {
        ca_file: file(&section.ca_file),
        cert_file: file(&section.cert_file),
        key_file: file(&section.key_file),
        password_file: file(&section.password_file),
        user: values.string(&section.user).map(|(user, _)| user),
    }
}

/// The registration of a service whose link ports are `listens`; `None` if the service is not registered.
pub(super) fn register(
    values: &mut Values<'_>,
    reading: &Reading,
    section: &ServiceSection,
    listens: &[SocketAddr],
    etcd: &EtcdFiles,
) -> Option<Register> {
    let Some((text, span)) = values.string(&section.register) else {
        if let Some(advertise) = &section.advertise {
            values.problem(advertise.span(), "advertise needs register: give register, or remove advertise");
        }
        return None;
    };
    let prefix = values.checked(&span, text.parse())?;
    let access = if reading.reads_host {
        values.checked(&span, EtcdAccess::read(etcd, &prefix))?
    } else {
        EtcdAccess::default()
    };
    let is_wildcard = |address: &SocketAddr| address.ip().is_unspecified() || address.port() == 0;
    if section.advertise.is_some() {
        let (text, span) = values.string(&section.advertise)?;
        let link = values.checked(&span, server_address(&text))?;
        if is_wildcard(&link) {
            values.problem(span, "clients cannot connect to this: give an ADDRESS:PORT that they reach");
        }
        return Some(Register { prefix, access, link });
    }
    match listens {
        [link] if !is_wildcard(link) => return Some(Register { prefix, access, link: *link }),
        [] => values.problem(span, "register needs link_listen, to which clients connect: add it"),
        _ => values.problem(span, "advertise is missing: give the ADDRESS:PORT that clients connect to"),
    }
    None
}
