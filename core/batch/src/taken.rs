//! What a server has taken of its clients' requests, told to their helper where that is asked for: then the helper's own TCP
//! may acknowledge them to the client, and a helper that dies has acknowledged nothing that is lost (PostMan §4.2).
//!
//! It is told for each input at its end, and so rides in the batch that has the first replies: a client's TCP hears of it as
//! soon as it would have from the server's own.

/// Of one connection whose helper has asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taking {
    /// Something was taken since it was told last.
    is_owed: bool,
}

impl Taking {
    /// Something was taken. Whether this is the first since it was told.
    pub(crate) fn owe(&mut self) -> bool {
        !core::mem::replace(&mut self.is_owed, true)
    }

    /// It is told now. Whether something is owed.
    pub(crate) fn pay(&mut self) -> bool {
        core::mem::take(&mut self.is_owed)
    }
}
