//! The clients of a helper's service.

use std::path::Path;

use spillway_helper::control::{Request, RequestError, send_request};
use spillway_helper::{Connection, Connections};

use crate::commands::output::Report;

pub(super) fn clients_of_service(
    socket: &Path,
    service: &str,
    limit: usize,
) -> Result<Connections, RequestError> {
    send_request(socket, &Request::Connections { service: service.to_owned(), limit })
}

pub(super) fn report(clients: &Connections) -> Report {
    let cut = clients.total.saturating_sub(clients.connections.len() as u64);
    let warning = format!("{cut} more are not listed; --limit N lists more");
    Report {
        lines: clients.connections.iter().map(|connection| line(&clients.service, connection)).collect(),
        result: clients.to_value(),
        warnings: if cut > 0 { vec![warning] } else { Vec::new() },
        ..Report::default()
    }
}

fn line(service: &str, connection: &Connection) -> String {
    let via = connection.via.map_or_else(|| "-".to_owned(), |via| via.to_string());
    let stalled = connection.stalled_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms}ms"));
    format!(
        "service={service} addr={} via={via} kind={} thread={} age={} in={} out={} buffered={} stalled={stalled}",
        connection.client,
        connection.client_kind,
        connection.thread,
        connection.age_ms / 1000,
        connection.bytes_in,
        connection.bytes_out,
        connection.buffered_bytes
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_one_line() {
        let mut connection = Connection {
            client: "10.0.0.7:4000".parse().expect("address"),
            via: None,
            client_kind: "plain".into(),
            thread: 1,
            age_ms: 61_500,
            bytes_in: 10,
            bytes_out: 20,
            buffered_bytes: 0,
            stalled_ms: None,
        };
        let expected = "service=cache addr=10.0.0.7:4000 via=- kind=plain thread=1 age=61 in=10 out=20 buffered=0 stalled=-";
        assert_eq!(line("cache", &connection), expected);
        connection.via = Some("10.0.0.9:80".parse().expect("address"));
        connection.stalled_ms = Some(5);
        let text = line("cache", &connection);
        assert!(text.contains(" via=10.0.0.9:80 ") && text.ends_with(" stalled=5ms"), "{text}");
    }
}
