//! The compiled programs, and how one of them is loaded into the kernel.

use std::ffi::OsStr;
use std::sync::Once;

use libbpf_rs::{Object, ObjectBuilder, OpenObject, ProgramMut, set_print};

use crate::BpfError;

/// Bytes of an object file, aligned as its ELF structures are.
#[repr(align(8))]
struct Aligned<B: ?Sized>(B);

macro_rules! embed {
    ($name:ident, $file:literal) => {
        pub(crate) static $name: &[u8] = {
            static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $file)));
            &OBJECT.0
        };
    };
}
embed!(STEER, "steer.bpf.o");
embed!(HUB, "hub.bpf.o");
embed!(LOSS, "loss.bpf.o");
embed!(PASS, "pass.bpf.o");

/// Opens an object that holds one program, `name`. Its maps may be changed before [`load`].
pub(crate) fn open(name: &str, object: &[u8]) -> Result<OpenObject, BpfError> {
    static QUIET: Once = Once::new();
    // libbpf would print its messages to standard error.
    QUIET.call_once(|| {
        set_print(None);
    });
    ObjectBuilder::default()
        .name(name)
        .and_then(|builder| builder.open_memory(object))
        .map_err(BpfError::of(format!("cannot read the program `{name}`")))
}

/// Loads an opened object: the kernel verifies the program and makes the maps.
pub(crate) fn load(name: &str, object: OpenObject) -> Result<Object, BpfError> {
    object.load().map_err(BpfError::of(format!("cannot load the program `{name}`")))
}

/// The program of a loaded object.
pub(crate) fn program<'object>(name: &str, object: &'object Object) -> ProgramMut<'object> {
    object
        .progs_mut()
        .find(|program| program.name() == OsStr::new(name))
        .unwrap_or_else(|| unreachable!("this crate compiles the object with the program `{name}`"))
}
