//! Ethernet addresses as operators write them.

use spillway_wire::packet::ethernet::Mac;

/// Reads the Ethernet address of one interface, such as `02:00:00:00:00:05`.
///
/// # Errors
/// The text does not have six bytes, or is zero or a group address. The error says what to give.
pub fn parse_mac(text: &str) -> Result<Mac, String> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2 && !part.starts_with('+'));
        let parsed = part.and_then(|part| u8::from_str_radix(part, 16).ok());
        *byte =
            parsed.ok_or_else(|| format!("{text}: give an Ethernet address such as 02:00:00:00:00:05"))?;
    }
    if parts.next().is_some() {
        return Err(format!("{text}: give an Ethernet address such as 02:00:00:00:00:05"));
    }
    let mac = Mac(bytes);
    if mac.is_unicast() {
        Ok(mac)
    } else {
        Err(format!("{text}: no interface has this address; `ip link` on the host shows its address"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_six_bytes_and_belong_to_one_interface() {
        assert_eq!(parse_mac("02:00:00:aB:00:05"), Ok(Mac([2, 0, 0, 0xab, 0, 5])));
        for wrong in ["", "02:00:00:00:00", "02:00:00:00:00:05:06", "2:0:0:0:0:5", "02:00:00:00:00:+5", "x"] {
            assert!(parse_mac(wrong).unwrap_err().contains("such as 02:"), "{wrong}");
        }
        for wrong in ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:80:c2:00:00:00"] {
            assert!(parse_mac(wrong).unwrap_err().contains("no interface has"), "{wrong}");
        }
    }
}
