//! The reference of the configuration file: the text of `docs/configuration.md`.

use std::fmt::Write;

use super::schema::{SECTIONS, Section};

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

fn write_section(section: &Section, page: &mut String) {
    // Cannot fail: writes to a string.
    let _ = writeln!(page, "\n## `{}`\n\n{}\n", section.title, joined(section.about));
    page.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
    for entry in section.entries {
        let default =
            if is_toml(entry.default) { format!("`{}`", entry.default) } else { entry.default.to_owned() };
        let meaning = joined(entry.meaning);
        let _ = writeln!(page, "| `{}` | {} | {default} | {meaning} |", entry.key, entry.kind);
    }
}

/// Whether a default is TOML, not a description.
pub(crate) fn is_toml(default: &str) -> bool {
    matches!(default, "true" | "false")
        || default.starts_with(['"', '['])
        || default.starts_with(|c: char| c.is_ascii_digit())
}

fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}
