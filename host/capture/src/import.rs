//! Continues a connection in a new socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, bind, connect, ipproto, shutdown, socket_with,
};
use spillway_wire::state::ConnectionState;

use crate::error::{CaptureError, system};
use crate::held::Held;
use crate::options;
use crate::plan::{OwnFin, Plan};
use crate::queues::refill;
use crate::repair::Repair;
use crate::restored::Restored;
use crate::system::{get, set};

/// The largest segment size that an application can set (MAX_TCP_WINDOW of the kernel).
const MAXSEG_MAX: u16 = 32_767;

/// Restores a connection in a new socket, which stays in repair mode and sends nothing before [`Restored::go_live`]. Its
/// local address must be one of this host's: change `state.local` first if a switch translates the address. The socket gets
/// the state's socket options, and this host's defaults if the state has none, because it comes from a user-level stack.
///
/// # Errors
/// The state contradicts itself or has a property that the kernel cannot continue, the host has such a connection already
/// or lacks the address, or the process or the kernel lacks something. Nothing has changed then.
pub fn import(state: &ConnectionState) -> Result<Restored, CaptureError> {
    let plan = Plan::new(state)?;
    let options = state.socket_options.clone().unwrap_or_default();
    let family = if plan.local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))
        .map_err(|errno| CaptureError::System("open a socket", errno.into()))?;
    let socket = Held::new(fd);
    let fd = socket.fd();
    let repair = Repair::enter(fd)?;
    let has_congestion_control = options::apply(&options, fd, plan.needed())?;
    join(repair, fd, &plan)?;
    rebuild(repair, fd, &plan).map_err(system("restore the connection's queues"))?;
    Ok(Restored::new(socket, plan, options, has_congestion_control))
}

/// Makes the socket an established one. No segment is sent.
fn join(repair: Repair<'_>, fd: &OwnedFd, plan: &Plan) -> Result<(), CaptureError> {
    let begin = || -> io::Result<()> {
        repair.with_queues(
            || repair.set_selected_start(plan.receive_start),
            || repair.set_selected_start(plan.send_start),
        )?;
        // Otherwise the kernel would cut segments for its default of 536 bytes, because it learns the peer's number too
        // late to use it.
        let mss = libc::c_int::from(plan.negotiated.mss.min(MAXSEG_MAX));
        set(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, mss)
    };
    begin().map_err(system("prepare the socket"))?;
    bind(fd, &plan.local).map_err(|errno| unbound(errno.into(), plan.local))?;
    connect(fd, &plan.peer).map_err(|errno| unconnected(errno.into(), plan))?;
    let negotiate = || -> io::Result<()> {
        repair.set_negotiated(&plan.negotiated)?;
        limit_window(fd, plan.negotiated.own_scale)?;
        plan.clock.map_or(Ok(()), |clock| repair.set_clock(clock))
    };
    negotiate().map_err(system("restore the negotiated options"))
}

fn rebuild(repair: Repair<'_>, fd: &OwnedFd, plan: &Plan) -> io::Result<()> {
    let receive = || refill(fd, &plan.unread);
    let send = || -> io::Result<()> {
        refill(fd, &plan.sent)?;
        if matches!(plan.own_fin, OwnFin::Sent | OwnFin::Acknowledged) {
            // In repair mode the FIN counts as sent, like bytes.
            shutdown(fd, Shutdown::Write)?;
        }
        Ok(())
    };
    repair.with_queues(receive, send)?;
    repair.set_window(plan.window)
}

/// Bounds the window to what the negotiated scale can advertise. The kernel bounds it by the scale that it would choose itself.
fn limit_window(fd: &OwnedFd, scale: u8) -> io::Result<()> {
    let largest = libc::c_int::from(u16::MAX) << scale;
    let limit: libc::c_int = get(fd, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP)?;
    if limit > largest { set(fd, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, largest) } else { Ok(()) }
}

fn unbound(error: io::Error, local: SocketAddr) -> CaptureError {
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => CaptureError::NoAddress(local),
        _ => CaptureError::System("bind the socket", error),
    }
}

fn unconnected(error: io::Error, plan: &Plan) -> CaptureError {
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => CaptureError::Present(plan.local, plan.peer),
        _ => CaptureError::System("connect the socket, which needs a route to the peer", error),
    }
}
