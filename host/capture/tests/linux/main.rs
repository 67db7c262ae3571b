//! Connections of the kernel move from one socket to another at the same address, while the client's end stays. The tests
//! check every byte in both directions, and that the client sees no reset, no earlier acknowledgement and no earlier
//! timestamp.
//!
//! CAPTURE_MOVES is the number of moves of each test of `moves` and `streams`; 100 by default.

mod cable;
mod copies;
mod ends;
mod kernel;
mod moves;
mod moving;
mod options;
mod programs;
mod races;
mod refusals;
mod stack;
mod stamps;
mod stream;
mod streams;
