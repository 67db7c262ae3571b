//! Keys and values of the switch's maps, as `c/switch/maps.h` defines them.
//!
//! Numbers are in the machine's byte order; ports of TCP and UDP are in network order.

use spillway_auth::SwitchKey;
use spillway_rules::config::{Encapsulation, Place, Port, Server};
use spillway_rules::{Address, Endpoint, Mode, PortId, ServerId, ServiceId};
use spillway_wire::packet::ethernet::Mac;

/// `LAYOUT_VERSION` in `c/switch/settings.h`.
pub(super) const LAYOUT_VERSION: u32 = 5;
/// `PORT_NONE` in `c/switch/settings.h`: the port of an address that is a server's, but no configured station's.
pub(super) const PORT_NONE: u8 = 255;
/// The key of an array's only element, or of its first one.
pub(super) const ONLY: [u8; 4] = [0; 4];

/// Bytes of `struct server`.
const SERVER_BYTES: usize = 48;
/// Bits of a prefix before its address: the byte with the family.
const FAMILY_BITS: u32 = 8;
/// Bits of an IPv4-mapped address before the IPv4 address.
const MAPPED_BITS: u32 = 96;

/// Appends the fields of a structure, and checks its size.
struct Writer(Vec<u8>);

impl Writer {
    fn new() -> Writer {
        Writer(Vec::new())
    }

    fn bytes(mut self, bytes: &[u8]) -> Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(self, number: u8) -> Writer {
        self.bytes(&[number])
    }

    fn u16(self, number: u16) -> Writer {
        self.bytes(&number.to_ne_bytes())
    }

    fn u32(self, number: u32) -> Writer {
        self.bytes(&number.to_ne_bytes())
    }

    fn u64(self, number: u64) -> Writer {
        self.bytes(&number.to_ne_bytes())
    }

    fn mac(self, mac: Mac) -> Writer {
        self.bytes(&mac.0)
    }

    fn endpoint(self, endpoint: Endpoint) -> Writer {
        self.bytes(&endpoint.address()).bytes(&endpoint.port().to_be_bytes()).u16(0)
    }

    fn finish(self, bytes: usize) -> Vec<u8> {
        debug_assert_eq!(self.0.len(), bytes, "the size of the structure in c/switch/maps.h");
        self.0
    }
}

/// Reads the fields of a structure.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// The next `N` bytes. Values of maps have the size that the program's source gives them.
    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the structure has this field");
        self.0 = rest;
        *field
    }

    pub(super) fn skip<const N: usize>(&mut self) {
        self.array::<N>();
    }

    pub(super) fn u8(&mut self) -> u8 {
        let [number] = self.array();
        number
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.array())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.array())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.array())
    }

    /// A port of TCP or UDP.
    pub(super) fn port(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }
}

/// The key of a port in the maps `egress` and `ports`, and its value in `interfaces`.
pub(super) fn port_key(port: PortId) -> [u8; 4] {
    u32::from(port.number()).to_ne_bytes()
}

