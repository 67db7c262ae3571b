//! The installed library: its exported names, dependencies, pkg-config file and header.

mod support;

use std::process::Command;

use support::{Workbench, crate_directory, succeed};

/// The functions that the header declares.
fn declared_functions() -> Vec<String> {
    let header = std::fs::read_to_string(crate_directory().join("include/spillway.h")).unwrap();
    let code: String = header
        .lines()
        .filter(|line| {
            !line.trim_start().starts_with("//") && !line.trim_start().starts_with(['*', '/', '#'])
        })
        .collect::<Vec<_>>()
        .join("\n");
    let names = code.split_inclusive('(').filter_map(|piece| {
        let name = piece.strip_suffix('(')?.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        name.starts_with("spw_").then(|| name.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_nothing_else() {
    let bench = Workbench::get();
    let names = succeed(Command::new("nm").args(["-D", "--defined-only", "-j"]).arg(bench.library()));
    let mut exported: Vec<&str> = names.lines().collect();
    exported.sort_unstable();
    assert_eq!(exported, declared_functions());
    assert!(
        exported.len() > 50,
        "more than 50 functions should be exported, not {}: {exported:?}",
        exported.len()
    );
}

#[test]
fn static_library_defines_all_declared_functions() {
    let bench = Workbench::get();
    let archive = bench.prefix().join("lib/libspillway.a");
    let names = succeed(Command::new("nm").args(["--defined-only", "--extern-only", "-j"]).arg(archive));
    for name in declared_functions() {
        assert!(names.lines().any(|line| line == name), "libspillway.a should define {name}");
    }
}

#[test]
fn shared_library_has_its_soname_and_few_dependencies() {
    let bench = Workbench::get();
    let headers = succeed(Command::new("objdump").arg("-p").arg(bench.library()));
    let entries = |kind: &str| -> Vec<&str> {
        headers.lines().filter_map(|line| line.trim().strip_prefix(kind)).map(str::trim).collect()
    };
    assert_eq!(entries("SONAME"), ["libspillway.so.0"]);
    for needed in entries("NEEDED") {
        let allowed = ["libgcc_s.so.1", "libc.so.6", "ld-linux"];
        let is_allowed = allowed.iter().any(|allowed| needed.starts_with(allowed));
        assert!(is_allowed, "libspillway.so should not need {needed}");
    }
}

#[test]
fn pkg_config_reports_version_and_flags() {
    let bench = Workbench::get();
    let prefix = bench.prefix().display().to_string();
    assert_eq!(bench.pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    assert_eq!(bench.pkg_config(&["--cflags"]), [format!("-I{prefix}/include")]);
    assert_eq!(bench.pkg_config(&["--libs"]), [format!("-L{prefix}/lib"), "-lspillway".to_owned()]);
}

#[test]
fn destdir_does_not_appear_in_the_installed_pc_file() {
    let bench = Workbench::get();
    let (destdir, tests) = (bench.directory().join("destdir"), std::env::current_exe().unwrap());
    let mut install = Command::new(crate_directory().join("../../tools/install-capi"));
    install.arg("--from").arg(tests.parent().unwrap()).arg("--destdir").arg(&destdir);
    succeed(install.args(["--prefix", "/usr", "--libdir", "/usr/lib/of-this-machine"]));
    let pc = std::fs::read_to_string(destdir.join("usr/lib/of-this-machine/pkgconfig/spillway.pc")).unwrap();
    assert!(
        pc.contains("libdir=/usr/lib/of-this-machine\n") && pc.contains("includedir=/usr/include\n"),
        "{pc}"
    );
    assert!(!pc.contains('@') && !pc.contains(destdir.to_str().unwrap()), "{pc}");
    assert!(destdir.join("usr/lib/of-this-machine/libspillway.so.0").exists());
}

#[test]
fn header_compiles_as_cpp() {
    if Command::new("g++").arg("--version").output().is_err() {
        println!("skipped: g++ is not installed");
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
