//! The server library: serves plain and helped clients on one event loop.
