//! Finds servers that are woken again and again without handling what is due: then no time passes, and the run never ends.

use spillway_transport::Time;

/// Maximum number of events at one time.
const EVENTS_AT_ONCE_MAX: u64 = 100_000;

/// The number of events at the present time.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    now: Time,
    events: u64,
}

impl Standstill {
    /// Counts an event of a host; `None`: frames arrive.
    pub(super) fn count(&mut self, now: Time, host: Option<usize>) -> Result<(), String> {
        if now > self.now {
            (self.now, self.events) = (now, 0);
        }
        self.events += 1;
        if self.events <= EVENTS_AT_ONCE_MAX {
            return Ok(());
        }
        let event = host.map_or("frames arrive".to_owned(), |host| format!("host {host} is woken again"));
        Err(format!("no time passes: after {EVENTS_AT_ONCE_MAX} events at {} ns {event}", now.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_events_without_time_are_an_error_and_many_events_are_not() {
        let mut standstill = Standstill::default();
        for at in [5, 6] {
            for _ in 0..EVENTS_AT_ONCE_MAX {
                assert_eq!(standstill.count(Time(at), Some(2)), Ok(()));
            }
        }
        let why = standstill.count(Time(6), Some(2)).unwrap_err();
        assert!(why.contains("no time passes") && why.contains("host 2 is woken again"), "{why}");
    }
}
