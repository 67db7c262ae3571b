//! The section `[moves]` of a server's file: the switch, the keys and all servers of the service.
//!
//! ```toml
//! [moves]
//! switch = "10.0.0.1:9511"          # `control` of the switch
//! key_file = "a.key"                # `key_file` of this server in the switch's configuration
//! peers_key_file = "peers.key"      # the same key on all servers
//! owner_timeout = "1s"              # as in the switch's configuration
//! mode = "gateway"                  # as in the switch's configuration: gateway or host
//! policy = "proactive"              # none, reactive or proactive
//!
//! [moves.thresholds]                # `policy_keys` has all keys
//! load_start_percent = 85
//!
//! [[moves.peer]]                    # one for each server, this one included
//! name = "a"
//! id = 1
//! address = "10.0.0.5:7720"
//! mac = "02:00:00:00:00:05"
//! place = "10.0.0.5:11211"
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use spillway_keys::read_key_file;
use spillway_rules::config::{Mode, OWNER_TIMEOUT_MAX, OWNER_TIMEOUT_MIN};
use spillway_values::{is_name, parse_duration, parse_mac};
use spillway_wire::switch::ServerId;
use toml::Spanned;

use crate::error::EngineError;
use crate::policy_keys::{Limits, PolicyName, Thresholds};
use crate::settings::{Measuring, MoveSettings, PeerServer};

const OWNER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
/// Maximum number of servers: ids are 1 to 255.
const PEERS_MAX: usize = 255;

/// The section `[moves]`, with the paths of its key files.
#[derive(Clone, Debug)]
pub struct MovesFile {
    path: PathBuf,
    section: Section,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    moves: Section,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    switch: Option<SocketAddr>,
    key_file: Option<PathBuf>,
    peers_key_file: PathBuf,
    #[serde(default)]
    mode: SwitchMode,
    owner_timeout: Option<Spanned<String>>,
    #[serde(default)]
    policy: PolicyName,
    #[serde(default)]
    thresholds: Thresholds,
    #[serde(default)]
    limits: Limits,
    #[serde(default, rename = "peer")]
    peers: Vec<Peer>,
}

/// As `mode` in the switch's configuration.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SwitchMode {
    #[default]
    Gateway,
    Host,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Peer {
    name: Spanned<String>,
    id: u8,
    address: Spanned<SocketAddr>,
    mac: String,
    place: Spanned<SocketAddr>,
}

