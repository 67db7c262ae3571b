//! Old names, which stay valid for one more version: options are accepted with a warning; metrics and JSON fields are
//! served together with the present ones.

use std::collections::BTreeMap;

use serde_json::Value;

/// Warns about an option's old name.
pub fn warn_renamed(old: &str, new: &str) {
    crate::log_line(&format!(
        "spillway: warning: {old} is an old spelling, and is removed in the next version: give {new}"
    ));
}

/// Copies a result's fields into the envelope of `--json`, because older versions wrote the result without an envelope.
pub fn copy_result_to_top_level(envelope: &mut Value, result: &Value) {
    if let (Value::Object(envelope), Value::Object(result)) = (envelope, result) {
        for (name, value) in result {
            envelope.entry(name).or_insert_with(|| value.clone());
        }
    }
}

/// Renamed metrics: the present name, and the old one.
const METRICS: [(&str, &str); 5] = [
    ("spillway_helper_threads", "spillway_helper_contexts"),
    ("spillway_helper_threads_silent", "spillway_helper_contexts_silent"),
    ("spillway_helper_thread_cpu_seconds_total", "spillway_helper_context_cpu_seconds_total"),
    ("spillway_helper_load_queries_total", "spillway_helper_load_questions_total"),
    ("spillway_helper_load_queries_refused_total", "spillway_helper_load_questions_refused_total"),
];

/// Renamed labels, which are added to the same series: the present label, and the old one with its value.
const LABELS: [(&str, &str); 2] =
    [("client=\"plain\"", "kind=\"raw\""), ("client=\"library\"", "kind=\"library\"")];

/// Renamed fields: the field whose objects contain them (empty for the document itself), the present name, the old one.
const FIELDS: [(&str, &str, &str); 25] = [
    ("", "per_thread", "contexts"),
    ("", "override", "relief"),
    ("", "accepted", "taken"),
    ("", "measuring_given_up", "gave_up"),
    ("per_thread", "thread", "context"),
    ("load", "cpu_permille", "cpu"),
    ("load", "network_permille", "network"),
    ("load", "connections_permille", "connections"),
    ("load", "memory_permille", "memory"),
    ("load", "load_ppm", "load"),
    ("services", "override", "relief"),
    ("services", "override_left_ms", "relief_left_ms"),
    ("services", "plain_clients", "raw_clients"),
    ("services", "plain_clients_accepted", "raw_clients_taken"),
    ("services", "library_connections_accepted", "library_connections_taken"),
    ("services", "reset", "cut"),
    ("services", "load_queries_answered", "questions_answered"),
    ("services", "load_queries_refused", "questions_refused"),
    ("services", "library_clients_sent_away", "shed"),
    ("servers", "override", "relief"),
    ("servers", "override_left_ms", "relief_left_ms"),
    ("servers", "links_accepted", "links_taken"),
    ("servers", "connections_accepted", "connections_taken"),
    ("connections", "thread", "context"),
    ("rates", "thread_cpu_percent", "context_cpu_percent"),
];

/// Adds the old names to an exposition of a helper's metrics.
pub fn with_old_metrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 5 / 4);
    for family in
        text.split_inclusive('\n').collect::<Vec<_>>().chunk_by(|_, next| !next.starts_with("# HELP "))
    {
        let lines: Vec<String> = family.iter().map(|line| with_old_labels(line)).collect();
        lines.iter().for_each(|line| out.push_str(line));
        let name = family[0].split(' ').nth(2).unwrap_or_default();
        if let Some((new, old)) = METRICS.iter().find(|(new, _)| *new == name) {
            out.push_str(&format!("# HELP {old} Old name of {new}.\n"));
            lines[1..].iter().for_each(|line| out.push_str(&line.replacen(new, old, 1)));
        }
    }
    out
}

/// Adds old labels to one sample. Quotes in a label's value are escaped, so that a value never looks like a label.
fn with_old_labels(line: &str) -> String {
    let mut line = line.to_owned();
    if let Some((_, rest)) = line.split_once("thread=\"")
        && let Some((thread, _)) = rest.split_once('"')
    {
        let present = format!("thread=\"{thread}\"");
        line = line.replacen(&present, &format!("{present},context=\"{thread}\""), 1);
    }
    for (present, old) in LABELS {
        line = line.replacen(present, &format!("{present},{old}"), 1);
    }
    line
}

/// Adds the old name of the kind `overrides` to a sidecar's counts of relief decisions.
pub fn add_old_decision(decisions: &mut BTreeMap<String, u64>) {
    if let Some(count) = decisions.get("overrides").copied() {
        decisions.insert("words".to_owned(), count);
    }
}

