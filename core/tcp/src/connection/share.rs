//! The share of one connection in a total of its stack.

/// The bytes of this connection that a total of the stack contains.
#[derive(Debug, Default)]
pub(super) struct Share(usize);

impl Share {
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.0
    }

    /// Replaces the share by `bytes`.
    #[inline]
    pub(super) fn update(&mut self, bytes: usize, total: &mut usize) {
        *total = *total - self.0 + bytes;
        self.0 = bytes;
    }

    /// Takes the share out of the total.
    pub(super) fn remove(&mut self, total: &mut usize) {
        *total -= core::mem::take(&mut self.0);
    }
}
