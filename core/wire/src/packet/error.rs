//! What can be wrong with a packet.

use core::fmt;

/// The header that was being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// IEEE 802.3.
    Ethernet,
    /// RFC 826.
    Arp,
    /// RFC 791.
    Ipv4,
    /// RFC 8200.
    Ipv6,
    /// RFC 792, RFC 4443, RFC 4861.
    Icmp,
    /// RFC 768.
    Udp,
    /// RFC 9293.
    Tcp,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Ethernet => "Ethernet",
            Layer::Arp => "ARP",
            Layer::Ipv4 => "IPv4",
            Layer::Ipv6 => "IPv6",
            Layer::Icmp => "ICMP",
            Layer::Udp => "UDP",
            Layer::Tcp => "TCP",
        })
    }
}

/// Why a packet is not taken: the layer and the cause. Whoever sent it, or the network, is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketError {
    /// It ends before its header does, or before its own length says.
    Truncated(Layer),
    /// Another version, or another kind of address.
    Version(Layer),
    /// The header's length is below the smallest.
    HeaderLength(Layer),
    /// The length is below the header's.
    Length(Layer),
    /// It was damaged on its way.
    Checksum(Layer),
    /// A part of a larger packet. Fragments are not put together: TCP avoids them by path MTU discovery.
    Fragment(Layer),
    /// An extension header that is not followed, with its number.
    Extension(u8),
    /// An option that may not be passed over, with its kind.
    Option(Layer, u8),
    /// An operation, with its code, that is not known.
    Operation(Layer, u16),
    /// A field has a value that its RFC forbids.
    Field(Layer),
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PacketError::Truncated(layer) => write!(f, "{layer}: the packet is cut short"),
            PacketError::Version(layer) => write!(f, "{layer}: not the version or the addresses we speak"),
            PacketError::HeaderLength(layer) => write!(f, "{layer}: impossible header length"),
            PacketError::Length(layer) => write!(f, "{layer}: the length is below the header's"),
            PacketError::Checksum(layer) => write!(f, "{layer}: wrong checksum"),
            PacketError::Fragment(layer) => write!(f, "{layer}: a fragment"),
            PacketError::Extension(number) => write!(f, "IPv6: extension header {number} is not followed"),
            PacketError::Option(layer, kind) => write!(f, "{layer}: option {kind} may not be passed over"),
            PacketError::Operation(layer, code) => write!(f, "{layer}: operation {code} is not known"),
            PacketError::Field(layer) => write!(f, "{layer}: a field has a forbidden value"),
        }
    }
}

impl core::error::Error for PacketError {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn an_error_names_the_layer_and_the_cause() {
        assert_eq!(PacketError::Checksum(Layer::Tcp).to_string(), "TCP: wrong checksum");
        assert_eq!(PacketError::Fragment(Layer::Ipv4).to_string(), "IPv4: a fragment");
        assert_eq!(PacketError::Extension(43).to_string(), "IPv6: extension header 43 is not followed");
        assert_eq!(PacketError::Operation(Layer::Arp, 8).to_string(), "ARP: operation 8 is not known");
    }
}