/// Adds the old names to a status or a list of a helper, a sidecar or a server.
pub fn add_old_fields(document: &mut Value) {
    add_old_names(document, "");
}

/// `name` is the field that holds the value, or the list that the value is in.
fn add_old_names(value: &mut Value, name: &str) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|element| add_old_names(element, name)),
        Value::Object(object) => {
            // Inner objects first, so that the copies contain the old names, too.
            object.iter_mut().for_each(|(name, value)| add_old_names(value, name));
            for (_, new, old) in fields(name) {
                if let Some(value) = object.get(*new).cloned() {
                    object.entry(*old).or_insert(value);
                }
            }
            if let Some(kind) = object.get("client_kind").cloned() {
                object.entry("kind").or_insert(if kind == "plain" { "raw".into() } else { kind });
            }
        }
        _ => {}
    }
}

/// Renames the fields of an older daemon's document to their present names.
pub fn read_old_fields(document: &mut Value) {
    use_present_names(document, "");
}

fn use_present_names(value: &mut Value, name: &str) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|element| use_present_names(element, name)),
        Value::Object(object) => {
            // Outer objects first: inner ones are found by the present name of their field.
            for (_, new, old) in fields(name) {
                if !object.contains_key(*new)
                    && let Some(value) = object.remove(*old)
                {
                    object.insert((*new).to_owned(), value);
                }
            }
            if name == "connections"
                && !object.contains_key("client_kind")
                && let Some(kind) = object.get("kind").cloned()
            {
                object.insert("client_kind".to_owned(), if kind == "raw" { "plain".into() } else { kind });
            }
            object.iter_mut().for_each(|(name, value)| use_present_names(value, name));
        }
        _ => {}
    }
}

/// The renamed fields of the objects in the field `name`.
fn fields(name: &str) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
    FIELDS.iter().filter(move |(parent, _, _)| *parent == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn old_metrics_and_labels_are_served_with_the_present_ones() {
        let text = "# HELP spillway_helper_threads Threads.\n# TYPE spillway_helper_threads gauge\nspillway_helper_threads 2\n\
                    # HELP spillway_helper_clients Clients.\n# TYPE spillway_helper_clients gauge\n\
                    spillway_helper_clients{service=\"thread=\\\"9\\\"\",thread=\"0\",client=\"plain\"} 1\n";
        let expected = "# HELP spillway_helper_threads Threads.\n# TYPE spillway_helper_threads gauge\n\
                        spillway_helper_threads 2\n\
                        # HELP spillway_helper_contexts Old name of spillway_helper_threads.\n\
                        # TYPE spillway_helper_contexts gauge\nspillway_helper_contexts 2\n\
                        # HELP spillway_helper_clients Clients.\n# TYPE spillway_helper_clients gauge\n\
                        spillway_helper_clients{service=\"thread=\\\"9\\\"\",thread=\"0\",context=\"0\",\
                        client=\"plain\",kind=\"raw\"} 1\n";
        assert_eq!(with_old_metrics(text), expected);
    }

    #[test]
    fn the_old_kind_of_decision_is_served_with_the_present_one() {
        let mut decisions = BTreeMap::from([("overrides".to_owned(), 3), ("releases".to_owned(), 1)]);
        add_old_decision(&mut decisions);
        assert_eq!((decisions["overrides"], decisions["words"], decisions.len()), (3, 3, 3));
    }

    #[test]
    fn old_fields_are_added_to_documents_and_read_from_older_ones() {
        let present = json!({
            "per_thread": [{ "thread": 0, "load": { "cpu_permille": 7, "full": false } }],
            "services": [{ "plain_clients": 3, "links": [{ "thread": 1 }] }],
        });
        let mut served = present.clone();
        add_old_fields(&mut served);
        assert_eq!(served["contexts"][0]["context"], 0);
        assert_eq!(served["per_thread"][0]["context"], 0);
        assert_eq!(served["per_thread"][0]["load"]["cpu"], 7);
        assert_eq!(served["services"][0]["raw_clients"], 3);
        assert_eq!(served["services"][0]["links"][0], json!({ "thread": 1 }));

        let mut old = json!({
            "contexts": [{ "context": 0, "load": { "cpu": 7, "full": false } }],
            "services": [{ "raw_clients": 3, "links": [{ "thread": 1 }] }],
        });
        read_old_fields(&mut old);
        assert_eq!(old, present);
        let mut list = json!({ "connections": [{ "kind": "raw", "context": 1 }] });
        read_old_fields(&mut list);
        assert_eq!(list["connections"][0]["client_kind"], "plain");
        add_old_fields(&mut list);
        assert_eq!(
            (&list["connections"][0]["kind"], &list["connections"][0]["context"]),
            (&json!("raw"), &json!(1))
        );
    }
}
