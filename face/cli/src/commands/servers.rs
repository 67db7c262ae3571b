//! Finds this host's servers under `spillway run`, and formats their status.

use std::fmt;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use spillway_daemon::deprecated::add_old_fields;
use spillway_policy::Override;
use spillway_shim_core::status::{
    ConnectionStatus, Counter, Request, ServerPage, ServerStatus, Traffic, UnreadablePage, find_pages,
    request_all,
};

/// How long a server may take to answer. A busy server answers after its current batch.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Why no server was chosen; each variant holds the text for the operator.
pub(crate) enum ChooseError {
    Unknown(String),
    Several(String),
}

impl fmt::Display for ChooseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ChooseError::Unknown(text) | ChooseError::Several(text)) = self;
        f.write_str(text)
    }
}

/// Chooses the servers that a command acts on: every server if `name` is `None`, otherwise the one of that
/// name. If several servers have the name, `all` is required; otherwise the error lists them.
pub(crate) fn choose(name: Option<&str>, all: bool) -> Result<Vec<ServerPage>, ChooseError> {
    let (pages, unreadable) = find_pages();
    let Some(name) = name else {
        return if pages.is_empty() { Err(ChooseError::Unknown(none_found(&unreadable))) } else { Ok(pages) };
    };
    let server_name = ServerName::parse(name);
    let list = |pages: &[ServerPage]| pages.iter().map(describe).collect::<Vec<_>>().join("\n  ");
    let described_all = list(&pages);
    let found: Vec<ServerPage> = pages.into_iter().filter(|page| server_name.matches(page)).collect();
    match found.len() {
        0 if described_all.is_empty() => Err(ChooseError::Unknown(none_found(&unreadable))),
        0 => Err(ChooseError::Unknown(format!("no server here is {name}; servers here:\n  {described_all}"))),
        1 => Ok(found),
        _ if all => Ok(found),
        count => Err(ChooseError::Several(format!(
            "{count} servers here are {name}; name one by pid: or port:, or give --all:\n  {}",
            list(&found)
        ))),
    }
}

pub(crate) fn announce(what: &str, pages: &[ServerPage]) {
    for page in pages {
        eprintln!("spillway: {what}: {}", describe(page));
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ServerName<'a> {
    Pid(u32),
    Port(u16),
    /// A program, or a number that may be a process id or a port.
    Any(&'a str),
}

impl ServerName<'_> {
    fn parse(name: &str) -> ServerName<'_> {
        let pid = name.strip_prefix("pid:").and_then(|pid| pid.parse().ok()).map(ServerName::Pid);
        let port = name.strip_prefix("port:").or(name.strip_prefix(':'));
        let port = port.and_then(|port| port.parse().ok()).map(ServerName::Port);
        pid.or(port).unwrap_or(ServerName::Any(name))
    }

    fn matches(&self, page: &ServerPage) -> bool {
        let is_port = |port: u16| {
            page.status().is_ok_and(|status| port == status.link_port || port == status.helped_port)
        };
        match *self {
            ServerName::Pid(pid) => page.pid == pid,
            ServerName::Port(port) => is_port(port),
            ServerName::Any(name) => {
                page.program() == name || page.pid.to_string() == name || name.parse().is_ok_and(is_port)
            }
        }
    }
}

/// Describes a server in a list, with the facts that distinguish servers of the same program.
fn describe(page: &ServerPage) -> String {
    let mut text = format!("pid {}, {}", page.pid, page.program());
    if let Ok(status) = page.status() {
        text += &format!(", port {}, link port {}", status.helped_port, status.link_port);
    }
    text += &format!(", user {}", page.user);
    if let Some(inode) = page.net_namespace {
        text += &format!(", in network namespace {inode}");
    }
    if let Some(inode) = page.pid_namespace {
        text += &format!(", in PID namespace {inode}");
    }
    text
}

/// The error if no server can be read.
pub(crate) fn none_found(unreadable: &[UnreadablePage]) -> String {
    match unreadable.first() {
        None => "no server on this machine runs under `spillway run` with its link port open".into(),
        Some(page) => format!(
            "the status page {} cannot be read: {}; run this as the server's user or as root",
            page.path.display(),
            page.error
        ),
    }
}

/// Requests an update of the servers' tables of connections. `false`: the server did not answer in time.
pub(crate) fn refresh(pages: &[ServerPage]) -> Vec<io::Result<bool>> {
    request_all(pages, Request::Refresh, ANSWER_TIMEOUT)
}

pub(crate) fn check_answer(page: &ServerPage, answer: io::Result<bool>) -> Result<(), String> {
    match answer {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(format!("server {} has not answered in time; it may still act on the request", page.pid))
        }
        Err(error) => Err(format!("{}: {error}", page.path.display())),
    }
}

pub(crate) fn count_of<T: PartialEq + Copy>(list: &[(T, u64)], counter: T) -> u64 {
    list.iter().find(|(other, _)| *other == counter).map_or(0, |(_, value)| *value)
}

