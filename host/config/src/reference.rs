//! The reference of a configuration file, in Markdown.

use std::fmt::Write;

use crate::schema::Section;

/// Appends a section's heading and the table of its keys to a page.
pub fn write_section(section: &Section, page: &mut String) {
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
pub fn is_toml(default: &str) -> bool {
    matches!(default, "true" | "false")
        || default.starts_with(['"', '['])
        || default.starts_with(|c: char| c.is_ascii_digit())
}

fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Entry;

    #[test]
    fn a_section_is_a_heading_and_a_table() {
        let entries = &[
            Entry { key: "name", kind: "text", default: "\"a\"", meaning: &[" The name,", " of the thing."] },
            Entry { key: "port", kind: "number", default: "required", meaning: &[" The port."] },
        ];
        let mut page = String::new();
        write_section(&Section { title: "[a]", about: &[" About."], entries }, &mut page);
        let expected = "\n## `[a]`\n\nAbout.\n\n| key | type | default | meaning |\n|---|---|---|---|\n\
                        | `name` | text | `\"a\"` | The name, of the thing. |\n| `port` | number | required | The port. |\n";
        assert_eq!(page, expected);
        assert!(is_toml("[]") && is_toml("5") && is_toml("true") && !is_toml("none"));
    }
}
