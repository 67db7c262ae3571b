//! Requests that wait for their replies.

use alloc::collections::VecDeque;

use spillway_transport::Time;

use crate::gave_up::GaveUp;

/// Groups of requests that may wait at one time; with more, tracking is given up. Requests of one kind that came
/// together are one group, so deep pipelines fit.
pub const OUTSTANDING_MAX: usize = 1024;

/// What is known of a request once it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// What its reply looks like, as its protocol numbers it.
    pub shape: u8,
    /// It has a reply in some cases only.
    pub is_quiet: bool,
    /// Its reply says something about the server's speed.
    pub is_measured: bool,
    /// Its reply may be meant to come late, and those behind it later still.
    pub may_block: bool,
}

impl Kind {
    /// A request with a prompt reply.
    pub fn prompt(shape: u8) -> Kind {
        Kind { shape, is_quiet: false, is_measured: true, may_block: false }
    }

    /// One whose time is its own affair: an operator's command, a long scan.
    pub fn unmeasured(shape: u8) -> Kind {
        Kind { is_measured: false, ..Kind::prompt(shape) }
    }

    /// One that may wait by intention.
    pub fn blocking(shape: u8) -> Kind {
        Kind { may_block: true, ..Kind::unmeasured(shape) }
    }

    /// One that may have no reply.
    pub fn quiet(shape: u8) -> Kind {
        Kind { is_quiet: true, ..Kind::unmeasured(shape) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Group {
    since: Time,
    count: u32,
    kind: Kind,
}

/// Bounded by [`OUTSTANDING_MAX`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Outstanding {
    groups: VecDeque<Group>,
    /// Requests among them that may block.
    blocking: u32,
}

impl Outstanding {
    /// A request is complete.
    pub fn push(&mut self, now: Time, mut kind: Kind) -> Result<(), GaveUp> {
        // It waits for the one that blocks, not for the server.
        kind.is_measured &= self.blocking == 0;
        self.blocking += u32::from(kind.may_block);
        if let Some(last) = self.groups.back_mut()
            && last.kind == kind
            && (last.since == now || kind.is_quiet)
            && last.count < u32::MAX
        {
            last.count += 1;
            return Ok(());
        }
        if self.groups.len() >= OUTSTANDING_MAX {
            return Err(GaveUp::TooManyOutstanding);
        }
        self.groups.push_back(Group { since: now, count: 1, kind });
        Ok(())
    }

    /// The oldest one.
    pub fn first(&self) -> Option<Kind> {
        self.groups.front().map(|group| group.kind)
    }

    /// The oldest one that has a reply for sure.
    pub fn first_sure(&self) -> Option<Kind> {
        self.groups.iter().map(|group| group.kind).find(|kind| !kind.is_quiet)
    }

    /// The oldest one was answered. Since when it waited, if that is a measure.
    pub fn answered(&mut self) -> Option<Time> {
        let group = self.groups.front_mut()?;
        let Group { since, kind, .. } = *group;
        group.count -= 1;
        if group.count == 0 {
            self.groups.pop_front();
        }
        self.blocking -= u32::from(kind.may_block);
        kind.is_measured.then_some(since)
    }

    /// The oldest ones, all alike and quiet, will not be answered any more.
    pub fn forget_first(&mut self) {
        if let Some(group) = self.groups.pop_front().filter(|group| group.kind.may_block) {
            self.blocking -= group.count;
        }
    }

    /// Nothing that waits now is a measure.
    pub fn excuse(&mut self) {
        self.groups.iter_mut().for_each(|group| group.kind.is_measured = false);
    }

    /// Since when the oldest one waits whose reply is a measure.
    pub fn since(&self) -> Option<Time> {
        self.groups.iter().find(|group| group.kind.is_measured).map(|group| group.since)
    }

    /// Whether nothing waits that has a reply for sure.
    pub fn is_idle(&self) -> bool {
        self.groups.iter().all(|group| group.kind.is_quiet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_come_together_are_one_group() {
        let mut all = Outstanding::default();
        for at in 0..OUTSTANDING_MAX {
            all.push(Time(at as u64), Kind::prompt(0)).unwrap();
        }
        assert_eq!(all.push(Time(0), Kind::prompt(0)), Err(GaveUp::TooManyOutstanding), "at the bound");
        let mut all = Outstanding::default();
        for _ in 0..10 * OUTSTANDING_MAX {
            all.push(Time(5), Kind::prompt(0)).unwrap();
        }
        assert_eq!(all.groups.len(), 1);
        for _ in 0..10 * OUTSTANDING_MAX {
            assert_eq!(all.answered(), Some(Time(5)));
        }
        assert!(all.is_idle() && all.answered().is_none());
    }

    #[test]
    fn what_waits_behind_a_blocking_one_is_no_measure() {
        let mut all = Outstanding::default();
        all.push(Time(1), Kind::prompt(0)).unwrap();
        all.push(Time(2), Kind::blocking(0)).unwrap();
        all.push(Time(3), Kind::prompt(0)).unwrap();
        assert_eq!(all.since(), Some(Time(1)));
        assert_eq!(all.answered(), Some(Time(1)));
        assert_eq!((all.since(), all.answered()), (None, None), "the blocking one");
        all.push(Time(4), Kind::prompt(0)).unwrap();
        assert_eq!(all.answered(), None, "it came while one blocked");
        assert_eq!(all.answered(), Some(Time(4)));
    }

    #[test]
    fn excuses_count_for_what_waits_now() {
        let mut all = Outstanding::default();
        all.push(Time(1), Kind::prompt(0)).unwrap();
        all.excuse();
        all.push(Time(1), Kind::prompt(0)).unwrap();
        assert_eq!(all.since(), Some(Time(1)));
        assert_eq!((all.answered(), all.answered()), (None, Some(Time(1))));
    }
}