/// A server's status for programs. Fields may be added.
pub(crate) fn as_json(page: &ServerPage, status: &ServerStatus) -> Value {
    let links: Vec<Value> = status
        .links
        .iter()
        .map(|link| {
            let mut value = json!({
                "link": link.index,
                "peer": link.peer,
                "state": link.state,
                "key": format!("{:016x}", link.key),
                "encrypted": link.encrypted,
                "age_ms": millis(link.age),
                "connections": link.connections,
            });
            add(&mut value, link.traffic.iter().map(|(counter, number)| (counter.name(), *number)));
            value
        })
        .collect();
    let mut refused = json!({});
    add(&mut refused, refusals(status));
    let mut value = json!({
        "pid": page.pid,
        "program": page.program(),
        "user": page.user,
        "is_visible": page.is_visible,
        "pid_namespace": page.pid_namespace,
        "net_namespace": page.net_namespace,
        "state": status.state.name(),
        "override": status.relief.name(),
        "override_left_ms": status.relief_left.map(millis),
        "age_ms": millis(status.age),
        "helped_port": status.helped_port,
        "link_address": status.link_address,
        "link_port": status.link_port,
        "connections": connections(status),
        "links": links,
        "refused": refused,
    });
    let counted = status.counters.iter().filter(|(counter, _)| !is_refusal(*counter));
    add(&mut value, counted.map(|(counter, number)| (counter.name(), *number)));
    add(&mut value, status.traffic.iter().map(|(counter, number)| (counter.name(), *number)));
    let mut list = json!({ "servers": [value] });
    add_old_fields(&mut list);
    list["servers"][0].take()
}

/// Links, virtual connections and sessions that the server refused, by reason.
pub(crate) fn refusals(status: &ServerStatus) -> impl Iterator<Item = (&'static str, u64)> {
    let refused = status.counters.iter().filter(|(counter, _)| is_refusal(*counter));
    refused.map(|(counter, number)| (counter.name(), *number))
}

fn is_refusal(counter: Counter) -> bool {
    use Counter::{
        ConnectionsAccepted, LinksAccepted, LinksEnded, LogLinesDropped, SessionsReleased, SessionsResumed,
    };
    !matches!(
        counter,
        LinksAccepted
            | LinksEnded
            | ConnectionsAccepted
            | SessionsResumed
            | SessionsReleased
            | LogLinesDropped
    )
}

fn add<'a>(value: &mut Value, numbers: impl Iterator<Item = (&'a str, u64)>) {
    if let Value::Object(map) = value {
        map.extend(numbers.map(|(name, number)| (name.to_owned(), number.into())));
    }
}

pub(crate) fn connections(status: &ServerStatus) -> u64 {
    // Saturating, because a forged page may contain any numbers.
    status.links.iter().fold(0, |sum, link| sum.saturating_add(link.connections))
}

pub(crate) fn established(status: &ServerStatus) -> usize {
    status.links.iter().filter(|link| link.state != "authenticating").count()
}

/// A server's status for people: one line, and one for each link.
pub(crate) fn as_text(page: &ServerPage, status: &ServerStatus) -> String {
    let host = status.link_address.map_or_else(
        || "*".into(),
        |address| match address.is_ipv6() {
            true => format!("[{address}]"),
            false => address.to_string(),
        },
    );
    let established = established(status);
    let batches = count_of(&status.traffic, Traffic::BatchesReceived);
    let messages = count_of(&status.traffic, Traffic::MessagesReceived);
    let mut text = format!(
        "server {} {}: port {} helped through {host}:{}, {} for {} s, {established} links, {} virtual connections, \
         {:.1} messages a batch",
        page.pid,
        page.program(),
        status.helped_port,
        status.link_port,
        status.state.name(),
        status.age.as_secs(),
        connections(status),
        messages as f64 / batches.max(1) as f64,
    );
    if status.relief != Override::Auto {
        text += &format!(", relief {}", status.relief);
        if let Some(left) = status.relief_left {
            text += &format!(" for {} s more", left.as_secs());
        }
    }
    let stalls = count_of(&status.traffic, Traffic::Stalls);
    if stalls > 0 {
        text += &format!(", {stalls} credit stalls");
    }
    let dropped = count_of(&status.counters, Counter::LogLinesDropped);
    if dropped > 0 {
        text += &format!(", {dropped} log lines dropped");
    }
    let refused: Vec<String> = refusals(status)
        .filter(|(_, number)| *number > 0)
        .map(|(why, number)| format!("{why} {number}"))
        .collect();
    if !refused.is_empty() {
        text += &format!("; refused: {}", refused.join(", "));
    }
    for link in &status.links {
        let messages = count_of(&link.traffic, Traffic::MessagesReceived);
        let batches = count_of(&link.traffic, Traffic::BatchesReceived);
        let encryption = match link.state {
            "authenticating" => "",
            _ if link.encrypted => ", encrypted",
            _ => ", not encrypted",
        };
        text += &format!(
            "\n  link {} {} {}{encryption}: {} connections, {messages} messages in {batches} batches, up {} s",
            link.index,
            link.state,
            link.peer,
            link.connections,
            link.age.as_secs(),
        );
    }
    text
}

pub(crate) fn connection_json(connection: &ConnectionStatus, peer: Option<std::net::SocketAddr>) -> Value {
    json!({
        "client": connection.client,
        "helper": peer,
        "link": connection.link,
        "id": connection.id,
        "age_ms": millis(connection.age),
        "bytes_received": connection.bytes_received,
        "bytes_sent": connection.bytes_sent,
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_distinguish_process_ids_and_ports() {
        assert_eq!(ServerName::parse("pid:812"), ServerName::Pid(812));
        assert_eq!(ServerName::parse("port:11211"), ServerName::Port(11211));
        assert_eq!(ServerName::parse(":11211"), ServerName::Port(11211));
        assert_eq!(ServerName::parse("11211"), ServerName::Any("11211"));
        assert_eq!(ServerName::parse("port:70000"), ServerName::Any("port:70000"));
    }
}
