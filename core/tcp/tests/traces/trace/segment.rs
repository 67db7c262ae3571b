//! A segment as a test writes it. Fields that the test does not set are filled in when the peer sends the
//! segment, and are not compared when the stack is expected to send it.

use std::fmt;

use spillway_wire::packet::tcp::{Flags, Header};

/// Sequence numbers are relative: 0 for the SYN, 1 for the first byte. `window` is the field on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seg {
    pub flags: Option<Flags>,
    pub is_pushed: Option<bool>,
    pub seq: Option<i64>,
    pub ack: Option<i64>,
    pub window: Option<u16>,
    pub urgent: Option<u16>,
    pub payload: Option<Vec<u8>>,
    pub mss: Option<Option<u16>>,
    pub scale: Option<Option<u8>>,
    pub sack_permitted: Option<bool>,
    /// The sender's timestamp. Timestamps of the stack are relative to its first one.
    pub timestamp: Option<Option<u32>>,
    /// The echoed timestamp. Echoes of the stack's timestamps are relative, too.
    pub echo: Option<u32>,
    pub sack: Option<Vec<(i64, i64)>>,
    /// Raw bytes in place of all options above.
    pub raw_options: Option<Vec<u8>>,
}

/// A segment with no field set.
pub fn seg() -> Seg {
    Seg::default()
}

pub fn syn() -> Seg {
    Seg { flags: Some(Flags::SYN), seq: Some(0), payload: Some(vec![]), ..Seg::default() }
}

pub fn syn_ack() -> Seg {
    Seg { flags: Some(Flags::SYN | Flags::ACK), ..syn() }
}

/// A bare acknowledgement.
pub fn ack(number: i64) -> Seg {
    Seg { flags: Some(Flags::ACK), ack: Some(number), payload: Some(vec![]), ..Seg::default() }
}

pub fn bytes(seq: i64, payload: impl AsRef<[u8]>) -> Seg {
    let payload = Some(payload.as_ref().to_vec());
    Seg { flags: Some(Flags::ACK), seq: Some(seq), payload, ..Seg::default() }
}

/// A segment with `count` bytes of the [`pattern`].
pub fn data(seq: i64, count: usize) -> Seg {
    bytes(seq, pattern(seq, count))
}

/// Bytes `seq..seq + count` of the stream whose every byte is the low byte of its sequence number.
pub fn pattern(seq: i64, count: usize) -> Vec<u8> {
    (seq..).take(count).map(|at| at as u8).collect()
}

pub fn fin(seq: i64) -> Seg {
    Seg { flags: Some(Flags::FIN | Flags::ACK), seq: Some(seq), payload: Some(vec![]), ..Seg::default() }
}

pub fn rst(seq: i64) -> Seg {
    Seg { flags: Some(Flags::RST), seq: Some(seq), payload: Some(vec![]), ..Seg::default() }
}

impl Seg {
    fn with(mut self, flag: Flags) -> Seg {
        self.flags = Some(self.flags.unwrap_or(Flags::NONE) | flag);
        self
    }

    pub fn fin(self) -> Seg {
        self.with(Flags::FIN)
    }

    pub fn urg(mut self, pointer: u16) -> Seg {
        self.urgent = Some(pointer);
        self.with(Flags::URG)
    }

    pub fn no_flags(mut self) -> Seg {
        self.flags = Some(Flags::NONE);
        self
    }

    pub fn push(mut self, is_pushed: bool) -> Seg {
        self.is_pushed = Some(is_pushed);
        self
    }

    pub fn seq(mut self, number: i64) -> Seg {
        self.seq = Some(number);
        self
    }

    pub fn ack(mut self, number: i64) -> Seg {
        self.ack = Some(number);
        self.with(Flags::ACK)
    }

    pub fn window(mut self, field: u16) -> Seg {
        self.window = Some(field);
        self
    }

    pub fn payload(mut self, payload: impl AsRef<[u8]>) -> Seg {
        self.payload = Some(payload.as_ref().to_vec());
        self
    }

    pub fn mss(mut self, bytes: u16) -> Seg {
        self.mss = Some(Some(bytes));
        self
    }

