//! Requests that wait for their replies.

use alloc::collections::VecDeque;

use spillway_transport::Time;

use crate::stop_reason::StopReason;

/// Limit on groups of requests that wait for replies; tracking of a connection stops beyond it. Consecutive requests of
/// one kind form one group if they arrive at the same time, so that deep pipelines stay below the limit. Consecutive
/// quiet requests of one kind form one group whenever they arrive.
pub const OUTSTANDING_MAX: usize = 1024;

/// Properties of a complete request that decide how its reply is matched and measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Format of the reply, numbered by the protocol's parser.
    pub reply_format: u8,
    /// Whether the server may send no reply.
    pub is_quiet: bool,
    /// Whether the reply's latency counts as latency of the server.
    pub is_measured: bool,
    /// Whether the server may delay the reply on purpose, and with it the replies to later requests.
    pub may_block: bool,
}

impl Kind {
    /// A request that the server answers at once.
    pub fn prompt(reply_format: u8) -> Kind {
        Kind { reply_format, is_quiet: false, is_measured: true, may_block: false }
    }

    /// A request whose latency does not reflect the server's load: an operator's command, a long scan.
    pub fn unmeasured(reply_format: u8) -> Kind {
        Kind { is_measured: false, ..Kind::prompt(reply_format) }
    }

    /// A request whose reply the server may delay on purpose.
    pub fn blocking(reply_format: u8) -> Kind {
        Kind { may_block: true, ..Kind::unmeasured(reply_format) }
    }

    /// A request that the server may leave without a reply.
    pub fn quiet(reply_format: u8) -> Kind {
        Kind { is_quiet: true, ..Kind::unmeasured(reply_format) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Group {
    since: Time,
    count: u32,
    kind: Kind,
}

/// Requests that wait for replies, oldest first: at most [`OUTSTANDING_MAX`] groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outstanding {
    groups: VecDeque<Group>,
    /// Number of waiting requests that may block.
    blocking: u32,
}

impl Outstanding {
    pub fn push(&mut self, now: Time, mut kind: Kind) -> Result<(), StopReason> {
        // The server delays a request that follows a blocking one until the blocking one is answered.
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
            return Err(StopReason::TooManyOutstanding);
        }
        self.groups.push_back(Group { since: now, count: 1, kind });
        Ok(())
    }

    pub fn first(&self) -> Option<Kind> {
        self.groups.front().map(|group| group.kind)
    }

    /// The oldest request that must have a reply.
    pub fn first_not_quiet(&self) -> Option<Kind> {
        self.groups.iter().map(|group| group.kind).find(|kind| !kind.is_quiet)
    }

    /// Removes the oldest request, whose reply is complete. Returns when it was sent, if its latency is measured.
    pub fn take_answered(&mut self) -> Option<Time> {
        let group = self.groups.front_mut()?;
        let Group { since, kind, .. } = *group;
        group.count -= 1;
        if group.count == 0 {
            self.groups.pop_front();
        }
        self.blocking -= u32::from(kind.may_block);
        kind.is_measured.then_some(since)
    }

    /// Removes the oldest group: call when its requests are quiet and a later request was answered.
    pub fn drop_first_group(&mut self) {
        if let Some(group) = self.groups.pop_front().filter(|group| group.kind.may_block) {
            self.blocking -= group.count;
        }
    }

    /// Excludes the requests that wait now from measurement.
    pub fn stop_measuring(&mut self) {
        self.groups.iter_mut().for_each(|group| group.kind.is_measured = false);
    }

    /// When the oldest measured request was sent.
    pub fn oldest_measured_since(&self) -> Option<Time> {
        self.groups.iter().find(|group| group.kind.is_measured).map(|group| group.since)
    }

    /// Whether no request waits for a reply, apart from quiet ones.
    pub fn is_idle(&self) -> bool {
        self.groups.iter().all(|group| group.kind.is_quiet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_arrive_together_form_one_group() {
        let mut outstanding = Outstanding::default();
        for nanos in 0..OUTSTANDING_MAX {
            outstanding.push(Time(nanos as u64), Kind::prompt(0)).unwrap();
        }
        assert_eq!(
            outstanding.push(Time(0), Kind::prompt(0)),
            Err(StopReason::TooManyOutstanding),
            "OUTSTANDING_MAX should bound the number of groups"
        );
        let mut outstanding = Outstanding::default();
        for _ in 0..10 * OUTSTANDING_MAX {
            outstanding.push(Time(5), Kind::prompt(0)).unwrap();
        }
        assert_eq!(outstanding.groups.len(), 1);
        for _ in 0..10 * OUTSTANDING_MAX {
            assert_eq!(outstanding.take_answered(), Some(Time(5)));
        }
        assert!(
            outstanding.is_idle() && outstanding.take_answered().is_none(),
            "no request should be outstanding"
        );
    }

    #[test]
    fn requests_behind_a_blocking_one_are_not_measured() {
        let mut outstanding = Outstanding::default();
        outstanding.push(Time(1), Kind::prompt(0)).unwrap();
        outstanding.push(Time(2), Kind::blocking(0)).unwrap();
        outstanding.push(Time(3), Kind::prompt(0)).unwrap();
        assert_eq!(outstanding.oldest_measured_since(), Some(Time(1)));
        assert_eq!(outstanding.take_answered(), Some(Time(1)));
        assert_eq!(
            (outstanding.oldest_measured_since(), outstanding.take_answered()),
            (None, None),
            "the blocking request should not be measured"
        );
        outstanding.push(Time(4), Kind::prompt(0)).unwrap();
        assert_eq!(
            outstanding.take_answered(),
            None,
            "a request sent while the blocking one waited should not be measured"
        );
        assert_eq!(outstanding.take_answered(), Some(Time(4)));
    }

    #[test]
    fn stop_measuring_affects_waiting_requests_only() {
        let mut outstanding = Outstanding::default();
        outstanding.push(Time(1), Kind::prompt(0)).unwrap();
        outstanding.stop_measuring();
        outstanding.push(Time(1), Kind::prompt(0)).unwrap();
        assert_eq!(outstanding.oldest_measured_since(), Some(Time(1)));
        assert_eq!((outstanding.take_answered(), outstanding.take_answered()), (None, Some(Time(1))));
    }
}
