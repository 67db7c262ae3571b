//! Checks Debian's units of memcached and redis for what helped servers need.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::finding::Finding;

/// Units for which Spillway has drop-ins.
const UNITS: [&str; 2] = ["memcached.service", "redis-server.service"];
/// The drop-ins of an installed package, and of a source tree.
const PACKAGED: &str = "/usr/share/spillway/systemd";
const SOURCE: &str = "packaging/systemd";
/// Unit directories (systemd.unit(5)): a file hides the files of the same name in later directories.
const FOLDERS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

pub(super) fn findings() -> Vec<Finding> {
    findings_under(Path::new("/"))
}

fn findings_under(root: &Path) -> Vec<Finding> {
    let under_root = |folder: &str| root.join(folder.trim_start_matches('/'));
    let unit =
        |name: &str| FOLDERS.iter().find_map(|folder| fs::read_to_string(under_root(folder).join(name)).ok());
    let drop_ins = |name: &str| {
        let folders: Vec<PathBuf> =
            FOLDERS.iter().map(|folder| under_root(folder).join(format!("{name}.d"))).collect();
        drop_ins_in(&folders)
    };
    let drop_in_directory = if under_root(PACKAGED).is_dir() { PACKAGED } else { SOURCE };
    UNITS
        .iter()
        .filter_map(|name| Some(finding((name, drop_in_directory), &unit(name)?, &drop_ins(name))))
        .collect()
}

/// The drop-ins of a unit, in the order in which systemd reads them: by file name over all directories.
fn drop_ins_in(folders: &[PathBuf]) -> String {
    let mut by_name = BTreeMap::new();
    for file in folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten() {
        let path = file.path();
        if path.extension().is_some_and(|end| end == "conf") {
            by_name.entry(file.file_name()).or_insert(path);
        }
    }
    by_name.values().filter_map(|path| fs::read_to_string(path).ok()).collect::<Vec<_>>().join("\n")
}

/// `drop_in_directory`: the directory of Spillway's drop-ins.
fn finding((name, drop_in_directory): (&str, &str), unit: &str, drop_ins: &str) -> Finding {
    let what = "unit";
    let settings = format!("{unit}\n{drop_ins}");
    let paths =
        |option: &str| -> Vec<String> { values(&settings, option).into_iter().flat_map(words_of).collect() };
    let start = values(&settings, "ExecStart").pop().unwrap_or_default();
    if !words_of(start).iter().any(|word| word.ends_with("/spillway")) {
        let next = format!(
            "to adopt it: copy {drop_in_directory}/{name}.d to /etc/systemd/system, see docs/howto/adopt.md"
        );
        return Finding::ok(what, format!("{name} starts its server without Spillway; {next}"));
    }
    let forbidden = paths("NoExecPaths").iter().any(|path| path == "/");
    let allowed = paths("ExecPaths");
    let may_run = |path: &str| allowed.iter().any(|allowed_path| Path::new(path).starts_with(allowed_path));
    let needed = ["/usr/bin/spillway", "/usr/lib/spillway/libspillway_shim.so"];
    match needed.iter().find(|path| forbidden && !may_run(path)) {
        None => Finding::ok(what, format!("{name} starts its server under Spillway")),
        Some(path) => Finding::missing(
            what,
            format!("{name} does not allow to execute {path} (NoExecPaths=/)"),
            format!("add to its drop-in: ExecPaths={path}"),
        ),
    }
}

/// The values of a list option, as systemd reads them: an empty value removes the earlier ones.
fn values<'a>(settings: &'a str, option: &str) -> Vec<&'a str> {
    let mut values = Vec::new();
    for (name, value) in settings.lines().filter_map(|line| line.split_once('=')) {
        match value.trim() {
            _ if name.trim() != option => {}
            "" => values.clear(),
            value => values.push(value),
        }
    }
    values
}

fn words_of(line: &str) -> Vec<String> {
    line.split_ascii_whitespace()
        .map(|word| word.trim_start_matches(['-', '+', '@', '!']).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn unit_that_forbids_the_preload_library_is_missing_a_path() {
        let unit = "[Service]\nExecStart=/usr/bin/redis-server\nNoExecPaths=/\nExecPaths=/usr/bin/redis-server /lib\n";
        assert_eq!(finding(("r.service", SOURCE), unit, "").state, State::Ok);
        let start = "[Service]\nExecStart=\nExecStart=/usr/bin/spillway run -- /usr/bin/redis-server\n";
        let finding_of = |drop_in: &str| finding(("r.service", SOURCE), unit, drop_in);
        let without_paths = finding_of(start);
        assert_eq!(without_paths.state, State::Missing);
        assert!(without_paths.next.contains("ExecPaths=/usr/bin/spillway"), "{without_paths}");
        let with_one_path = finding_of(&format!("{start}ExecPaths=/usr/bin/spillway\n"));
        assert!(with_one_path.next.contains("libspillway_shim.so"), "{with_one_path}");
        let own_unit = finding(("r.service", SOURCE), &format!("{unit}{start}"), "");
        assert_eq!(
            own_unit.state,
            State::Missing,
            "a unit without drop-ins should be checked, too: {own_unit}"
        );
        let with_both_paths = finding_of(&format!("{start}ExecPaths=/usr/bin/spillway /usr/lib\n"));
        assert_eq!(with_both_paths.state, State::Ok, "{with_both_paths}");
    }

    #[test]
    fn next_step_names_the_drop_ins_of_the_package_or_the_source_tree() {
        let root = std::env::temp_dir().join(format!("spillway-units-{}", std::process::id()));
        let units = root.join("lib/systemd/system");
        fs::create_dir_all(&units).unwrap();
        fs::write(units.join("memcached.service"), "[Service]\nExecStart=/usr/bin/memcached\n").unwrap();
        let next_step = || findings_under(&root).pop().expect("finding about the unit").to_string();
        let from_source = next_step();
        fs::create_dir_all(root.join("usr/share/spillway/systemd")).unwrap();
        let packaged = next_step();
        fs::remove_dir_all(&root).unwrap();
        assert!(from_source.contains("copy packaging/systemd/memcached.service.d"), "{from_source}");
        assert!(packaged.contains("copy /usr/share/spillway/systemd/memcached.service.d"), "{packaged}");
    }

    #[test]
    fn drop_ins_are_read_by_name_and_the_administrators_hide_the_packages() {
        let root = std::env::temp_dir().join(format!("spillway-drop-ins-{}", std::process::id()));
        let folders = [root.join("etc"), root.join("lib")];
        for (file, text) in [
            ("etc/20-last.conf", "ExecPaths=/last"),
            ("etc/10-hidden.conf", ""),
            ("etc/50-old.conf.save", "ExecPaths=/not/read"),
            ("lib/10-hidden.conf", "ExecPaths=/hidden"),
            ("lib/15-second.conf", "ExecPaths=\nExecPaths = /second"),
            ("lib/05-first.conf", "ExecPaths=/first"),
        ] {
            fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            fs::write(root.join(file), text).unwrap();
        }
        let text = drop_ins_in(&folders);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            text, "ExecPaths=/first\n\nExecPaths=\nExecPaths = /second\nExecPaths=/last",
            "sorted by name"
        );
        assert_eq!(values(&text, "ExecPaths"), ["/second", "/last"]);
    }

    #[test]
    fn a_host_without_units_has_no_findings() {
        assert!(findings_under(Path::new("/no/such/root")).is_empty());
    }
}
