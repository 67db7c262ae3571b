//! The reference of the configuration file: the text of `docs/switch-configuration.md`.

use spillway_config::write_section;

use super::schema::SECTIONS;

const HEAD: &str = r#"# Configuration of a switch

<!-- Written by `spillway check --reference switch`; a test compares. Change face/switch/src/config/schema.rs instead. -->

`spillway switch --config FILE` reads one TOML file; [how to run a switch](howto/switch.md) explains it. Unknown keys are errors.
`spillway check FILE` reports the errors of a file by line and column, and `--show` prints every value with defaults. `spillway
reload --socket PATH` applies a changed file while the switch runs; keys that need a restart are marked below.

A *time* is a number with a unit: `ns`, `us`, `ms`, `s`, `m`, `h`. An *address range* is in CIDR notation: `10.0.0.0/8`,
`2001:db8::/32`, or a single address. An *Ethernet address* has six hexadecimal bytes: `02:00:00:00:00:05`.

## Example

Clients behind `eth0`, and two servers. Connections to the cache begin at server `a`, and may move to `b` and back.

```toml
[switch]
control = ["10.0.0.1:9511"]

[[port]]
interface = "eth0"

[[port]]
interface = "eth1"
may_own = ["cache"]

[[port]]
interface = "eth2"
may_own = ["cache"]

[[station]]
mac = "02:00:00:00:00:01"
port = "eth0"

[[service]]
name = "cache"
endpoints = [{ address = "10.0.0.5:11211", server = "a" }]

[[server]]
name = "a"
id = 1
address = "10.0.0.5"
mac = "02:00:00:00:00:05"
port = "eth1"
key_file = "/etc/spillway/a.key"

[[server]]
name = "b"
id = 2
address = "10.0.0.6"
mac = "02:00:00:00:00:06"
port = "eth2"
key_file = "/etc/spillway/b.key"
places = [{ address = "10.0.0.6:21211", service = "cache" }]
```
"#;

/// The page in Markdown.
pub fn reference() -> String {
    let mut page = String::from(HEAD);
    SECTIONS.iter().for_each(|section| write_section(section, &mut page));
    page
}
