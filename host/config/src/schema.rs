//! The keys of a configuration file. One table for each section defines both the parser and the reference.

use toml::{Spanned, Value};

/// A value of any TOML type: [`Values`](crate::Values) checks the type later, so that all errors are reported at once.
pub type Any = Option<Spanned<Value>>;
/// A list of texts.
pub type Texts = Option<Spanned<Vec<Spanned<String>>>>;

/// One row of the reference.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The key.
    pub key: &'static str,
    /// The kind of its values, such as `text` or `number`.
    pub kind: &'static str,
    /// The default in TOML, or a description.
    pub default: &'static str,
    /// The meaning, in lines.
    pub meaning: &'static [&'static str],
}

/// One section of the reference.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The section's head, such as `[switch]`.
    pub title: &'static str,
    /// What the section is about, in lines.
    pub about: &'static [&'static str],
    /// Its keys.
    pub entries: &'static [Entry],
}

/// Defines a section for serde and for the reference: a struct with a field for each key, and its constant `SECTION`.
/// Rows are `key: type, kind, default;`, with the meaning above. Sections within the section follow the title, as
/// `{ field: type, … }`; each has its own table. The using crate needs serde.
#[macro_export]
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $name:ident, $title:literal, $({ $($field:ident: $subsection:ty),+ })?
        $( $(#[doc = $meaning:literal])+ $key:ident: $type:ty, $kind:literal, $default:literal; )+
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Default, ::serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $( $(#[doc = $meaning])+ pub(crate) $key: $type, )+
            $( $( #[serde(default)] pub(crate) $field: $subsection, )+ )?
        }

        impl $name {
            pub(crate) const SECTION: $crate::Section = $crate::Section {
                title: $title,
                about: &[$($about),+],
                entries: &[
                    $( $crate::Entry {
                        key: stringify!($key),
                        kind: $kind,
                        default: $default,
                        meaning: &[$($meaning),+],
                    } ),+
                ],
            };
        }
    };
}

#[cfg(test)]
mod tests {
    use super::Any;

    section! {
        /// The outer section.
        Outer, "[outer]", { inner: Inner }

        /// The name.
        name: Any, "text", "required";
    }

    section! {
        /// The inner section.
        Inner, "[outer.inner]",

        /// The port.
        port: Any, "number", "required";
    }

    #[test]
    fn a_section_within_another_is_optional_and_has_its_own_table() {
        let outer: Outer = toml::from_str("name = \"a\"\ninner.port = 5\n").unwrap();
        assert!(outer.name.is_some() && outer.inner.port.is_some());
        assert!(toml::from_str::<Outer>("").unwrap().inner.port.is_none());
        assert!(toml::from_str::<Outer>("inner.prot = 5").is_err());
        let keys =
            |section: crate::Section| section.entries.iter().map(|entry| entry.key).collect::<Vec<_>>();
        assert_eq!((keys(Outer::SECTION), keys(Inner::SECTION)), (vec!["name"], vec!["port"]));
    }
}