impl MovesFile {
    /// Reads a file. Paths in it are relative to its directory.
    ///
    /// # Errors
    /// The file cannot be read or parsed: the error has the line and the column.
    pub fn read(path: &Path) -> Result<MovesFile, EngineError> {
        let text = fs::read_to_string(path)
            .map_err(|error| EngineError::File(path.to_owned(), format!("cannot be read: {error}")))?;
        MovesFile::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<MovesFile, EngineError> {
        let error = |what: String| EngineError::File(path.to_owned(), what);
        let File { moves: section } = toml::from_str(text).map_err(|why| error(why.to_string()))?;
        if section.peers.len() > PEERS_MAX {
            return Err(error(format!("{} [[moves.peer]], at most {PEERS_MAX}", section.peers.len())));
        }
        check_names(text, &section).map_err(error)?;
        check_addresses(text, &section).map_err(error)?;
        check_owner_timeout(text, &section).map_err(error)?;
        section.policy.settings(&section.thresholds, &section.limits).map_err(error)?;
        Ok(MovesFile { path: path.to_owned(), section })
    }

    /// The settings; the keys are read. `switch` and `key_file` have precedence over those of the file.
    ///
    /// # Errors
    /// A value is missing or not valid, or a key file cannot be read.
    pub fn settings(
        &self,
        switch: Option<SocketAddr>,
        key_file: Option<&Path>,
    ) -> Result<MoveSettings, EngineError> {
        let error = |what: String| EngineError::File(self.path.clone(), what);
        let section = &self.section;
        let directory = self.path.parent().unwrap_or(Path::new(""));
        let switch = switch.or(section.switch).ok_or_else(|| {
            error("give `switch` in [moves]: the address for control messages of the switch".into())
        })?;
        if let Some(peer) =
            section.peers.iter().find(|peer| peer.address.get_ref().is_ipv4() != switch.is_ipv4())
        {
            let address = peer.address.get_ref();
            return Err(error(format!(
                "address {address} has another address family than the switch, {switch}"
            )));
        }
        let in_file = section.key_file.as_ref().map(|path| directory.join(path));
        let key_file = key_file.map(Path::to_owned).or(in_file).ok_or_else(|| {
            error("give `key_file` in [moves]: the key that this server shares with the switch".into())
        })?;
        let owner_timeout = match &section.owner_timeout {
            Some(text) => {
                parse_duration(text.get_ref()).map_err(|why| error(format!("owner_timeout: {why}")))?
            }
            None => OWNER_TIMEOUT_DEFAULT,
        };
        Ok(MoveSettings {
            switch,
            key: read_key_file(key_file).map_err(EngineError::Key)?.switch_key(),
            peers_key: read_key_file(directory.join(&section.peers_key_file)).map_err(EngineError::Key)?,
            peers: section.peers.iter().map(peer).collect::<Result<_, _>>().map_err(error)?,
            owner_timeout,
            mode: match section.mode {
                SwitchMode::Gateway => Mode::Gateway,
                SwitchMode::Host => Mode::Host,
            },
            policy: section.policy.settings(&section.thresholds, &section.limits).map_err(error)?,
            measuring: Measuring::default(),
        })
    }
}

/// The name of a key of `[[moves.peer]]`, and its value in one section.
type Column = (&'static str, fn(&Peer) -> &Spanned<SocketAddr>);

/// Names occur in lines of the log and of `spillway status`, and in commands.
fn check_names(text: &str, section: &Section) -> Result<(), String> {
    let Some(name) = section.peers.iter().map(|peer| &peer.name).find(|name| !is_name(name.get_ref())) else {
        return Ok(());
    };
    let (line, name) = (line_of(text, name), name.get_ref());
    Err(format!("line {line}: name {name:?}: give 1 to 64 letters, digits, '-', '_' and '.'"))
}

/// Checks that each `address` and each `place` occurs once, has a port, and is of the family of the others.
fn check_addresses(text: &str, section: &Section) -> Result<(), String> {
    let columns: [Column; 2] = [("address", |peer| &peer.address), ("place", |peer| &peer.place)];
    for (key, value_of) in columns {
        let values: Vec<_> = section.peers.iter().map(value_of).collect();
        let mut seen = BTreeSet::new();
        for value in &values {
            let address = value.get_ref();
            let refuse = |why: &str| Err(format!("line {}: {key} {address}: {why}", line_of(text, value)));
            if address.port() == 0 || address.ip().is_unspecified() {
                return refuse("give an IP address of the server and a port other than 0");
            }
            if address.is_ipv4() != values[0].get_ref().is_ipv4() {
                return refuse("the other servers have another address family: use IPv4 or IPv6 for all");
            }
            if !seen.insert(address) {
                return refuse("another server has it, too: give each server its own");
            }
        }
    }
    Ok(())
}

fn check_owner_timeout(text: &str, section: &Section) -> Result<(), String> {
    let Some(value) = &section.owner_timeout else { return Ok(()) };
    let refuse = |why: String| format!("line {}: owner_timeout: {why}", line_of(text, value));
    let time = parse_duration(value.get_ref()).map_err(|why| refuse(why.to_string()))?;
    if (OWNER_TIMEOUT_MIN..=OWNER_TIMEOUT_MAX).contains(&time) {
        return Ok(());
    }
    Err(refuse(format!("give the time of the switch, from {OWNER_TIMEOUT_MIN:?} to {OWNER_TIMEOUT_MAX:?}")))
}

/// The line of a value, from 1.
fn line_of<T>(text: &str, value: &Spanned<T>) -> usize {
    text[..value.span().start].matches('\n').count() + 1
}

fn peer(peer: &Peer) -> Result<PeerServer, String> {
    let name = peer.name.get_ref();
    if peer.id == 0 {
        return Err(format!("server {name:?}: `id` is 1 to 255"));
    }
    Ok(PeerServer {
        name: name.clone(),
        id: ServerId(peer.id),
        address: *peer.address.get_ref(),
        mac: parse_mac(&peer.mac).map_err(|why| format!("server {name:?}: mac: {why}"))?,
        place: *peer.place.get_ref(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "[moves]\npeers_key_file = \"peers.key\"\n";

    fn peer(name: &str, id: u32) -> String {
        format!(
            "[[moves.peer]]\nname = \"{name}\"\nid = {id}\naddress = \"10.0.0.5:7720\"\nmac = \
             \"02:00:00:00:00:05\"\nplace = \"10.0.0.5:11211\"\n"
        )
    }

    fn parse(text: &str) -> Result<MovesFile, String> {
        MovesFile::parse(Path::new("peers.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let cases = [
            (format!("{HEAD}{}colour = 1\n", peer("a", 1)), "line 9"),
            (format!("{HEAD}{}", peer("a", 256)), "line 5"),
            (format!("{HEAD}policy = \"eager\"\n"), "line 3"),
            (format!("{HEAD}policy = \"reactive\"\n[moves.thresholds]\nload = 1\n"), "line 5"),
            (
                format!("{HEAD}policy = \"reactive\"\n[moves.thresholds]\nload_start_percent = 200\n"),
                "load_start_percent must be 1 to 100",
            ),
            ("[moves]\n".to_owned(), "peers_key_file"),
            ("[helper]\n".to_owned(), "moves"),
        ];
        for (text, expected) in cases {
            let why = parse(&text).expect_err(&text);
            assert!(why.contains("peers.toml") && why.contains(expected), "{expected}: {why}");
        }
        let many: String = (0..=PEERS_MAX).map(|number| peer(&format!("s{number}"), 1)).collect();
        assert!(parse(&format!("{HEAD}{many}")).unwrap_err().contains("at most 255"));
    }

    #[test]
    fn policies_have_the_names_of_their_rules() {
        let policy = |text: &str| {
            let section = parse(&format!("{HEAD}{text}")).unwrap().section;
            section.policy.settings(&section.thresholds, &section.limits).unwrap()
        };
        assert_eq!((policy(""), policy("policy = \"none\"")), (None, None));
        for name in ["reactive", "proactive"] {
            assert_eq!(policy(&format!("policy = \"{name}\"")).unwrap().policy.name(), name);
        }
    }

    #[test]
    fn missing_values_are_named() {
        let file = parse(&format!("{HEAD}{}", peer("a", 1))).unwrap();
        let why = |switch, key: Option<&Path>| file.settings(switch, key).unwrap_err().to_string();
        assert!(why(None, None).contains("give `switch`"));
        let switch = "10.0.0.1:9511".parse().ok();
        assert!(why(switch, None).contains("give `key_file`"));
        assert!(why(switch, Some(Path::new("/none/a.key"))).contains("/none/a.key"));
        assert!(super::peer(&Peer { id: 0, ..file.section.peers[0].clone() }).is_err());
    }

    #[test]
    fn values_that_cannot_work_are_refused_with_their_line() {
        let second = |address: &str, place: &str| {
            let text = peer("b", 2).replace("10.0.0.5:7720", address).replace("10.0.0.5:11211", place);
            format!("{HEAD}{}{text}", peer("a", 1))
        };
        let head = |timeout: &str| format!("{HEAD}owner_timeout = \"{timeout}\"\n{}", peer("a", 1));
        assert!(parse(&second("10.0.0.6:7720", "10.0.0.6:11211")).is_ok());
        let named = |name: &str| format!("{HEAD}{}", peer(name, 1));
        assert!(parse(&named("rack-1_a.b")).is_ok() && parse(&named(&"n".repeat(64))).is_ok());
        let cases = [
            (named(""), "line 4: name \"\": give 1 to 64 letters"),
            (named("a b"), "line 4: name \"a b\": give 1 to 64 letters"),
            (named("a=b"), "line 4: name \"a=b\": give"),
            (named(&"n".repeat(65)), "line 4: name"),
            (second("10.0.0.5:7720", "10.0.0.6:11211"), "line 12: address 10.0.0.5:7720: another server"),
            (second("10.0.0.6:7720", "10.0.0.5:11211"), "line 14: place 10.0.0.5:11211: another server"),
            (
                second("[fd00::6]:7720", "10.0.0.6:11211"),
                "line 12: address [fd00::6]:7720: the other servers",
            ),
            (second("10.0.0.6:7720", "[fd00::6]:7720"), "line 14: place [fd00::6]:7720: the other servers"),
            (second("0.0.0.0:7720", "10.0.0.6:11211"), "line 12: address 0.0.0.0:7720: give an IP address"),
            (second("10.0.0.6:0", "10.0.0.6:11211"), "line 12: address 10.0.0.6:0: give an IP address"),
            (second("10.0.0.6:7720", "10.0.0.6:0"), "line 14: place 10.0.0.6:0: give an IP address"),
            (head("0s"), "line 3: owner_timeout: give the time"),
            (head("19ms"), "line 3: owner_timeout: give the time"),
            (head("2h"), "line 3: owner_timeout: give the time"),
        ];
        for (text, expected) in cases {
            let why = parse(&text).expect_err(expected);
            assert!(why.contains(expected), "{expected}: {why}");
        }
        assert!(parse(&head("20ms")).is_ok() && parse(&head("1h")).is_ok());
        let file = parse(&head("1s")).unwrap();
        let why = file.settings("[fd00::1]:9511".parse().ok(), None).unwrap_err().to_string();
        assert!(why.contains("another address family than the switch"), "{why}");
    }
}
