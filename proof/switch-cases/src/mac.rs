//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The address of all stations.
    pub const BROADCAST: Mac = Mac([0xff; 6]);
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = ();

    fn from_str(text: &str) -> Result<Mac, ()> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|part| part.len() == 2).ok_or(())?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| ())?;
        }
        if parts.next().is_some() { Err(()) } else { Ok(Mac(octets)) }
    }
}
