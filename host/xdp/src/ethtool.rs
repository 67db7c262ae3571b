//! Queues and offloads of an interface, as `ethtool` shows and sets them (<linux/ethtool.h>).

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use crate::ioctl::ethtool;

/// Work of hardware or kernel on packets before the XDP program runs, which can keep packets from the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Large receive offload: the hardware joins packets, and the result is too long for a frame.
    LargeReceive,
    /// The hardware removes VLAN tags: the XDP program would handle a tagged packet as an untagged one.
    VlanTags,
    /// Generic receive offload: the kernel joins packets. Harmful only in generic mode, where the kernel does
    /// so before the XDP program runs.
    GenericReceive,
}

impl Offload {
    /// The name that `ethtool -K` uses.
    pub fn name(self) -> &'static str {
        match self {
            Offload::LargeReceive => "lro",
            Offload::VlanTags => "rxvlan",
            Offload::GenericReceive => "gro",
        }
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Offload::LargeReceive => "large receive offload (lro)",
            Offload::VlanTags => "removal of VLAN tags (rxvlan)",
            Offload::GenericReceive => "generic receive offload (gro)",
        })
    }
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Channels {
    command: u32,
    receive_max: u32,
    transmit_max: u32,
    other_max: u32,
    combined_max: u32,
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_value`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Value {
    command: u32,
    data: u32,
}

// Numbers of requests, and bits of `ETHTOOL_GFLAGS`.
const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;
const GET_GENERIC_RECEIVE: u32 = 0x2b;
const SET_GENERIC_RECEIVE: u32 = 0x2c;
const GET_CHANNELS: u32 = 0x3c;
const SET_CHANNELS: u32 = 0x3d;
const FLAG_VLAN_TAGS: u32 = 1 << 8;
const FLAG_LARGE_RECEIVE: u32 = 1 << 15;

/// The number of receive queues, including combined ones, which also send.
pub(crate) fn queues(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    Ok(channels(socket, name)?.map_or(1, |channels| 1.max(channels.receive + channels.combined)))
}

/// Sets the number of receive queues to `queues` or the driver's maximum. Returns the new number.
pub(crate) fn set_queues(socket: &OwnedFd, name: &str, queues: u32) -> io::Result<u32> {
    let Some(mut channels) = channels(socket, name)? else { return Ok(1) };
    channels.command = SET_CHANNELS;
    // A driver receives on combined queues or on dedicated ones, not on both.
    match channels.combined_max {
        0 => channels.receive = queues.min(channels.receive_max),
        most => channels.combined = queues.min(most),
    }
    // SAFETY: `Channels` is the structure of this request.
    unsafe { ethtool(socket, name, &mut channels) }?;
    self::queues(socket, name)
}

/// `None`: the driver has no settable channels, and thus one queue.
fn channels(socket: &OwnedFd, name: &str) -> io::Result<Option<Channels>> {
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    // SAFETY: `Channels` is the structure of this request.
    match unsafe { ethtool(socket, name, &mut channels) } {
        Ok(()) => Ok(Some(channels)),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The active offloads that keep packets from the stack in every mode of the XDP program.
pub(crate) fn harmful_offloads(socket: &OwnedFd, name: &str) -> io::Result<Vec<Offload>> {
    let flags = flags(socket, name)?;
    let all = [(FLAG_LARGE_RECEIVE, Offload::LargeReceive), (FLAG_VLAN_TAGS, Offload::VlanTags)];
    Ok(all.into_iter().filter(|(flag, _)| flags & flag != 0).map(|(_, offload)| offload).collect())
}

pub(crate) fn joins_packets(socket: &OwnedFd, name: &str) -> io::Result<bool> {
    let mut value = Value { command: GET_GENERIC_RECEIVE, data: 0 };
    // SAFETY: `Value` is the structure of this request.
    unsafe { ethtool(socket, name, &mut value) }?;
    Ok(value.data != 0)
}

pub(crate) fn turn_off(socket: &OwnedFd, name: &str, offload: Offload) -> io::Result<()> {
    let flag = match offload {
        Offload::LargeReceive => FLAG_LARGE_RECEIVE,
        Offload::VlanTags => FLAG_VLAN_TAGS,
        Offload::GenericReceive => {
            let mut off = Value { command: SET_GENERIC_RECEIVE, data: 0 };
            // SAFETY: `Value` is the structure of this request.
            return unsafe { ethtool(socket, name, &mut off) };
        }
    };
    let mut changed = Value { command: SET_FLAGS, data: flags(socket, name)? & !flag };
    // SAFETY: `Value` is the structure of this request.
    unsafe { ethtool(socket, name, &mut changed) }
}

fn flags(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    let mut flags = Value { command: GET_FLAGS, data: 0 };
    // SAFETY: `Value` is the structure of this request.
    unsafe { ethtool(socket, name, &mut flags) }?;
    Ok(flags.data)
}
