//! The user-level TCP stack on an interface that it shares with the kernel: one stack for each receive queue, and a
//! thread for each stack.
//!
//! - `ports`: local ports that the kernel does not use
//! - `streams`, `network`: connections that behave as sockets
//! - `stack`: the engine of one thread; `forwarding`: frames that arrive on another thread's queue

mod forwarding;
mod network;
mod ports;
mod stack;
mod streams;

use std::net::Ipv4Addr;
use std::time::{SystemTime, UNIX_EPOCH};

use spillway_bpf::AddressRule;
use spillway_tcp::isn::Key;
use spillway_tcp::{Resolver, Settings};
use spillway_xdp::{Adapter, Interface, RECEIVED_BYTES_MAX, SocketOptions};

use self::forwarding::Forwarding;
pub(crate) use self::stack::Seat;
use crate::Error;
use crate::config::{Config, XdpOptions};

const ETHERNET_BYTES: usize = 14;

/// An interface whose packets for the stacks' ports go to the stacks. Keep it as long as the stacks run.
#[derive(Debug)]
pub(crate) struct SharedInterface {
    /// Detaches the XDP program when dropped.
    _adapter: Adapter,
}

/// Shares an interface of the calling thread's network namespace. Returns what each thread needs for its stack.
pub(crate) fn open(config: &Config, options: &XdpOptions) -> Result<(SharedInterface, Vec<Seat>), Error> {
    let usage = |what: String| Error::Usage(format!("--engine xdp: {what}"));
    let interface = Interface::find(&options.interface).map_err(|error| usage(error.to_string()))?;
    if interface.queues != config.threads {
        return Err(usage(threads_differ(&interface, config.threads)));
    }
    let (address, prefix) = interface
        .address()
        .map_err(|error| Error::system("cannot read the interface's address", error))?
        .ok_or_else(|| {
            let name = &interface.name;
            usage(format!("interface {name} has no IPv4 address: `ip addr add ADDRESS/PREFIX dev {name}`"))
        })?;
    let ports = ports::choose(options.ports.clone(), address, config.connections).map_err(usage)?;
    let rule = AddressRule { ports: Some(ports.clone()), is_separate: false };
    let prepare = |steer: &spillway_bpf::Steer| steer.set_address(address.into(), &rule);
    let mut adapter = Adapter::open(&options.interface, SocketOptions::default(), prepare)
        .map_err(|error| usage(error.to_string()))?;
    let settings = settings(&interface, address, prefix)?;
    let shares = ports::shares(&ports, config.threads);
    let forwarding: Vec<_> = match shares.len() {
        1 => vec![None],
        _ => Forwarding::between(&shares)?.into_iter().map(Some).collect(),
    };
    let seats = adapter
        .take_sockets()
        .into_iter()
        .zip(shares)
        .zip(forwarding)
        .map(|((socket, ports), forwarding)| Seat {
            socket,
            interface: interface.clone(),
            settings: Settings { ports, ..settings.clone() },
            forwarding,
        })
        .collect();
    Ok((SharedInterface { _adapter: adapter }, seats))
}

fn threads_differ(interface: &Interface, threads: u32) -> String {
    let (name, queues) = (&interface.name, interface.queues);
    format!(
        "interface {name} has {queues} receive queues and --threads is {threads}, but each queue needs a thread: give \
         --threads {queues}, or change the queues with `ethtool -L {name}`"
    )
}

fn settings(interface: &Interface, address: Ipv4Addr, prefix: u8) -> Result<Settings, Error> {
    // A fresh key makes this run's ports and sequence numbers differ from those of earlier runs, whose connections the
    // server may still have.
    let key =
        spillway_keys::fresh_nonce().map_err(|error| Error::system("cannot get random bytes", error))?;
    let mut settings = Settings::new(interface.mac, address, prefix, Key(key));
    settings.resolver = Resolver::Driver;
    let mtu_max = RECEIVED_BYTES_MAX - ETHERNET_BYTES;
    settings.mtu = u16::try_from(mtu_max.min(interface.mtu as usize)).unwrap_or(settings.mtu);
    settings.clock_at_zero = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(settings)
}
