//! Times by which the switch decides, and the end of an entry by time. `host/bpf/c/switch/settings.h` has the same times
//! under the same names, in ns.

use core::time::Duration;

use spillway_transport::Time;

/// Time after the owner's RST at which an entry ends: the RST may have been lost, and the client's next packet must
/// still reach the owner.
pub const AFTER_RST: Duration = Duration::from_secs(1);
/// Time without a packet after which an entry with both FINs ends.
pub const AFTER_FINS: Duration = Duration::from_secs(60);
/// Time without a packet after which a redundant entry ends: its flow is back at the original owner and at the service
/// endpoint, as without an entry.
pub const AFTER_RETURN: Duration = Duration::from_secs(600);
/// The most by which the clock of silence advances from one heartbeat or *hello* of any sender to the next: during a longer
/// gap the switch itself may have been paused.
pub const GAP_MAX: Duration = Duration::from_millis(100);

/// What decides whether an entry ends by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Time of the flow's last packet.
    pub last_packet: Time,
    /// Time of the owner's first RST.
    pub owner_rst: Option<Time>,
    /// Whether both ends have sent a FIN, the client's acknowledged by the owner.
    pub has_both_fins: bool,
    /// Whether no move is under way and the original owner owns the flow at the service endpoint.
    pub has_returned: bool,
}

impl Activity {
    /// Step 1 of settling (docs/switch.md, Entries): whether the connection has ended, or the entry is redundant (see
    /// [`AFTER_RETURN`]).
    pub fn has_ended(&self, now: Time) -> bool {
        let silence = now - self.last_packet;
        self.owner_rst.is_some_and(|rst| now - rst >= AFTER_RST)
            || self.has_both_fins && silence >= AFTER_FINS
            || self.has_returned && silence >= AFTER_RETURN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_own_time() {
        let start = Time(1_000_000_000_000);
        let open =
            Activity { last_packet: start, owner_rst: None, has_both_fins: false, has_returned: false };
        for (activity, after) in [
            (Activity { owner_rst: Some(start), ..open }, AFTER_RST),
            (Activity { has_both_fins: true, ..open }, AFTER_FINS),
            (Activity { has_returned: true, ..open }, AFTER_RETURN),
        ] {
            assert!(!activity.has_ended(start + (after - Duration::from_nanos(1))), "{activity:?}");
            assert!(activity.has_ended(start + after), "{activity:?}");
        }
        assert!(!open.has_ended(Time(u64::MAX)), "an open connection may be idle");
    }
}
