//! Load generator that verifies every reply.
