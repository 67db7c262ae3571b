//! SYN cookies: while the table of half-open connections is full, the state of a new connection is not stored but sent
//! to the peer, which returns it (RFC 4987 §3.6).
//!
//! The initial sequence number encodes a time counter and the peer's segment size, both masked, and a tag of 24 bits
//! that cannot be computed without the key. As in Linux, window scale and SACK are in the low bits of the timestamp,
//! which the peer echoes; here the tag covers them. Without timestamps a connection has neither scale nor SACK.
//!
//! A guess succeeds once in 2^28 tries: 2 of 32 counters are valid, any size, and the tag must match.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_transport::Time;

use crate::isn::{Key, Purpose};
use crate::narrow::{in_packet, low_half};

/// Length of a counter period: a cookie is valid in the period in which it was made and in the next.
const PERIOD: Duration = Duration::from_secs(64);
/// The longest time for which a cookie is valid.
pub(crate) const VALID: Duration = Duration::from_secs(2 * 64);
const COUNTER_BITS: u32 = 5;
const TAG_BITS: u32 = 24;
const TAG_MASK: u32 = (1 << TAG_BITS) - 1;
/// Option bits in a timestamp: four of window scale, one of SACK.
const OPTION_BITS: u32 = 5;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
const NO_SCALE: u32 = 15;
const SACK: u32 = 1 << 4;
/// The largest window scale (RFC 7323 §2.3).
const SCALE_MAX: u8 = 14;

/// Segment sizes that a cookie can encode. A cookie has the largest of them that does not exceed the peer's size, or
/// the first if all exceed it.
pub const SIZES: [u16; 8] = [64, 536, 1220, 1360, 1400, 1440, 1460, 8960];

/// The options of the peer's SYN that a cookie keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynOptions {
    /// The largest segment that the peer accepts: one of [`SIZES`] once decoded.
    pub mss: u16,
    /// The peer's window scale, if both ends use scaling.
    pub window_scale: Option<u8>,
    /// Whether the peer supports SACK.
    pub sack: bool,
}

/// The connection that a cookie is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Sequence number of the peer's SYN. The segment that acknowledges the cookie has the number after it.
    pub peer_initial: u32,
}

/// The fields of a SYN-ACK that carry a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub initial: u32,
    /// The timestamp, up to 31 ms in the past: it must not be used to measure the round trip.
    pub timestamp: Option<u32>,
}

/// The unmasked fields of an initial sequence number, which is a cookie if `tag` is right.
#[derive(Clone, Copy, Debug)]
struct Unmasked {
    counter: u64,
    size: u32,
    tag: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Cookies {
    key: Key,
    clock_at_zero: Duration,
}

impl Cookies {
    /// Takes the key and the clock of [`Isn`](crate::isn::Isn): cookies of other helpers that share both are valid
    /// here.
    pub fn new(key: Key, clock_at_zero: Duration) -> Cookies {
        Cookies { key, clock_at_zero }
    }

    /// The cookie for a SYN with these options; `timestamp` is the clock's present value if the peer uses timestamps.
    /// Without a timestamp, window scale and SACK are lost, and the SYN-ACK must not offer them.
    pub fn answer(&self, now: Time, binding: Binding, syn: SynOptions, timestamp: Option<u32>) -> Answer {
        let size = SIZES.iter().rposition(|size| *size <= syn.mss).unwrap_or(0);
        let size = u32::from(in_packet(size)); // an index below 8
        let options = timestamp.map(|_| {
            let scale = syn.window_scale.map_or(NO_SCALE, |scale| u32::from(scale.min(SCALE_MAX)));
            scale | if syn.sack { SACK } else { 0 }
        });
        let counter = self.counter(now);
        let timestamp = timestamp.zip(options).map(|(clock, options)| {
            let low = (clock & !OPTION_MASK) | options;
            // Never ahead of the clock: otherwise a later timestamp might look older.
            if options > clock & OPTION_MASK { low.wrapping_sub(OPTION_MASK + 1) } else { low }
        });
        let top = (low_half(counter) % (1 << COUNTER_BITS)) | (size << COUNTER_BITS);
        let tag = self.tag(binding, counter, size, options);
        Answer { initial: ((top << TAG_BITS) | tag) ^ self.mask(binding), timestamp }
    }

    /// Checks whether a segment acknowledges a valid cookie, and returns the SYN's options. `initial` is the
    /// acknowledgement number less one; `echo` is the echoed timestamp, if there is one.
    pub fn check(&self, now: Time, binding: Binding, initial: u32, echo: Option<u32>) -> Option<SynOptions> {
        let Unmasked { counter, size, tag } = self.unmask(now, binding, initial)?;
        let options = echo.map(|echo| echo & OPTION_MASK);
        if tag != self.tag(binding, counter, size, options) {
            return None;
        }
        let options = options.unwrap_or(NO_SCALE);
        let scale = u8::try_from(options & NO_SCALE).unwrap_or(u8::MAX); // four bits fit
        Some(SynOptions {
            mss: SIZES[size as usize],
            window_scale: (scale <= SCALE_MAX).then_some(scale),
            sack: options & SACK != 0,
        })
    }

