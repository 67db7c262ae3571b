//! A sidecar's HTTP port: metrics, status and health; the documentation lists every metric.

#[path = "../../../host/metrics/tests/support/strict.rs"]
mod strict;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use spillway_client::Key;
use spillway_metrics::process;
use spillway_sidecar::{Listen, METRICS, Settings, Sidecar, SidecarStatus};

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("the response should have a head and a body");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .expect("the response should have a status code");
    (status, body.to_owned())
}

#[test]
fn sidecar_serves_metrics_status_and_health() {
    let mut settings = Settings::new(spillway_ports::free_address(), Key::loopback_only());
    settings.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
    settings.metrics = Some(([127, 0, 0, 1], 0).into());
    settings.threads = 2;
    let mut sidecar = Sidecar::start(settings, || ()).unwrap();
    let metrics_address = sidecar.metrics_address().expect("the sidecar should serve metrics");
    let Listen::Tcp(address) = sidecar.listen()[0] else { panic!("the sidecar should listen on TCP") };
    let _client = TcpStream::connect(address).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while sidecar.status().waiting != 1 {
        assert!(Instant::now() < deadline, "the connection should wait for a carrier within 30 s");
        std::thread::sleep(Duration::from_millis(5));
    }
    let served = strict::read(&get(metrics_address, "/metrics").1);
    for metric in METRICS.iter().chain(process::METRICS) {
        let family = served.get(metric.name).unwrap_or_else(|| panic!("{} should be served", metric.name));
        assert_eq!(
            (family.kind.as_str(), !family.samples.is_empty()),
            (metric.kind.name(), true),
            "{}",
            metric.name
        );
    }
    assert_eq!(
        served.len(),
        METRICS.len() + process::METRICS.len(),
        "METRICS should list every served metric"
    );
    assert_eq!(served["spillway_sidecar_connections"].sum(&[("carrier", "none")]), 1.0);
    let status: SidecarStatus = serde_json::from_str(&get(metrics_address, "/status").1).unwrap();
    assert_eq!((status.kind.as_str(), status.connections, status.threads), ("sidecar", 1, 2));
    assert_eq!(get(metrics_address, "/nothing").0, 404);
    let (code, why) = get(metrics_address, "/health");
    assert!(
        code == 503 && why.contains("no carrier"),
        "an unreachable server should be reported: {code} {why}"
    );
    sidecar.drain(Duration::from_secs(60));
    let (code, why) = get(metrics_address, "/health");
    assert!(code == 503 && why.contains("draining"), "{code} {why}");
}

#[test]
fn full_sidecar_is_unhealthy() {
    let link_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = Settings::new(link_port.local_addr().unwrap(), Key::loopback_only());
    settings.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
    settings.metrics = Some(([127, 0, 0, 1], 0).into());
    settings.max_connections = 2;
    let sidecar = Sidecar::start(settings, || ()).unwrap();
    let metrics_address = sidecar.metrics_address().expect("the sidecar should serve metrics");
    let Listen::Tcp(address) = sidecar.listen()[0] else { panic!("the sidecar should listen on TCP") };
    assert_eq!(get(metrics_address, "/health").0, 200);
    let _clients = [(); 2].map(|()| TcpStream::connect(address).unwrap());
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (code, why) = get(metrics_address, "/health");
        if code == 503 && why.contains("full: no new clients; 2 connected") {
            break;
        }
        assert!(Instant::now() < deadline, "the sidecar should be full within 30 s: {code} {why}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_metric_is_documented() {
    let text = include_str!("../../../docs/sidecar-metrics.md");
    for metric in METRICS {
        let (name, kind, labels, help) =
            (metric.name, metric.kind.name(), metric.labels.join(", "), metric.help);
        let row = format!("| `{name}` | {kind} | {labels} | {help} |");
        assert!(text.contains(&row), "docs/sidecar-metrics.md must have:\n{row}");
    }
}
