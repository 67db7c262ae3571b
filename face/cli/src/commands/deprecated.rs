//! Forms of older versions that are accepted, or served, for one more version. Deprecated options give a warning with the
//! form to use.

use serde_json::Value;

pub(crate) fn renamed(old: &str, new: &str) {
    spillway_daemon::say(&format!(
        "spillway: warning: {old} is an old spelling, and is removed in the next version: give {new}"
    ));
}

/// Serves a result's fields beside the envelope's own, where they were before `--json` had an envelope.
pub(crate) fn result_at_top_level(envelope: &mut Value, result: &Value) {
    if let (Value::Object(envelope), Value::Object(result)) = (envelope, result) {
        for (name, value) in result {
            envelope.entry(name).or_insert_with(|| value.clone());
        }
    }
}
