//! Servers on this machine that run under `spillway run`: finding them, and what they say.

use std::fmt;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use spillway_policy::Override;
use spillway_shim_core::status::{
    ConnectionStatus, Counter, Request, ServerPage, ServerStatus, Traffic, Unreadable, ask_all, find,
};

/// How long a server may take to answer. A busy one answers after the batch at hand.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why a command does nothing.
pub(crate) enum Unclear {
    /// Nothing here has that name.
    Unknown(String),
    /// Several servers have it.
    Several(String),
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Unclear::Unknown(text) | Unclear::Several(text)) = self;
        f.write_str(text)
    }
}

/// The servers that a command is for: without a name all of them, otherwise the one of that name. Of a name that
/// several have they are all meant only if that is said (`all`); the error lists them.
pub(crate) fn choose(name: Option<&str>, all: bool) -> Result<Vec<ServerPage>, Unclear> {
    let (pages, unreadable) = find();
    let Some(name) = name else {
        return if pages.is_empty() { Err(Unclear::Unknown(none_found(&unreadable))) } else { Ok(pages) };
    };
    let wanted = Wanted::of(name);
    let list = |pages: &[ServerPage]| pages.iter().map(described).collect::<Vec<_>>().join("\n  ");
    let there = list(&pages);
    let found: Vec<ServerPage> = pages.into_iter().filter(|page| wanted.is(page)).collect();
    match found.len() {
        0 if there.is_empty() => Err(Unclear::Unknown(none_found(&unreadable))),
        0 => Err(Unclear::Unknown(format!("no server here is {name}; there are:\n  {there}"))),
        1 => Ok(found),
        _ if all => Ok(found),
        count => Err(Unclear::Several(format!(
            "{count} servers here are {name}; name one by pid: or port:, or give --all:\n  {}",
            list(&found)
        ))),
    }
}

/// Says which servers a command is about to change.
pub(crate) fn announce(what: &str, pages: &[ServerPage]) {
    for page in pages {
        eprintln!("spillway: {what}: {}", described(page));
    }
}

/// What an operator may call a server.
#[derive(Debug, PartialEq, Eq)]
enum Wanted<'a> {
    Pid(u32),
    Port(u16),
    /// A program, or a number that may be either.
    Any(&'a str),
}

impl Wanted<'_> {
    fn of(name: &str) -> Wanted<'_> {
        let pid = name.strip_prefix("pid:").and_then(|pid| pid.parse().ok()).map(Wanted::Pid);
        let port = name.strip_prefix("port:").or(name.strip_prefix(':'));
        let port = port.and_then(|port| port.parse().ok()).map(Wanted::Port);
        pid.or(port).unwrap_or(Wanted::Any(name))
    }

    fn is(&self, page: &ServerPage) -> bool {
        let is_port = |port: u16| {
            page.status().is_ok_and(|status| port == status.link_port || port == status.helped_port)
        };
        match *self {
            Wanted::Pid(pid) => page.pid == pid,
            Wanted::Port(port) => is_port(port),
            Wanted::Any(name) => {
                page.program() == name || page.pid.to_string() == name || name.parse().is_ok_and(is_port)
            }
        }
    }
}

/// A server in a list, as one tells it from others.
fn described(page: &ServerPage) -> String {
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

/// What to say where there is no server to be seen.
pub(crate) fn none_found(unreadable: &[Unreadable]) -> String {
    match unreadable.first() {
        None => "no server on this machine runs under `spillway run` with its link port open".into(),
        Some(one) => format!(
            "the page {} cannot be read: {}; it is for the server's user and root",
            one.path.display(),
            one.error
        ),
    }
}

/// Asks servers to bring their tables of connections up to date. `false`: that one did not answer.
pub(crate) fn refresh(pages: &[ServerPage]) -> Vec<io::Result<bool>> {
    ask_all(pages, Request::Refresh, PATIENCE)
}

/// What a server's answer to an order means.
pub(crate) fn obeyed(page: &ServerPage, answer: io::Result<bool>) -> Result<(), String> {
    match answer {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("server {} has not answered yet; it obeys when it next looks", page.pid)),
        Err(error) => Err(format!("{}: {error}", page.path.display())),
    }
}

