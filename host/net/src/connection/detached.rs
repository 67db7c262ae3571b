//! A connection without its socket.

/// The state of an established connection between its application and its socket.
#[derive(Clone, Debug, Default)]
pub struct Detached {
    /// Bytes that may still be delivered to the application.
    pub granted: u64,
    /// The application knows that the peer has finished.
    pub is_finished: bool,
    /// Bytes that the application has sent, and the socket has not taken.
    pub queue: Vec<u8>,
    /// The application has finished.
    pub has_ended: bool,
    /// The application waits for room.
    pub wants_room: bool,
    /// The application is told what the peer has acknowledged.
    pub is_watched: bool,
}
