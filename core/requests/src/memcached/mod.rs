//! memcached's text and binary protocols (memcached's `doc/protocol.txt` and `doc/protocol-binary.txt`).

mod binary;
mod commands;
mod matching;
mod text;

use spillway_transport::Time;

use self::binary::{Binary, REQUEST_MAGIC};
use self::text::Text;
use crate::outstanding::Outstanding;
use crate::stop_reason::StopReason;

/// The parser of one connection. The client's first byte decides between the text and the binary protocol.
#[derive(Clone, Debug, Default)]
pub(crate) enum Memcached {
    #[default]
    Unknown,
    Text(Text),
    Binary(Binary),
}

impl Memcached {
    pub fn requests(
        &mut self,
        now: Time,
        bytes: &[u8],
        outstanding: &mut Outstanding,
    ) -> Result<(), StopReason> {
        if let (Memcached::Unknown, Some(first)) = (&*self, bytes.first()) {
            *self = match *first {
                REQUEST_MAGIC => Memcached::Binary(Binary::default()),
                _ => Memcached::Text(Text::default()),
            };
        }
        match self {
            Memcached::Unknown => Ok(()),
            Memcached::Text(text) => text.requests(now, bytes, outstanding),
            Memcached::Binary(binary) => binary.requests(now, bytes, outstanding),
        }
    }

    pub fn replies(
        &mut self,
        bytes: &[u8],
        outstanding: &mut Outstanding,
        answered: impl FnMut(Option<Time>),
    ) -> Result<(), StopReason> {
        match self {
            Memcached::Unknown if bytes.is_empty() => Ok(()),
            // For example, a server with too many connections rejects this one before the first request.
            Memcached::Unknown => Err(StopReason::UnsolicitedReply),
            Memcached::Text(text) => text.replies(bytes, outstanding, answered),
            Memcached::Binary(binary) => binary.replies(bytes, outstanding, answered),
        }
    }

    pub fn is_between_messages(&self) -> bool {
        match self {
            Memcached::Unknown => true,
            Memcached::Text(text) => text.is_between_messages(),
            Memcached::Binary(binary) => binary.is_between_messages(),
        }
    }
}