/// An interface's index in the map `egress`.
pub(super) fn index(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The key of an interface's element in the map `interface_slots`.
pub(super) fn interface_slot_key(index: u32) -> [u8; 4] {
    /// `INTERFACE_SLOTS` in `c/switch/settings.h`.
    const INTERFACE_SLOTS: u32 = 256;
    (index % INTERFACE_SLOTS).to_ne_bytes()
}

/// `struct interface_slot`; without a port the empty one.
pub(super) fn interface_slot(content: Option<(u32, PortId)>) -> Vec<u8> {
    let (index, number) = content.map_or((0, 0), |(index, port)| (index, u32::from(port.number()) + 1));
    Writer::new().u32(index).u32(number).finish(8)
}

/// Whether an element of `interface_slots` has the interface of this index.
pub(super) fn is_slot_of(slot: &[u8], index: u32) -> bool {
    slot.get(..4) == Some(&index.to_ne_bytes())
}

/// `struct settings`.
pub(super) struct Settings {
    pub(super) control_port: u16,
    /// The address of the first control endpoint; zero without one.
    pub(super) control_address: Address,
    pub(super) server_last: u8,
    pub(super) epoch: u64,
    pub(super) owner_timeout_ns: u64,
    pub(super) is_host: bool,
    /// The id of the local server; 0 without one.
    pub(super) local: u8,
}

impl Settings {
    const BYTES: usize = 48;

    pub(super) fn value(&self) -> Vec<u8> {
        Writer::new()
            .u32(LAYOUT_VERSION)
            .bytes(&self.control_port.to_be_bytes())
            .u16(self.server_last.into())
            .u64(self.epoch)
            .u64(self.owner_timeout_ns)
            .u8(self.is_host.into())
            .u8(self.local)
            .bytes(&[0; 6])
            .bytes(&self.control_address.0)
            .finish(Settings::BYTES)
    }

    /// The mode of pinned settings that have this layout.
    pub(super) fn mode(value: &[u8]) -> Option<Mode> {
        const IS_HOST: usize = 24;
        value.get(IS_HOST).map(|is_host| if *is_host == 0 { Mode::Gateway } else { Mode::Host })
    }

    /// The layout's version and the epoch of pinned settings.
    pub(super) fn version_and_epoch(value: &[u8]) -> Option<(u32, u64)> {
        let version = u32::from_ne_bytes(*value.first_chunk()?);
        // In a foreign layout these bytes may be something else: the caller compares the version first.
        let epoch = value.get(8..16).and_then(|bytes| bytes.first_chunk());
        Some((version, u64::from_ne_bytes(*epoch?)))
    }
}

/// `struct shared` of a switch to which no owner has sent a message. Its first generation follows `epoch`.
pub(super) fn shared(epoch: u64) -> Vec<u8> {
    Writer::new().u64(0).u64(epoch).u64(0).u64(0).u64(0).finish(40)
}

/// `struct port`. `is_internal`: the port has no interface, and accepts only control messages.
pub(super) fn port(port: Option<&Port>, is_internal: bool) -> Vec<u8> {
    let (mac, is_server, mtu) =
        port.map_or((Mac::ZERO, false, 0), |port| (port.mac, port.is_server, port.mtu));
    Writer::new().mac(mac).u8(is_server.into()).u8(is_internal.into()).u16(mtu).finish(10)
}

/// `struct station_key`.
pub(super) fn station_key(mac: Mac) -> Vec<u8> {
    Writer::new().mac(mac).u16(0).finish(8)
}

/// `struct station`. `server`: 0 if the station is not a server.
pub(super) fn station(port: u8, server: u8) -> Vec<u8> {
    Writer::new().u8(port).u8(server).u16(0).finish(4)
}

/// `struct prefix`.
pub(super) fn prefix(address: Address, length: u8) -> Vec<u8> {
    let (family, before) = if address.is_ipv4() { (4, MAPPED_BITS) } else { (6, 0) };
    Writer::new()
        .u32(FAMILY_BITS + before + u32::from(length))
        .u8(family)
        .bytes(&address.0)
        .bytes(&[0; 3])
        .finish(24)
}

/// `struct next_hop`.
pub(super) fn next_hop(mac: Mac, port: u8) -> Vec<u8> {
    Writer::new().mac(mac).u8(port).u8(0).finish(8)
}

/// `struct endpoint`.
pub(super) fn endpoint(endpoint: Endpoint) -> Vec<u8> {
    Writer::new().endpoint(endpoint).finish(20)
}

/// `struct place`. `may_own_ports`: bit n is set if the servers at port n may own the service. `flows_max`: the maximum
/// number of the service's flows with an entry.
pub(super) fn place(place: &Place, may_own_ports: u64, flows_max: u64) -> Vec<u8> {
    Writer::new()
        .endpoint(place.service)
        .u16(place.number.0.into())
        .u8(place.server.0)
        .u8(place.is_endpoint().into())
        .u64(may_own_ports)
        .u64(flows_max)
        .finish(40)
}

/// Decodes `struct place` and its key.
pub(super) fn read_place(at: &[u8], place: &[u8]) -> Option<Place> {
    let endpoint = |reader: &mut Reader<'_>| {
        let address = reader.array();
        let endpoint = Endpoint::new(address, reader.port());
        reader.skip::<2>();
        endpoint
    };
    let at = endpoint(&mut Reader::new(at));
    let mut reader = Reader::new(place);
    let service = endpoint(&mut reader);
    let number = ServiceId(u8::try_from(reader.u16()).ok()?);
    Some(Place { at, service, number, server: ServerId(reader.u8()) })
}

