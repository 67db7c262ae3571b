//! Numbers in control messages, and their names in cases.

/// Numbers of kinds.
pub(crate) mod kind {
    pub(crate) const PREPARE: u8 = 1;
    pub(crate) const PREPARED: u8 = 2;
    pub(crate) const HOLD: u8 = 3;
    pub(crate) const OWN: u8 = 4;
    pub(crate) const RELEASE: u8 = 5;
    pub(crate) const GET: u8 = 6;
    pub(crate) const HEARTBEAT: u8 = 7;
    pub(crate) const HELLO: u8 = 8;
    pub(crate) const LIST: u8 = 9;
}

/// Numbers of statuses.
pub(crate) mod status {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const OK: u8 = 1;
    pub(crate) const STALE: u8 = 2;
    pub(crate) const NO_ENTRY: u8 = 3;
    pub(crate) const FULL: u8 = 4;
    pub(crate) const FORBIDDEN: u8 = 5;
    pub(crate) const UNKNOWN_VERSION: u8 = 6;
    pub(crate) const NO_OWNER: u8 = 7;
    pub(crate) const REPLAYED: u8 = 8;
}

/// Numbers of flows' states.
pub(crate) mod state {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const ASKED: u8 = 1;
    pub(crate) const HELD: u8 = 2;
    pub(crate) const OWNED: u8 = 3;
}

/// Kinds by name, with their numbers.
pub const KINDS: [(&str, u8); 9] = [
    ("prepare", kind::PREPARE),
    ("prepared", kind::PREPARED),
    ("hold", kind::HOLD),
    ("own", kind::OWN),
    ("release", kind::RELEASE),
    ("get", kind::GET),
    ("heartbeat", kind::HEARTBEAT),
    ("hello", kind::HELLO),
    ("list", kind::LIST),
];

/// Statuses by name, with their numbers.
pub const STATUSES: [(&str, u8); 9] = [
    ("none", status::NONE),
    ("ok", status::OK),
    ("stale", status::STALE),
    ("no-entry", status::NO_ENTRY),
    ("full", status::FULL),
    ("forbidden", status::FORBIDDEN),
    ("unknown-version", status::UNKNOWN_VERSION),
    ("no-owner", status::NO_OWNER),
    ("replayed", status::REPLAYED),
];

/// States of flows by name, with their numbers.
pub const STATES: [(&str, u8); 4] =
    [("none", state::NONE), ("asked", state::ASKED), ("held", state::HELD), ("owned", state::OWNED)];

/// Name of a number in one of the lists above, for messages.
pub fn name(names: &[(&'static str, u8)], number: u8) -> String {
    names
        .iter()
        .find(|(_, other)| *other == number)
        .map_or_else(|| number.to_string(), |(name, _)| (*name).into())
}