    /// Whether an initial sequence number of this end is a cookie that is still valid, with any timestamp.
    pub fn is_valid(&self, now: Time, binding: Binding, initial: u32) -> bool {
        let Some(Unmasked { counter, size, tag }) = self.unmask(now, binding, initial) else { return false };
        let mut options = core::iter::once(None).chain((0..=OPTION_MASK).map(Some));
        options.any(|options| tag == self.tag(binding, counter, size, options))
    }

    /// Unmasks an initial sequence number; `None` if its counter is too old.
    fn unmask(&self, now: Time, binding: Binding, initial: u32) -> Option<Unmasked> {
        let unmasked = initial ^ self.mask(binding);
        let (top, tag) = (unmasked >> TAG_BITS, unmasked & TAG_MASK);
        let present = self.counter(now);
        let age = low_half(present).wrapping_sub(top) % (1 << COUNTER_BITS);
        let counter = present.checked_sub(u64::from(age)).filter(|_| age <= 1)?;
        Some(Unmasked { counter, size: top >> COUNTER_BITS, tag })
    }

    /// The counter of cookies made now; they are valid until it has risen twice.
    pub fn counter(&self, now: Time) -> u64 {
        self.clock_at_zero.saturating_add(Duration::from_nanos(now.as_nanos())).as_secs() / PERIOD.as_secs()
    }

    /// Hides the counter and the size. The mask of one connection reveals nothing about another's.
    fn mask(&self, binding: Binding) -> u32 {
        let more = u64::from(binding.peer_initial);
        low_half(self.key.hash(Purpose::CookieMask, binding.local, binding.peer, more)) & !TAG_MASK // 8 bits
    }

