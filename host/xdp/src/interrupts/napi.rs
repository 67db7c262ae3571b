//! Settings of an interface's receive loops (NAPI), by generic netlink
//! (Documentation/netlink/specs/netdev.yaml). Linux 6.13 or later.

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkPayload, Nla,
    NlasIterator, Parseable, ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;

use crate::netlink;

/// Buffer for one datagram of the kernel's answer, which may have several.
const PART_BYTES_MAX: usize = 64 * 1024;

/// How long a receive loop polls by a timer, with its queue's interrupt off
/// (Documentation/networking/napi.rst, "Software IRQ coalescing"). Both values are zero without deferral.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Deferral {
    /// Polls without a packet after which the kernel enables the interrupt again (`napi_defer_hard_irqs`).
    pub empty_polls: u32,
    /// Time between two polls (`gro_flush_timeout`).
    pub interval: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Napi {
    /// The kernel's number of the loop.
    pub id: u32,
    /// The loop's setting at the time of the listing.
    pub deferral: Deferral,
}

#[derive(Debug)]
pub(super) struct NapiSocket {
    socket: Socket,
    family: u16,
}

impl NapiSocket {
    /// Opens a socket to the kernel, in the calling thread's network namespace.
    pub fn open() -> io::Result<NapiSocket> {
        let socket = netlink::connect(NETLINK_GENERIC)?;
        let named = GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(Netdev::family_name().to_owned())],
        };
        let answers = request(&socket, GenlMessage::from_payload(named), NLM_F_ACK)?;
        let id = |attribute: &GenlCtrlAttrs| match attribute {
            GenlCtrlAttrs::FamilyId(id) => Some(*id),
            _ => None,
        };
        let family = answers.iter().find_map(|answer| answer.payload.nlas.iter().find_map(id));
        let family = family.ok_or(io::ErrorKind::Unsupported)?;
        Ok(NapiSocket { socket, family })
    }

    /// The receive loops of the interface with this index. Before Linux 6.13: an empty list or an error.
    pub fn list(&self, interface: u32) -> io::Result<Vec<Napi>> {
        let of_interface = Netdev::new(NAPI_GET, vec![attribute(NAPI_IFINDEX, interface)]);
        let answers = request(&self.socket, self.message(of_interface), NLM_F_DUMP)?;
        Ok(answers.iter().filter_map(|answer| answer.payload.napi()).collect())
    }

    /// Changes the setting of a receive loop. Needs CAP_NET_ADMIN.
    pub fn set(&self, id: u32, deferral: Deferral) -> io::Result<()> {
        let nanoseconds = u32::try_from(deferral.interval.as_nanos()).unwrap_or(u32::MAX);
        let attributes = vec![
            attribute(NAPI_ID, id),
            attribute(NAPI_DEFER_HARD_IRQS, deferral.empty_polls),
            attribute(NAPI_GRO_FLUSH_TIMEOUT, nanoseconds),
        ];
        request(&self.socket, self.message(Netdev::new(NAPI_SET, attributes)), NLM_F_ACK).map(drop)
    }

    fn message(&self, payload: Netdev) -> GenlMessage<Netdev> {
        let mut message = GenlMessage::from_payload(payload);
        message.set_resolved_family_id(self.family);
        message
    }
}

/// Sends a request and returns the kernel's answers. `flags` must have [`NLM_F_ACK`] or [`NLM_F_DUMP`]: only
/// then the kernel marks the end of its answers.
fn request<F>(socket: &Socket, message: GenlMessage<F>, flags: u16) -> io::Result<Vec<GenlMessage<F>>>
where
    F: GenlFamily + Emitable + ParseableParametrized<[u8], GenlHeader> + Debug + 'static,
{
    netlink::send(socket, message, NLM_F_REQUEST | flags, 0)?;
    let (mut answers, mut part) = (Vec::new(), Vec::with_capacity(PART_BYTES_MAX));
    loop {
        part.clear();
        socket.recv(&mut part, 0)?;
        for message in netlink::messages(&part) {
            match message.map_err(io::Error::other)?.payload {
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                _ => {}
            }
        }
    }
}

