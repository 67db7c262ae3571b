//! Connections of the kernel move from one socket to another at the same address, while the client's end stays. The tests
//! check every byte in both directions, and that the client sees no reset, no earlier acknowledgement and no earlier
//! timestamp.
//!
//! CAPTURE_MOVES is the number of moves of each test of `moves` and `streams`; 100 by default.

mod cable;
mod ends;
mod kernel;
mod moves;
mod moving;
mod options;
mod programs;
mod refusals;
mod stack;
mod stream;
mod streams;
