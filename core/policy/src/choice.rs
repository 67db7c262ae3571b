//! How a client chooses a helper (PostMan §5.2): it queries a few random helpers and takes the least loaded one.

use spillway_wire::load::LoadReport;

/// Maximum number of helpers that a client queries at a time. Queries to more than a few gain nothing
/// (Mitzenmacher 2001, "The power of two choices in randomized load balancing").
pub const HELPERS_ASKED_MAX: usize = 8;

/// The default number of helpers that a client queries.
pub const HELPERS_ASKED_DEFAULT: usize = 2;

/// The outcome of the load queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The helper at this place among those queried is the least loaded.
    Lowest(usize),
    /// No helper has replied, perhaps because datagrams are filtered: the place of a random one of those queried.
    Unanswered(usize),
    /// No helper that has replied accepts clients; a helper without a reply counts as full (§5.2).
    AllFull,
    /// No helper is known.
    NoHelpers,
}

/// The queried helpers and their replies.
#[derive(Clone, Debug)]
pub struct Choice {
    helpers_asked: [AskedHelper; HELPERS_ASKED_MAX],
    count: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct AskedHelper {
    helper: usize,
    answer: Option<LoadReport>,
}

impl Choice {
    /// Chooses `d` (1 to [`HELPERS_ASKED_MAX`]) different helpers of `helpers`, uniformly at random; all of them
    /// if `helpers` < `d`. `random` returns numbers of at least 0 and less than 1.
    pub fn new(helpers: usize, d: usize, random: &mut impl FnMut() -> f64) -> Choice {
        let count = d.clamp(1, HELPERS_ASKED_MAX).min(helpers);
        let mut choice = Choice { helpers_asked: [AskedHelper::default(); HELPERS_ASKED_MAX], count: 0 };
        // Floyd's sampling without a list: a helper that is drawn twice is replaced by the newest candidate.
        for newest in helpers - count..helpers {
            let drawn = below(newest + 1, random());
            let is_duplicate = choice.helpers_asked().any(|helper| helper == drawn);
            choice.helpers_asked[choice.count].helper = if is_duplicate { newest } else { drawn };
            choice.count += 1;
        }
        choice
    }

    /// The helpers to query, by index, in the order of their places.
    pub fn helpers_asked(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.helpers_asked[..self.count].iter().map(|asked| asked.helper)
    }

    /// The helper at this place, as an index of all helpers.
    pub fn helper(&self, place: usize) -> Option<usize> {
        self.helpers_asked().nth(place)
    }

    /// The helper at this place has replied. Only a helper's first reply counts.
    pub fn answered(&mut self, place: usize, load: LoadReport) {
        if let Some(asked) = self.helpers_asked[..self.count].get_mut(place) {
            asked.answer.get_or_insert(load);
        }
    }

    /// Whether all queried helpers have replied, so that waiting gains nothing.
    pub fn is_complete(&self) -> bool {
        self.unanswered() == 0
    }

    /// The number of queried helpers that have not replied.
    pub fn unanswered(&self) -> usize {
        self.helpers_asked[..self.count].iter().filter(|asked| asked.answer.is_none()).count()
    }

    /// Decides by the replies received so far. Ties are broken at random.
    pub fn decide(&self, random: &mut impl FnMut() -> f64) -> Decision {
        if self.count == 0 {
            return Decision::NoHelpers;
        }
        let asked = &self.helpers_asked[..self.count];
        if asked.iter().all(|asked| asked.answer.is_none()) {
            return Decision::Unanswered(below(self.count, random()));
        }
        let mut lowest: Option<(usize, f64)> = None;
        let mut ties = 1;
        for (place, asked) in asked.iter().enumerate() {
            let Some(load) = asked.answer.filter(LoadReport::accepts_clients) else { continue };
            let weight = estimated_load(&load);
            match lowest {
                Some((_, least)) if weight > least => {}
                Some((_, least)) if weight == least => {
                    ties += 1;
                    if below(ties, random()) == 0 {
                        lowest = Some((place, weight));
                    }
                }
                _ => {
                    ties = 1;
                    lowest = Some((place, weight));
                }
            }
        }
        lowest.map_or(Decision::AllFull, |(place, _)| Decision::Lowest(place))
    }
}

/// Estimate of a helper's load including clients that have sent a query and not connected yet. If all clients that send
/// queries at the same moment compared exact figures, all would choose the same, slightly less loaded helper. So the
/// tentative load counts with a random factor from −1.5 to 3.5, with mean 1. The factor's range, 5, is 2.5 times the
/// range of the arrivals, which is 0 to 2 times the tentative load if each client queries two helpers.
fn estimated_load(load: &LoadReport) -> f64 {
    let random = f64::from(load.random) / f64::from(u16::MAX);
    f64::from(load.load) + f64::from(load.tentative) * (5.0 * random - 1.5)
}

/// An index from 0 to `count - 1`. A random number of 1 or more counts as just less than 1.
fn below(count: usize, random: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to `count`")]
    let index = (random.clamp(0.0, 1.0) * count as f64) as usize;
    index.min(count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::vec::Vec;

    use super::*;

    fn repeating(numbers: &[f64]) -> impl FnMut() -> f64 + '_ {
        let mut all = numbers.iter().cycle();
        move || *all.next().unwrap()
    }

    fn pseudo_random() -> impl FnMut() -> f64 {
        let mut state = 1_u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        }
    }

