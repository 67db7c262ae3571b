//! Sets the soname of the shared library, which changes with each incompatible change of the ABI.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libspillway.so.0");
}