/// One number of a list.
pub(crate) fn of<T: PartialEq + Copy>(list: &[(T, u64)], what: T) -> u64 {
    list.iter().find(|(one, _)| *one == what).map_or(0, |(_, value)| *value)
}

/// A server for programs. Fields may be added.
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
            add(&mut value, link.traffic.iter().map(|(what, number)| (what.name(), *number)));
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
        "relief": status.relief.name(),
        "relief_left_ms": status.relief_left.map(millis),
        "age_ms": millis(status.age),
        "helped_port": status.helped_port,
        "link_address": status.link_address,
        "link_port": status.link_port,
        "connections": connections(status),
        "links": links,
        "refused": refused,
    });
    let counted = status.counters.iter().filter(|(what, _)| !is_refusal(*what));
    add(&mut value, counted.map(|(what, number)| (what.name(), *number)));
    add(&mut value, status.traffic.iter().map(|(what, number)| (what.name(), *number)));
    value
}

/// Links and virtual connections that it refused, by reason.
pub(crate) fn refusals(status: &ServerStatus) -> impl Iterator<Item = (&'static str, u64)> {
    let refused = status.counters.iter().filter(|(what, _)| is_refusal(*what));
    refused.map(|(what, number)| (what.name(), *number))
}

fn is_refusal(counter: Counter) -> bool {
    use Counter::{
        ConnectionsTaken, LinksEnded, LinksTaken, LogLinesDropped, SessionsReleased, SessionsResumed,
    };
    !matches!(
        counter,
        LinksTaken | LinksEnded | ConnectionsTaken | SessionsResumed | SessionsReleased | LogLinesDropped
    )
}

fn add<'a>(value: &mut Value, numbers: impl Iterator<Item = (&'a str, u64)>) {
    if let Value::Object(map) = value {
        map.extend(numbers.map(|(name, number)| (name.to_owned(), number.into())));
    }
}

/// Virtual connections of all links.
pub(crate) fn connections(status: &ServerStatus) -> u64 {
    // A page may have any numbers.
    status.links.iter().fold(0, |sum, link| sum.saturating_add(link.connections))
}

/// Links whose other end has proved who it is.
pub(crate) fn established(status: &ServerStatus) -> usize {
    status.links.iter().filter(|link| link.state != "authenticating").count()
}

/// A server for people: a line, and one for each link.
pub(crate) fn as_text(page: &ServerPage, status: &ServerStatus) -> String {
    let host = status.link_address.map_or_else(
        || "*".into(),
        |address| match address.is_ipv6() {
            true => format!("[{address}]"),
            false => address.to_string(),
        },
    );
    let established = established(status);
    let batches = of(&status.traffic, Traffic::BatchesReceived);
    let messages = of(&status.traffic, Traffic::MessagesReceived);
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
    let stalls = of(&status.traffic, Traffic::Stalls);
    if stalls > 0 {
        text += &format!(", {stalls} credit stalls");
    }
    let dropped = of(&status.counters, Counter::LogLinesDropped);
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
        let messages = of(&link.traffic, Traffic::MessagesReceived);
        let batches = of(&link.traffic, Traffic::BatchesReceived);
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

/// A virtual connection for programs.
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
    fn names_say_which_number_is_meant() {
        assert_eq!(Wanted::of("pid:812"), Wanted::Pid(812));
        assert_eq!(Wanted::of("port:11211"), Wanted::Port(11211));
        assert_eq!(Wanted::of(":11211"), Wanted::Port(11211));
        assert_eq!(Wanted::of("11211"), Wanted::Any("11211"));
        assert_eq!(Wanted::of("port:70000"), Wanted::Any("port:70000"));
    }
}
