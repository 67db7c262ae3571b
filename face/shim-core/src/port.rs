//! The link port: opened when the application first waits for its listening socket, and not before.

pub(crate) mod retry;

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::Mutex;

use libc::c_int;
use spillway_batch::{LinkRandomness, ServerLink};

use crate::address::{self, LinkAddress};
use crate::config::{Config, ConfigError};
use crate::epoll_set::{self, Set};
use crate::log::{self, Reason};
use crate::status::{self, Counter};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::tag::Tag;
use crate::wakes::Wakes;
use crate::{fork, helping_deadline, links, listeners, lock, prepared};

/// Maximum number of links accepted for one event of the link port.
const ACCEPTS_MAX: usize = 16;

/// Maximum number of links that wait in the kernel to be accepted.
const BACKLOG: c_int = 4096;

static OPENING: Mutex<()> = Mutex::new(());
static PORT: AtomicI32 = AtomicI32::new(-1);
/// The set that the link port is in.
static PORT_SET: AtomicU32 = AtomicU32::new(0);
/// Index of the library's own set, 0 for none.
static LIBRARY_SET: AtomicU32 = AtomicU32::new(0);
/// A descriptor that is closed when the process has no free descriptor left, so that one is free: see `turn_away`.
static RESERVE: AtomicI32 = AtomicI32::new(-1);

/// Sets the configuration of this process.
pub(crate) fn configure(config: Result<Option<Config>, ConfigError>) {
    match config {
        Ok(None) => {}
        Ok(Some(config)) => prepared::prepare(config),
        Err(error) => give_up(error.require, format_args!("{}", error.what)),
    }
}

/// Logs why the link port cannot be opened, and ends the process if the configuration requires helpers.
fn give_up(require: bool, why: core::fmt::Arguments<'_>) {
    if require {
        log::unlimited(format_args!("{why}; --require was given, so the server is ended"));
        sys::exit(1);
    }
    log::unlimited(format_args!("{why}; the server runs without helpers"));
}

/// Opens the link port, watched in this set, if helped clients are to use this listener's port. Called when
/// the application polls the listener in the set.
pub(crate) fn open_for_polled(fd: c_int, set: &Set) {
    open_for(fd, || Ok(set));
}

/// Like [`open_for_polled`], for a listener that the application waits for outside epoll: uses the library's
/// own set.
#[inline]
pub(crate) fn open_for_awaited(fd: c_int) {
    if prepared::is_link_port_pending() && listeners::stand_in_or_record(fd).is_some() {
        open_for(fd, library_set_or_new);
    }
}

fn open_for<'a>(fd: c_int, set: impl FnOnce() -> Result<&'a Set, Errno>) {
    if !prepared::is_link_port_pending() || !fork::is_owner_process() {
        return;
    }
    let _opening = lock(&OPENING);
    let Some(config) = prepared::config().filter(|_| prepared::is_link_port_pending()) else { return };
    let Some(port) = listeners::port_of(fd) else { return };
    if config.port.is_some_and(|wanted| wanted != port) {
        return;
    }
    let before = sys::errno(); // `status::claim` searches for status pages, which changes errno
    claim_and_open(config, port, set);
    sys::set_errno(before);
    // Set after the outcome is known: while the port is pending, other threads that are about to sleep enter this
    // function, and wait for `OPENING`.
    prepared::set_link_port_settled();
}

fn claim_and_open<'a>(config: &Config, port: u16, set: impl FnOnce() -> Result<&'a Set, Errno>) {
    if let Err(status::Another(pid)) = status::claim(config, port) {
        log::line(format_args!("process {pid} of this server has the link port: this one serves no helpers"));
        return;
    }
    listeners::serve(port);
    let set = set();
    let opened = set.as_ref().map_err(|error| *error).and_then(|set| open_in(config, set));
    let Err(error) = opened else { return };
    let why = format_args!("the link port {} cannot be opened: {}", config.link, Reason(error)).to_string();
    match set {
        Ok(set) if !config.require => {
            log::unlimited(format_args!("{why}; the server runs without helpers and tries again"));
            retry::begin(set);
        }
        _ => {
            status::withdraw();
            give_up(config.require, format_args!("{why}"));
        }
    }
}

/// Called when the process ends: if `spillway run` started the process and the process never waited for clients, logs
/// that no helper was served. A program with children is left out, because one of them may be the server.
pub(crate) fn report_unserved() {
    let Some(config) = prepared::config().filter(|_| prepared::is_link_port_pending()) else { return };
    let is_started = config.started == Some(sys::process_id());
    if !is_started || fork::has_forked() || sys::had_children() || status::is_claimed(config) {
        return;
    }
    let port = config.port.map(|port| format!(" on port {port}")).unwrap_or_default();
    log::unlimited(format_args!("the program ended without waiting for clients{port}: no helper was served"));
}

/// Opens the link port, watched in this set.
fn open_in(config: &Config, set: &Set) -> Result<(), Errno> {
    let socket = open(&config.link)?;
    watch(socket, set).inspect_err(|_| sys::end_socket(socket))?;
    if !helping_deadline::is_off() {
        status::set_state(status::State::On);
    }
    let port = listeners::served().unwrap_or(0);
    log::line(format_args!("helpers of port {port} connect to {}", config.link));
    Ok(())
}

/// The state that the status page shows while helping is on.
pub(crate) fn state() -> status::State {
    match port_set() {
        Some(_) => status::State::On,
        None if retry::is_waiting() => status::State::Opening,
        None => status::State::Off,
    }
}

