//! Holds the packets of connections that move to this host's kernel, until it has them.
//!
//! A switch sends a client's packets to the target of a move before the connection is there. The kernel would answer them by
//! resets (Prism, Figure 3). The program copies them to a ring and drops them; [`HeldFlows::release`] gives them to the
//! connection's socket, in order.

mod counters;
mod layout;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use libbpf_rs::{MapFlags, Object, ProgramInput, num_possible_cpus};
use spillway_parts::{SlotKey, Slots};

use self::layout::{FLOW_BYTES, Filled, OVERHEAD_BYTES, Taken};
use crate::attach::{self, AttachError, Attachment, Mode};
use crate::map::Map;
use crate::ring::Ring;
use crate::steer::{Flow, Protocol};
use crate::{BpfError, object};

pub use self::counters::{HeldCounters, HeldOutcome};

const NAME: &str = "hold";
/// The smallest ring has room for a packet of any length.
const RING_BYTES_MIN: u32 = 128 * 1024;
/// The largest ring.
const RING_BYTES_MAX: u32 = 1 << 30;
/// Maximum of `flows_max`.
const FLOWS_MAX: u32 = 65_536;
/// How often a call of [`HeldFlows::release`] looks for further packets: a client that sends faster than packets are injected
/// does not keep the caller.
const ROUNDS_MAX: u32 = 16;
/// The index of `lo` in each network namespace: `LOOPBACK_IFINDEX` of Linux.
const LOOPBACK: i32 = 1;
const ONLY: [u8; 4] = [0; 4];

/// Names a held flow until it is released. A later hold of the same flow has another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold(SlotKey);

/// How much of a flow may wait. A packet beyond a bound is dropped, and its sender repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Packets.
    pub frames_max: u32,
    /// Bytes of these packets, with their IP headers. The window that the connection has advertised, with the headers of its
    /// segments, is what a client may send.
    pub bytes_max: u32,
}

/// Packets of a flow that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Number of packets.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets of the flow that were dropped because there was no room.
    pub dropped_frames: u64,
}

/// How far a release is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// All packets were given to the caller, and later ones go to the kernel.
    Released,
    /// Packets still arrive, and are held. Call [`HeldFlows::release`] again when the file descriptor is readable.
    Draining,
}

/// Why a flow is not held.
#[derive(Debug)]
pub enum HoldError {
    /// The flow is held already.
    Present {
        /// This host's end.
        local: SocketAddr,
        /// The client's end.
        peer: SocketAddr,
    },
    /// As many flows are held as the table has room for.
    TooManyFlows {
        /// The table's room.
        flows_max: u32,
    },
    /// The budgets of all held flows together would exceed the ring.
    NoRoom {
        /// Bytes that the budget takes in the ring.
        needed_bytes: u64,
        /// Bytes that no flow has reserved.
        free_bytes: u64,
    },
    /// The system has failed.
    Bpf(BpfError),
}

