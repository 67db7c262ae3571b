//! Tests: configurations are read, refused and shown, and agree with the reference.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use spillway_auth::Key;
use spillway_batch::PolicyKind;
use spillway_config::{Problem, Reading, is_toml};
use spillway_discovery::EtcdFiles;

use super::read_text;
use crate::config::schema::SECTIONS;
use crate::config::{Engine, HelperConfig, Protocol, SeparateAddress, Service, XdpConfig};
use crate::listeners::ListenerTable;
use crate::threads::{Threads, net_config};

const MINIMAL: &str = "[service.cache]\nserver = \"127.0.0.1:11411\"\nlisten = [\"127.0.0.1:11211\"]\n";

const ETCD: &str = "register = \"etcd:http://10.0.0.1:2379/a/\"";

fn read(text: &str) -> Result<HelperConfig, Vec<Problem>> {
    read_text(text, &Reading { base: PathBuf::new(), reads_host: false })
}

/// The only error, as `line:column: message`.
fn only_problem(text: &str) -> String {
    let problems = read(text).expect_err(text);
    assert_eq!(problems.len(), 1, "{text}: {problems:?}");
    format!("{}:{}: {}", problems[0].line, problems[0].column, problems[0].message)
}

#[test]
fn keys_that_are_not_given_have_their_defaults() {
    let config = read(MINIMAL).unwrap();
    let default = HelperConfig::new(config.services.clone());
    let default = HelperConfig { socket: Some(crate::default_socket()), ..default };
    assert_eq!(config.to_string(), default.to_string());
    let service = Service {
        listen: config.services[0].listen.clone(),
        ..Service::new("cache", "127.0.0.1:11411".parse().unwrap())
    };
    assert_eq!(config.services[0].to_string(), service.to_string());
}

/// `check --show` and the changes that a reload reports use the shown text.
#[test]
fn every_key_of_the_reference_is_shown() {
    let shown = read(MINIMAL).unwrap().to_string();
    let keys = SECTIONS.iter().flat_map(|section| section.entries).map(|entry| entry.key);
    let optional = ["register", "advertise", "ca_file", "cert_file", "key_file", "user", "password_file"];
    for key in keys.filter(|key| !optional.contains(key)) {
        let comment = match key {
            "network" => "# no network bound",
            "metrics" => "# no metrics",
            _ => key,
        };
        assert!(shown.contains(&format!("{key} =")) || shown.contains(comment), "{key} in {shown}");
    }
}

#[test]
fn a_change_of_require_encryption_is_shown() {
    let shown = |required| {
        let mut config = read(MINIMAL).unwrap();
        config.services[0].require_encryption = required;
        config.to_string()
    };
    assert!(shown(true).contains("require_encryption = true") && shown(true) != shown(false));
}

#[test]
fn longest_permitted_times_are_accepted_by_the_kernel() {
    let config = read(
        "[service.cache]\nserver = \"127.0.0.1:11411\"\nlisten = [\"127.0.0.1:0\"]\nclient_keepalive = \"9h\"\n\
         connect_timeout = \"60s\"\n",
    );
    let (config, threads) = (config.unwrap(), Threads::new(1));
    let plan = ListenerTable::default().plan(&config, 1, &net_config(&config, &threads));
    assert_eq!(plan.unwrap().new.len(), 1);
}

#[test]
fn max_delay_is_a_quarter_of_the_sla_unless_it_is_given() {
    let max_bytes = 64 << 10;
    for (sla, bound, expected_us) in [("", "", 200), ("2ms", "", 500), ("2ms", "300us", 300)] {
        let line = |key: &str, value: &str| match value {
            "" => String::new(),
            value => format!("{key} = \"{value}\"\n"),
        };
        let batch = format!("[service.cache.batch]\npolicy = \"following\"\n{}", line("max_delay", bound));
        let config = read(&format!("{MINIMAL}\n{}{batch}", line("sla", sla))).unwrap();
        let max_delay = Duration::from_micros(expected_us);
        assert_eq!(config.services[0].policy, PolicyKind::Following { max_delay, max_bytes });
        let reread = read(&config.to_string()).unwrap();
        assert_eq!(
            (reread.services[0].sla, reread.services[0].policy),
            (config.services[0].sla, config.services[0].policy)
        );
    }
    assert!(read(&format!("{MINIMAL}\nsla = \"1us\"\n")).is_err());
}

