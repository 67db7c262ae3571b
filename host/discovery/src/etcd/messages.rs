//! Messages of etcd's JSON gateway (API v3). It writes 64-bit numbers as strings, and omits zeros.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    #[serde(deserialize_with = "number")]
    pub(crate) cluster_id: u64,
    #[serde(deserialize_with = "number")]
    pub(crate) revision: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    key: String,
    value: String,
}

impl KeyValue {
    /// The key in base64, as received.
    pub(crate) fn raw_key(&self) -> &str {
        &self.key
    }

    pub(crate) fn key(&self) -> Option<String> {
        decoded(&self.key)
    }

    /// The value; `None` if it is longer than `bytes_max`, or is not UTF-8.
    pub(crate) fn value(&self, bytes_max: usize) -> Option<String> {
        // Base64 has four characters for three bytes; up to two characters at the end are padding.
        if self.value.len() / 4 * 3 > bytes_max + 2 { None } else { decoded(&self.value) }
    }
}

/// Answer of `/v3/kv/range`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Range {
    pub(crate) header: Header,
    pub(crate) kvs: Vec<KeyValue>,
    #[serde(deserialize_with = "number")]
    pub(crate) count: u64,
}

/// Request of `/v3/auth/authenticate`.
#[derive(Serialize)]
pub(crate) struct Login<'a> {
    pub(crate) name: &'a str,
    pub(crate) password: &'a str,
}

/// Answer of `/v3/auth/authenticate`.
#[derive(Deserialize)]
pub(crate) struct Token {
    pub(crate) token: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Streamed<T> {
    pub(crate) result: Option<T>,
    pub(crate) error: Option<serde_json::Value>,
}

/// Answer of `/v3/lease/grant` and `/v3/lease/keepalive`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Lease {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(crate) id: u64,
    /// Seconds; 0: the lease does not exist.
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(crate) ttl: u64,
}

/// Answer of `/v3/kv/txn`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Transaction {
    pub(crate) succeeded: bool,
    pub(crate) responses: Vec<Response>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Response {
    pub(crate) response_range: Option<Range>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    /// A string; in a stream an object with the message and gRPC's status code.
    pub(crate) error: serde_json::Value,
    pub(crate) code: u32,
}

impl Refusal {
    pub(crate) fn reason(&self) -> (u32, String) {
        let Refusal { error, code } = self;
        let inner = error["grpc_code"].as_u64().and_then(|code| u32::try_from(code).ok());
        let message = error.as_str().or(error["message"].as_str()).unwrap_or_default();
        (inner.unwrap_or(*code), message.to_owned())
    }
}

/// The value of a helper's key. Later versions may add fields.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Registered {
    /// `ADDRESS:PORT` of the helper's link port.
    pub(crate) link: String,
    /// Version of the helper's program.
    #[serde(default)]
    pub(crate) version: String,
}

pub(crate) fn encoded(text: &[u8]) -> String {
    STANDARD.encode(text)
}

fn decoded(text: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(text).ok()?).ok()
}

/// Reads a number, or a string that holds one.
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
    fn etcd_answers_are_parsed() {
        let text = r#"{"header":{"cluster_id":"18446744073709551615","revision":"3","raft_term":"2"},
            "kvs":[{"key":"L2E=","create_revision":"2","mod_revision":"2","value":"eA=="}],"count":1}"#;
        let range: Range = serde_json::from_str(text).unwrap();
        assert_eq!((range.header.cluster_id, range.header.revision, range.count), (u64::MAX, 3, 1));
        let [kv] = &range.kvs[..] else { panic!("{range:?}") };
        assert_eq!((kv.key().as_deref(), kv.value(1).as_deref()), (Some("/a"), Some("x")));
        let lease: Lease = serde_json::from_str(r#"{"header":{},"ID":"123"}"#).unwrap();
        assert_eq!((lease.id, lease.ttl), (123, 0));
        let refusal: Refusal = serde_json::from_str(r#"{"error":"no","message":"no","code":5}"#).unwrap();
        assert_eq!(refusal.reason(), (5, "no".to_owned()));
        let streamed = r#"{"error":{"grpc_code":16,"http_code":401,"message":"token"}}"#;
        let refusal: Refusal = serde_json::from_str(streamed).unwrap();
        assert_eq!(refusal.reason(), (16, "token".to_owned()));
        assert!(serde_json::from_str::<Lease>(r#"{"ID":"x"}"#).is_err());
    }

    #[test]
    fn too_long_or_invalid_values_are_none() {
        let value = |text: &str| KeyValue { value: text.into(), ..KeyValue::default() }.value(10);
        assert_eq!(value(&encoded(b"0123456789")).as_deref(), Some("0123456789"));
        assert_eq!(value(&encoded(&[b'x'; 100])), None);
        assert_eq!((value("!"), value(&encoded(&[0xff]))), (None, None));
    }
}
