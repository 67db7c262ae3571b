//! Carries frames between the user-level TCP stack and a network.
//!
//! A [`Device`] sends and receives Ethernet frames: [`Tap`] is the user-space end of a kernel interface, [`Ring`] a pair of
//! queues in memory. [`Faults`] wraps a device and injects faults. A [`Driver`] connects a device with an [`Endpoint`], such
//! as a stack with its application ([`Hosted`]). It works in turns: [`Driver::run`] takes turns and waits between them,
//! [`Driver::turn`] takes one at a time that the caller passes.

mod device;
mod driver;
mod faults;
mod hosted;
mod ring;
mod tap;

pub use device::{Device, FRAME_BYTES_MAX, Stop};
pub use driver::{BATCH_FRAMES, Counters, Driver, Endpoint, Turn};
pub use faults::{Faulted, Faults, FaultsOptions};
pub use hosted::Hosted;
pub use ring::Ring;
pub use tap::{Tap, TapError};