    fn load(load: u32) -> LoadReport {
        LoadReport { load, ..LoadReport::default() }
    }

    fn choice_of_two(first: Option<LoadReport>, second: Option<LoadReport>) -> Choice {
        let mut choice = Choice::new(2, 2, &mut || 0.0);
        for (place, answer) in [first, second].into_iter().enumerate() {
            answer.into_iter().for_each(|answer| choice.answered(place, answer));
        }
        choice
    }

    #[test]
    fn different_helpers_are_queried_with_equal_probability() {
        let mut random = pseudo_random();
        let mut times = [0; 5];
        for _ in 0..5000 {
            let asked: Vec<usize> = Choice::new(5, 2, &mut random).helpers_asked().collect();
            assert!(
                asked.len() == 2 && asked[0] != asked[1],
                "two different helpers should be queried: {asked:?}"
            );
            asked.iter().for_each(|helper| times[*helper] += 1);
        }
        assert!(
            times.iter().all(|times| (1850..2150).contains(times)),
            "each helper should be queried 2,000 times, within 4 standard deviations of 35: {times:?}"
        );
        for (helpers, d, expected) in
            [(1, 2, 1), (3, 9, 3), (100, 100, HELPERS_ASKED_MAX), (4, 0, 1), (0, 2, 0)]
        {
            for extreme in [0.0, 0.999_999, 1.0] {
                let choice = Choice::new(helpers, d, &mut || extreme);
                let mut asked: Vec<usize> = choice.helpers_asked().collect();
                asked.sort_unstable();
                asked.dedup();
                assert_eq!(
                    asked.len(),
                    expected,
                    "the number of queries should be within its bounds: {helpers} helpers, d = {d}"
                );
                assert!(
                    asked.iter().all(|helper| *helper < helpers),
                    "each helper should be one of those known"
                );
            }
        }
    }

    #[test]
    fn least_loaded_helper_that_accepts_clients_is_chosen() {
        let decide = |choice: &Choice| choice.decide(&mut repeating(&[0.5]));
        assert_eq!(decide(&choice_of_two(Some(load(10)), Some(load(9)))), Decision::Lowest(1));
        assert_eq!(
            decide(&choice_of_two(Some(load(900_000)), None)),
            Decision::Lowest(0),
            "a helper without a reply should count as full"
        );
        for unavailable in [
            LoadReport { full: true, ..load(0) },
            LoadReport { draining: true, ..load(0) },
            LoadReport { down: true, ..load(0) },
        ] {
            assert_eq!(decide(&choice_of_two(Some(unavailable), Some(load(999_999)))), Decision::Lowest(1));
            assert_eq!(decide(&choice_of_two(Some(unavailable), None)), Decision::AllFull);
            assert_eq!(decide(&choice_of_two(Some(unavailable), Some(unavailable))), Decision::AllFull);
        }
        assert_eq!(decide(&Choice::new(0, 2, &mut || 0.0)), Decision::NoHelpers);
    }

    #[test]
    fn without_replies_a_random_helper_is_chosen() {
        let choice = choice_of_two(None, None);
        assert!(!choice.is_complete(), "the choice should not be complete without replies");
        assert_eq!(choice.decide(&mut || 0.2), Decision::Unanswered(0));
        assert_eq!(choice.decide(&mut || 0.8), Decision::Unanswered(1));
    }

    #[test]
    fn ties_are_broken_at_random_and_second_replies_are_ignored() {
        let mut choice = choice_of_two(Some(load(5)), Some(load(5)));
        choice.answered(1, load(0));
        choice.answered(7, load(0));
        assert!(choice.is_complete(), "the choice should be complete with both replies");
        let (mut random, mut times) = (pseudo_random(), [0; 2]);
        for _ in 0..1000 {
            match choice.decide(&mut random) {
                Decision::Lowest(place) => times[place] += 1,
                decision => panic!("two replies should give Lowest, not {decision:?}"),
            }
        }
        assert!(
            times.iter().all(|times| (430..570).contains(times)),
            "each helper should be chosen 500 times, within 4 standard deviations of 16: {times:?}"
        );
    }

    /// While clients are expected, a slightly lower load is hardly preferred, and a much lower load always.
    #[test]
    fn preference_grows_with_the_difference_of_loads() {
        let mut random = pseudo_random();
        let mut share = |ahead: u32| {
            let mut lot = || (random() * f64::from(u16::MAX)) as u16;
            let mut first_chosen = 0;
            for _ in 0..1000 {
                let second =
                    LoadReport { load: 10_000, tentative: 1_000, random: lot(), ..LoadReport::default() };
                let first = LoadReport { load: 10_000 - ahead, random: lot(), ..second };
                first_chosen += u32::from(
                    choice_of_two(Some(first), Some(second)).decide(&mut || 0.5) == Decision::Lowest(0),
                );
            }
            first_chosen
        };
        // The difference of both random factors spreads over ±5,000, so a load lower by x is chosen with a probability of
        // 1 - (1 - x / 5,000)² / 2. Here 502 of 1000 are expected, and 3 standard deviations of 16 are allowed.
        assert!(
            (450..560).contains(&share(10)),
            "a hardly lower load should be chosen about 500 times in 1000"
        );
        // 680 of 1000 are expected, and more than 4 standard deviations of 15 allowed.
        assert!(
            (610..760).contains(&share(1_000)),
            "a load lower by the tentative load should be chosen more often"
        );
        assert_eq!(share(5_000), 1000);
    }
}
