//! Checks Debian's units of memcached and redis for what helped servers need.

use std::fs;
use std::path::Path;

use super::finding::Finding;

/// Units for which Spillway has drop-ins.
const UNITS: [&str; 2] = ["memcached.service", "redis-server.service"];
/// The drop-ins of an installed package, and of a source tree.
const PACKAGED: &str = "/usr/share/spillway/systemd";
const SOURCE: &str = "packaging/systemd";
/// Unit directories; the administrator's overrides the others.
const FOLDERS: [&str; 3] = ["/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system"];

pub(super) fn findings() -> Vec<Finding> {
    findings_under(Path::new("/"))
}

fn findings_under(root: &Path) -> Vec<Finding> {
    let inside = |folder: &str| root.join(folder.trim_start_matches('/'));
    let unit =
        |name: &str| FOLDERS.iter().find_map(|folder| fs::read_to_string(inside(folder).join(name)).ok());
    let drop_ins = |name: &str| -> String {
        FOLDERS
            .iter()
            .filter_map(|folder| fs::read_dir(inside(folder).join(format!("{name}.d"))).ok())
            .flat_map(|files| files.flatten())
            .filter(|file| file.path().extension().is_some_and(|end| end == "conf"))
            .filter_map(|file| fs::read_to_string(file.path()).ok())
            .collect::<Vec<_>>()
            .join("\n")
    };
    let ours = if inside(PACKAGED).is_dir() { PACKAGED } else { SOURCE };
    UNITS.iter().filter_map(|name| Some(finding((name, ours), &unit(name)?, &drop_ins(name)))).collect()
}

/// `ours`: the directory of Spillway's drop-ins.
fn finding((name, ours): (&str, &str), unit: &str, drop_ins: &str) -> Finding {
    let what = "unit";
    let paths = |text: &str, option: &str| -> Vec<String> {
        let value = |line: &str| Some(line.trim().strip_prefix(option)?.strip_prefix('=')?.to_owned());
        text.lines().filter_map(value).flat_map(|line| words(&line)).collect()
    };
    let all = format!("{unit}\n{drop_ins}");
    // The last ExecStart= counts: drop-ins clear the unit's with an empty one first.
    let start = all.lines().rfind(|line| line.trim_start().starts_with("ExecStart=")).unwrap_or_default();
    if !paths(start, "ExecStart").iter().any(|word| word.ends_with("/spillway")) {
        let next =
            format!("to adopt it: copy {ours}/{name}.d to /etc/systemd/system, see docs/howto/adopt.md");
        return Finding::ok(what, format!("{name} starts its server without Spillway; {next}"));
    }
    let forbidden = paths(&all, "NoExecPaths").iter().any(|path| path == "/");
    let allowed = paths(&all, "ExecPaths");
    let may_run = |path: &str| allowed.iter().any(|one| Path::new(path).starts_with(one));
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

fn words(line: &str) -> Vec<String> {
    line.split_ascii_whitespace()
        .map(|word| word.trim_start_matches(['-', '+', '@', '!']).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn a_unit_that_forbids_the_preload_library_is_a_finding() {
        let unit = "[Service]\nExecStart=/usr/bin/redis-server\nNoExecPaths=/\nExecPaths=/usr/bin/redis-server /lib\n";
        assert_eq!(finding(("r.service", SOURCE), unit, "").state, State::Ok);
        let start = "[Service]\nExecStart=\nExecStart=/usr/bin/spillway run -- /usr/bin/redis-server\n";
        let finding_of = |drop_in: &str| finding(("r.service", SOURCE), unit, drop_in);
        let lacking = finding_of(start);
        assert_eq!(lacking.state, State::Missing);
        assert!(lacking.next.contains("ExecPaths=/usr/bin/spillway"), "{lacking}");
        let half = finding_of(&format!("{start}ExecPaths=/usr/bin/spillway\n"));
        assert!(half.next.contains("libspillway_shim.so"), "{half}");
        let by_hand = finding(("r.service", SOURCE), &format!("{unit}{start}"), "");
        assert_eq!(by_hand.state, State::Missing, "a unit of the administrator's own: {by_hand}");
        let whole = finding_of(&format!("{start}ExecPaths=/usr/bin/spillway /usr/lib\n"));
        assert_eq!(whole.state, State::Ok, "{whole}");
    }

    #[test]
    fn drop_ins_are_named_where_this_host_has_them() {
        let root = std::env::temp_dir().join(format!("spillway-units-{}", std::process::id()));
        let units = root.join("lib/systemd/system");
        fs::create_dir_all(&units).unwrap();
        fs::write(units.join("memcached.service"), "[Service]\nExecStart=/usr/bin/memcached\n").unwrap();
        let next_step = || findings_under(&root).pop().expect("a unit").to_string();
        let from_source = next_step();
        fs::create_dir_all(root.join("usr/share/spillway/systemd")).unwrap();
        let packaged = next_step();
        fs::remove_dir_all(&root).unwrap();
        assert!(from_source.contains("copy packaging/systemd/memcached.service.d"), "{from_source}");
        assert!(packaged.contains("copy /usr/share/spillway/systemd/memcached.service.d"), "{packaged}");
    }

    #[test]
    fn a_host_without_units_has_no_findings() {
        assert!(findings_under(Path::new("/no/such/root")).is_empty());
    }
}
