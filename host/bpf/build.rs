//! Compiles each `c/*.bpf.c` to a BPF object, which `src/object.rs` embeds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=c");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let headers = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys names the directory of its headers");
    for entry in fs::read_dir("c").expect("the directory c is part of this crate") {
        let source = entry.expect("readable directory entry").path();
        let Some(name) = source.to_str().and_then(|path| path.strip_suffix(".bpf.c")) else { continue };
        let object = out.join(Path::new(name).file_name().expect("file name")).with_extension("bpf.o");
        compile(&source, &object, &headers);
    }
}

fn compile(source: &Path, object: &Path, headers: &str) {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // The name of the architecture in macros of libbpf's headers.
    let macro_arch = if arch == "x86_64" { "x86" } else { &arch };
    // `-g` emits the type information (BTF) by which libbpf finds the definitions of maps.
    let result = Command::new("clang")
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror"])
        // Without CAP_PERFMON the verifier refuses a number of 4 bytes in the stack slot of an earlier pointer.
        .args(["-mllvm", "-no-stack-slot-sharing"])
        .arg(format!("-D__TARGET_ARCH_{macro_arch}"))
        .args(["-I", headers])
        // Debian has <asm/types.h> here. clang searches this directory last; it need not exist.
        .arg(format!("-idirafter/usr/include/{arch}-linux-gnu"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .status();
    match result {
        Ok(status) if status.success() => {}
        Ok(_) => panic!("clang refuses {}: see the messages above", source.display()),
        Err(error) => {
            panic!("cannot run clang, which compiles the BPF programs: {error}; run tools/setup build")
        }
    }
}
