//! Options of a kernel's socket that move with its connection. A stack without sockets ignores them.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::time::Duration;

use super::error::StateError;
use super::fields::{Reader, Writer};

/// Maximum bytes of the name of a congestion control: one less than Linux's TCP_CA_NAME_MAX.
const CONGESTION_NAME_BYTES_MAX: usize = 15;

/// Options of a socket. `None` leaves the default of the importing host; so does the default value of this type, for
/// connections that come from a user-level stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// TCP_NODELAY.
    pub no_delay: Option<bool>,
    /// TCP_CORK.
    pub cork: Option<bool>,
    /// Keep-alive probes. Also `None` for a socket that sends none and has Linux's own times, which most have: they take three
    /// system calls to set.
    pub keep_alive: Option<KeepAlive>,
    /// TCP_USER_TIMEOUT, in milliseconds; 0 is the system's default.
    pub user_timeout_ms: Option<u32>,
    /// Name of the congestion control (TCP_CONGESTION).
    pub congestion_control: Option<String>,
    /// The send buffer.
    pub send_buffer: Option<Buffer>,
    /// The receive buffer.
    pub receive_buffer: Option<Buffer>,
    /// SO_REUSEADDR, which sockets inherit from the listening socket; `None` sets it. Without it a listening socket cannot
    /// be bound to the port while the connection lives.
    pub reuses_address: Option<bool>,
    /// O_NONBLOCK.
    pub is_nonblocking: bool,
    /// The application has ended the reading direction (SHUT_RD).
    pub has_ended_reading: bool,
    /// The connection's timestamps count microseconds; otherwise milliseconds.
    pub has_microsecond_stamps: bool,
}

/// Keep-alive probes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// SO_KEEPALIVE.
    pub is_on: bool,
    /// Time without segments before the first probe (TCP_KEEPIDLE), whole seconds.
    pub idle: Duration,
    /// Time between probes (TCP_KEEPINTVL), whole seconds.
    pub interval: Duration,
    /// Unanswered probes that end the connection (TCP_KEEPCNT).
    pub probes: u32,
}

/// The size of a socket's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Bytes with the kernel's own overhead, as SO_SNDBUF and SO_RCVBUF return them: at most 4 GiB.
    pub bytes: usize,
    /// The application has set the size; otherwise the kernel adjusts it.
    pub is_fixed: bool,
}

impl SocketOptions {
    pub(super) fn write(&self, out: &mut Writer) {
        out.option(self.no_delay, Writer::flag);
        out.option(self.cork, Writer::flag);
        out.option(self.keep_alive, |out, keep_alive| keep_alive.write(out));
        out.option(self.user_timeout_ms, Writer::u32);
        out.option(self.congestion_control.as_ref(), |out, name| out.bytes(name.as_bytes()));
        out.option(self.send_buffer, |out, buffer| buffer.write(out));
        out.option(self.receive_buffer, |out, buffer| buffer.write(out));
        out.option(self.reuses_address, Writer::flag);
        out.flag(self.is_nonblocking);
        out.flag(self.has_ended_reading);
        out.flag(self.has_microsecond_stamps);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<SocketOptions, StateError> {
        Ok(SocketOptions {
            no_delay: from.option(Reader::flag)?,
            cork: from.option(Reader::flag)?,
            keep_alive: from.option(KeepAlive::read)?,
            user_timeout_ms: from.option(Reader::u32)?,
            congestion_control: from.option(read_name)?,
            send_buffer: from.option(Buffer::read)?,
            receive_buffer: from.option(Buffer::read)?,
            reuses_address: from.option(Reader::flag)?,
            is_nonblocking: from.flag()?,
            has_ended_reading: from.flag()?,
            has_microsecond_stamps: from.flag()?,
        })
    }
}

fn read_name(from: &mut Reader<'_>) -> Result<String, StateError> {
    let name = from.bytes(CONGESTION_NAME_BYTES_MAX, "bytes in the name of the congestion control")?;
    let name = core::str::from_utf8(name).ok().filter(|name| {
        let is_visible = name.bytes().all(|byte| byte.is_ascii_graphic());
        is_visible && !name.is_empty()
    });
    name.map(ToOwned::to_owned).ok_or(StateError::Field("name of the congestion control"))
}

impl KeepAlive {
    fn write(self, out: &mut Writer) {
        out.flag(self.is_on);
        out.u32(seconds(self.idle));
        out.u32(seconds(self.interval));
        out.u32(self.probes);
    }

    fn read(from: &mut Reader<'_>) -> Result<KeepAlive, StateError> {
        let seconds = |number: u32| Duration::from_secs(number.into());
        Ok(KeepAlive {
            is_on: from.flag()?,
            idle: seconds(from.u32()?),
            interval: seconds(from.u32()?),
            probes: from.u32()?,
        })
    }
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX) // Linux allows 32,767 s
}

impl Buffer {
    fn write(self, out: &mut Writer) {
        out.length(self.bytes);
        out.flag(self.is_fixed);
    }

    fn read(from: &mut Reader<'_>) -> Result<Buffer, StateError> {
        Ok(Buffer { bytes: from.u32()? as usize, is_fixed: from.flag()? })
    }
}
