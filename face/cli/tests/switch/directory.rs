//! The directory of the pinned tables: who may have access, and what refused starts leave there.

use super::changes::edit;
use super::support::{PATIENCE, SPILLWAY};
use super::{Scene, terminate};

/// Runs a program in the mount namespace of the switch. Returns whether it succeeds, and its error output.
fn run(scene: &Scene, program: &str, arguments: &[&str]) -> (bool, String) {
    let mut process = scene.switch.spawn(&scene.launch(program, &[], arguments)).unwrap();
    let ended = process.wait(PATIENCE).expect("the program should end");
    (ended.success(), process.stderr().unwrap())
}

fn switch(scene: &Scene, arguments: &[&str]) -> (bool, String) {
    run(scene, SPILLWAY, &[&["switch", "--config", &scene.config()], arguments].concat())
}

fn directory(scene: &Scene) -> String {
    let text = std::fs::read_to_string(scene.config()).unwrap();
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    format!("/sys/fs/bpf/spillway/{}", name.unwrap())
}

fn exists(scene: &Scene, path: &str) -> bool {
    run(scene, "test", &["-e", path]).0
}

#[test]
fn a_refused_start_leaves_no_directory_and_no_foreign_file_is_deleted() {
    let Some(scene) = Scene::start(0) else { return };
    let directory = directory(&scene);
    edit(&scene, |text| text.replace("interface = \"", "interface = \"x").replace("port = \"", "port = \"x"));
    let (succeeds, stderr) = switch(&scene, &[]);
    assert!(!succeeds && stderr.contains("no port can be attached"), "{stderr}");
    assert!(!exists(&scene, &directory));

    let foreign = format!("{directory}/foreign");
    assert!(run(&scene, "mkdir", &["-m", "0700", &directory, &foreign]).0);
    let (succeeds, stderr) = switch(&scene, &[]);
    assert!(!succeeds && stderr.contains("no port can be attached"), "{stderr}");
    assert!(exists(&scene, &foreign));
    scene.configure("", "");
    terminate(scene.start_daemon());
    let (succeeds, stderr) = switch(&scene, &["--detach"]);
    assert!(succeeds && stderr.contains("foreign is not of the switch"), "{stderr}");
    assert!(exists(&scene, &foreign) && !exists(&scene, &format!("{directory}/flows")));
    scene.close();
}

#[test]
fn a_start_needs_the_bpf_file_system_and_a_directory_of_its_own() {
    let Some(scene) = Scene::start(0) else { return };
    let directory = directory(&scene);
    assert!(run(&scene, "mkdir", &["-m", "0777", &directory]).0);
    let (succeeds, stderr) = switch(&scene, &[]);
    assert!(!succeeds && stderr.contains(&format!("chmod 0700 {directory}")), "{stderr}");
    assert!(run(&scene, "chmod", &["0700", &directory]).0 && run(&scene, "chown", &["65534", &directory]).0);
    let (succeeds, stderr) = switch(&scene, &[]);
    assert!(!succeeds && stderr.contains("belongs to the user 65534"), "{stderr}");
    assert!(run(&scene, "rmdir", &[&directory]).0);

    assert!(
        run(&scene, "umount", &["/sys/fs/bpf"]).0
            && run(&scene, "mount", &["-t", "tmpfs", "tmpfs", "/sys/fs/bpf"]).0
    );
    let (succeeds, stderr) = switch(&scene, &[]);
    assert!(!succeeds && stderr.contains("mount -t bpf"), "{stderr}");
    assert!(!exists(&scene, "/sys/fs/bpf/spillway"));
    scene.close();
}
