//! What a reload changes.

use serde::{Deserialize, Serialize};

use crate::config::SwitchConfig;

/// The result of a reload; the same as a helper's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadOutcome {
    /// A line for each changed key, and each added or removed section.
    pub changes: Vec<String>,
    /// Keys whose new values need a restart.
    pub restart: Vec<String>,
}

/// Checks that a reload does not change the mode: the tables of the one mode make no sense in the other.
///
/// # Errors
/// The modes differ.
pub(crate) fn check_mode(before: &SwitchConfig, after: &SwitchConfig) -> Result<(), String> {
    if before.mode == after.mode {
        return Ok(());
    }
    Err("mode cannot change while the switch runs: stop the daemon, run `spillway switch --config FILE --detach` with the old \
         file, and start it again"
        .to_owned())
}

/// Copies the settings that need a restart from `before` to `config`. Returns the keys of those that differ.
pub(crate) fn keep_restart_settings(before: &SwitchConfig, config: &mut SwitchConfig) -> Vec<String> {
    let mut changed = Vec::new();
    let mut keep = |key: &str, is_changed: bool| changed.extend(is_changed.then(|| key.to_owned()));
    keep("switch.name", before.name != config.name);
    keep("switch.flows_max", before.flows_max != config.flows_max);
    keep("switch.socket", before.socket != config.socket);
    keep("switch.admin_group", before.admin_group != config.admin_group);
    keep("switch.metrics", before.metrics != config.metrics);
    config.name.clone_from(&before.name);
    config.flows_max = before.flows_max;
    config.socket.clone_from(&before.socket);
    config.admin_group.clone_from(&before.admin_group);
    config.metrics = before.metrics;
    changed
}

/// A line for each added or removed section, and for each changed key.
pub(crate) fn differences(before: &SwitchConfig, after: &SwitchConfig) -> Vec<String> {
    let (before, after) = (sections(before), sections(after));
    let text = |sections: &[(String, String)], title: &str| {
        sections.iter().find(|(other, _)| other == title).map(|(_, text)| text.clone())
    };
    let mut changes = Vec::new();
    for (title, old) in &before {
        match text(&after, title) {
            Some(new) => changes.extend(compare(old, &new).iter().map(|line| format!("{title}: {line}"))),
            None => changes.push(format!("{title}: removed")),
        }
    }
    let added = after.iter().filter(|(title, _)| text(&before, title).is_none());
    changes.extend(added.map(|(title, _)| format!("{title}: added")));
    changes
}

/// Each section with its title and its lines.
fn sections(config: &SwitchConfig) -> Vec<(String, String)> {
    let mut sections = vec![("switch".to_owned(), config.general())];
    let ports = config.ports.iter();
    sections.extend(ports.map(|port| (format!("port {}", port.interface), config.port_text(port))));
    let stations = config.stations.iter();
    sections.extend(stations.map(|one| (format!("station {}", one.mac), config.station_text(one))));
    let routes = config.routes.iter();
    sections.extend(routes.map(|route| (format!("prefix {}", route.network), config.route_text(route))));
    let services = config.services.iter();
    sections.extend(services.map(|one| (format!("service {}", one.name), config.service_text(one))));
    let servers = config.servers.iter();
    sections.extend(servers.map(|server| (format!("server {}", server.name), config.server_text(server))));
    sections
}

/// New and changed lines, and keys that have no line any more.
fn compare(before: &str, after: &str) -> Vec<String> {
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let key = |line: &str| line.split_once(" = ").map(|(key, _)| key.to_owned());
    let new = after.iter().filter(|line| !before.contains(line));
    let new = new.map(|line| line.trim_start_matches("# ").to_owned());
    let keys: Vec<String> = after.iter().filter_map(|line| key(line)).collect();
    let is_replaced = |key: &str| after.contains(&&*format!("# no {key}"));
    let removed =
        before.iter().filter_map(|line| key(line)).filter(|key| !keys.contains(key) && !is_replaced(key));
    new.chain(removed.map(|key| format!("{key} removed"))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::tests::{VALID, config, host, read};

    #[test]
    fn differences_are_listed_by_section_and_key() {
        let before = config();
        assert!(differences(&before, &before).is_empty());
        let text = VALID
            .replace("[[service]]", "[[station]]\nmac = \"02:00:00:00:00:09\"\nport = \"eth0\"\n[[service]]")
            .replace("name = \"b\"", "name = \"c\"")
            .replace("mac = \"02:00:00:00:00:05\"", "mac = \"02:00:00:00:00:15\"");
        let mut after = read(&text);
        after.owner_timeout = Duration::from_secs(2);
        assert_eq!(
            differences(&before, &after),
            [
                "switch: owner_timeout = \"2s\"",
                "server a: mac = \"02:00:00:00:00:15\"",
                "server b: removed",
                "station 02:00:00:00:00:09: added",
                "server c: added",
            ]
        );
        assert_eq!(compare("a = 1\nmay_own = [\"x\"]\n", "a = 1\n"), ["may_own removed"]);
        assert_eq!(compare("metrics = \"x\"\n", "# no metrics\n"), ["no metrics"]);
    }

    #[test]
    fn the_mode_stays() {
        assert_eq!(check_mode(&config(), &config()), Ok(()));
        let error = check_mode(&config(), &read(&host())).unwrap_err();
        assert!(error.contains("--detach"), "{error}");
    }

    #[test]
    fn settings_that_need_a_restart_stay() {
        let before = config();
        let mut after = SwitchConfig {
            name: "other".into(),
            flows_max: 7,
            metrics: Some("127.0.0.1:1".parse().unwrap()),
            owner_timeout: Duration::from_secs(2),
            ..config()
        };
        let keys = keep_restart_settings(&before, &mut after);
        assert_eq!(keys, ["switch.name", "switch.flows_max", "switch.metrics"]);
        assert_eq!(differences(&before, &after), ["switch: owner_timeout = \"2s\""]);
    }
}