impl fmt::Display for HoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldError::Present { local, peer } => {
                write!(f, "the packets of {peer} to {local} are held already: release them first")
            }
            HoldError::TooManyFlows { flows_max } => write!(
                f,
                "{flows_max} connections are moving to this host, which is the maximum: try again when one of them has \
                 arrived"
            ),
            HoldError::NoRoom { needed_bytes, free_bytes } => write!(
                f,
                "no room for a moving connection's packets: {needed_bytes} bytes are needed, {free_bytes} are free"
            ),
            HoldError::Bpf(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HoldError {}

impl From<BpfError> for HoldError {
    fn from(error: BpfError) -> HoldError {
        HoldError::Bpf(error)
    }
}

/// The program with its maps, and the packets that wait. All packets pass until a flow is held.
///
/// The file descriptor is readable when packets have arrived that [`collect`](HeldFlows::collect) takes. A drop detaches the
/// program, and so does the end of the process.
#[derive(Debug)]
pub struct HeldFlows {
    /// Before the maps, so that the program is detached first.
    attachments: Vec<Attachment>,
    object: Object,
    held_count: Map,
    flows: Map,
    buffers: Map,
    taken: Map,
    outcomes: Map,
    packets: Ring<(SlotKey, Vec<u8>)>,
    holds: Slots<Held>,
    /// The holds by the keys of their flows.
    by_flow: HashMap<[u8; FLOW_BYTES], SlotKey>,
    flows_max: u32,
    /// Bytes of the ring that no budget has reserved.
    free_bytes: u64,
}

/// A held flow.
#[derive(Debug)]
struct Held {
    flow: [u8; FLOW_BYTES],
    reserved_bytes: u64,
    /// Packets that were taken out of the ring.
    queue: VecDeque<Vec<u8>>,
    taken: Taken,
}

impl HeldFlows {
    /// Loads the program. It does nothing until it is [attached](Self::attach). `flows_max`: flows that are held at a time, at
    /// most 65,536. `bytes_max`: room for packets of all flows, rounded up to a power of two, at least 128 KiB and at most
    /// 1 GiB. The kernel allocates it at once; as much is allocated while packets wait for a slow caller.
    ///
    /// # Errors
    /// The process lacks CAP_BPF or CAP_NET_ADMIN (it needs both), the kernel is older than 5.18, or has no memory.
    pub fn load(flows_max: u32, bytes_max: u32) -> Result<HeldFlows, BpfError> {
        let cpus = num_possible_cpus().map_err(BpfError::of("cannot count the CPUs"))?;
        let flows_max = flows_max.clamp(1, FLOWS_MAX);
        let ring_bytes = bytes_max.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two();
        let mut object = object::open(NAME, object::HOLD)?;
        for (map, size) in [
            ("held_flows", flows_max),
            ("buffers", flows_max),
            ("taken", flows_max),
            ("copies", cpus.try_into().unwrap_or(u32::MAX)),
            ("held_packets", ring_bytes),
        ] {
            object::set_size(&mut object, map, size)?;
        }
        let object = object::load(NAME, object)?;
        Ok(HeldFlows {
            attachments: Vec::new(),
            held_count: Map::of(&object, "held_count")?,
            flows: Map::of(&object, "held_flows")?,
            buffers: Map::of(&object, "buffers")?,
            taken: Map::of(&object, "taken")?,
            outcomes: Map::of(&object, "outcomes")?,
            packets: Ring::open(&Map::of(&object, "held_packets")?, layout::record)?,
            object,
            holds: Slots::oldest_first(flows_max as usize),
            by_flow: HashMap::new(),
            flows_max,
            // A ring is never filled to its last byte.
            free_bytes: u64::from(ring_bytes) - 8,
        })
    }

    /// Attaches the program to an interface of the calling thread's network namespace on which clients' packets arrive; if the
    /// interface has the program of a switch in host mode, behind that one. To be called for each such interface.
    ///
    /// # Errors
    /// Another program is attached, or the driver refuses this one. `lo` is refused: packets are injected there.
    pub fn attach(&mut self, interface: &str) -> Result<Mode, AttachError> {
        if attach::index_of(interface)? == LOOPBACK {
            return Err(AttachError::Loopback { interface: interface.to_owned() });
        }
        let attachment = Attachment::new_or_behind(&object::program(NAME, &self.object), interface)?;
        let mode = attachment.mode();
        self.attachments.push(attachment);
        Ok(mode)
    }

    /// The interfaces' attachments, in the order of [`attach`](Self::attach).
    pub fn attachments(&self) -> &[Attachment] {
        &self.attachments
    }

    /// Holds the packets of a connection from now on: those from `peer` to `local`, as they arrive at the interface. The budget
    /// is reserved, so that other flows cannot take its room.
    ///
    /// # Errors
    /// The flow is held already, or there is no room for another one.
    pub fn hold(&mut self, local: SocketAddr, peer: SocketAddr, budget: Budget) -> Result<Hold, HoldError> {
        let flow = Flow { protocol: Protocol::Tcp, local, peer }.key();
        if self.by_flow.contains_key(&flow) {
            return Err(HoldError::Present { local, peer });
        }
        let full = HoldError::TooManyFlows { flows_max: self.flows_max };
        let Some(key) = self.holds.next_key().filter(|key| key.slot() < self.flows_max) else {
            return Err(full);
        };
        let needed_bytes = u64::from(budget.bytes_max) + u64::from(budget.frames_max) * OVERHEAD_BYTES;
        if needed_bytes > self.free_bytes {
            return Err(HoldError::NoRoom { needed_bytes, free_bytes: self.free_bytes });
        }
        let slot = key.slot().to_ne_bytes();
        let buffer = layout::empty_buffer(&flow, key.generation(), budget.frames_max, budget.bytes_max);
        // In this order: a run of the program that still has the slot's last flow finds another generation before it finds
        // other numbers.
        self.buffers.set_locked(&slot, &buffer)?;
        self.taken.set(&slot, &Taken::default().value())?;
        self.set_count(self.holds.len() + 1)?;
        self.flows.set(&flow, &layout::held(key))?;
        let held =
            Held { flow, reserved_bytes: needed_bytes, queue: VecDeque::new(), taken: Taken::default() };
        let inserted = self.holds.insert(held);
        debug_assert_eq!(inserted, Some(key), "no entry was added since the key was read");
        self.by_flow.insert(flow, key);
        self.free_bytes -= needed_bytes;
        Ok(Hold(key))
    }

    /// Takes packets out of the ring, which all flows share, and keeps them for their flows. Returns their number.
    ///
    /// # Errors
    /// The kernel refuses to read the ring.
    pub fn collect(&mut self) -> Result<usize, BpfError> {
        let mut packets = 0;
        // Each packet counts in its flow's budget, so the queues are bounded together with the ring.
        while let Some((key, packet)) = self.packets.poll()? {
            // Otherwise the flow was forgotten while the program copied the packet.
            if let Some(held) = self.holds.get_mut(key) {
                held.queue.push_back(packet);
            }
            packets += 1;
        }
        Ok(packets)
    }

    /// Packets of a flow that wait, in the ring or behind it. Zero if the flow is not held any more.
    ///
    /// # Errors
    /// The kernel refuses to read the map.
    pub fn waiting(&self, hold: Hold) -> Result<Waiting, BpfError> {
        let Some(held) = self.holds.get(hold.0) else { return Ok(Waiting::default()) };
        let filled = self.filled(hold.0)?;
        Ok(Waiting {
            frames: filled.frames - held.taken.frames,
            bytes: filled.bytes - held.taken.bytes,
            dropped_frames: filled.dropped_frames,
        })
    }

    /// Gives all packets of a flow to `inject`, in the order of their arrival, and then ends the hold. To be called after the
    /// connection has become live, and again until it returns [`Release::Released`].
    ///
    /// The order holds across the end: from the first call on, the program passes a packet to the kernel only if `inject` has
    /// returned for all before it. Packets for which it cannot do anything count as injected: the client repeats what is lost.
    ///
    /// # Errors
    /// The kernel refuses to read or to change a map. The flow is still held then.
    pub fn release(&mut self, hold: Hold, mut inject: impl FnMut(&[u8])) -> Result<Release, BpfError> {
        let Some(held) = self.holds.get_mut(hold.0) else { return Ok(Release::Released) };
        held.taken.is_draining = true;
        for _ in 0..ROUNDS_MAX {
            self.collect()?;
            let Some(held) = self.holds.get_mut(hold.0) else { return Ok(Release::Released) };
            while let Some(packet) = held.queue.pop_front() {
                inject(&packet);
                held.taken.frames += 1;
                held.taken.bytes += packet.len() as u64;
            }
            let taken = held.taken;
            // In this order: a packet that the program decides on after this reading of `filled`, under the same lock, meets the
            // new value of `taken`, and passes; an earlier one is counted in `filled`.
            self.taken.set(&hold.0.slot().to_ne_bytes(), &taken.value())?;
            if self.filled(hold.0)?.frames == taken.frames {
                self.remove(hold.0)?;
                return Ok(Release::Released);
            }
        }
        Ok(Release::Draining)
    }

    /// Takes the packets of a flow that wait, in the order of their arrival. Later ones are still held.
    ///
    /// # Errors
    /// The kernel refuses to read or to change a map. The packets are lost.
    pub fn take(&mut self, hold: Hold) -> Result<Vec<Vec<u8>>, BpfError> {
        self.collect()?;
        let Some(held) = self.holds.get_mut(hold.0) else { return Ok(Vec::new()) };
        let packets: Vec<Vec<u8>> = held.queue.drain(..).collect();
        held.taken.frames += packets.len() as u64;
        held.taken.bytes += packets.iter().map(|packet| packet.len() as u64).sum::<u64>();
        let taken = held.taken;
        self.taken.set(&hold.0.slot().to_ne_bytes(), &taken.value())?;
        Ok(packets)
    }

    /// Ends the hold of a flow whose move has failed, and returns its packets. Later packets pass to the kernel, which answers
    /// them by resets if it does not have the connection: to be called when the switch does not send such packets here any
    /// more.
    ///
    /// # Errors
    /// The kernel refuses to read or to change a map. Call it again.
    pub fn forget(&mut self, hold: Hold) -> Result<Vec<Vec<u8>>, BpfError> {
        let Some(held) = self.holds.get(hold.0) else { return Ok(Vec::new()) };
        self.flows.remove(&held.flow)?;
        self.collect()?;
        let queue = self.remove(hold.0)?;
        Ok(queue.into())
    }

    /// Number of packets of held flows by outcome, since the program was loaded.
    ///
    /// # Errors
    /// The kernel refuses to read the map.
    pub fn counters(&self) -> Result<HeldCounters, BpfError> {
        let mut counters = HeldCounters::default();
        for (outcome, packets) in HeldOutcome::ALL.into_iter().zip(&mut counters.0) {
            *packets = self.outcomes.sum(outcome as u32)?;
        }
        Ok(counters)
    }

    /// Runs the program a number of times on a frame (`BPF_PROG_TEST_RUN`). Returns its last action, `XDP_PASS` or `XDP_DROP`
    /// as a number, and the mean time of a run. The time of a single run includes a reading of the clock.
    ///
    /// # Errors
    /// The kernel refuses the frame: it is shorter than an Ethernet header or longer than a page.
    pub fn test_run(&self, frame: &[u8], times: u32) -> Result<(u32, Duration), BpfError> {
        let input = ProgramInput { data_in: Some(frame), repeat: times, ..ProgramInput::default() };
        let output = object::program(NAME, &self.object)
            .test_run(input)
            .map_err(BpfError::of("cannot run the program `hold` on a frame"))?;
        Ok((output.return_value, output.duration))
    }

    fn filled(&self, key: SlotKey) -> Result<Filled, BpfError> {
        let value = self.buffers.value(&key.slot().to_ne_bytes(), MapFlags::LOCK)?;
        // The map is an array, so the value exists.
        Ok(value.as_deref().and_then(Filled::parse).unwrap_or_default())
    }

    /// Removes a flow from the program's tables. Returns the packets that were left.
    fn remove(&mut self, key: SlotKey) -> Result<VecDeque<Vec<u8>>, BpfError> {
        let Some(held) = self.holds.get(key) else { return Ok(VecDeque::new()) };
        self.flows.remove(&held.flow)?;
        let Some(held) = self.holds.remove(key) else { return Ok(VecDeque::new()) };
        self.by_flow.remove(&held.flow);
        self.free_bytes += held.reserved_bytes;
        // The flow is gone, and its packets must not be lost with an error. A number that is too large only makes the program look
        // at headers; the next hold sets it again.
        let _ = self.set_count(self.holds.len());
        Ok(held.queue)
    }

    /// Tells the program how many flows are held.
    fn set_count(&self, flows: usize) -> Result<(), BpfError> {
        let count = u32::try_from(flows).unwrap_or(u32::MAX);
        self.held_count.set(&ONLY, &count.to_ne_bytes())
    }
}

impl AsFd for HeldFlows {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.packets.as_fd()
    }
}

