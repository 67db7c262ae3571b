//! The client library: direct connections and moves to a helper and back.
