//! Packet loss on a host's cable: a short BPF program at both of its ends.
//!
//! The program runs in XDP, before the receive path joins segments, so that packets are dropped independently of one
//! another, as on a real link. It drops only IPv4: a lost ARP reply would add an unrelated pause of a second.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{LabError, namespace};

// Commands, program types and attach types of bpf(2).
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
// Verdicts of an XDP program.
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
/// Number of the BPF helper that returns 32 random bits.
const GET_PRANDOM_U32: i32 = 7;
/// Enough attributes for both commands; the kernel takes shorter ones than its own.
const ATTRIBUTE_WORDS: usize = 16;

/// Loss on a host's cable, in both directions, until dropped.
#[derive(Debug)]
pub struct Loss {
    /// Closing these descriptors detaches the programs.
    _links: [OwnedFd; 2],
}

impl Loss {
    /// Drops this share (0 to 1) of the IPv4 packets that arrive at two interfaces, given as (namespace, interface).
    pub(crate) fn between(ends: [(&str, &str); 2], share: f64) -> Result<Loss, LabError> {
        if !(0.0..=1.0).contains(&share) {
            return Err(LabError::BadOption(format!(
                "cannot drop a share of {share} of the packets: give 0 to 1"
            )));
        }
        let program = load(&instructions(share)).map_err(LabError::io("cannot load a BPF program (XDP)"))?;
        let [first, second] = ends.map(|(namespace, interface)| {
            namespace::within(namespace, || {
                attach(&program, interface)
                    .map_err(LabError::io(format!("cannot attach a BPF program to {interface} (XDP)")))
            })
        });
        Ok(Loss { _links: [first?, second?] })
    }
}

/// Encodes one BPF instruction: code, registers (target in the low half), offset, immediate.
fn instruction(code: u8, target: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    let mut bytes = [0; 8];
    bytes[0] = code;
    bytes[1] = if cfg!(target_endian = "little") { source << 4 | target } else { target << 4 | source };
    bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
    bytes[4..].copy_from_slice(&immediate.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

fn instructions(share: f64) -> Vec<u64> {
    let threshold = (share * 2f64.powi(32)).round().min(f64::from(u32::MAX)) as u32;
    let ipv4 = i32::from(u16::from_ne_bytes([0x08, 0x00]));
    vec![
        // r2 = packet, r3 = its end; shorter than an Ethernet header: pass
        instruction(0x61, 2, 1, 0, 0),
        instruction(0x61, 3, 1, 4, 0),
        instruction(0xbf, 4, 2, 0, 0),
        instruction(0x07, 4, 0, 0, 14),
        instruction(0x2d, 4, 3, 6, 0),
        // not IPv4: pass
        instruction(0x69, 5, 2, 12, 0),
        instruction(0x55, 5, 0, 4, ipv4),
        // 32 random bits at or above the threshold: pass
        instruction(0x85, 0, 0, 0, GET_PRANDOM_U32),
        instruction(0x36, 0, 0, 2, threshold.cast_signed()),
        instruction(0xb7, 0, 0, 0, XDP_DROP),
        instruction(0x95, 0, 0, 0, 0),
        instruction(0xb7, 0, 0, 0, XDP_PASS),
        instruction(0x95, 0, 0, 0, 0),
    ]
}

fn load(program: &[u64]) -> io::Result<OwnedFd> {
    let license = c"MIT";
    let mut attributes = [0u64; ATTRIBUTE_WORDS];
    attributes[0] = pair(PROG_TYPE_XDP, u32::try_from(program.len()).unwrap_or(u32::MAX));
    attributes[1] = program.as_ptr().addr() as u64;
    attributes[2] = license.as_ptr().addr() as u64;
    // SAFETY: instructions and licence outlive the call and have the lengths in the attributes (the licence ends with a
    // zero); the kernel only reads them.
    unsafe { bpf(PROG_LOAD, &attributes) }
}

/// Attaches to an interface of the calling thread's namespace.
fn attach(program: &OwnedFd, interface: &str) -> io::Result<OwnedFd> {
    let name = CString::new(interface)?;
    // SAFETY: `name` is a zero-terminated string that outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let mut attributes = [0u64; ATTRIBUTE_WORDS];
    attributes[0] = pair(program.as_raw_fd().cast_unsigned(), index);
    attributes[1] = pair(ATTACH_XDP, 0);
    // SAFETY: these attributes hold no pointers.
    unsafe { bpf(LINK_CREATE, &attributes) }
}

/// Joins two neighbouring 32-bit fields of the attributes.
fn pair(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// Calls bpf(2) with a command that returns a descriptor.
///
/// # Safety
/// Pointers in the attributes must be valid for what the command does with them.
unsafe fn bpf(command: libc::c_int, attributes: &[u64; ATTRIBUTE_WORDS]) -> io::Result<OwnedFd> {
    // SAFETY: the size is that of the attributes; the caller guarantees that their pointers are valid.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes) as libc::c_uint)
    };
    let descriptor = i32::try_from(result).unwrap_or(-1);
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just made this descriptor, which has no other owner. These commands set close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_jumps_lead_to_the_pass_verdict() {
        let program = instructions(0.01);
        let pass = program.len() - 2;
        for (at, offset) in [(4, 6), (6, 4), (8, 2)] {
            let bytes = program[at].to_ne_bytes();
            assert_eq!(i16::from_ne_bytes([bytes[2], bytes[3]]), offset);
            assert_eq!(at + 1 + offset as usize, pass);
        }
        let bytes = program[8].to_ne_bytes();
        assert_eq!(u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]), 42_949_673);
    }

    #[test]
    fn shares_outside_0_to_1_are_refused() {
        for share in [-0.1, 1.1, f64::NAN] {
            assert!(matches!(Loss::between([("", ""); 2], share), Err(LabError::BadOption(_))));
        }
    }
}