#[test]
fn every_batch_policy_is_read_and_shown() {
    let (max_delay, max_bytes) = (Duration::from_micros(300), 32 << 10);
    let policies = [
        ("adaptive", PolicyKind::Adaptive { max_delay, max_bytes }),
        ("algorithm1", PolicyKind::Algorithm1),
        ("fixed", PolicyKind::Fixed { interval: max_delay, size_bytes: max_bytes }),
        ("deadline", PolicyKind::Deadline { max_delay, max_bytes }),
        ("following", PolicyKind::Following { max_delay, max_bytes }),
    ];
    for (name, policy) in policies {
        let batch = format!("policy = \"{name}\"\nmax_delay = \"300us\"\nmax_bytes = \"32KiB\"\n");
        let config = read(&format!("{MINIMAL}\n[service.cache.batch]\n{batch}")).unwrap();
        assert_eq!(config.services[0].policy, policy);
        let shown = config.to_string();
        assert!(shown.contains(&format!("policy = \"{name}\"")), "{shown}");
        assert_eq!(read(&shown).unwrap().services[0].policy, policy);
    }
}

#[test]
fn every_key_is_read() {
    let text = r#"
        [helper]
        name = "helper-1"
        engine = "xdp"
        interface = "eth0"
        xdp.address = "10.0.0.9/24"
        xdp.gateway = "10.0.0.1"
        xdp.ports = "20000-29999"
        xdp.frames = 1024
        xdp.busy_poll = "0s"
        xdp.defer_interrupts = "200us"
        xdp.configure_interface = true
        threads = 3
        socket = "/tmp/h.sock"
        admin_group = "root"
        metrics = "127.0.0.1:9411"
        max_connections = 1_000
        max_memory = "2MiB"
        drain_deadline = "1m"
        load_answers = false
        network = "25Gbit"
        shed_above = 90
        shed_until = 70
        [service.cache]
        server = "10.0.0.5:11411"
        listen = ["10.0.0.9:11211", "10.0.0.9:11212"]
        link_listen = ["10.0.0.9:11411"]
        key_files = ["a", "b"]
        client_key_files = ["c"]
        sla = "5ms"
        require_encryption = true
        clients = ["10.0.0.0/8", "2001:db8::/32"]
        proxy_protocol_from = ["10.1.0.0/16"]
        register = "etcd:http://10.0.0.1:2379,http://10.0.0.2:2379/spillway/cache/"
        advertise = "10.0.0.9:11411"
        protocol = "memcached"
        measure_one_in = 4
        links_per_thread = 2
        connect_timeout = "2s"
        client_keepalive = "0"
        when_server_down = "refuse"
        [service.cache.batch]
        policy = "fixed"
        max_delay = "1ms"
        max_bytes = "32KiB"
        connection_buffer = "64KiB"
        [etcd]
        ca_file = "/etc/etcd/ca.pem"
        cert_file = "/etc/etcd/helper.pem"
        key_file = "/etc/etcd/helper.key"
        user = "helper"
        password_file = "/etc/etcd/password"
    "#;
    let config = read(text).unwrap_or_else(|problems| panic!("{problems:?}"));
    let service = &config.services[0];
    assert_eq!((config.name.as_str(), config.engine, config.threads), ("helper-1", Engine::Xdp, 3));
    let (busy_poll, defer_interrupts) = (Duration::ZERO, Duration::from_micros(200));
    let ports = 20_000..=29_999;
    let gateway = Some([10, 0, 0, 1].into());
    let separate = Some(SeparateAddress { ip: [10, 0, 0, 9].into(), prefix: 24, gateway });
    let xdp =
        XdpConfig { separate, ports, frames: 1024, busy_poll, defer_interrupts, configure_interface: true };
    assert_eq!((config.interface.as_deref(), config.xdp.clone()), (Some("eth0"), xdp));
    assert_eq!((config.max_connections, config.max_memory_bytes), (1000, 2 << 20));
    assert_eq!(config.admin_group.as_ref().map(ToString::to_string).as_deref(), Some("root"));
    assert_eq!(config.metrics, Some("127.0.0.1:9411".parse().unwrap()));
    assert_eq!(config.drain_deadline, Duration::from_secs(60));
    assert_eq!((config.load_answers, config.network_bits), (false, Some(25_000_000_000)));
    assert_eq!((config.shed_above, config.shed_until), (90, 70));
    assert_eq!((service.listen.len(), service.link_listen.len()), (2, 1));
    assert_eq!((service.clients.len(), service.proxy_protocol_from.len()), (2, 1));
    assert!(service.require_encryption);
    assert_eq!(service.sla, Some(Duration::from_millis(5)));
    assert_eq!((service.protocol, service.links_per_thread), (Protocol::Memcached, 2));
    assert_eq!(service.measure_one_in, 4);
    assert_eq!((service.connect_timeout, service.client_keepalive), (Duration::from_secs(2), None));
    assert_eq!(
        service.policy,
        PolicyKind::Fixed { interval: Duration::from_millis(1), size_bytes: 32 << 10 }
    );
    assert_eq!(service.connection_buffer_bytes, 64 << 10);
    let register = service.register.as_ref().unwrap();
    assert_eq!(register.prefix.to_string(), "etcd:http://10.0.0.1:2379,http://10.0.0.2:2379/spillway/cache/");
    assert_eq!(register.link, "10.0.0.9:11411".parse().unwrap());
    let path = |name: &str| Some(Path::new("/etc/etcd").join(name));
    let etcd = EtcdFiles {
        ca_file: path("ca.pem"),
        cert_file: path("helper.pem"),
        key_file: path("helper.key"),
        user: Some("helper".into()),
        password_file: path("password"),
    };
    assert_eq!(config.etcd, etcd);
    let keys_of_text: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| Some(line.split_once(" = ")?.0.trim().trim_start_matches("xdp.")))
        .collect();
    let keys_of_reference: BTreeSet<&str> =
        SECTIONS.iter().flat_map(|s| s.entries).map(|entry| entry.key).collect();
    assert_eq!(keys_of_text, keys_of_reference, "the text should contain every key of the reference");
    // The shown text can be read again, with the same result. Secret keys are not shown, so the test adds some.
    let shown = config
        .to_string()
        .replace("listen = [", "key_files = [\"x\"]\nclient_key_files = [\"x\"]\nlisten = [");
    let shown = shown.replacen("link_key_files = [\"x\"]\nclient_key_files = [\"x\"]\n", "link_", 1);
    let reread = read(&shown).unwrap_or_else(|problems| panic!("{problems:?}\n{shown}"));
    assert_eq!(reread.to_string(), config.to_string());
}

