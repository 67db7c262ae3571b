//! What a server's link port accepts: keys, client addresses, bounds, and links with or without encryption.

use spillway_auth::KeyRing;

use crate::addresses::AddressRules;
use crate::limits::Limits;
use crate::records::Encryption;

/// Configuration of a server's link port.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// Accepted keys of helpers and clients.
    pub ring: KeyRing,
    /// Client addresses that links may carry.
    pub rules: AddressRules,
    /// Bounds.
    pub limits: Limits,
    /// Whether links are encrypted.
    pub encryption: Encryption,
}
