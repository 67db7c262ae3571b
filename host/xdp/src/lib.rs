//! Carries frames between the user-level TCP stack and a network.
//!
//! A [`Device`] takes and gives Ethernet frames: [`Tap`], an interface of the kernel's whose other end is ours, or
//! [`Ring`], two queues in memory. [`Faults`] is a device that damages what passes through another. A [`Driver`] lets an
//! [`Endpoint`], such as a stack with its application ([`Hosted`]), talk through a device, in turns: [`Driver::run`] waits between
//! them, [`Driver::turn`] leaves time to the caller.

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
