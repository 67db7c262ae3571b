//! Frames as lines of text, for whoever looks at a run.

use spillway_transport::Time;

use super::path::Arrival;
use super::sniffer::sniff;

/// A frame as in a packet trace, and what becomes of it.
pub(crate) fn line(now: Time, frame: &[u8], arrivals: &[(usize, Arrival)]) -> String {
    let us = |at: Time| at.as_nanos() as f64 / 1e3;
    let fate = arrivals.iter().map(|(_, arrival)| {
        let damage = if arrival.is_corrupt { " damaged" } else { "" };
        let copy = if arrival.frame == frame || arrival.is_corrupt { "" } else { " of before" };
        format!("{:+.1}us{copy}{damage}", us(arrival.at) - us(now))
    });
    let fate = if arrivals.is_empty() { "lost".to_owned() } else { fate.collect::<Vec<_>>().join(", ") };
    let Ok(Some(seen)) = sniff(frame) else { return format!("{:14.1} other  [{fate}]", us(now)) };
    let header = &seen.header;
    let sack = match header.options.sack.as_slice() {
        [] => String::new(),
        blocks => format!(" sack {blocks:?}"),
    };
    let stamps = header.options.timestamps;
    let stamps = stamps.map_or(String::new(), |stamps| format!(" ts {}/{}", stamps.value, stamps.echo));
    format!(
        "{:14.1} {} > {} {} {}+{} ack {} win {}{sack}{stamps}  [{fate}]",
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
