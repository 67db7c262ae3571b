//! Errors of packets.

use core::fmt;

/// The protocol whose header or message was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// Ethernet (IEEE 802.3).
    Ethernet,
    /// ARP (RFC 826).
    Arp,
    /// IPv4 (RFC 791).
    Ipv4,
    /// IPv6 (RFC 8200).
    Ipv6,
    /// ICMP of IPv4 (RFC 792) or IPv6 (RFC 4443, RFC 4861).
    Icmp,
    /// UDP (RFC 768).
    Udp,
    /// TCP (RFC 9293).
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

/// Why a packet is refused: the layer and the cause. The fault lies with the sender or the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketError {
    /// The packet is shorter than its header, or than the length in the header.
    Truncated(Layer),
    /// The version or the type of addresses is not supported.
    Unsupported(Layer),
    /// The header length is below the minimum.
    HeaderLength(Layer),
    /// The packet's length field is smaller than the header.
    Length(Layer),
    /// The checksum is wrong.
    Checksum(Layer),
    /// The packet is a fragment. Fragments are not reassembled: TCP avoids them by path MTU discovery.
    Fragment(Layer),
    /// The IPv6 extension header of this number is malformed, misplaced or not supported.
    Extension(u8),
    /// The option of this kind is malformed, or unknown and must not be skipped.
    Option(Layer, u8),
    /// The operation with this code is unknown.
    Operation(Layer, u16),
    /// A field has a value that its RFC forbids.
    Field(Layer),
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PacketError::Truncated(layer) => write!(f, "{layer}: the packet is truncated"),
            PacketError::Unsupported(layer) => write!(f, "{layer}: unsupported version or address type"),
            PacketError::HeaderLength(layer) => write!(f, "{layer}: the header length is below the minimum"),
            PacketError::Length(layer) => write!(f, "{layer}: the length field is below the header length"),
            PacketError::Checksum(layer) => write!(f, "{layer}: wrong checksum"),
            PacketError::Fragment(layer) => write!(f, "{layer}: fragments are not supported"),
            PacketError::Extension(number) => {
                write!(f, "IPv6: extension header {number} is invalid or not supported")
            }
            PacketError::Option(layer, kind) => {
                write!(f, "{layer}: invalid option {kind}, or unknown and not skippable")
            }
            PacketError::Operation(layer, code) => write!(f, "{layer}: unknown operation {code}"),
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
        assert_eq!(PacketError::Fragment(Layer::Ipv4).to_string(), "IPv4: fragments are not supported");
        assert_eq!(
            PacketError::Extension(43).to_string(),
            "IPv6: extension header 43 is invalid or not supported"
        );
        assert_eq!(PacketError::Operation(Layer::Arp, 8).to_string(), "ARP: unknown operation 8");
    }
}
