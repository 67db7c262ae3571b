//! Gives the shared library the name under which programs ask for it: one for each ABI that is not compatible.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libspillway.so.0");
}
