//! Suggests a known key in place of an unknown one.

/// Minimal normalized Damerau-Levenshtein similarity (0 to 1) between an unknown key and the key suggested for it.
/// The similarity of the helper's `max_delay` and `max_memory`, two different keys, is lower. If one key is a prefix of
/// the other, their similarity counts as 1.
const SIMILAR_MIN: f64 = 0.65;

/// Adds the most similar known key to the parser's message about an unknown key. `None` if no key is similar.
pub(crate) fn with_suggestion(message: &str) -> Option<String> {
    let (unknown, known) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let is_prefix = |key: &str| unknown.len() >= 3 && (key.starts_with(unknown) || unknown.starts_with(key));
    let similarity = |key: &&str| match is_prefix(key) {
        true => 1.0,
        false => strsim::normalized_damerau_levenshtein(unknown, key),
    };
    let best = known.split('`').skip(1).step_by(2).max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(&best) >= SIMILAR_MIN).then(|| format!("unknown field `{unknown}`, did you mean `{best}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_key_is_suggested() {
        let suggested = |unknown: &str| {
            with_suggestion(&format!("unknown field `{unknown}`, expected one of `interface`, `may_own`"))
        };
        assert_eq!(
            suggested("interfce").as_deref(),
            Some("unknown field `interfce`, did you mean `interface`?")
        );
        assert_eq!(
            suggested("may_own_all").as_deref(),
            Some("unknown field `may_own_all`, did you mean `may_own`?")
        );
        assert_eq!(suggested("vlan"), None);
        assert_eq!(with_suggestion("duplicate key"), None);
    }
}