// Commands and attributes of <linux/netdev.h>.
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;
const NAPI_IFINDEX: u16 = 1;
const NAPI_ID: u16 = 2;
const NAPI_DEFER_HARD_IRQS: u16 = 5;
const NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;

/// A message of the netlink family `netdev`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Netdev {
    command: u8,
    attributes: Vec<DefaultNla>,
}

impl Netdev {
    fn new(command: u8, attributes: Vec<DefaultNla>) -> Netdev {
        Netdev { command, attributes }
    }

    /// The value of an integer attribute, which has 4 or 8 bytes.
    fn number(&self, kind: u16) -> Option<u64> {
        let attribute = self.attributes.iter().find(|attribute| attribute.kind() == kind)?;
        let mut value = [0; 8];
        let length = attribute.value_len();
        attribute.emit_value(value.get_mut(..length)?);
        match length {
            4 => Some(u64::from(u32::from_ne_bytes([value[0], value[1], value[2], value[3]]))),
            8 => Some(u64::from_ne_bytes(value)),
            _ => None,
        }
    }

    /// The receive loop that an answer describes; `None` for a kernel before Linux 6.13, which has no such settings.
    fn napi(&self) -> Option<Napi> {
        let small = |kind| self.number(kind).and_then(|number| u32::try_from(number).ok());
        let interval = Duration::from_nanos(self.number(NAPI_GRO_FLUSH_TIMEOUT)?);
        Some(Napi {
            id: small(NAPI_ID)?,
            deferral: Deferral { empty_polls: small(NAPI_DEFER_HARD_IRQS)?, interval },
        })
    }
}

fn attribute(kind: u16, number: u32) -> DefaultNla {
    DefaultNla::new(kind, number.to_ne_bytes().to_vec())
}

impl GenlFamily for Netdev {
    fn family_name() -> &'static str {
        "netdev"
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Netdev {
    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Netdev {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Netdev, DecodeError> {
        let attributes =
            NlasIterator::new(bytes).map(|found| DefaultNla::parse(&found?)).collect::<Result<_, _>>()?;
        Ok(Netdev { command: header.cmd, attributes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_the_kernel_have_four_or_eight_bytes() {
        let wide = DefaultNla::new(NAPI_GRO_FLUSH_TIMEOUT, 200_000_u64.to_ne_bytes().to_vec());
        let napi = |timeout| {
            Netdev::new(NAPI_GET, vec![attribute(NAPI_ID, 7), attribute(NAPI_DEFER_HARD_IRQS, 2), timeout])
                .napi()
        };
        let deferral = Deferral { empty_polls: 2, interval: Duration::from_micros(200) };
        assert_eq!(napi(wide), Some(Napi { id: 7, deferral }));
        assert_eq!(napi(attribute(NAPI_GRO_FLUSH_TIMEOUT, 200_000)), Some(Napi { id: 7, deferral }));
        let odd = DefaultNla::new(NAPI_GRO_FLUSH_TIMEOUT, vec![1; 9]);
        assert_eq!(napi(odd), None, "no such integer");
        assert_eq!(Netdev::new(NAPI_GET, vec![attribute(NAPI_ID, 7)]).napi(), None, "a kernel before 6.13");
    }

    #[test]
    fn attributes_survive_encoding() {
        let message = Netdev::new(NAPI_SET, vec![attribute(NAPI_ID, 7), attribute(NAPI_DEFER_HARD_IRQS, 2)]);
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let parsed = Netdev::parse_with_param(&bytes, GenlHeader { cmd: NAPI_SET, version: 1 });
        assert_eq!(parsed.unwrap(), message);
        bytes.truncate(bytes.len() - 1);
        assert!(Netdev::parse_with_param(&bytes, GenlHeader { cmd: NAPI_SET, version: 1 }).is_err());
    }
}
