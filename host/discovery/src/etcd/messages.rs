//! What etcd's JSON gateway says (API v3). Numbers of 64 bits are texts there, and what is zero is left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};

/// Comes with every answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    #[serde(deserialize_with = "number")]
    pub(crate) cluster_id: u64,
    #[serde(deserialize_with = "number")]
    pub(crate) revision: u64,
}

/// A key with its value.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    key: String,
    value: String,
    #[serde(deserialize_with = "number")]
    pub(crate) create_revision: u64,
    #[serde(deserialize_with = "number")]
    pub(crate) mod_revision: u64,
}

impl KeyValue {
    pub(crate) fn key(&self) -> Option<String> {
        decoded(&self.key)
    }

    /// `None` also where it is longer than this.
    pub(crate) fn value(&self, bytes_max: usize) -> Option<String> {
        // Four characters for three bytes.
        if self.value.len() / 4 * 3 > bytes_max + 2 { None } else { decoded(&self.value) }
    }
}

/// Of `/v3/kv/range`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Range {
    pub(crate) header: Header,
    pub(crate) kvs: Vec<KeyValue>,
    #[serde(deserialize_with = "number")]
    pub(crate) count: u64,
}

/// A line of an answer that comes in lines.
#[derive(Debug, Deserialize)]
pub(crate) struct Streamed<T> {
    pub(crate) result: Option<T>,
    pub(crate) error: Option<serde_json::Value>,
}

/// Of `/v3/watch`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Watched {
    pub(crate) header: Header,
    pub(crate) canceled: bool,
    pub(crate) events: Vec<Event>,
}

/// What has happened to a key.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    #[serde(rename = "type")]
    kind: String,
    pub(crate) kv: KeyValue,
}

impl Event {
    pub(crate) fn is_removal(&self) -> bool {
        self.kind == "DELETE"
    }

    pub(crate) fn is_new(&self) -> bool {
        !self.is_removal() && self.kv.create_revision == self.kv.mod_revision
    }
}

/// Of `/v3/lease/grant` and `/v3/lease/keepalive`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Lease {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(crate) id: u64,
    /// Seconds; 0: there is no such lease.
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(crate) ttl: u64,
}

/// Of `/v3/kv/txn`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Transaction {
    pub(crate) succeeded: bool,
    pub(crate) responses: Vec<Response>,
}

/// Of one of its steps.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Response {
    pub(crate) response_range: Option<Range>,
}

/// Why something is refused.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    pub(crate) error: String,
    /// gRPC's.
    pub(crate) code: u32,
}

/// What a helper writes under its key. Fields may be added.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Registered {
    /// `ADDRESS:PORT` of its link port.
    pub(crate) link: String,
    /// Of its program.
    #[serde(default)]
    pub(crate) version: String,
}

/// As keys and values are written.
pub(crate) fn encoded(text: &[u8]) -> String {
    STANDARD.encode(text)
}

fn decoded(text: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(text).ok()?).ok()
}

/// A number, or its text.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }
    match Either::deserialize(from)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_says_is_understood() {
        let text = r#"{"result":{"header":{"cluster_id":"18446744073709551615","revision":"3","raft_term":"2"},
            "events":[{"kv":{"key":"L2E=","create_revision":"2","mod_revision":"2","value":"eA=="}},
            {"type":"DELETE","kv":{"key":"L2E=","mod_revision":3}}]}}"#;
        let watched: Watched = serde_json::from_str::<Streamed<Watched>>(text).unwrap().result.unwrap();
        assert_eq!((watched.header.cluster_id, watched.header.revision), (u64::MAX, 3));
        let [put, delete] = &watched.events[..] else { panic!("{watched:?}") };
        assert!(put.is_new() && !put.is_removal() && delete.is_removal() && !delete.is_new());
        assert_eq!((put.kv.key().as_deref(), put.kv.value(1).as_deref()), (Some("/a"), Some("x")));
        let lease: Lease = serde_json::from_str(r#"{"header":{},"ID":"123"}"#).unwrap();
        assert_eq!((lease.id, lease.ttl), (123, 0));
        let refusal: Refusal = serde_json::from_str(r#"{"error":"no","message":"no","code":5}"#).unwrap();
        assert_eq!((refusal.error.as_str(), refusal.code), ("no", 5));
        assert!(serde_json::from_str::<Lease>(r#"{"ID":"x"}"#).is_err());
    }

    #[test]
    fn long_and_wrong_values_are_none() {
        let value = |text: &str| KeyValue { value: text.into(), ..KeyValue::default() }.value(10);
        assert_eq!(value(&encoded(b"0123456789")).as_deref(), Some("0123456789"));
        assert_eq!(value(&encoded(&[b'x'; 100])), None);
        assert_eq!((value("!"), value(&encoded(&[0xff]))), (None, None));
    }
}
