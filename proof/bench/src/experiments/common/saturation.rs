//! Judging what goes through when one host is to be the limit: it has a quota, and closed loops keep it busy.

use crate::measure::{QUOTA_SHARE_MAX, QUOTA_SHARE_SATURATED, Used, disturbed, stopped};
use crate::results;

/// Rounds that a comparison needs.
const ROUNDS_MIN: usize = 3;

/// Why nothing counts, if so; `share` is how much of its quota the limiting host used, 0 to 1. Everybody else may be as busy
/// as they can: that is said by [`limit`].
pub(crate) fn spoilt(used: &Used, who: &str, share: f64) -> Option<String> {
    let over = (share > QUOTA_SHARE_MAX).then(|| format!("{who} used {:.0} % of the quota", share * 100.0));
    over.or_else(|| disturbed(used)).or_else(|| stopped(used))
}

/// Who was busy, if the host that was to be the limit was not: what went through is then the least that it can do.
pub(crate) fn limit(used: &Used, who: &str, share: f64) -> Option<String> {
    (share < QUOTA_SHARE_SATURATED).then(|| {
        let busy = [
            ("server", used.server_s()),
            ("helpers", used.helper_s),
            ("clients", used.clients_s),
            ("bridge", used.bridge_s),
        ]
        .map(|(name, seconds)| format!("{name} {:.0} %", used.percent(seconds)));
        format!("{who} used {:.0} % of the quota; of a core: {}", share * 100.0, busy.join(", "))
    })
}

/// The note of rows in which the host that was to be the limit was not, in some of the rounds.
pub(crate) fn limit_note<'a>(limits: impl Iterator<Item = &'a str>) -> String {
    let mut limits = limits.peekable();
    let Some(first) = limits.peek().map(|first| first.to_string()) else { return String::new() };
    format!("at least ({} rounds): {first}", limits.count())
}

/// The reason why a comparison over so many rounds says little, if so.
pub(crate) fn few(rounds: usize) -> Option<String> {
    results::few(rounds, "rounds", ROUNDS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_at_its_quota_is_the_limit() {
        let used = Used { seconds: 2.0, helper_s: 1.6, server_process_s: 0.1, ..Used::default() };
        assert_eq!(spoilt(&used, "the server", 1.0), None);
        assert_eq!(limit(&used, "the server", 0.96), None);
        let words = limit(&used, "the server", 0.5).unwrap();
        assert!(words.contains("50 % of the quota") && words.contains("helpers 80 %"), "{words}");
        assert!(spoilt(&used, "the server", 1.2).unwrap().contains("120 %"));
        let disturbed = Used { others_s: 1.0, ..used };
        assert!(spoilt(&disturbed, "the server", 1.0).unwrap().contains("other work"));
        assert_eq!(limit_note(std::iter::empty()), "");
        assert_eq!(limit_note(["a", "b"].into_iter()), "at least (2 rounds): a");
    }
}
