//! The reference of the configuration file: the text of `docs/switch-configuration.md`.

use spillway_config::write_section;

use super::schema::SECTIONS;

/// A file with three ports, a client, a router, and the servers `a` and `b` of the service `cache`.
pub(crate) const EXAMPLE: &str = include_str!("example.toml");

const HEAD: &str = r#"# Configuration of a switch

<!-- Written by `spillway check --reference switch`; a test compares. Change face/switch/src/config/schema.rs instead. -->

`spillway switch --config FILE` reads one TOML file; [how to run a switch](howto/switch.md) explains it. Unknown keys are errors.
`spillway check FILE` reports the errors of a file by line and column, and `--show` prints every value with defaults. `spillway
reload --socket PATH` applies a changed file while the switch runs; keys that need a restart are marked below.

A *time* is a number with a unit: `ns`, `us`, `ms`, `s`, `m`, `h`. An *address range* is in CIDR notation: `10.0.0.0/8`,
`2001:db8::/32`, or a single address. An *Ethernet address* has six hexadecimal bytes: `02:00:00:00:00:05`.

## Example

Clients behind `eth0`, some of them behind a router. Connections to the cache begin at server `a`, and may move to `b` and back.

"#;

/// The page in Markdown.
pub fn reference() -> String {
    let example = EXAMPLE.replace("\n[[", "\n\n[[");
    let mut page = format!("{HEAD}```toml\n{example}```\n");
    SECTIONS.iter().for_each(|section| write_section(section, &mut page));
    page
}