    pub fn scale(mut self, bits: u8) -> Seg {
        self.scale = Some(Some(bits));
        self
    }

    pub fn no_scale(mut self) -> Seg {
        self.scale = Some(None);
        self
    }

    pub fn sack_ok(mut self, is_permitted: bool) -> Seg {
        self.sack_permitted = Some(is_permitted);
        self
    }

    pub fn timestamp(mut self, clock: u32) -> Seg {
        self.timestamp = Some(Some(clock));
        self
    }

    pub fn no_timestamp(mut self) -> Seg {
        self.timestamp = Some(None);
        self
    }

    pub fn echo(mut self, clock: u32) -> Seg {
        self.echo = Some(clock);
        self
    }

    pub fn sack(mut self, blocks: &[(i64, i64)]) -> Seg {
        self.sack = Some(blocks.to_vec());
        self
    }

    pub fn raw_options(mut self, options: &[u8]) -> Seg {
        self.raw_options = Some(options.to_vec());
        self
    }

    /// Whether all fields that are set here are equal in `other`. PSH is a field of its own.
    pub fn agrees_with(&self, other: &Seg) -> bool {
        fn same<T: PartialEq>(expected: &Option<T>, sent: &Option<T>) -> bool {
            expected.is_none() || expected == sent
        }
        same(&self.flags, &other.flags)
            && same(&self.is_pushed, &other.is_pushed)
            && same(&self.seq, &other.seq)
            && same(&self.ack, &other.ack)
            && same(&self.window, &other.window)
            && same(&self.urgent, &other.urgent)
            && same(&self.payload, &other.payload)
            && same(&self.mss, &other.mss)
            && same(&self.scale, &other.scale)
            && same(&self.sack_permitted, &other.sack_permitted)
            && same(&self.timestamp, &other.timestamp)
            && same(&self.echo, &other.echo)
            && same(&self.sack, &other.sack)
    }

    /// A segment that the stack has sent, without its numbers, which the caller adds as relative ones.
    pub fn of(header: &Header, payload: &[u8]) -> Seg {
        let options = &header.options;
        Seg {
            flags: Some(Flags(header.flags.0 & !Flags::PSH.0)),
            is_pushed: Some(header.flags.contains(Flags::PSH)),
            window: Some(header.window),
            urgent: Some(header.urgent),
            payload: Some(payload.to_vec()),
            mss: Some(options.mss),
            scale: Some(options.window_scale),
            sack_permitted: Some(options.sack_permitted),
            ..Seg::default()
        }
    }
}

impl fmt::Display for Seg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.flags {
            Some(flags) => write!(f, "{flags}")?,
            None => write!(f, "any")?,
        }
        if self.is_pushed == Some(true) {
            write!(f, "+P")?;
        }
        if let Some(seq) = self.seq {
            let count = self.payload.as_ref().map_or(0, Vec::len) as i64;
            write!(f, " {seq}:{}({count})", seq + count)?;
        } else if let Some(payload) = &self.payload {
            write!(f, " ({})", payload.len())?;
        }
        if let Some(payload) = self.payload.as_ref().filter(|payload| !payload.is_empty()) {
            write!(f, " \"{}\"", payload[..payload.len().min(16)].escape_ascii())?;
        }
        let numbers = [("ack", self.ack), ("win", self.window.map(i64::from))];
        for (name, number) in numbers.iter().filter_map(|(name, number)| number.map(|number| (name, number)))
        {
            write!(f, " {name} {number}")?;
        }
        if let Some(Some(mss)) = self.mss {
            write!(f, " mss {mss}")?;
        }
        if let Some(Some(scale)) = self.scale {
            write!(f, " scale {scale}")?;
        }
        if self.sack_permitted == Some(true) {
            write!(f, " sackOK")?;
        }
        if let Some(Some(timestamp)) = self.timestamp {
            write!(f, " timestamp {timestamp}")?;
        }
        if let Some(echo) = self.echo {
            write!(f, " echo {echo}")?;
        }
        if let Some(sack) = self.sack.as_ref().filter(|sack| !sack.is_empty()) {
            write!(f, " sack {sack:?}")?;
        }
        Ok(())
    }
}
