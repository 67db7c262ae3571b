//! The PROXY protocol, versions 1 and 2: a load balancer sends a header with its client's address ahead of the client's
//! bytes (haproxy's `doc/proxy-protocol.txt`, of 2020/03/05).
//!
//! Only the receiver's side is implemented. The caller must check first that the peer is trusted.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str;

use crate::cursor::{Cursor, Truncated};

/// Maximum bytes of an accepted header. Headers of load balancers are far shorter, even with TLVs for certificate
/// names. The specification limits version 1 to 107 bytes and version 2 to 65,551.
pub const PROXY_BYTES_MAX: usize = 4096;

/// Maximum bytes of version 1's line, including the end of line (§2.1).
const TEXT_BYTES_MAX: usize = 107;
const TEXT_SIGNATURE: &[u8] = b"PROXY ";
const BINARY_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2's fixed part: signature, version and command, family and transport, length.
const BINARY_HEAD_BYTES: usize = 16;
const UNIX_ADDRESS_BYTES: usize = 216;
const TLV_CRC32C: u8 = 0x03;

/// A complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The client's address. `None` if the connection is the peer's own (a health check) or its client has no IP
    /// address: then use the address of the connection.
    pub client: Option<SocketAddr>,
    /// Bytes of the header. The client's bytes follow it.
    pub bytes: usize,
}

/// Why a header is refused. The caller must end the connection: the specification forbids guessing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyError {
    /// The connection begins with the signature of neither version.
    Signature,
    /// The header is longer than the limit of its version.
    TooLong,
    /// Version 1: the line is malformed.
    Line,
    /// Version 2: this byte has another version or an unknown command.
    VersionOrCommand(u8),
    /// Version 2: this byte has an unknown family or transport, or a transport other than a stream.
    FamilyOrTransport(u8),
    /// Version 2: the header is too short for the addresses of its family or for its TLVs.
    Length,
    /// Version 2: the CRC-32C in the header is wrong.
    Checksum,
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProxyError::Signature => f.write_str("no PROXY protocol header at its beginning"),
            ProxyError::TooLong => write!(
                f,
                "its PROXY header is longer than {TEXT_BYTES_MAX} bytes in version 1, or {PROXY_BYTES_MAX} in version 2"
            ),
            ProxyError::Line => f.write_str("its PROXY line is malformed"),
            ProxyError::VersionOrCommand(byte) => {
                write!(f, "unknown version or command {byte:#04x} in its PROXY header")
            }
            ProxyError::FamilyOrTransport(byte) => {
                write!(f, "family and transport {byte:#04x} in its PROXY header are not those of a stream")
            }
            ProxyError::Length => f.write_str("the lengths in its PROXY header contradict each other"),
            ProxyError::Checksum => f.write_str("the checksum in its PROXY header is wrong"),
        }
    }
}

impl core::error::Error for ProxyError {}

impl From<Truncated> for ProxyError {
    fn from(_: Truncated) -> ProxyError {
        ProxyError::Length
    }
}

/// Parses the header at the beginning of a connection. Returns `None` while the header is incomplete: call again with
/// all bytes from the beginning. Never returns `None` for [`PROXY_BYTES_MAX`] bytes or more.
pub fn parse_proxy(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    if is_prefix_compatible(bytes, TEXT_SIGNATURE) {
        return parse_text(bytes);
    }
    if is_prefix_compatible(bytes, BINARY_SIGNATURE) {
        return parse_binary(bytes);
    }
    Err(ProxyError::Signature)
}

/// Whether `bytes` starts with `signature`, or may do so when more bytes have arrived.
fn is_prefix_compatible(bytes: &[u8], signature: &[u8]) -> bool {
    let common = bytes.len().min(signature.len());
    bytes[..common] == signature[..common]
}

fn parse_text(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let line_range = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    let Some(end) = line_range.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < TEXT_BYTES_MAX { Ok(None) } else { Err(ProxyError::TooLong) };
    };
    let line = str::from_utf8(&bytes[..end]).map_err(|_| ProxyError::Line)?;
    let client = parse_text_client(line).ok_or(ProxyError::Line)?;
    Ok(Some(ProxyHeader { client, bytes: end + 2 }))
}