impl AsRawFd for HeldFlows {
    fn as_raw_fd(&self) -> RawFd {
        self.packets.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_returned_though_the_number_of_flows_cannot_be_set() {
        let mut held = match HeldFlows::load(1, 0) {
            Err(error) if error.is_unprivileged() => {
                eprintln!("skipped: {error}");
                return;
            }
            result => result.unwrap(),
        };
        let (local, peer) = ("192.0.2.2:7000".parse().unwrap(), "198.51.100.7:40000".parse().unwrap());
        let hold = held.hold(local, peer, Budget { frames_max: 10, bytes_max: 1_000 }).unwrap();
        // Ethernet, IPv4 and TCP, as far as the program reads.
        let mut frame = [0; 54];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14..18].copy_from_slice(&[0x45, 0, 0, 40]);
        frame[23] = 6;
        frame[26..34].copy_from_slice(&[198, 51, 100, 7, 192, 0, 2, 2]);
        frame[34..38].copy_from_slice(&[0x9c, 0x40, 0x1b, 0x58]);
        frame[46] = 0x50;
        held.test_run(&frame, 1).unwrap();
        assert_eq!(held.waiting(hold).unwrap().frames, 1);
        // From now on the kernel refuses to change the map by system calls.
        held.held_count.handle().freeze().unwrap();
        assert!(held.set_count(0).is_err());
        assert_eq!(held.forget(hold).unwrap(), [frame[14..].to_vec()]);
    }
}
