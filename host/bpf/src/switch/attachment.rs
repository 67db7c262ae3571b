//! Where the program of a link runs.

use libbpf_rs::Link;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};

use crate::{BpfError, attach};

/// Where the program of a link runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    /// At the interface with this index in the calling thread's network namespace.
    Here(u32),
    /// At an interface of another network namespace.
    Elsewhere,
    /// At none: the interface was removed, or another process has detached the program.
    Nowhere,
}

pub(super) fn info(link: &Link) -> Result<LinkInfo, BpfError> {
    link.info().map_err(BpfError::of("cannot read the link of the switch's program"))
}

/// The index of a link's interface, in whichever network namespace. The kernel reports index 0 for a link without an
/// interface.
pub(super) fn link_index(info: &LinkInfo) -> Option<u32> {
    match &info.info {
        LinkTypeInfo::Xdp(at) if at.ifindex != 0 => Some(at.ifindex),
        _ => None,
    }
}

/// Where a link's program runs. A link has only its interface's index, which another network namespace can have, too: the
/// interface is in this namespace if the link's program is attached there.
pub(super) fn attachment(link: &Link) -> Result<Attachment, BpfError> {
    let before = info(link)?;
    let Some(index) = link_index(&before) else { return Ok(Attachment::Nowhere) };
    if attach::program_at(index) == Some(before.prog_id) {
        return Ok(Attachment::Here(index));
    }
    // The interface may have been removed just now.
    Ok(link_index(&info(link)?).map_or(Attachment::Nowhere, |_| Attachment::Elsewhere))
}
