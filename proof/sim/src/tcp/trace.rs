//! Frames, and drops by stacks, as lines of text.

use std::collections::VecDeque;

use spillway_tcp::Dropping;
use spillway_transport::Time;
use spillway_wire::switch::{MessageError, View};

use super::frames::datagram_in;
use super::path::Arrival;
use super::sniffer::sniff;

/// A frame as a line of a packet trace, with its loss, delays and damage.
pub(crate) fn line(now: Time, frame: &[u8], arrivals: &[Arrival]) -> String {
    let us = |at: Time| at.as_nanos() as f64 / 1e3;
    let outcome = arrivals.iter().map(|arrival| {
        let damage = if arrival.is_corrupt { " damaged" } else { "" };
        let copy = if arrival.frame == frame || arrival.is_corrupt { "" } else { " replayed" };
        format!("{:+.1}us{copy}{damage}", us(arrival.at) - us(now))
    });
    let outcome =
        if arrivals.is_empty() { "lost".to_owned() } else { outcome.collect::<Vec<_>>().join(", ") };
    let Ok(Some(seen)) = sniff(frame) else {
        let what = control_message(frame).unwrap_or_else(|| "other".to_owned());
        return format!("{:14.1} {what}  [{outcome}]", us(now));
    };
    let header = &seen.header;
    let sack = match header.options.sack.as_slice() {
        [] => String::new(),
        blocks => format!(" sack {blocks:?}"),
    };
    let stamps = header.options.timestamps;
    let stamps = stamps.map_or(String::new(), |stamps| format!(" ts {}/{}", stamps.value, stamps.echo));
    format!(
        "{:14.1} {} > {} {} {}+{} ack {} win {}{sack}{stamps}  [{outcome}]",
        us(now),
        seen.source,
        seen.target,
        header.flags,
        header.seq,
        seen.payload.len(),
        header.ack,
        header.window
    )
}

/// A control message of the switch in words.
fn control_message(frame: &[u8]) -> Option<String> {
    let (_, payload) = datagram_in(frame)?;
    let view = View::of(payload).ok()?;
    let text = |kind: Result<String, _>| kind.unwrap_or_else(|error: MessageError| error.to_string());
    let kind = text(view.kind().map(|kind| kind.to_string()));
    let status = text(view.status().map(|status| status.to_string()));
    let state = text(view.state().map(|state| state.to_string()));
    Some(format!(
        "{kind} {} of server {} for {} at {}: {status}, {state}, generation {}",
        view.sequence(),
        view.sender(),
        view.client(),
        view.service(),
        view.generation()
    ))
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Drop {
    pub(crate) now: Time,
    pub(crate) host: usize,
    pub(crate) stack: usize,
    pub(crate) dropping: Dropping,
}

impl Drop {
    /// A line in the format of [`line`].
    pub(crate) fn line(&self) -> String {
        let us = self.now.as_nanos() as f64 / 1e3;
        format!("{us:14.1} host {} stack {} drops {}", self.host, self.stack, self.dropping)
    }
}

const LAST_DROPS_MAX: usize = 20;

/// The last drops, for the report of a failed run.
#[derive(Debug, Default)]
pub(crate) struct LastDrops(VecDeque<Drop>);

impl LastDrops {
    pub(crate) fn add(&mut self, drop: Drop) {
        if self.0.len() == LAST_DROPS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(drop);
    }

    /// The drops as lines of text, oldest first.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.iter().map(Drop::line).collect()
    }
}

#[cfg(test)]
mod tests {
    use spillway_tcp::Dropped;

    use super::*;

    #[test]
    fn the_last_drops_are_kept_oldest_first() {
        let mut last = LastDrops::default();
        for us in 1..=LAST_DROPS_MAX as u64 + 1 {
            let now = Time(us * 1000);
            let dropping = Dropping { at: now, reason: Dropped::BadChecksum, segment: None };
            last.add(Drop { now, host: 1, stack: 0, dropping });
        }
        let lines = last.lines();
        assert_eq!(lines.len(), LAST_DROPS_MAX);
        assert_eq!(lines[0].trim_start(), "2.0 host 1 stack 0 drops wrong checksum");
    }
}
