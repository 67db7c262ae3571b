//! Lists flows, page by page: a table can have millions of entries, and users who may only read can list it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use spillway_bpf::switch::FlowEntry;

use crate::config::SwitchConfig;
use crate::flows::{FlowStatus, Selection};
use crate::tables::Tables;

/// Maximum number of flows in one answer: about 7 MB of text, and 4 MB of entries before.
pub const PAGE_FLOWS_MAX: usize = 10_000;

/// A page of the flows of a selection, in the order of [`Cursor`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// Number of flows of the selection, those of other pages included.
    pub total: u64,
    /// The flows of this page.
    pub flows: Vec<FlowStatus>,
}

/// A flow's position in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// The service's endpoint.
    pub endpoint: SocketAddr,
    /// The client.
    pub client: SocketAddr,
}

impl From<&FlowEntry> for Cursor {
    fn from(entry: &FlowEntry) -> Cursor {
        Cursor { endpoint: entry.service.into(), client: entry.client.into() }
    }
}

impl From<&FlowStatus> for Cursor {
    fn from(flow: &FlowStatus) -> Cursor {
        Cursor { endpoint: flow.endpoint, client: flow.client }
    }
}

/// The JSON text of [`Flows`]: the first `limit` flows of a selection after the position `after`, at most
/// [`PAGE_FLOWS_MAX`]. Needs memory for the flows of the page only. Each flow is a line.
///
/// # Errors
/// The service is not configured, the client is not an address, or the table cannot be read.
pub(crate) fn page(
    tables: &impl Tables,
    config: &SwitchConfig,
    selection: &Selection,
    after: Option<Cursor>,
    limit: usize,
) -> Result<String, String> {
    let filter = selection.filter(config)?;
    let limit = limit.min(PAGE_FLOWS_MAX);
    let now = tables.now();
    let mut total: u64 = 0;
    let mut first: BTreeMap<Cursor, FlowEntry> = BTreeMap::new();
    tables.visit_flows(&mut |entry| {
        if !filter.matches(entry) {
            return;
        }
        total += 1;
        let at = Cursor::from(entry);
        let is_full = first.len() >= limit;
        let is_before_last = || first.last_key_value().is_some_and(|(last, _)| at < *last);
        if after.is_some_and(|after| at <= after) || is_full && !is_before_last() {
            return;
        }
        if is_full {
            first.pop_last();
        }
        first.insert(at, *entry);
    })?;
    let mut text = format!("{{\n  \"total\": {total},\n  \"flows\": [");
    let mut separator = "\n    ";
    while let Some((_, entry)) = first.pop_first() {
        let flow = serde_json::to_string(&FlowStatus::new(&entry, config, now));
        text += separator;
        text += &flow.map_err(|error| format!("cannot write a flow: {error}"))?;
        separator = ",\n    ";
    }
    text += if separator.starts_with(',') { "\n  ]\n}" } else { "]\n}" };
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use crate::messages::{Messages, fresh_key};
    use crate::tables::memory::{Memory, NOW};

    fn selection(service: Option<&str>, client: Option<&str>) -> Selection {
        Selection { service: service.map(str::to_owned), client: client.map(str::to_owned) }
    }

    /// 3,000 flows of one client, and one of another, which is held.
    pub(crate) fn tables(messages: &Messages) -> Memory {
        let tables = Memory::new(messages.key());
        for port in 0..3000 {
            tables.add(&format!("10.0.0.7:{}", 10_000 + port), 2, |_| ());
        }
        tables.add("10.0.0.8:5", 2, |entry| {
            entry.target = Some(entry.original);
            entry.state = spillway_wire::switch::FlowState::Held;
            entry.deadline = Some(NOW + std::time::Duration::from_millis(500));
        });
        tables
    }

    fn flows(
        tables: &Memory,
        selection: &Selection,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Flows, String> {
        let text = page(tables, &config(), selection, after, limit)?;
        Ok(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn flows_are_selected_by_service_and_client() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = tables(&messages);
        let total = |service, client| {
            flows(&tables, &selection(service, client), None, 10).map(|found| {
                assert!(found.flows.len() <= 10);
                found.total
            })
        };
        assert_eq!(total(None, None), Ok(3001));
        assert_eq!(total(Some("cache"), None), Ok(3001));
        assert_eq!(total(Some("cache"), Some("10.0.0.8")), Ok(1));
        assert_eq!(total(None, Some("::ffff:10.0.0.8")), Ok(1));
        assert_eq!(total(None, Some("10.0.0.7:10005")), Ok(1));
        assert_eq!(total(None, Some("10.0.0.9")), Ok(0));
        assert!(total(Some("web"), None).unwrap_err().contains("no service web here; there are: cache"));
        assert!(total(None, Some("host")).unwrap_err().contains("ADDRESS or ADDRESS:PORT"));
    }

    #[test]
    fn pages_list_every_flow_once_and_in_order() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = tables(&messages);
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = flows(&tables, &Selection::default(), after, 700).unwrap();
            assert_eq!(page.total, 3001);
            let Some(last) = page.flows.last() else { break };
            after = Some(Cursor::from(last));
            listed.extend(page.flows.iter().map(Cursor::from));
        }
        assert_eq!(listed.len(), 3001);
        assert!(listed.is_sorted_by(|one, next| one < next));
    }

    #[test]
    fn a_page_is_bounded() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let tables = Memory::new(messages.key());
        for number in 0..PAGE_FLOWS_MAX + 50 {
            tables.add(&format!("10.0.{}.{}:1", number >> 8, number & 255), 2, |_| ());
        }
        let text = page(&tables, &config(), &Selection::default(), None, usize::MAX).unwrap();
        assert!(text.len() < 8_000_000, "{}", text.len());
        let page: Flows = serde_json::from_str(&text).unwrap();
        assert_eq!((page.total, page.flows.len()), (PAGE_FLOWS_MAX as u64 + 50, PAGE_FLOWS_MAX));
        let nothing = flows(&tables, &Selection::default(), None, 0).unwrap();
        assert_eq!(nothing.flows.len(), 0);
    }

    #[test]
    fn a_flow_is_one_line() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let found = flows(&tables(&messages), &selection(None, Some("10.0.0.8")), None, 10).unwrap();
        let flow = &found.flows[0];
        assert_eq!((flow.idle_ms, flow.deadline_ms, flow.owner.id), (1000, Some(500), 2));
        assert_eq!(
            flow.to_string(),
            "service=cache client=10.0.0.8:5 endpoint=10.0.0.5:11211 state=held owner=b@10.0.0.6:21211 \
             target=a@10.0.0.5:11211 original=a generation=7 idle=1"
        );
        let json = serde_json::to_value(flow).unwrap();
        assert_eq!(serde_json::from_value::<FlowStatus>(json).unwrap(), *flow);
    }
}
