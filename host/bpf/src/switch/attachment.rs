//! Where the program of a link runs.

use std::collections::BTreeMap;

use libbpf_rs::Link;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use spillway_rules::PortId;

use crate::BpfError;
use crate::attach::{self, Mode};

/// Where the program of a link runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    /// At an interface of the calling thread's network namespace.
    Here {
        /// The interface's index.
        index: u32,
        /// The mode in which the program runs.
        mode: Mode,
    },
    /// At an interface of another network namespace.
    Elsewhere,
    /// At no interface: the interface was removed, or another process has detached the program.
    Nowhere,
}

/// Where the program of a port's link runs. `links`: all links of the switch. `leads_to`: the index to which the map `egress`
/// leads for the port; the kernel removes an interface from this map when the interface leaves the network namespace.
///
/// The links of a switch have one program, so that [`attachment`] cannot distinguish a link here from one elsewhere if their
/// interfaces have the same index. Only the one here can be in the map. If neither is, both count as elsewhere: nothing is
/// forwarded to either, and both can be attached anew by their interfaces' names.
pub(super) fn attachment_of(
    port: PortId,
    links: &BTreeMap<PortId, Link>,
    leads_to: Option<u32>,
) -> Result<Attachment, BpfError> {
    let Some(link) = links.get(&port) else { return Ok(Attachment::Nowhere) };
    let found = attachment(link)?;
    match found {
        Attachment::Here { index, .. } if leads_to != Some(index) => {
            for (_, other) in links.iter().filter(|(other, _)| **other != port) {
                if is_at(other, index)? {
                    return Ok(Attachment::Elsewhere);
                }
            }
            Ok(found)
        }
        _ => Ok(found),
    }
}

/// Where a link's program runs, if no other link of the switch has an interface with the same index. A link has only its
/// interface's index, which another network namespace can have, too: the interface is in this namespace if the link's program
/// is attached there.
pub(super) fn attachment(link: &Link) -> Result<Attachment, BpfError> {
    // A list of interfaces that changes while it is read may lack one: read twice before the answer is no.
    for _ in 0..2 {
        let info = info(link)?;
        let Some(index) = link_index(&info) else { return Ok(Attachment::Nowhere) };
        match attach::program_at(index)? {
            Some(found) if found.program_id == info.prog_id => {
                return Ok(Attachment::Here { index, mode: found.mode });
            }
            _ => {}
        }
    }
    // The interface may have been removed just now.
    Ok(link_index(&info(link)?).map_or(Attachment::Nowhere, |_| Attachment::Elsewhere))
}

/// Whether a link has an interface with this index, in whichever network namespace.
pub(super) fn is_at(link: &Link, index: u32) -> Result<bool, BpfError> {
    Ok(link_index(&info(link)?) == Some(index))
}

fn info(link: &Link) -> Result<LinkInfo, BpfError> {
    link.info().map_err(BpfError::of("cannot read the link of the switch's program"))
}

/// The index of a link's interface, in whichever network namespace. The kernel reports index 0 for a link without an
/// interface.
fn link_index(info: &LinkInfo) -> Option<u32> {
    match &info.info {
        LinkTypeInfo::Xdp(at) if at.ifindex != 0 => Some(at.ifindex),
        _ => None,
    }
}
