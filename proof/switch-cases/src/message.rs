//! Control messages as cases write them, and their 128 bytes.
//!
//! This is written from the specification, apart from `core/wire` and the BPF program: a mistake in either shows.

pub(crate) mod numbers;
pub(crate) mod parse;
pub(crate) mod view;

use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use siphasher::sip::SipHasher24;

use crate::mac::Mac;

pub use numbers::{KINDS, STATES, STATUSES, name};

/// Length of a control message in bytes.
pub const MESSAGE_BYTES: usize = 128;

/// The first bytes of control messages.
pub const MAGIC: [u8; 8] = *b"\xf5SPWSWCH";

/// Flag of messages from the switch.
pub const FROM_SWITCH: u16 = 1;

/// The bytes of an address in messages: IPv4 as ::ffff:a.b.c.d.
pub fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address of these bytes.
pub fn address_of(bytes: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
}

/// The 8 bytes of a message's tag.
pub fn tag(key: &[u8; 16], bytes: &[u8]) -> [u8; 8] {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(bytes);
    hasher.finish().to_le_bytes()
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// [`MAGIC`], unless the case alters it.
    pub magic: [u8; 8],
    /// 1, unless the case alters it.
    pub version: u8,
    /// A number of [`KINDS`], or another.
    pub kind: u8,
    /// 0, or [`FROM_SWITCH`].
    pub flags: u16,
    /// Id of the sender.
    pub sender: u32,
    /// Sequence number.
    pub sequence: u64,
    /// Generation, or for *list* which owner.
    pub generation: u64,
    /// 4 or 6; 0 without addresses.
    pub family: u8,
    /// Three bytes without a meaning.
    pub reserved: [u8; 3],
    /// Client's address and port.
    pub client: Option<SocketAddr>,
    /// Service's address and port.
    pub service: Option<SocketAddr>,
    /// Owner's address and port.
    pub owner: Option<SocketAddr>,
    /// Owner's MAC.
    pub mac: Mac,
    /// Load.
    pub load: u32,
    /// Lifetime in milliseconds.
    pub lifetime_ms: u32,
    /// A number of [`STATUSES`].
    pub status: u8,
    /// A number of [`STATES`].
    pub state: u8,
    /// Free places.
    pub free: u32,
    /// Weight.
    pub weight: u16,
    /// Start time of the switch.
    pub epoch: u64,
    /// Key of the tag.
    pub key: [u8; 16],
    /// Bits that are inverted in the tag.
    pub tag_error: u8,
}

impl Message {
    /// A message without a flow.
    pub fn new(kind: u8, sender: u32, key: [u8; 16], sequence: u64, epoch: u64) -> Message {
        Message {
            magic: MAGIC,
            version: 1,
            kind,
            flags: 0,
            sender,
            sequence,
            generation: 0,
            family: 0,
            reserved: [0; 3],
            client: None,
            service: None,
            owner: None,
            mac: Mac::default(),
            load: 0,
            lifetime_ms: 0,
            status: 0,
            state: 0,
            free: 0,
            weight: 0,
            epoch,
            key,
            tag_error: 0,
        }
    }

    /// Sets the family to that of the service.
    pub fn set_family(&mut self) {
        self.family = match self.service {
            None => 0,
            Some(SocketAddr::V4(_)) => 4,
            Some(SocketAddr::V6(_)) => 6,
        };
    }

    /// The message's bytes.
    pub fn bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = Vec::with_capacity(MESSAGE_BYTES);
        bytes.extend(self.magic);
        bytes.extend([self.version, self.kind]);
        bytes.extend(self.flags.to_be_bytes());
        bytes.extend(self.sender.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.generation.to_be_bytes());
        bytes.push(self.family);
        bytes.extend(self.reserved);
        for at in [self.client, self.service, self.owner] {
            bytes.extend(at.map_or([0; 16], |at| address_bytes(at.ip())));
            bytes.extend(at.map_or(0, |at| at.port()).to_be_bytes());
        }
        bytes.extend(self.mac.0);
        bytes.extend(self.load.to_be_bytes());
        bytes.extend(self.lifetime_ms.to_be_bytes());
        bytes.extend([self.status, self.state]);
        bytes.extend(self.free.to_be_bytes());
        bytes.extend(self.weight.to_be_bytes());
        bytes.extend(self.epoch.to_be_bytes());
        let mut tag = tag(&self.key, &bytes);
        tag[0] ^= self.tag_error;
        bytes.extend(tag);
        bytes.try_into().expect("the fields above have 128 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_at_the_offsets_of_the_specification() {
        let at = |text: &str| Some(text.parse().unwrap());
        let mut message = Message::new(4, 0x0102_0304, [9; 16], 0x11, 0x22);
        message.flags = FROM_SWITCH;
        message.generation = 0x33;
        message.client = at("1.2.3.4:258");
        message.service = at("[2001:db8::5]:515");
        message.owner = at("9.8.7.6:772");
        message.mac = Mac([1, 2, 3, 4, 5, 6]);
        (message.load, message.lifetime_ms, message.status, message.state) = (7, 8, 9, 10);
        (message.free, message.weight) = (11, 12);
        message.set_family();
        let bytes = message.bytes();
        assert_eq!(bytes[..12], *b"\xf5SPWSWCH\x01\x04\x00\x01");
        assert_eq!(bytes[12..16], [1, 2, 3, 4]);
        assert_eq!((bytes[23], bytes[31], bytes[32]), (0x11, 0x33, 6));
        assert_eq!(bytes[46..54], [0xff, 0xff, 1, 2, 3, 4, 1, 2]);
        assert_eq!((bytes[54..56].to_vec(), bytes[70..72].to_vec()), (vec![0x20, 0x01], vec![2, 3]));
        assert_eq!(bytes[84..90], [9, 8, 7, 6, 3, 4]);
        assert_eq!(bytes[90..96], [1, 2, 3, 4, 5, 6]);
        assert_eq!((bytes[99], bytes[103], bytes[104], bytes[105]), (7, 8, 9, 10));
        assert_eq!((bytes[109], bytes[111], bytes[119]), (11, 12, 0x22));
        assert_eq!(bytes[120..], tag(&[9; 16], &bytes[..120]));
    }

    /// The first vectors of the reference implementation (Aumasson and Bernstein), `vectors_sip64`.
    #[test]
    fn tags_are_those_of_the_reference() {
        let key: [u8; 16] = std::array::from_fn(|index| u8::try_from(index).unwrap());
        assert_eq!(tag(&key, &[]), [0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72]);
        assert_eq!(tag(&key, &[0]), [0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74]);
    }
}
