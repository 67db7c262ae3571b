//! Checks throughput measurements whose limit should be one host with a quota, kept busy by closed loops.

use crate::measure::{QUOTA_SHARE_MAX, QUOTA_SHARE_SATURATED, Used, disturbed, stopped};
use crate::results;

const ROUNDS_MIN: usize = 3;

/// Why a measurement is spoilt; `quota_share` is the used share of the limiting host's quota, 0 to 1. Other busy
/// hosts of the laboratory do not spoil a measurement: [`limit`] reports them.
pub(crate) fn spoilt(used: &Used, host: &str, quota_share: f64) -> Option<String> {
    let over_quota = (quota_share > QUOTA_SHARE_MAX)
        .then(|| format!("{host} used {:.0} % of the quota", quota_share * 100.0));
    over_quota.or_else(|| disturbed(used)).or_else(|| stopped(used))
}

/// CPU use of all hosts, if the limiting host did not use up its quota: the measured throughput is then a lower bound.
pub(crate) fn limit(used: &Used, host: &str, quota_share: f64) -> Option<String> {
    (quota_share < QUOTA_SHARE_SATURATED).then(|| {
        let cpu_use = [
            ("server", used.server_s()),
            ("helpers", used.helper_s),
            ("clients", used.clients_s),
            ("bridge", used.bridge_s),
        ]
        .map(|(name, seconds)| format!("{name} {:.0} %", used.percent(seconds)));
        format!("{host} used {:.0} % of the quota; of a core: {}", quota_share * 100.0, cpu_use.join(", "))
    })
}

/// The note for rows with lower bounds in some rounds; empty if `limits` is.
pub(crate) fn limit_note<'a>(limits: impl Iterator<Item = &'a str>) -> String {
    let mut limits = limits.peekable();
    let Some(first) = limits.peek().map(|first| first.to_string()) else { return String::new() };
    format!("at least ({} rounds): {first}", limits.count())
}

/// Why a comparison over `rounds` is not valid; `None` from [`ROUNDS_MIN`] rounds on.
pub(crate) fn few(rounds: usize) -> Option<String> {
    results::few(rounds, "rounds", ROUNDS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_a_lower_bound_unless_the_limiting_host_used_its_quota() {
        let used = Used { seconds: 2.0, helper_s: 1.6, server_process_s: 0.1, ..Used::default() };
        assert_eq!(spoilt(&used, "the server", 1.0), None);
        assert_eq!(limit(&used, "the server", 0.96), None);
        let note = limit(&used, "the server", 0.5).unwrap();
        assert!(note.contains("50 % of the quota") && note.contains("helpers 80 %"), "{note}");
        assert!(spoilt(&used, "the server", 1.2).unwrap().contains("120 %"));
        let disturbed = Used { others_s: 1.0, ..used };
        assert!(spoilt(&disturbed, "the server", 1.0).unwrap().contains("other work"));
        assert_eq!(limit_note(std::iter::empty()), "");
        assert_eq!(limit_note(["a", "b"].into_iter()), "at least (2 rounds): a");
    }
}
