//! Clears flows.

use serde::{Deserialize, Serialize};

use crate::config::SwitchConfig;
use crate::entries::Requests;
use crate::flows::Selection;
use crate::tables::Tables;

/// Maximum number of entries that are read in one batch and then ended: bounds the memory of a request.
const BATCH: usize = 16_384;

/// The result of clearing flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleared {
    /// Flows whose entries have ended.
    pub cleared: u64,
    /// Flows that changed twice while they were cleared, and stay.
    pub changed: u64,
}

/// Ends the entries of a selection's flows. Their packets then go to the original servers.
///
/// # Errors
/// The service is not configured, the client is not an address, the table cannot be read, or the program does not
/// answer; entries before the failure have ended.
pub(crate) fn clear<T: Tables>(
    requests: &Requests<'_, T>,
    config: &SwitchConfig,
    selection: &Selection,
) -> Result<Cleared, String> {
    let filter = selection.filter(config)?;
    let mut cleared = Cleared::default();
    loop {
        let mut batch = Vec::new();
        requests.tables().visit_flows(&mut |entry| {
            if batch.len() < BATCH && filter.matches(entry) {
                batch.push(*entry);
            }
        })?;
        let mut ended = 0;
        for entry in &batch {
            ended += u64::from(requests.clear(entry)?);
        }
        cleared.cleared += ended;
        // Entries that have changed are read again with the next batch.
        cleared.changed = batch.len() as u64 - ended;
        if batch.len() < BATCH || ended == 0 {
            return Ok(cleared);
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_wire::switch::FlowState;

    use super::*;
    use crate::config::tests::config;
    use crate::messages::{Messages, fresh_key};
    use crate::tables::memory::{Memory, NOW};

    fn select(client: &str) -> Selection {
        Selection { service: Some("cache".to_owned()), client: Some(client.to_owned()) }
    }

    #[test]
    fn only_selected_flows_are_cleared_and_all_of_them() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let (tables, config) = (Memory::new(messages.key()), config());
        let requests = Requests::new(&tables, &messages, config.control[0]);
        let flows = BATCH + 100;
        (0..flows).for_each(|port| tables.add(&format!("10.0.0.7:{}", 1 + port), 2, |_| ()));
        tables.add("10.0.0.8:5", 2, |_| ());
        let cleared = clear(&requests, &config, &select("10.0.0.7")).unwrap();
        assert_eq!(cleared, Cleared { cleared: flows as u64, changed: 0 });
        assert_eq!(tables.clients(), ["10.0.0.8:5"]);
    }

    #[test]
    fn flows_of_a_silent_server_and_late_moves_are_cleared() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let (tables, config) = (Memory::new(messages.key()), config());
        let requests = Requests::new(&tables, &messages, config.control[0]);
        tables.silence(2);
        tables.add("10.0.0.7:1", 2, |_| ());
        tables.add("10.0.0.7:2", 1, |entry| {
            (entry.state, entry.target, entry.deadline) = (FlowState::Asked, Some(entry.original), Some(NOW));
        });
        let cleared = clear(&requests, &config, &Selection::default()).unwrap();
        assert_eq!(cleared, Cleared { cleared: 2, changed: 0 });
        assert!(tables.clients().is_empty());
    }

    #[test]
    fn messages_under_another_key_end_nothing() {
        let [messages, other] = [(); 2].map(|()| Messages::new(fresh_key().unwrap(), 1));
        let tables = Memory::new(other.key());
        tables.add("10.0.0.7:1", 2, |_| ());
        let requests = Requests::new(&tables, &messages, config().control[0]);
        let error = clear(&requests, &config(), &Selection::default()).unwrap_err();
        assert!(error.contains("drops the daemon's messages"), "{error}");
        assert_eq!(tables.clients().len(), 1);
    }
}
