//! The preload library: exported faces only.