fn library_set_or_new() -> Result<&'static Set, Errno> {
    if let Some(set) = library_set() {
        return Ok(set);
    }
    let set = epoll_set::create_library_set()?;
    LIBRARY_SET.store(set.index, Ordering::Release);
    Ok(set)
}

/// The library's own set, if there is one: it holds links, and threads in blocking calls handle its events.
#[inline]
pub(crate) fn library_set() -> Option<&'static Set> {
    match LIBRARY_SET.load(Ordering::Acquire) {
        0 => None,
        index => epoll_set::get(index),
    }
}

fn open(link: &LinkAddress) -> Result<c_int, Errno> {
    match link.host {
        Some(host) => listen_at(SocketAddr::new(host, link.port), false),
        // One socket for both address families, or IPv4 on a host without IPv6.
        None => listen_at(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), link.port), true).or_else(|error| {
            if error == libc::EADDRINUSE {
                return Err(error);
            }
            listen_at(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), link.port), false)
        }),
    }
}

fn listen_at(address: SocketAddr, both_families: bool) -> Result<c_int, Errno> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = sys::stream_socket(family)?;
    let (name, length) = address::to_c(address);
    let listening = sys::set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
        .and_then(|()| match family {
            libc::AF_INET6 => {
                sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, c_int::from(!both_families))
            }
            _ => Ok(()),
        })
        .and_then(|()| sys::bind(socket, &name, length))
        .and_then(|()| sys::listen(socket, BACKLOG));
    match listening {
        Ok(()) => Ok(socket),
        Err(error) => {
            sys::end_socket(socket);
            Err(error)
        }
    }
}

/// Adds the link port to the set. From here on, forked children pass all calls on to libc.
fn watch(socket: c_int, set: &Set) -> Result<(), Errno> {
    fork::claim()?;
    set.activate()?;
    let epoll = set.fd.load(Ordering::Relaxed);
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, socket, libc::EPOLLIN as u32, Tag::Port.value())?;
    table::record(socket, Entry::Library);
    keep_reserve();
    status::watch_in(epoll, Tag::Control.value());
    PORT_SET.store(set.index, Ordering::Release);
    PORT.store(socket, Ordering::Release);
    Ok(())
}

/// Accepts links. Called when epoll reports the link port.
pub(crate) fn handle_ready(set: &Set, wakes: &mut Wakes) {
    let Some(keys) = prepared::keys() else { return };
    for _ in 0..ACCEPTS_MAX {
        // SAFETY: all zeros is a valid sockaddr_storage.
        let (mut peer, mut local) = unsafe { core::mem::zeroed::<(libc::sockaddr_storage, _)>() };
        let socket = match sys::accept(PORT.load(Ordering::Acquire), &mut peer) {
            Ok(socket) => socket,
            Err(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => return,
            Err(error) => {
                status::count(Counter::LinkDescriptors);
                log::line(format_args!("a link cannot be accepted: {}", Reason(error)));
                turn_away(error);
                return;
            }
        };
        if helping_deadline::is_off() {
            status::count(Counter::LinkOff);
            sys::end_socket(socket);
            continue;
        }
        let mut random = [0; LinkRandomness::BYTES];
        let named = sys::socket_name(socket, &mut local);
        let addresses = address::from_c(&peer).zip(address::from_c(&local));
        match (named, addresses, sys::random(&mut random)) {
            (Ok(()), Some((peer, local)), Ok(())) => {
                let end = ServerLink::new(
                    keys.server(),
                    sys::now(),
                    peer,
                    local,
                    LinkRandomness::from_random(random),
                );
                links::begin_link(socket, peer, local, end, set, wakes);
                helping_deadline::link_opened();
            }
            _ => sys::end_socket(socket),
        }
    }
}

/// If the process has no free descriptor, a waiting link keeps the port ready: frees the reserved descriptor, accepts
/// the link, and closes it.
fn turn_away(error: Errno) {
    if !matches!(error, libc::EMFILE | libc::ENFILE) {
        return;
    }
    let reserve = RESERVE.swap(-1, Ordering::AcqRel);
    if reserve >= 0 {
        // Recorded before the close: the application may get the same number at once.
        table::record(reserve, Entry::Real);
        sys::close(reserve);
    }
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut peer = unsafe { core::mem::zeroed() };
    if let Ok(socket) = sys::accept(PORT.load(Ordering::Acquire), &mut peer) {
        sys::end_socket(socket);
    }
    keep_reserve();
}

fn keep_reserve() {
    if let Ok(reserve) = sys::eventfd() {
        table::record(reserve, Entry::Library);
        RESERVE.store(reserve, Ordering::Release);
    }
}

/// The set that the link port is in.
pub(crate) fn port_set() -> Option<&'static Set> {
    epoll_set::get(PORT_SET.load(Ordering::Acquire))
}

/// The application closes a set: closes the link port if that set holds it.
pub(crate) fn handle_set_closed(set: &Set) {
    retry::handle_set_closed(set);
    if PORT_SET.compare_exchange(set.index, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        let socket = PORT.swap(-1, Ordering::AcqRel);
        // Recorded before the close: the application may get the same number at once.
        table::record(socket, Entry::Real);
        sys::end_socket(socket);
        status::set_state(status::State::Off);
        log::line(format_args!("the server closed its event loop: the link port is closed"));
    }
}

/// Accepts no more links, because the process ends. The descriptor stays open: another thread may be about to use it.
pub(crate) fn end() {
    let socket = PORT.load(Ordering::Acquire);
    if socket >= 0 {
        sys::shut_down(socket, libc::SHUT_RDWR);
    }
}