#[test]
fn defaults_of_the_reference_are_those_in_force() {
    let mut text = String::new();
    for section in SECTIONS {
        text += &format!("{}\n", section.title.replace("NAME", "cache"));
        let given = section.entries.iter().filter(|entry| is_toml(entry.default));
        given.for_each(|entry| text += &format!("{} = {}\n", entry.key, entry.default));
    }
    let header = "[service.cache]\n";
    let minimal = MINIMAL.strip_prefix(header).unwrap();
    let config = read(&text.replace(header, &format!("{header}{minimal}")));
    assert_eq!(config.unwrap().to_string(), read(MINIMAL).unwrap().to_string());
}

#[test]
fn each_problem_has_line_column_and_the_next_step() {
    let with = |more: &str| format!("{MINIMAL}{more}\n");
    let helper = |line: &str| format!("[helper]\n{line}\n{MINIMAL}");
    let xdp = |line: &str, listen: &str, server: &str| {
        format!(
            "[helper]\nengine = \"xdp\"\n{line}\n[service.cache]\nserver = \"{server}\"\nlisten = [\"{listen}\"]\n\
             key_files = [\"k\"]\n"
        )
    };
    let separate = |address: &str, gateway: &str| {
        let lines = format!("interface = \"eth0\"\nxdp.address = \"{address}\"\nxdp.gateway = \"{gateway}\"");
        xdp(&lines, "10.0.0.9:1", "10.0.0.5:1")
    };
    let cases = [
        ("".to_owned(), "1:1: no service"),
        ("[helper".to_owned(), "1:"),
        ("[service.cache]\nlisten = [\":1\"]".to_owned(), "1:10: server is missing"),
        ("[service.cache]\nserver = \"127.0.0.1:1\"".to_owned(), "1:10: no port for clients"),
        (with("max_dely = 1"), "4:1: unknown field `max_dely`, expected"),
        (format!("[halper]\n{MINIMAL}"), "1:2: unknown field `halper`, did you mean `helper`?"),
        (helper("max_delay = \"1s\""), "2:1: unknown field `max_delay`, expected"),
        (helper("drain = \"1s\""), "2:1: unknown field `drain`, did you mean `drain_deadline`?"),
        (with("[service.cache.batch]\ndelay = \"1s\""), "5:1: unknown field `delay`, expected"),
        (
            with("[service.cache.batch]\nmax_dely = \"1s\""),
            "5:1: unknown field `max_dely`, did you mean `max_delay`?",
        ),
        (with("connect_timeout = 5"), "4:19: give a text in quotes, with its unit"),
        (with("connect_timeout = \"5\""), "4:19: give a time with its unit"),
        (with("connect_timeout = \"2m\""), "4:19: give a time from 1ms to 1m"),
        (with("client_keepalive = \"10h\""), "4:20: give a time from 0s to 9h"),
        (with("links_per_thread = 0"), "4:20: give a whole number from 1 to 64"),
        (with("links_per_thread = \"1\""), "4:20: give a whole number"),
        (with("protocol = \"http\""), "4:12: give \"tcp\" or \"memcached\" or \"redis\""),
        (with("when_server_down = \"wait\""), "4:20: give \"refuse\""),
        (with("clients = [\"10.0.0.0/8\", \"10.0.0.1/8\"]"), "4:26: address bits are set after"),
        (with("clients = \"10.0.0.0/8\""), "4:11: invalid type"),
        (with("link_listen = [\"127.0.0.1:11211\"]"), "4:16: 127.0.0.1:11211 is already used by listen"),
        (with("link_listen = [\"0.0.0.0:11411\"]"), "4:15: library clients of other hosts"),
        (
            with("register = \"consul:x\"\nlink_listen = [\"127.0.0.1:1\"]"),
            "4:12: \"consul:x\" does not name helpers",
        ),
        (
            with("register = \"dns:a:1\"\nlink_listen = [\"127.0.0.1:1\"]"),
            "4:12: \"dns:a:1\" does not name helpers",
        ),
        (with(ETCD), "4:12: register needs link_listen"),
        (with(&format!("{ETCD}\nlink_listen = [\"127.0.0.1:0\"]")), "4:12: advertise is missing"),
        (with(&format!("{ETCD}\nlink_listen = [\"127.0.0.1:1\", \"127.0.0.2:1\"]")), "4:12: advertise is"),
        (with(&format!("{ETCD}\nadvertise = \"0.0.0.0:1\"")), "5:13: clients cannot connect"),
        (with("advertise = \"10.0.0.9:1\""), "4:13: advertise needs register"),
        (with("[service.cache.batch]\npolicy = \"none\""), "5:10: give \"adaptive\""),
        (with("[service.cache.batch]\nmax_bytes = \"64KB\""), "5:13: give a size with its unit"),
        (with("[service.cache.batch]\nconnection_buffer = \"1GiB\""), "5:21: give a size from 4KiB to 16MiB"),
        (with("[service.\"a b\"]\nserver=\"1\"\nlisten=[\"2\"]"), "4:10: a service's name"),
        (with("server = \"127.0.0.1:1\""), "4:1: duplicate key"),
        (
            MINIMAL.replace("127.0.0.1:11411", "10.0.0.5:11411"),
            "2:10: a server on another host needs key_files",
        ),
        (MINIMAL.replace("127.0.0.1:11411", "10.0.0.5"), "2:10: 10.0.0.5 has no port"),
        (MINIMAL.replace("127.0.0.1:11411", "no.such.host.invalid:1"), "2:10: cannot look up"),
        (MINIMAL.replace("127.0.0.1:11211", "nowhere"), "3:11: nowhere has no port"),
        (xdp("", "10.0.0.9:1", "10.0.0.5:1"), "2:10: xdp needs interface"),
        (
            xdp("interface = \"eth0\"", "0.0.0.0:1", "10.0.0.5:1"),
            "6:11: the engine xdp listens at single addresses",
        ),
        (
            xdp("interface = \"eth0\"", "127.0.0.1:1", "10.0.0.5:1"),
            "6:11: the engine xdp does not see loopback",
        ),
        (
            xdp("interface = \"eth0\"", "10.0.0.9:1", "127.0.0.1:1"),
            "5:10: the engine xdp does not reach this host",
        ),
        (helper("interface = \"sixteen-bytes-no\""), "2:13: the name of an interface has 1 to 15 bytes"),
        (helper("xdp.address = \"10.0.0.9/24\""), "2:15: address needs engine = \"xdp\""),
        (helper("xdp.gateway = \"10.0.0.1\""), "2:15: gateway is only for address"),
        (
            separate("10.0.0.9", "10.0.0.1"),
            "4:15: 10.0.0.9: give an IPv4 address and the bits of its network",
        ),
        (separate("10.0.0.9/24", "10.0.1.1"), "5:15: 10.0.1.1: the router must be in the network of address"),
        (separate("10.0.0.9/24", "10.0.0.9"), "5:15: 10.0.0.9: give the router's address"),
        (
            xdp("interface = \"eth0\"\nxdp.address = \"10.0.0.9/24\"", "10.0.0.8:1", "10.0.0.5:1"),
            "7:11: the helper has the address 10.0.0.9 alone",
        ),
        (
            xdp("interface = \"eth0\"\nxdp.address = \"10.0.0.9/24\"", "10.0.0.9:1", "10.0.1.5:1"),
            "6:10: 10.0.1.5 is not in the network of address",
        ),
        (helper("xdp.ports = \"9-8\""), "2:13: 9-8: give a range of ports"),
        (helper("xdp.frames = 100"), "2:14: give a power of two"),
        (helper("xdp.frames = 32"), "2:14: give a whole number from 64 to 65536"),
        (helper("xdp.configure_interface = 1"), "2:27: give true or false"),
        (helper("xdp.busy_poll = \"2s\""), "2:17: give a time from 0s to 1s"),
        (helper("xdp.defer_interrupts = \"2ms\""), "2:24: give a time from 0s to 1ms"),
        (
            helper("xdp.busy_poll = \"1us\"\nxdp.defer_interrupts = \"1us\""),
            "3:24: give only one of busy_poll and defer_interrupts",
        ),
        (helper("engine = \"dpdk\""), "2:10: give \"sockets\" or \"xdp\" or \"auto\""),
        (helper("threads = -1"), "2:11: give a whole number from 0 to 1024"),
        (helper("threads = 1.5"), "2:11: give a whole number"),
        (helper("socket = \"helper.sock\""), "2:10: give an absolute path"),
        (helper("admin_group = \"none-such\""), "2:15: there is no group \"none-such\" on this host"),
        (helper("metrics = \"nowhere\""), "2:11: nowhere has no port"),
        (helper("metrics = \"127.0.0.1:11211\""), "5:11: 127.0.0.1:11211 is already used by metrics"),
        (helper("name = \"my helper\""), "2:8: a name has"),
        (helper("max_connections = 0"), "2:19: give a whole number from 1"),
        (helper("max_memory = \"1KiB\""), "2:14: give a size from 1MiB"),
        (helper("max_memory = 5"), "2:14: give a text in quotes"),
        (helper("drain_deadline = \"forever\""), "2:18: give a time with its unit"),
        (helper("load_answers = \"no\""), "2:16: give true or false"),
        (helper("network = \"10G\""), "2:11: give a rate with its unit"),
        (helper("network = \"0Gbit\""), "2:11: give a rate above 0"),
        (helper("shed_above = 101"), "2:14: give a whole number from 0 to 100"),
        (helper("shed_above = 30"), "2:14: 30 % is not an overload"),
        (helper("shed_until = 95"), "2:14: give less than shed_above, which is 95"),
    ];
    for (text, expected) in cases {
        let problem = only_problem(&text);
        assert!(problem.starts_with(expected), "{text}\nproblem:  {problem}\nexpected: {expected}");
    }
}

