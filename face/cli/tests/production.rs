//! The production program does not contain the laboratory; its old commands name the new program.

use std::process::Command;

const SPILLWAY: &str = env!("CARGO_BIN_EXE_spillway");

#[test]
fn commands_of_the_laboratory_name_their_new_program() {
    let cases: [(&[&str], &str); 4] = [
        (&["demo", "--report", "here.html"], "run `spillway-lab demo`"),
        (&["bench", "burst", "--quick"], "run `spillway-lab bench`"),
        (&["sim", "relay", "--help"], "run `spillway-lab sim`"),
        (&["lab", "clean"], "run `spillway-lab clean`"),
    ];
    for (arguments, expected) in cases {
        let output = Command::new(SPILLWAY).args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    let help = Command::new(SPILLWAY).arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.contains("  sidecar") && !help.contains("  demo") && !help.contains("  sim"), "{help}");
}

#[test]
fn the_laboratory_is_not_linked_in() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let tree = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--manifest-path",
            manifest,
        ])
        .output()
        .unwrap();
    let crates = String::from_utf8_lossy(&tree.stdout).into_owned();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    assert!(crates.contains("spillway-helper v"), "{crates}");
    for absent in ["smoltcp", "spillway-lab", "spillway-bench", "spillway-sim"] {
        assert!(
            !crates.lines().any(|line| line.starts_with(&format!("{absent} v"))),
            "{absent} should not be linked in"
        );
    }
}