/// Parses `PROXY TCP4 source target source-port target-port`, separated by single spaces.
fn parse_text_client(line: &str) -> Option<Option<SocketAddr>> {
    let mut words = line.split(' ').skip(1);
    let is_v4 = match words.next()? {
        // §2.1: the receiver ignores the rest of the line.
        "UNKNOWN" => return Some(None),
        "TCP4" => true,
        "TCP6" => false,
        _ => return None,
    };
    let address = |word: &str| -> Option<IpAddr> {
        if is_v4 { word.parse::<Ipv4Addr>().ok().map(IpAddr::V4) } else { word.parse().ok().map(IpAddr::V6) }
    };
    let (source, _target) = (address(words.next()?)?, address(words.next()?)?);
    let (source_port, _target_port) = (parse_port(words.next()?)?, parse_port(words.next()?)?);
    words.next().is_none().then(|| Some(SocketAddr::new(source, source_port)))
}

/// Parses a decimal port without sign and without leading zeros.
fn parse_port(word: &str) -> Option<u16> {
    let is_canonical =
        word == "0" || (!word.starts_with('0') && word.bytes().all(|byte| byte.is_ascii_digit()));
    is_canonical.then(|| word.parse().ok()).flatten()
}

fn parse_binary(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let Some(head) = bytes.first_chunk::<BINARY_HEAD_BYTES>() else { return Ok(None) };
    let [.., version_and_command, family, length_high, length_low] = *head;
    let is_local = match version_and_command {
        0x20 => true,
        0x21 => false,
        other => return Err(ProxyError::VersionOrCommand(other)),
    };
    let length = BINARY_HEAD_BYTES + usize::from(u16::from_be_bytes([length_high, length_low]));
    if length > PROXY_BYTES_MAX {
        return Err(ProxyError::TooLong);
    }
    let Some(header) = bytes.get(..length) else { return Ok(None) };
    // LOCAL is the peer's own connection: the receiver ignores the family and skips the rest (§2.2).
    let client = if is_local { None } else { parse_binary_client(family, header)? };
    Ok(Some(ProxyHeader { client, bytes: length }))
}

fn parse_binary_client(family: u8, header: &[u8]) -> Result<Option<SocketAddr>, ProxyError> {
    let mut cursor = Cursor::new(&header[BINARY_HEAD_BYTES..]);
    let client = match family {
        // UNSPEC: the format of the rest is unknown.
        0x00 => return Ok(None),
        0x11 => {
            let (source, _target) = (cursor.array::<4>()?, cursor.array::<4>()?);
            let (port, _target_port) = (cursor.u16()?, cursor.u16()?);
            Some(SocketAddr::new(Ipv4Addr::from(source).into(), port))
        }
        0x21 => {
            let (source, _target) = (cursor.array::<16>()?, cursor.array::<16>()?);
            let (port, _target_port) = (cursor.u16()?, cursor.u16()?);
            Some(SocketAddr::new(Ipv6Addr::from(source).into(), port))
        }
        0x31 => {
            cursor.array::<UNIX_ADDRESS_BYTES>()?;
            None
        }
        other => return Err(ProxyError::FamilyOrTransport(other)),
    };
    check_tlvs(&mut cursor, header)?;
    Ok(client)
}

/// Parses the TLVs (§2.2) and verifies the checksum among them. All other TLVs are ignored.
fn check_tlvs(cursor: &mut Cursor<'_>, header: &[u8]) -> Result<(), ProxyError> {
    while !cursor.is_empty() {
        let (kind, length) = (cursor.u8()?, usize::from(cursor.u16()?));
        let value_at = header.len() - cursor.len();
        let value = cursor.bytes(length)?;
        if kind == TLV_CRC32C {
            let expected = u32::from_be_bytes(value.try_into().map_err(|_| ProxyError::Length)?);
            let zeroed = [0; 4];
            let parts = [&header[..value_at], &zeroed, &header[value_at + length..]];
            if expected != crc32c(parts.into_iter().flatten().copied()) {
                return Err(ProxyError::Checksum);
            }
        }
    }
    Ok(())
}

