//! The two sorts of clients.

/// How a client speaks to the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Plain: as if the relay were the server.
    Raw,
    /// Library: over a link of its own.
    Library,
}
