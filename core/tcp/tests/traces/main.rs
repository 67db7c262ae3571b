//! The stack against scripted peers, rule by rule: tests that read as packet traces.

mod trace;

mod handshake;
mod options;
mod simultaneous;
