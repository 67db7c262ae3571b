//! The helper: one relay per core on kernel sockets.
