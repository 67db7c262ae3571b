//! The transport on kernel sockets.
