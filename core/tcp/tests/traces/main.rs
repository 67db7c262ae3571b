//! The stack against scripted peers, rule by rule: tests that read as packet traces.

mod trace;

mod acceptance;
mod acks;
mod closing;
mod gate;
mod handshake;
mod icmp;
mod options;
mod paws;
mod resets;
mod sack;
mod silly;
mod simultaneous;
mod time_wait;
mod windows;