#[test]
fn all_problems_are_reported_ordered_by_line() {
    let text = "[helper]\nthreads = -1\n[service.a]\nserver = \"x\"\nlisten = [\":y\"]\nprotocol = 3\n";
    let lines: Vec<usize> = read(text).unwrap_err().iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [2, 4, 5, 6]);
    // The errors of a service whose server is missing are reported, too.
    let text = text.replace("server = \"x\"\n", "");
    let lines: Vec<usize> = read(&text).unwrap_err().iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [2, 3, 4, 5]);
}

#[test]
fn key_files_are_found_and_read_and_errors_have_their_position() {
    use std::os::unix::fs::PermissionsExt;
    let base = std::env::temp_dir().join(format!("spillway-config-{}", std::process::id()));
    fs::create_dir(&base).unwrap();
    for (name, byte) in [("old.key", 1), ("new.key", 2)] {
        fs::write(base.join(name), Key::from_secret([byte; 32]).to_text().as_bytes()).unwrap();
        fs::set_permissions(base.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let text = format!("{MINIMAL}key_files = [\"new.key\", \"{}\"]\n", base.join("old.key").display());
    let reading = Reading { base: base.clone(), reads_host: true };
    let config = read_text(&text, &reading).unwrap();
    let ids: Vec<_> = config.services[0].keys.iter().map(Key::id).collect();
    assert_eq!(ids, [2, 1].map(|byte| Key::from_secret([byte; 32]).id()));
    let text = format!("{MINIMAL}client_key_files = [\"new.key\", \"none.key\"]\n");
    let problems = read_text(&text, &reading).unwrap_err();
    assert_eq!((problems[0].line, problems[0].column), (4, 32));
    assert!(problems[0].message.contains("spillway key new"), "{problems:?}");
    fs::remove_dir_all(&base).unwrap();
}

/// Tokens of configurations in random order: the parser accepts more of them than of random text.
fn tokens() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "[helper]\n",
        "[service.a]\n",
        "[service.a.batch]\n",
        "[service.\"b c\"]\n",
        "server = ",
        "listen = ",
        "name = ",
        "clients = ",
        "max_memory = ",
        "max_delay = ",
        "threads = ",
        "policy = ",
        "engine = ",
        "\"127.0.0.1:1\"",
        "\n",
        "[\"127.0.0.1:2\"]",
        "[",
        "]",
        "\"10.0.0.0/8\"",
        "\"1s\"",
        "\"64KiB\"",
        "5",
        "-1",
        "1.5",
        "true",
        "\"auto\"",
        "ä",
        "\"\"\"",
        "{",
        "}",
        "=",
        ".",
        "#",
        "1979-05-27",
        "\\",
        "\u{0}",
    ]);
    prop::collection::vec(token, 0..40).prop_map(|tokens| tokens.concat())
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in "\\PC{0,400}") {
        let _ = read(&text);
    }

    #[test]
    fn errors_in_random_tokens_have_a_line_of_the_text(text in tokens()) {
        if let Err(problems) = read(&text) {
            prop_assert!(!problems.is_empty());
            let lines = text.lines().count() + 2;
            prop_assert!(problems.iter().all(|problem| problem.line <= lines && !problem.message.is_empty()));
        }
    }
}
