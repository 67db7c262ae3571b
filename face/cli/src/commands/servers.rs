//! Servers on this machine that run under `spillway run`: finding them, and what they say.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use spillway_policy::Word;
use spillway_shim_core::status::{
    ConnectionStatus, Counter, Request, ServerPage, ServerStatus, Traffic, Unreadable, find,
};

/// How long a server may take to answer. A busy one answers after the batch at hand.
const PATIENCE: Duration = Duration::from_secs(1);

/// The servers that a word names: all of them without one; otherwise a process id, a program, or a port, its own or
/// the one that helpers connect to. The error says what there is.
pub(crate) fn named(name: Option<&str>) -> Result<Vec<ServerPage>, String> {
    let (pages, unreadable) = find();
    let Some(name) = name else {
        return if pages.is_empty() { Err(none_found(&unreadable)) } else { Ok(pages) };
    };
    let there: Vec<String> = pages.iter().map(|page| format!("{} ({})", page.program(), page.pid)).collect();
    let found: Vec<ServerPage> = pages.into_iter().filter(|page| is_named(page, name)).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    Err(match there.is_empty() {
        true => none_found(&unreadable),
        false => format!("no server here is {name}; there are: {}", there.join(", ")),
    })
}

fn is_named(page: &ServerPage, name: &str) -> bool {
    let port = name.trim_start_matches(':').parse::<u16>().ok();
    let is_port = |status: ServerStatus| port == Some(status.link_port) || port == Some(status.helped_port);
    page.program() == name || page.pid.to_string() == name || page.status().is_ok_and(is_port)
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

/// Asks a server to bring its table of connections up to date. `false`: it did not answer.
pub(crate) fn refresh(page: &ServerPage) -> io::Result<bool> {
    page.ask(Request::Refresh, PATIENCE)
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
    status.links.iter().map(|link| link.connections).sum()
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
    if status.relief != Word::Auto {
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
        text += &format!(
            "\n  link {} {} {}: {} connections, {messages} messages in {batches} batches, up {} s",
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
