//! The status page: this server's state in a file of shared memory, which other processes on the machine can read.
//!
//! The page is created before the link port opens, and removed when the process ends. Counters are updated after each
//! batch with relaxed stores; the traffic of each virtual connection is written when a reader requests it. Only the
//! server's own user may read or write the file (mode 0600), so a process that can write to the file may also make
//! requests: see [`Request`].
//!
//! If no directory can hold the file, the server runs without a page.

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
    ConnectionStatus, LinkStatus, ServerPage, ServerStatus, UnreadablePage, escape_name, find_pages,
    page_directories, request_all,
};

/// The id of a process of the same launch that has the link port already.
pub(crate) struct Another(pub(crate) u32);

/// Whether a process of this launch has a page.
pub(crate) fn is_claimed(config: &Config) -> bool {
    page().is_some()
        || config.launch.as_ref().is_some_and(|launch| page::exists(launch, &config.status_directories))
}

/// Creates the page. Each launch has one, so that children and workers of a server do not take its link port.
pub(crate) fn claim(config: &Config, helped_port: u16) -> Result<(), Another> {
    if page().is_some() {
        return Ok(()); // created at an earlier attempt to open the link port, whose epoll set was closed since
    }
    // A killed server leaves its page behind: the search removes such pages, where this user may.
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
    set(header::PID_NAMESPACE, origin::namespace(origin::PID_NAMESPACE));
    set(header::NET_NAMESPACE, origin::namespace(origin::NET_NAMESPACE));
    let name = program();
    name.as_chunks().0.iter().enumerate().for_each(|(word, bytes)| {
        set(header::PROGRAM + word, u64::from_ne_bytes(*bytes));
    });
    set(header::BEGAN_NS, sys::now().as_nanos());
    set(header::LINK_PORT, config.link.port.into());
    set(header::HELPED_PORT, helped_port.into());
    if let Some(host) = config.link.host {
        let [high, low, _] = layout::address_words(SocketAddr::new(host, 0));
        set(header::LINK_ADDRESS, high);
        set(header::LINK_ADDRESS + 1, low);
    }
    // Last, because a page is valid once it has the magic number.
    page.word(header::MAGIC).store(layout::MAGIC, Ordering::Release);
    if own::publish(page) {
        add(Counter::LogLinesDropped, log::dropped());
    } else {
        log::line(format_args!("this process has a status page already"));
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

/// Writes the operator's override of relief, and when it ends.
pub(crate) fn set_relief(new: Override, until: Option<Time>) {
    if let Some(page) = page() {
        page.word(header::RELIEF_UNTIL_NS).store(until.map_or(0, Time::as_nanos), Ordering::Relaxed);
        page.word(header::RELIEF).store(layout::override_number(new), Ordering::Release);
    }
}

/// A link's traffic, in the order of [`Traffic::ALL`].
fn traffic_words(counters: &LinkCounters, batches_received: u64) -> [u64; 8] {
    [
        batches_received,
        counters.batches_sent,
        counters.messages_received,
        counters.messages_sent,
        counters.bytes_received,
        counters.bytes_sent,
        counters.stalls,
        counters.unknown_frames,
    ]
}

/// A link was accepted.
pub(crate) fn link_began(index: u32, peer: SocketAddr) {
    let Some((page, at)) = page().and_then(|page| Some((page, page.link(index)?))) else { return };
    page.change(at, || {
        let words = layout::address_words(peer);
        (0..3).for_each(|word| set(page, at + layout::link::PEER + word, words[word]));
        set(page, at + layout::link::SINCE_NS, sys::now().as_nanos());
        (layout::link::KEY..=layout::link::SESSIONS).for_each(|word| set(page, at + word, 0));
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
pub(crate) fn update_link(
    index: u32,
    counters: &LinkCounters,
    batches_received: u64,
    connections: usize,
    sessions: usize,
) {
    let Some((page, at)) = page().and_then(|page| Some((page, page.link(index)?))) else { return };
    set(page, at + layout::link::CONNECTIONS, connections as u64);
    set(page, at + layout::link::SESSIONS, sessions as u64 + 1);
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
    let add_to_ended_traffic = || {
        for (word, value) in traffic_words(counters, batches_received).into_iter().enumerate() {
            page.word(header::ENDED_TRAFFIC + word).fetch_add(value, Ordering::Relaxed);
        }
    };
    match page.link(index) {
        None => add_to_ended_traffic(),
        // One change of the slot, so that no reader counts the link's traffic twice.
        Some(at) => page.change(at, || {
            add_to_ended_traffic();
            set(page, at + layout::link::STATE, 0);
        }),
    }
}

/// A virtual connection was queued to be accepted.
pub(crate) fn connection_began(connection: &Connection, client: SocketAddr, carrier: CarrierName) {
    count(Counter::ConnectionsAccepted);
    let Some((page, at)) = slot(connection) else { return };
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
    if let Some((page, at)) = slot(connection) {
        set(page, at + layout::connection::LINK, carrier_word(carrier));
    }
}

fn carrier_word((link, id): CarrierName) -> u64 {
    u64::from(link) << 32 | u64::from(id.0)
}

/// Vacates a virtual connection's slot on the page, for the next connection.
pub(crate) fn connection_ended(connection: &Connection) {
    let Some((page, at)) = slot(connection) else { return };
    if page.word(at + layout::connection::CLIENT + 2).load(Ordering::Relaxed) != 0 {
        page.change(at, || (0..3).for_each(|word| set(page, at + layout::connection::CLIENT + word, 0)));
    }
}

/// The page, and the first word of a connection's slot.
fn slot(connection: &Connection) -> Option<(&'static Page, usize)> {
    let page = page()?;
    Some((page, page.connection(connection.index)?))
}

/// Writes the bytes that the virtual connection with this index has received and sent.
pub(crate) fn write_connection_traffic(connection: u32, info: Info) {
    let Some((page, at)) = page().and_then(|page| Some((page, page.connection(connection)?))) else { return };
    set(page, at + layout::connection::BYTES_RECEIVED, info.bytes_received);
    set(page, at + layout::connection::BYTES_SENT, info.bytes_sent);
}

#[inline]
fn set(page: &Page, at: usize, value: u64) {
    page.word(at).store(value, Ordering::Relaxed);
}
