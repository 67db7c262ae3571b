//! The compiled programs, and functions that load them into the kernel.

use std::ffi::OsStr;
use std::sync::Once;

use libbpf_rs::{Object, ObjectBuilder, OpenObject, ProgramMut, set_print};

use crate::BpfError;

/// Bytes of an object file, with the alignment of ELF structures.
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
embed!(HOLD, "hold.bpf.o");
embed!(HUB, "hub.bpf.o");
embed!(LOSS, "loss.bpf.o");
embed!(PASS, "pass.bpf.o");
embed!(PEER_TIMESTAMP, "peer_timestamp.bpf.o");
embed!(REMOVED, "removed.bpf.o");
embed!(STRAGGLERS, "stragglers.bpf.o");
embed!(SWITCH, "switch.bpf.o");
embed!(SWITCH_EGRESS, "switch_egress.bpf.o");

/// Keeps libbpf from printing messages to standard error, which it does by default. Errors contain what matters.
pub(crate) fn silence() {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        set_print(None);
    });
}

/// Opens an object with one program, `name`. The caller may set initial values of its maps before [`load`].
pub(crate) fn open(name: &str, object: &[u8]) -> Result<OpenObject, BpfError> {
    silence();
    ObjectBuilder::default()
        .name(name)
        .and_then(|builder| builder.open_memory(object))
        .map_err(BpfError::of(format!("cannot read the program `{name}`")))
}

/// Sets the number of entries of a map, or of bytes of a ring. To be called before [`load`].
pub(crate) fn set_size(object: &mut OpenObject, map: &str, size: u32) -> Result<(), BpfError> {
    let mut sized = object
        .maps_mut()
        .find(|candidate| candidate.name() == OsStr::new(map))
        .unwrap_or_else(|| unreachable!("the program's source in c/ defines the map `{map}`"));
    sized.set_max_entries(size).map_err(BpfError::of(format!("cannot set the size of the map `{map}`")))
}

/// Sets the constant in a section of an object's source to true. To be called before [`load`].
pub(crate) fn set_constant(object: &mut OpenObject, section: &str) {
    let mut constants = object
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(section))
        .unwrap_or_else(|| unreachable!("c/switch/settings.h defines a constant in this section"));
    if let Some(constant) = constants.initial_value_mut().and_then(|bytes| bytes.first_mut()) {
        *constant = 1;
    }
}

pub(crate) fn load(name: &str, object: OpenObject) -> Result<Object, BpfError> {
    object.load().map_err(BpfError::of(format!("cannot load the program `{name}`")))
}

pub(crate) fn program<'object>(name: &str, object: &'object Object) -> ProgramMut<'object> {
    object
        .progs_mut()
        .find(|program| program.name() == OsStr::new(name))
        .unwrap_or_else(|| unreachable!("this crate compiles the object with the program `{name}`"))
}
