//! Changes that another process can make to an attached program, such as `bpftool link detach`.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::query::{LinkInfo, LinkInfoIter};

pub fn detach(program: u32) {
    let link = link_of(program);
    // SAFETY: the call takes a descriptor and no pointers.
    let result = unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Replaces an attached program with one that passes all packets. Returns the new program's number.
pub fn replace(program: u32) -> u32 {
    let link = link_of(program);
    let name = c"other";
    // r0 = XDP_PASS; exit
    // SAFETY: an instruction consists of eight bytes, all of whose values are valid.
    let code: [libbpf_sys::bpf_insn; 2] = unsafe { std::mem::transmute([0x2_0000_00b7_u64, 0x95]) };
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as u64,
        expected_attach_type: libbpf_sys::BPF_XDP,
        ..Default::default()
    };
    // SAFETY: the strings end with a zero byte, and all pointers outlive the call.
    let other = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            name.as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr(),
            code.len() as u64,
            &raw mut options,
        )
    };
    assert!(other >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call has just made this descriptor, which has no other owner.
    let other = unsafe { OwnedFd::from_raw_fd(other) };
    // SAFETY: the call takes descriptors, and no options.
    let result =
        unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), other.as_raw_fd(), std::ptr::null()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    LinkInfo::from_fd(link.as_fd()).unwrap().prog_id
}

/// The link of an attached program. Program numbers are unique on the machine.
fn link_of(program: u32) -> OwnedFd {
    let link = LinkInfoIter::default().find(|link| link.prog_id == program).expect("the program is attached");
    // SAFETY: the call takes a number and no pointers.
    let fd = unsafe { libbpf_sys::bpf_link_get_fd_by_id(link.id) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call has just made this descriptor, which has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
