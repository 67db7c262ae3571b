//! A target of requests.

/// A target with its request and its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The server that serves it, by its place in [`NAMES`].
    pub server: usize,
    pub request: Vec<u8>,
    pub response: Vec<u8>,
}
