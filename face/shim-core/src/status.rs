//! The state of this server, for other processes on the machine to read: a page of shared memory in a file.
//!
//! The page is made before the link port opens, and removed when the process ends. Counters are written once a batch
//! with relaxed stores; what virtual connections have sent and received is written when a reader asks for it. Only
//! the server's own user may read or write the file (mode 0600), so that a process that may write it may also give
//! orders: [`crate::switch`].
//!
//! Without a directory for the file, the server runs without a page.

mod files;
pub(crate) mod layout;
mod origin;
pub(crate) mod own;
mod page;
pub(crate) mod reader;
#[cfg(test)]
mod test_holder;

use core::net::SocketAddr;
use core::sync::atomic::Ordering;

use spillway_batch::{Info, LinkCounters, RefuseReason, Role};
use spillway_policy::Override;
use spillway_transport::Time;

use crate::carrier_name::CarrierName;
use crate::config::Config;
use crate::connections::Connection;
use crate::log::{self, Reason};
use crate::{fork, sys};

use layout::header;
pub use layout::{Counter, Request, State, Traffic};
use own::page;
pub(crate) use own::{add, count, watch_in};
use page::{Claimed, Page};
pub use reader::{
    ConnectionStatus, LinkStatus, ServerPage, ServerStatus, Unreadable, ask_all, directories, find, printable,
};

/// The process of the same launch that serves helpers already.
pub(crate) struct Another(pub(crate) u32);

/// Whether a process of this launch has a page.
pub(crate) fn is_claimed(config: &Config) -> bool {
    page().is_some()
        || config.launch.as_ref().is_some_and(|launch| page::exists(launch, &config.status_directories))
}

/// Makes the page. There is one for each launch, so that children and workers of a server do not take the link port
/// from it.
pub(crate) fn claim(config: &Config, helped: u16) -> Result<(), Another> {
    if page().is_some() {
        return Ok(()); // made earlier, for an epoll set that is closed by now
    }
    // Servers that were killed leave their pages behind: the search removes those that this user may remove.
    drop(reader::find_in(&config.status_directories));
    let own = format!("{:08x}", sys::process_id());
    let claimed = page::claim(config.launch.as_ref().unwrap_or(&own), &config.status_directories);
    let page = match claimed {
        Claimed::Another(pid) => return Err(Another(pid)),
        Claimed::Nowhere(error) => {
            log::line(format_args!(
                "no status page, so `spillway status` cannot show this server: {}",
                Reason(error)
            ));
            return Ok(());
        }
        Claimed::Page(page) => page,
    };
    let set = |at: usize, value: u64| page.word(at).store(value, Ordering::Relaxed);
    set(header::LAYOUT, layout::LAYOUT);
    set(header::PID, sys::process_id() as u64);
    set(header::PID_NAMESPACE, reader::namespace(reader::PID_NAMESPACE));
    set(header::NET_NAMESPACE, reader::namespace(reader::NET_NAMESPACE));
    let name = program();
    name.as_chunks().0.iter().enumerate().for_each(|(word, bytes)| {
        set(header::PROGRAM + word, u64::from_ne_bytes(*bytes));
    });
    set(header::BEGAN_NS, sys::now().as_nanos());
    set(header::LINK_PORT, config.link.port.into());
    set(header::HELPED_PORT, helped.into());
    if let Some(host) = config.link.host {
        let [high, low, _] = layout::address_words(SocketAddr::new(host, 0));
        set(header::LINK_ADDRESS, high);
        set(header::LINK_ADDRESS + 1, low);
    }
    // Last: a page without the magic number is invalid.
    page.word(header::MAGIC).store(layout::MAGIC, Ordering::Release);
    if own::publish(page) {
        add(Counter::LogLinesDropped, log::dropped());
    } else {
        log::line(format_args!("there is a status page already"));
    }
    Ok(())
}

/// The name of this process, padded with zeros.
fn program() -> [u8; 16] {
    let mut name = [0; 16];
    let read = std::fs::read("/proc/self/comm").unwrap_or_default();
    let read = read.trim_ascii_end();
    let length = read.len().min(name.len());
    name[..length].copy_from_slice(&read[..length]);
    name
}

/// Removes the page.
pub(crate) fn withdraw() {
    if let Some(page) = page() {
        page.remove();
    }
}

/// Removes the page when the process ends.
pub(crate) fn finish() {
    if fork::is_owner_process() {
        withdraw();
    }
}

pub(crate) fn set_state(state: State) {
    if let Some(page) = page() {
        page.word(header::STATE).store(state.word(), Ordering::Release);
    }
}

/// Shows the operator's override of relief, and when it ends.
pub(crate) fn set_relief(word: Override, until: Option<Time>) {
    if let Some(page) = page() {
        page.word(header::RELIEF_UNTIL_NS).store(until.map_or(0, Time::as_nanos), Ordering::Relaxed);
        page.word(header::RELIEF).store(layout::relief_word(word), Ordering::Release);
    }
}

/// A link's traffic, in the order of the page's words.
fn traffic_words(counters: &LinkCounters, batches_received: u64) -> [u64; 8] {
    [
        batches_received,
        counters.batches_sent,
        counters.messages_received,
        counters.messages_sent,
        counters.bytes_received,
        counters.bytes_sent,
        counters.stalls,
        counters.strays,
    ]
}

