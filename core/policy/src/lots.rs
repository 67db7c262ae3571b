//! Random numbers that are spread evenly even over few draws.

use spillway_parts::Random;

/// Each block of 16 draws has one number in each sixteenth of the range, in random order. So the number of clients that
/// choose a helper deviates less from its expectation than with independent numbers.
#[derive(Clone, Debug)]
pub(crate) struct Lots {
    random: Random,
    order: [u8; 16],
    drawn: usize,
}

impl Lots {
    pub(crate) fn new(seed: u64) -> Lots {
        #[expect(clippy::cast_possible_truncation, reason = "indexes are below 16")]
        let order = core::array::from_fn(|index| index as u8);
        Lots { random: Random::new(seed), order, drawn: 16 }
    }

    pub(crate) fn draw(&mut self) -> u16 {
        if self.drawn == self.order.len() {
            self.drawn = 0;
            self.random.shuffle(&mut self.order);
        }
        let part = self.order[self.drawn];
        self.drawn += 1;
        #[expect(clippy::cast_possible_truncation, reason = "any 12 bits of a random word are random")]
        let rest = self.random.word() as u16 & 0xfff;
        u16::from(part) << 12 | rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_are_spread_evenly_and_differ_between_helpers() {
        let (mut one, mut other) = (Lots::new(1), Lots::new(2));
        let mut wins = 0;
        for _ in 0..100 {
            let mut parts = [0; 16];
            for _ in 0..16 {
                let lot = one.draw();
                parts[usize::from(lot >> 12)] += 1;
                wins += u32::from(lot < other.draw());
            }
            assert_eq!(parts, [1; 16]);
        }
        assert!((740..860).contains(&wins), "{wins} of 1600");
    }
}
