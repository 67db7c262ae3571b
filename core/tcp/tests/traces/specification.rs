//! `SPECIFICATION.md` has one row for each requirement, and names only tests that exist.

use std::fs;
use std::path::Path;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_requirement_has_one_row() {
    let specification = file("SPECIFICATION.md");
    for number in 1..70 {
        let rows = specification.matches(&format!("\n| MUST-{number} |")).count();
        assert_eq!(rows, 1, "MUST-{number} should have one row");
    }
}

#[test]
fn the_named_tests_exist() {
    let specification = file("SPECIFICATION.md");
    let quoted = specification.split('`').skip(1).step_by(2);
    let mut count = 0;
    for (module, name) in quoted.filter_map(|name| name.split_once("::")) {
        let source = file(&format!("tests/traces/{module}.rs"));
        let definition = match name.split_once(['…', '*']) {
            Some((beginning, _)) => format!("\nfn {beginning}"),
            None => format!("\nfn {name}()"),
        };
        assert!(source.contains(&definition), "the test {module}::{name} should exist");
        count += 1;
    }
    assert!(count > 70, "{count} named tests: the search should find more");
}
