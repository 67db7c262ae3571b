//! `include/spillway.h` must be what cbindgen generates from the sources.

use std::path::Path;

/// `SPILLWAY_WRITE_HEADER=1 cargo test -p spillway-capi --test header` writes the header.
const WRITE: &str = "SPILLWAY_WRITE_HEADER";

fn generate_header() -> String {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(crate_directory.join("cbindgen.toml")).unwrap();
    let files = [
        "status",
        "argument",
        "settings",
        "session/event",
        "session",
        "listening",
        "port/event",
        "port",
        "relief",
    ];
    let header = include_str!("../header.txt").replace("VERSION", env!("CARGO_PKG_VERSION"));
    config.header = Some(header.trim_end().to_owned());
    let version: Vec<&str> = env!("CARGO_PKG_VERSION").split('.').collect();
    config.after_includes = Some(format!(
        "\n#define SPW_VERSION \"{}\"\n#define SPW_VERSION_MAJOR {}\n#define SPW_VERSION_MINOR {}\n#define SPW_VERSION_PATCH {}",
        env!("CARGO_PKG_VERSION"),
        version[0],
        version[1],
        version[2],
    ));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in files {
        builder = builder.with_src(crate_directory.join("src").join(file).with_extension("rs"));
    }
    let mut bytes = Vec::new();
    builder.generate().unwrap().write(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

#[test]
fn header_matches_the_sources() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/spillway.h");
    let generated = generate_header();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "include/spillway.h differs from the header that the sources generate; write it again with\n\
         {WRITE}=1 cargo test --release -p spillway-capi --test header"
    );
}