/// CRC-32C (§2.2.3; RFC 4960, appendix B), computed bit by bit: headers are short and come once per
/// connection.
fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    const REVERSED_POLYNOMIAL: u32 = 0x82f6_3b78;
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ REVERSED_POLYNOMIAL } else { crc >> 1 };
    !bytes.fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn address(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn valid_lines_of_version_1_give_the_client() {
        for (line, client) in [
            ("PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n", address("192.168.0.1:56324")),
            ("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", address("255.255.255.255:65535")),
            ("PROXY TCP6 2001:db8::7 ::1 0 80\r\n", address("[2001:db8::7]:0")),
            (
                "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff \
                 65535 65535\r\n",
                address("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"),
            ),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN whatever there is, 1 2 3\r\n", None),
        ] {
            let expected = ProxyHeader { client, bytes: line.len() };
            assert_eq!(parse_proxy(line.as_bytes()), Ok(Some(expected)), "{line:?} should give the client");
            let followed = [line.as_bytes(), b"get x\r\n"].concat();
            assert_eq!(
                parse_proxy(&followed),
                Ok(Some(expected)),
                "{line:?} should give the client when a request follows"
            );
            for cut in 0..line.len() {
                assert_eq!(
                    parse_proxy(&line.as_bytes()[..cut]),
                    Ok(None),
                    "an incomplete line should need more bytes: {:?}",
                    &line[..cut]
                );
            }
        }
    }

    #[test]
    fn malformed_lines_of_version_1_are_rejected() {
        for line in [
            "PROXY \r\n",
            "PROXY TCP4\r\n",
            "PROXY tcp4 1.2.3.4 1.2.3.4 1 2\r\n",
            "PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 2 \r\n",
            "PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n",
            "PROXY TCP4 1.2.3.4\t1.2.3.4 1 2\r\n",
            "PROXY TCP4 1.2.3.04 1.2.3.4 1 2\r\n",
            "PROXY TCP4 1.2.3.256 1.2.3.4 1 2\r\n",
            "PROXY TCP4 1.2.3.4 example 1 2\r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
            "PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 \r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n\r\n",
        ] {
            assert_eq!(parse_proxy(line.as_bytes()), Err(ProxyError::Line), "{line:?} should be rejected");
        }
        for start in ["get x\r\n", "PROXYTCP4", "PRoXY ", " PROXY TCP4", "\n", "\r\n\r\n\0\r\nQUIT\r"] {
            assert_eq!(
                parse_proxy(start.as_bytes()),
                Err(ProxyError::Signature),
                "{start:?} should not be taken for a header"
            );
        }
    }

    #[test]
    fn a_line_above_the_maximum_is_rejected() {
        let mut line = Vec::from(*b"PROXY UNKNOWN ");
        line.resize(TEXT_BYTES_MAX - 2, b'x');
        assert_eq!(parse_proxy(&line), Ok(None));
        let complete = [line.as_slice(), b"\r\n"].concat();
        assert_eq!(parse_proxy(&complete).unwrap().unwrap().bytes, TEXT_BYTES_MAX);
        let longer = [line.as_slice(), b"x\r\n"].concat();
        assert_eq!(parse_proxy(&longer), Err(ProxyError::TooLong));
    }

    fn binary(version_and_command: u8, family: u8, rest: &[&[u8]]) -> Vec<u8> {
        let rest = rest.concat();
        let length = (rest.len() as u16).to_be_bytes();
        [BINARY_SIGNATURE, &[version_and_command, family][..], &length, &rest].concat()
    }

    const V4: &[u8] = &[192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 0x01, 0xbb];

    #[test]
    fn valid_headers_of_version_2_give_the_client() {
        let mut v6 = [0_u8; 36];
        v6[..2].copy_from_slice(&[0x20, 0x01]);
        v6[15] = 9;
        v6[32..34].copy_from_slice(&4711_u16.to_be_bytes());
        let unix = [b'/'; UNIX_ADDRESS_BYTES];
        let tlv: &[u8] = &[0x02, 0, 3, b'a', b'.', b'b', 0x04, 0, 0, 0xea, 0, 1, 7];
        for (name, header, client) in [
            ("IPv4", binary(0x21, 0x11, &[V4]), address("192.0.2.7:56324")),
            ("IPv4, TLVs", binary(0x21, 0x11, &[V4, tlv]), address("192.0.2.7:56324")),
            ("IPv6", binary(0x21, 0x21, &[&v6]), address("[2001::9]:4711")),
            ("IPv6, TLVs", binary(0x21, 0x21, &[&v6, tlv]), address("[2001::9]:4711")),
            ("UNIX", binary(0x21, 0x31, &[&unix, tlv]), None),
            ("unspecified", binary(0x21, 0x00, &[]), None),
            ("unspecified, with more bytes", binary(0x21, 0x00, &[b"something"]), None),
            ("LOCAL", binary(0x20, 0x00, &[]), None),
            ("LOCAL with ignored addresses", binary(0x20, 0x11, &[V4]), None),
            ("LOCAL of any family", binary(0x20, 0xff, &[b"x"]), None),
        ] {
            let expected = ProxyHeader { client, bytes: header.len() };
            assert_eq!(parse_proxy(&header), Ok(Some(expected)), "{name} should give the client");
            let followed = [header.as_slice(), b"get x\r\n"].concat();
            assert_eq!(
                parse_proxy(&followed),
                Ok(Some(expected)),
                "{name} should give the client when a request follows"
            );
            for cut in 0..header.len() {
                assert_eq!(parse_proxy(&header[..cut]), Ok(None), "{name} should need more bytes than {cut}");
            }
        }
    }

    #[test]
    fn malformed_headers_of_version_2_are_rejected() {
        use ProxyError::{FamilyOrTransport, Length, TooLong, VersionOrCommand};
        let long = [0; PROXY_BYTES_MAX];
        for (header, error) in [
            (binary(0x11, 0x11, &[V4]), VersionOrCommand(0x11)),
            (binary(0x31, 0x11, &[V4]), VersionOrCommand(0x31)),
            (binary(0x22, 0x11, &[V4]), VersionOrCommand(0x22)),
            (binary(0x21, 0x12, &[V4]), FamilyOrTransport(0x12)),
            (binary(0x21, 0x10, &[V4]), FamilyOrTransport(0x10)),
            (binary(0x21, 0x01, &[V4]), FamilyOrTransport(0x01)),
            (binary(0x21, 0x41, &[V4]), FamilyOrTransport(0x41)),
            (binary(0x21, 0x11, &[&V4[..11]]), Length),
            (binary(0x21, 0x21, &[V4]), Length),
            (binary(0x21, 0x31, &[V4]), Length),
            (binary(0x21, 0x11, &[V4, &[1]]), Length),
            (binary(0x21, 0x11, &[V4, &[1, 0, 2, 0]]), Length),
            (binary(0x21, 0x11, &[V4, &[TLV_CRC32C, 0, 3, 0, 0, 0]]), Length),
            (binary(0x21, 0x11, &[&long]), TooLong),
        ] {
            assert_eq!(parse_proxy(&header), Err(error), "the header {header:02x?} should be rejected");
        }
        let beginning = &binary(0x21, 0x11, &[&long])[..BINARY_HEAD_BYTES];
        assert_eq!(
            parse_proxy(beginning),
            Err(TooLong),
            "the length field alone should suffice to reject the header"
        );
    }

    #[test]
    fn a_wrong_checksum_is_rejected() {
        // The check value of CRC-32C.
        assert_eq!(crc32c(b"123456789".iter().copied()), 0xe306_9283);
        let mut header = binary(0x21, 0x11, &[V4, &[TLV_CRC32C, 0, 4, 0, 0, 0, 0], &[0x04, 0, 1, 0]]);
        let sum = crc32c(header.iter().copied());
        header[31..35].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(parse_proxy(&header).unwrap().unwrap().client, address("192.0.2.7:56324"));
        let kind_offset = 28; // With an altered type the TLV is no longer a checksum.
        for offset in (16..header.len()).filter(|offset| *offset != kind_offset) {
            let mut altered = header.clone();
            altered[offset] ^= 1;
            assert!(
                parse_proxy(&altered) != parse_proxy(&header),
                "altered byte {offset} should be detected"
            );
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), signature in 0..3) {
            let bytes = match signature {
                0 => bytes,
                1 => [TEXT_SIGNATURE, &bytes].concat(),
                _ => [BINARY_SIGNATURE.as_slice(), &bytes].concat(),
            };
            if let Ok(Some(header)) = parse_proxy(&bytes) {
                prop_assert!(
                    header.bytes <= bytes.len() && header.bytes <= PROXY_BYTES_MAX,
                    "the header should be within the input and its maximum"
                );
                prop_assert_eq!(parse_proxy(&bytes[..header.bytes]), Ok(Some(header)));
            }
        }

        #[test]
        fn a_header_never_stays_incomplete_beyond_the_maximum(byte in any::<u8>(), text in any::<bool>()) {
            let signature = if text { TEXT_SIGNATURE } else { BINARY_SIGNATURE.as_slice() };
            let mut bytes = signature.to_vec();
            bytes.resize(PROXY_BYTES_MAX, byte);
            prop_assert!(!matches!(parse_proxy(&bytes), Ok(None)), "no header should stay incomplete");
        }
    }
}