/// Decodes `struct server` and its key; `None` for the daemon, and for an id that is not configured.
pub(super) fn read_server(id: &[u8], server: &[u8]) -> Option<Server> {
    let id = Reader::new(id).u32();
    let mut reader = Reader::new(server);
    let (key, address, mac) = (reader.array(), reader.array(), reader.array());
    let (port, is_configured) = (reader.u8(), reader.u8() != 0);
    let (next_hop, is_encapsulated) = (Mac(reader.array()), reader.u8() != 0);
    let id = u8::try_from(id).ok().filter(|id| *id != 0 && is_configured)?;
    Some(Server {
        id: ServerId(id),
        key: SwitchKey::from_bytes(key),
        address: Address(address),
        mac: Mac(mac),
        port: PortId::new(port)?,
        encapsulation: is_encapsulated.then_some(Encapsulation { next_hop }),
    })
}

/// Whether two values of `struct server` are configured servers with one key.
pub(super) fn is_same_sender(one: &[u8], other: &[u8]) -> bool {
    const IS_CONFIGURED: usize = 39;
    one[..16] == other[..16] && one[IS_CONFIGURED] != 0 && other[IS_CONFIGURED] != 0
}

/// `struct server` of a configured server. `port`: its number, or that of the local server's port.
pub(super) fn server(server: &Server, port: PortId) -> Vec<u8> {
    let next_hop = server.encapsulation.map_or(server.mac, |encapsulation| encapsulation.next_hop);
    Writer::new()
        .bytes(server.key.as_bytes())
        .bytes(&server.address.0)
        .mac(server.mac)
        .u8(port.number())
        .u8(1)
        .mac(next_hop)
        .u8(server.encapsulation.is_some().into())
        .u8(0)
        .finish(SERVER_BYTES)
}

/// `struct server` of an id that is not configured.
pub(super) fn no_server() -> Vec<u8> {
    vec![0; SERVER_BYTES]
}

#[cfg(test)]
mod tests {
    use spillway_rules::times::{AFTER_FINS, AFTER_RETURN, AFTER_RST, GAP_MAX};
    use spillway_wire::switch::LIFETIME_MS_MAX;

    use super::*;

    #[test]
    fn the_program_has_the_times_of_the_rules() {
        let settings = include_str!("../../c/switch/settings.h");
        for (name, time) in [
            ("AFTER_RST", AFTER_RST),
            ("AFTER_FINS", AFTER_FINS),
            ("AFTER_RETURN", AFTER_RETURN),
            ("GAP_MAX", GAP_MAX),
        ] {
            let line = format!("#define {name}_NS ({} * NS_PER_MS)\n", time.as_millis());
            assert!(settings.contains(&line), "c/switch/settings.h must have: {line}");
        }
        let line = format!("#define LIFETIME_MS_MAX {LIFETIME_MS_MAX}\n");
        assert!(settings.contains(&line), "c/switch/settings.h must have: {line}");
    }

    #[test]
    fn prefixes_of_the_two_families_differ_in_their_first_byte() {
        let v4 = prefix("10.0.0.0".parse::<std::net::IpAddr>().unwrap().into(), 8);
        assert_eq!(v4[..5], [&112_u32.to_ne_bytes()[..], &[4]].concat());
        let default_v6 = prefix(Address::ZERO, 0);
        assert_eq!(default_v6[..5], [&8_u32.to_ne_bytes()[..], &[6]].concat());
    }

    #[test]
    fn a_foreign_layout_is_recognized_by_its_first_bytes() {
        let ours = Settings {
            control_port: 1,
            control_address: Address::ZERO,
            server_last: 2,
            epoch: 3,
            owner_timeout_ns: 4,
            is_host: true,
            local: 5,
        }
        .value();
        assert_eq!(Settings::version_and_epoch(&ours), Some((LAYOUT_VERSION, 3)));
        assert_eq!(Settings::version_and_epoch(&ours[..3]), None);
        assert_eq!((Settings::mode(&ours), Settings::mode(&ours[..24])), (Some(Mode::Host), None));
    }
}
