//! The installed library: its exported names, dependencies, pkg-config file and header.

mod support;

use std::process::Command;

use support::{Workbench, here, succeed};

/// The functions that the header declares.
fn declared() -> Vec<String> {
    let header = std::fs::read_to_string(here().join("include/spillway.h")).unwrap();
    let code: String = header
        .lines()
        .filter(|line| {
            !line.trim_start().starts_with("//") && !line.trim_start().starts_with(['*', '/', '#'])
        })
        .collect::<Vec<_>>()
        .join("\n");
    let words = code.split_inclusive('(').filter_map(|piece| {
        let name = piece.strip_suffix('(')?.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        name.starts_with("spw_").then(|| name.to_owned())
    });
    let mut words: Vec<String> = words.collect();
    words.sort();
    words
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_nothing_else() {
    let bench = Workbench::get();
    let names = succeed(Command::new("nm").args(["-D", "--defined-only", "-j"]).arg(bench.library()));
    let mut exported: Vec<&str> = names.lines().collect();
    exported.sort_unstable();
    assert_eq!(exported, declared());
    assert!(exported.len() > 50, "{exported:?}");
}

#[test]
fn the_static_library_defines_all_of_it() {
    let bench = Workbench::get();
    let archive = bench.prefix().join("lib/libspillway.a");
    let names = succeed(Command::new("nm").args(["--defined-only", "--extern-only", "-j"]).arg(archive));
    for name in declared() {
        assert!(names.lines().any(|line| line == name), "{name}");
    }
}

#[test]
fn the_library_has_its_name_and_needs_few_others() {
    let bench = Workbench::get();
    let told = succeed(Command::new("objdump").arg("-p").arg(bench.library()));
    let named = |kind: &str| -> Vec<&str> {
        told.lines().filter_map(|line| line.trim().strip_prefix(kind)).map(str::trim).collect()
    };
    assert_eq!(named("SONAME"), ["libspillway.so.0"]);
    for needed in named("NEEDED") {
        let known = ["libgcc_s.so.1", "libc.so.6", "ld-linux"];
        assert!(known.iter().any(|known| needed.starts_with(known)), "{needed}");
    }
}

#[test]
fn pkg_config_knows_it() {
    let bench = Workbench::get();
    let prefix = bench.prefix().display().to_string();
    assert_eq!(bench.pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    assert_eq!(bench.pkg_config(&["--cflags"]), [format!("-I{prefix}/include")]);
    assert_eq!(bench.pkg_config(&["--libs"]), [format!("-L{prefix}/lib"), "-lspillway".to_owned()]);
}

#[test]
fn a_package_is_installed_into_a_directory_of_its_own() {
    let bench = Workbench::get();
    let (stage, tests) = (bench.directory().join("stage"), std::env::current_exe().unwrap());
    let mut install = Command::new(here().join("../../tools/install-capi"));
    install.arg("--from").arg(tests.parent().unwrap()).arg("--destdir").arg(&stage);
    succeed(install.args(["--prefix", "/usr", "--libdir", "/usr/lib/of-this-machine"]));
    let pc = std::fs::read_to_string(stage.join("usr/lib/of-this-machine/pkgconfig/spillway.pc")).unwrap();
    assert!(
        pc.contains("libdir=/usr/lib/of-this-machine\n") && pc.contains("includedir=/usr/include\n"),
        "{pc}"
    );
    assert!(!pc.contains('@') && !pc.contains(stage.to_str().unwrap()), "{pc}");
    assert!(stage.join("usr/lib/of-this-machine/libspillway.so.0").exists());
}

#[test]
fn cpp_compilers_take_the_header() {
    if Command::new("g++").arg("--version").output().is_err() {
        println!("skipped: there is no g++ here");
        return;
    }
    let bench = Workbench::get();
    let source = bench.directory().join("header.cpp");
    std::fs::write(&source, "#include <spillway.h>\nint main() { return spw_version() == nullptr; }\n")
        .unwrap();
    let mut compile = Command::new("g++");
    compile.args(["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]);
    succeed(compile.args(bench.pkg_config(&["--cflags"])).arg(source));
}