    fn tag(&self, binding: Binding, counter: u64, size: u32, options: Option<u32>) -> u32 {
        let fields = (u64::from(size) << 6) | options.map_or(1 << OPTION_BITS, u64::from);
        // The low 23 bits of the counter repeat after 17 years.
        let more = (u64::from(binding.peer_initial) << 32) | ((counter << 9) & u64::from(u32::MAX)) | fields;
        low_half(self.key.hash(Purpose::CookieTag, binding.local, binding.peer, more)) & TAG_MASK // 24 bits
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    const PERIOD_NS: u64 = 64_000_000_000;

    fn cookies() -> Cookies {
        Cookies::new(Key(*b"sixteen bytes of"), Duration::from_secs(64 * 26_562_500))
    }

    fn binding(port: u16) -> Binding {
        let end = |host, port| SocketAddr::from((Ipv4Addr::new(192, 0, 2, host), port));
        Binding { local: end(1, 80), peer: end(2, port), peer_initial: 77 }
    }

    const FULL: SynOptions = SynOptions { mss: 1460, window_scale: Some(7), sack: true };

    #[test]
    fn with_timestamps_all_options_are_kept() {
        let answer = cookies().answer(Time(0), binding(1), FULL, Some(1_000));
        assert_eq!(
            answer.timestamp,
            Some(983),
            "the low bits should be 0b10111, and the timestamp not ahead of the clock"
        );
        assert_eq!(cookies().check(Time(0), binding(1), answer.initial, answer.timestamp), Some(FULL));
    }

    #[test]
    fn without_timestamps_only_the_segment_size_is_kept() {
        let answer = cookies().answer(Time(0), binding(1), FULL, None);
        let plain = SynOptions { mss: 1460, window_scale: None, sack: false };
        assert_eq!(answer.timestamp, None);
        assert_eq!(cookies().check(Time(0), binding(1), answer.initial, None), Some(plain));
        assert_eq!(
            cookies().check(Time(0), binding(1), answer.initial, Some(983)),
            None,
            "a timestamp added later should be refused"
        );
    }

    #[test]
    fn sizes_are_rounded_down() {
        for (mss, kept) in [(0, 64), (535, 64), (536, 536), (1459, 1440), (1460, 1460), (65_535, 8960)] {
            let answer = cookies().answer(Time(0), binding(1), SynOptions { mss, ..FULL }, None);
            let cookie = cookies().check(Time(0), binding(1), answer.initial, None).unwrap();
            assert_eq!(cookie.mss, kept);
        }
    }

    #[test]
    fn cookies_are_valid_in_their_period_and_the_next() {
        let answer = cookies().answer(Time(PERIOD_NS - 1), binding(1), FULL, None);
        let check = |now| cookies().check(Time(now), binding(1), answer.initial, None).is_some();
        assert!(
            check(PERIOD_NS - 1) && check(PERIOD_NS) && check(2 * PERIOD_NS - 1),
            "a cookie should be valid in its period and the next"
        );
        assert!(!check(2 * PERIOD_NS), "a cookie should expire with the period after its own");
        assert!(
            !check(32 * PERIOD_NS),
            "the cookie should be invalid after 32 periods: its counter looks the same, but the tag differs"
        );
    }

    #[test]
    fn a_valid_cookie_is_recognised_without_its_timestamp() {
        let now = Time(PERIOD_NS - 1);
        for clock in [None, Some(1_000), Some(31), Some(32)] {
            for syn in [FULL, SynOptions { window_scale: None, ..FULL }, SynOptions { sack: false, ..FULL }] {
                let initial = cookies().answer(now, binding(1), syn, clock).initial;
                let is_valid = |at| cookies().is_valid(Time(at), binding(1), initial);
                assert!(
                    is_valid(PERIOD_NS - 1) && is_valid(2 * PERIOD_NS - 1),
                    "a cookie should be recognised in its period and the next"
                );
                assert!(
                    !is_valid(2 * PERIOD_NS) && !is_valid(32 * PERIOD_NS),
                    "a cookie should not be recognised later"
                );
                assert!(
                    !cookies().is_valid(now, binding(2), initial),
                    "the cookie of another connection should be invalid"
                );
                assert!(
                    !cookies().is_valid(now, binding(1), initial ^ 1),
                    "an altered cookie should be invalid"
                );
            }
        }
    }

    #[test]
    fn the_clock_may_begin_at_zero() {
        let cookies = Cookies::new(Key([1; 16]), Duration::ZERO);
        let answer = cookies.answer(Time(0), binding(1), FULL, None);
        assert!(
            cookies.check(Time(0), binding(1), answer.initial, None).is_some(),
            "a cookie should be valid at time zero"
        );
        for initial in 0..100_000_u32 {
            cookies.check(Time(0), binding(1), initial.wrapping_mul(0x9e37_79b9), None);
        }
    }

    #[test]
    fn only_helpers_with_the_same_key_accept_a_cookie() {
        let answer = cookies().answer(Time(9_000_000_000), binding(1), FULL, None);
        let later = Cookies { clock_at_zero: cookies().clock_at_zero + Duration::from_secs(8), ..cookies() };
        assert!(
            later.check(Time(2_000_000_000), binding(1), answer.initial, None).is_some(),
            "a helper with the same key should accept the cookie"
        );
        let other = Cookies { key: Key([0; 16]), ..cookies() };
        assert!(
            other.check(Time(9_000_000_000), binding(1), answer.initial, None).is_none(),
            "a helper with another key should not accept the cookie"
        );
    }

    #[test]
    fn guessed_cookies_are_refused() {
        let right = (0..1_000_000_u32)
            .filter(|guess| {
                cookies().check(Time(0), binding(1), guess.wrapping_mul(0x9e37_79b9), None).is_some()
            })
            .count();
        assert_eq!(right, 0, "no guess should be valid: one succeeds once in 2^28 tries");
    }

    proptest! {
        // A forged cookie passes once in 2^28 tries. The seed is fixed so that the test never meets one.
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(6), ..ProptestConfig::default() })]

        #[test]
        fn options_are_restored_and_altered_cookies_are_refused(
            now in 0..1_u64 << 62, port: u16, peer_initial: u32, mss in 64_u16.., scale in prop::option::of(0_u8..15),
            sack: bool, clock in prop::option::of(any::<u32>()), bit in 0_u32..32, late in 0..PERIOD_NS,
        ) {
            let cookies = cookies();
            let binding = Binding { peer_initial, ..binding(port) };
            let syn = SynOptions { mss, window_scale: scale, sack };
            let answer = cookies.answer(Time(now), binding, syn, clock);
            let then = Time(now + late);
            let cookie = cookies.check(then, binding, answer.initial, answer.timestamp);
            let size = *SIZES.iter().rfind(|size| **size <= mss).unwrap();
            let kept = match clock {
                Some(_) => SynOptions { mss: size, ..syn },
                None => SynOptions { mss: size, window_scale: None, sack: false },
            };
            prop_assert_eq!(cookie, Some(kept));
            if let (Some(clock), Some(timestamp)) = (clock, answer.timestamp) {
                prop_assert!(
                    clock.wrapping_sub(timestamp) <= OPTION_MASK,
                    "the clock of an option should be within its mask"
                );
                let altered = Some(timestamp ^ 1 << (bit % OPTION_BITS));
                prop_assert_eq!(cookies.check(then, binding, answer.initial, altered), None);
            }
            prop_assert_eq!(cookies.check(then, binding, answer.initial ^ 1 << bit, answer.timestamp), None);
            let another = Binding { peer_initial: peer_initial.wrapping_add(1), ..binding };
            prop_assert_eq!(cookies.check(then, another, answer.initial, answer.timestamp), None);
        }
    }
}
