#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientType {
    /// Ordinary TCP, as clients speak it to the server itself.
    Plain,
    /// A link with one virtual connection.
    Library,
}
