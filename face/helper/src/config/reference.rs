//! The reference of the configuration file: the text of `docs/configuration.md`.

use spillway_config::write_section;

use super::schema::SECTIONS;

const HEAD: &str = "\
# Configuration of a helper

<!-- Written by `spillway check --reference`; a test compares. Change face/helper/src/config/schema.rs instead. -->

`spillway helper --config FILE` reads one TOML file. Unknown keys are errors. `spillway check FILE` reports the errors
of a file by line and column, and `--show` prints every value with defaults. `spillway reload` applies a changed file
while the helper runs; keys that need a restart are marked below.

A *time* is a number with a unit: `ns`, `us`, `ms`, `s`, `m`, `h`. A *size* is one with `B`, `KiB`, `MiB`, `GiB`;
a *rate* one with `kbit`, `Mbit`, `Gbit`, per second. Fractions are permitted: `1.5s`.
An *address range* is in CIDR notation: `10.0.0.0/8`, `2001:db8::/32`, or a single address.
";

const EXAMPLE: &str = r#"
## Example

```toml
[helper]
name = "helper-1"

[service.cache]
server = "10.0.0.5:11411"
listen = [":11211"]
key_files = ["/etc/spillway/cache.key"]
```
"#;

/// The page in Markdown.
pub fn reference() -> String {
    let mut page = String::from(HEAD);
    page.push_str(EXAMPLE);
    SECTIONS.iter().for_each(|section| write_section(section, &mut page));
    page
}
