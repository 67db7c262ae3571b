//! Request metrics of a helper's plain clients, with a real memcached.

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;
use spillway_lab::peers::Memcached;
use spillway_lab::{Launch, Place};
use spillway_ports::free_port;
use support::{Client, SPILLWAY, Scratch, eventually, loopback};

/// The status of a helper's service after 100 requests of each of 8 clients, one client after the other.
fn service_after_requests(settings: &str) -> Value {
    let place = Place::local().unwrap();
    let scratch = Scratch::new();
    let [link, listen] = [(); 2].map(|()| loopback(free_port()));
    let wrapper = [SPILLWAY, "run", "--link", &link.to_string(), "--require", "--"].map(str::to_owned);
    let _server = Memcached::default().wrapper(wrapper).start(&place).unwrap();
    let (config, socket) = (scratch.path("helper.toml"), scratch.path("helper.sock"));
    let text = format!(
        "[helper]\nsocket = \"{socket}\"\nthreads = 1\n[service.cache]\nserver = \"{link}\"\nlisten = [\"{listen}\"]\n{settings}\n"
    );
    fs::write(&config, text).unwrap();
    let launch = Launch::new(SPILLWAY).name("helper").args(["helper", "--config", &config]);
    let _helper = place.spawn(&launch).unwrap();
    eventually("the helper serves", || {
        Client::try_new(listen).is_some_and(|mut client| client.version().is_some())
    });
    for _ in 0..8 {
        let mut client = Client::new(listen);
        client.set("key", b"value");
        (1..100).for_each(|_| assert!(client.get("key").is_some()));
    }
    let output = Command::new(SPILLWAY).args(["status", "--json", "--socket", &socket]).output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    status["result"]["services"][0].clone()
}

fn requests(service: &Value) -> u64 {
    service["request_latency_us"]["counts"].as_array().unwrap().iter().filter_map(Value::as_u64).sum()
}

#[test]
fn every_request_is_measured_if_each_client_is_chosen() {
    let service = service_after_requests("protocol = \"memcached\"\nmeasure_one_in = 1");
    // 800 requests, and the request `version` before them.
    assert!(requests(&service) >= 801, "{service:#}");
    assert_eq!(service["replies_unmeasured"], 0);
    let given_up = service["measuring_given_up"].as_object().unwrap();
    assert!(given_up.values().all(|count| *count == 0), "{given_up:?}");
    let latency = service["request_latency_us"]["sum"].as_u64().unwrap() / requests(&service);
    assert!(latency > 0, "a request should take more than a microsecond: {service:#}");
}

#[test]
fn some_clients_are_measured_and_none_without_a_protocol() {
    let service = service_after_requests("protocol = \"memcached\"\nmeasure_one_in = 4");
    // Of 8 clients in a row, every fourth one is measured: exactly 2, with 100 requests each. The client that had the
    // first reply, to `version`, may be measured, too; earlier ones had no reply, and only replies are counted.
    assert!((200..=201).contains(&requests(&service)), "{service:#}");
    assert_eq!(requests(&service_after_requests("")), 0);
    assert_eq!(requests(&service_after_requests("protocol = \"memcached\"\nmeasure_one_in = 0")), 0);
}
