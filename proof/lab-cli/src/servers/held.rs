//! A bound for the bytes that a server keeps of all its clients together.

/// Maximum total number of kept bytes. A client beyond it is reset.
pub(super) const HELD_BYTES_MAX: usize = 64 << 20;

/// The number of bytes that a server keeps of one client.
#[derive(Debug, Default)]
pub(super) struct ClientHeld(usize);

/// The number of bytes that a server keeps of all clients.
#[derive(Debug, Default)]
pub(super) struct Held(usize);

impl Held {
    /// From now on `bytes` of a client are kept. Returns whether all clients together are within the bound, or the client keeps
    /// nothing.
    #[must_use]
    pub(super) fn set(&mut self, client: &mut ClientHeld, bytes: usize) -> bool {
        self.0 = self.0 - client.0 + bytes;
        client.0 = bytes;
        bytes == 0 || self.0 <= HELD_BYTES_MAX
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, client: &ClientHeld) {
        self.0 -= client.0;
    }

    /// The number of kept bytes.
    #[cfg(test)]
    pub(super) fn total(&self) -> usize {
        self.0
    }
}
