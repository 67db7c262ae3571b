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
/// Rows are `key: type, kind, default;`, with the meaning above. The using crate needs serde.
#[macro_export]
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $name:ident, $title:literal,
        $( $(#[doc = $meaning:literal])+ $key:ident: $type:ty, $kind:literal, $default:literal; )+
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Default, ::serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $( $(#[doc = $meaning])+ pub(crate) $key: $type, )+
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