/// A link was accepted.
pub(crate) fn link_began(index: u32, peer: SocketAddr) {
    let Some((page, at)) = page().and_then(|page| Some((page, page.link(index)?))) else { return };
    page.change(at, || {
        let words = layout::address_words(peer);
        (0..3).for_each(|word| set(page, at + layout::link::PEER + word, words[word]));
        set(page, at + layout::link::SINCE_NS, sys::now().as_nanos());
        (layout::link::KEY..=layout::link::ENCRYPTED).for_each(|word| set(page, at + word, 0));
        set(page, at + layout::link::STATE, 1);
    });
}

/// A link's peer has authenticated.
pub(crate) fn link_established(index: u32, role: Role, key: [u8; 8], is_encrypted: bool) {
    count(Counter::LinksAccepted);
    let Some((page, at)) = page().and_then(|page| Some((page, page.link(index)?))) else { return };
    page.change(at, || {
        set(page, at + layout::link::KEY, u64::from_be_bytes(key));
        set(page, at + layout::link::ENCRYPTED, is_encrypted.into());
        set(page, at + layout::link::STATE, if role == Role::Helper { 2 } else { 3 });
    });
}

/// A batch was received or sent on a link.
pub(crate) fn link_turn(index: u32, counters: &LinkCounters, batches_received: u64, connections: usize) {
    let Some((page, at)) = page().and_then(|page| Some((page, page.link(index)?))) else { return };
    set(page, at + layout::link::CONNECTIONS, connections as u64);
    for (word, value) in traffic_words(counters, batches_received).into_iter().enumerate() {
        set(page, at + layout::link::TRAFFIC + word, value);
    }
}

/// A link has ended.
pub(crate) fn link_ended(index: u32, counters: &LinkCounters, batches_received: u64, established: bool) {
    let Some(page) = page() else { return };
    if established {
        count(Counter::LinksEnded);
    }
    let gone = || {
        for (word, value) in traffic_words(counters, batches_received).into_iter().enumerate() {
            page.word(header::GONE + word).fetch_add(value, Ordering::Relaxed);
        }
    };
    match page.link(index) {
        None => gone(),
        // One change, so that no reader counts the link's traffic twice.
        Some(at) => page.change(at, || {
            gone();
            set(page, at + layout::link::STATE, 0);
        }),
    }
}

/// A virtual connection was queued to be accepted.
pub(crate) fn connection_began(connection: &Connection, client: SocketAddr, carrier: CarrierName) {
    count(Counter::ConnectionsAccepted);
    let Some((page, at)) = place(connection) else { return };
    page.change(at, || {
        let words = layout::address_words(client);
        (0..3).for_each(|word| set(page, at + layout::connection::CLIENT + word, words[word]));
        set(page, at + layout::connection::SINCE_NS, sys::now().as_nanos());
        set(page, at + layout::connection::LINK, carrier_word(carrier));
        set(page, at + layout::connection::BYTES_RECEIVED, 0);
        set(page, at + layout::connection::BYTES_SENT, 0);
    });
}

/// A virtual connection, or a session's first message on one, was refused.
pub(crate) fn connection_refused(reason: RefuseReason) {
    count(match reason {
        RefuseReason::Full => Counter::ConnectionFull,
        RefuseReason::Forbidden => Counter::ConnectionForbidden,
        RefuseReason::Gone | RefuseReason::Stale | RefuseReason::Mismatch => Counter::SessionRefused,
        RefuseReason::Unavailable | RefuseReason::UnknownServer => Counter::ConnectionUnserved,
    });
}

/// The connection's session has moved to another link.
pub(crate) fn connection_moved(connection: &Connection, carrier: CarrierName) {
    if let Some((page, at)) = place(connection) {
        set(page, at + layout::connection::LINK, carrier_word(carrier));
    }
}

fn carrier_word((link, id): CarrierName) -> u64 {
    u64::from(link) << 32 | u64::from(id.0)
}

/// Frees a virtual connection's place, before another connection takes it.
pub(crate) fn connection_ended(connection: &Connection) {
    let Some((page, at)) = place(connection) else { return };
    if page.word(at + layout::connection::CLIENT + 2).load(Ordering::Relaxed) != 0 {
        page.change(at, || (0..3).for_each(|word| set(page, at + layout::connection::CLIENT + word, 0)));
    }
}

fn place(connection: &Connection) -> Option<(&'static Page, usize)> {
    let page = page()?;
    Some((page, page.connection(connection.index)?))
}

/// The bytes that a virtual connection, by its index, has received and sent.
pub(crate) fn connection_traffic(connection: u32, info: Info) {
    let Some((page, at)) = page().and_then(|page| Some((page, page.connection(connection)?))) else { return };
    set(page, at + layout::connection::BYTES_RECEIVED, info.bytes_received);
    set(page, at + layout::connection::BYTES_SENT, info.bytes_sent);
}

#[inline]
fn set(page: &Page, at: usize, value: u64) {
    page.word(at).store(value, Ordering::Relaxed);
}
