//! Accounting, quotas, packet loss and processes of hosts, on the real kernel. Skips without root.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use spillway_lab::peers::Memcached;
use spillway_lab::{
    Burner, HostOptions, Lab, LabError, LabOptions, Launch, Output, Place, Quota, unavailable,
};

const TIMEOUT: Duration = Duration::from_secs(60);

fn skipped() -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_some()
}

#[test]
fn receive_work_is_accounted_to_the_receiving_host() {
    if skipped() {
        return;
    }
    let lab =
        Lab::with_options("pair", LabOptions { bridge_core: Some(0), ..LabOptions::default() }).unwrap();
    let left = lab.host("left", HostOptions { core: Some(0), ..HostOptions::default() }).unwrap();
    let right = lab.host("right", HostOptions::default()).unwrap();
    for offloads in [left.offloads().unwrap(), right.bridge_offloads().unwrap()] {
        assert!(offloads.gro && !offloads.tso && offloads.tx_checksums, "{offloads}");
    }
    assert_eq!(left.interface_threads().len(), 1);
    assert_eq!(right.interface_threads().len(), 1);
    assert!(["cubic", "reno"].contains(&left.congestion_control().unwrap().as_str()));

    let listener = left.run_inside(|| TcpListener::bind((left.address(), 0))).unwrap().unwrap();
    let server_address = listener.local_addr().unwrap();
    let receiver = std::thread::spawn(move || {
        let (mut stream, client_address) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        (client_address, bytes.iter().map(|b| u64::from(*b)).sum::<u64>())
    });
    let before = (left.cpu().unwrap(), lab.bridge_cpu().unwrap(), left.counters().unwrap());
    let local_address = right.run_inside(|| {
        let mut stream = TcpStream::connect(server_address)?;
        for _ in 0..256 {
            stream.write_all(&[3; 65_536])?;
        }
        stream.local_addr()
    });
    let (client_address, sum) = receiver.join().unwrap();
    assert_eq!(sum, 3 * 256 * 65_536);
    assert_eq!(client_address, local_address.unwrap().unwrap());
    assert_eq!(client_address.ip(), right.address());

    let after = (left.cpu().unwrap(), lab.bridge_cpu().unwrap(), left.counters().unwrap());
    let receive_work = after.0.since(&before.0).interface;
    assert!(receive_work > Duration::ZERO, "receive work should be in the receiver's account");
    let bridge_work = after.1.since(&before.1).interface;
    assert!(bridge_work > Duration::ZERO, "the bridge's work should be in its own account");
    assert_eq!(after.1.process, Duration::ZERO);
    assert!(after.2.rx_bytes - before.2.rx_bytes >= 256 * 65_536);
    lab.close().unwrap();
}

#[test]
fn a_quota_limits_the_processes_of_its_host() {
    if skipped() {
        return;
    }
    let lab = Lab::new("quota").unwrap();
    let quota = Quota { percent_of_core: 20.0, period: Duration::from_millis(5) };
    let host = lab.host("small", HostOptions { quota: Some(quota), ..HostOptions::default() }).unwrap();
    let started_at = Instant::now();
    let before = host.cpu().unwrap();
    let busy_loop = Launch::new("sh").args(["-c", "while :; do :; done"]);
    let mut spinner = host.spawn(&busy_loop).unwrap();
    // Waits for CPU time, not for a fixed time, so that a slow machine does not fail the test.
    let used = loop {
        std::thread::sleep(Duration::from_millis(100));
        let used = host.cpu().unwrap().since(&before);
        if used.process > Duration::from_millis(200) || started_at.elapsed() > TIMEOUT {
            break used;
        }
    };
    let percent = used.percent_of_core(started_at.elapsed());
    assert!(used.process > Duration::from_millis(200), "the spinner used only {used:?}");
    assert!(percent <= 25.0, "the host used {percent:.1} % of a core, with a quota of 20 %");
    assert!(used.throttled_periods > 0 && used.periods >= used.throttled_periods, "{used:?}");
    assert!(!used.throttled_time.is_zero());

    host.set_quota(None).unwrap();
    let unlimited = host.cpu().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(host.cpu().unwrap().since(&unlimited).throttled_periods, 0);
    assert!(spinner.exit_status().is_none());
    spinner.kill();
    assert!(spinner.exit_status().is_some());
}

#[test]
fn memcached_on_a_host_answers_other_hosts_and_can_be_restarted() {
    if skipped() {
        return;
    }
    if std::process::Command::new("memcached").arg("-h").output().is_err() {
        println!("skipped: memcached is not installed (apt-get install memcached)");
        return;
    }
    let lab = Lab::new("cache").unwrap();
    let server = lab.host("server", HostOptions::default()).unwrap();
    let client = lab.host("client", HostOptions::default()).unwrap();
    let mut peer = Memcached::default().wrapper(["env", "LAB=1"]).start(&Place::from(&server)).unwrap();
    let set = b"set k 0 0 5\r\nhello\r\n";
    assert_eq!(client.run_inside(|| exchange(peer.address(), set, 8)).unwrap(), b"STORED\r\n");
    let value = b"VALUE k 0 5\r\nhello\r\nEND\r\n";
    assert_eq!(client.run_inside(|| exchange(peer.address(), b"get k\r\n", value.len())).unwrap(), value);
    assert!(server.cpu().unwrap().process > Duration::ZERO);

    let (pid, address) = (peer.pid(), peer.address());
    peer.restart().unwrap();
    assert_ne!(peer.pid(), pid);
    assert_eq!(peer.address(), address);
    assert_eq!(
        client.run_inside(|| exchange(address, b"get k\r\n", 5)).unwrap(),
        b"END\r\n",
        "a restart should drop the data"
    );
    peer.kill();
    let refused = client.run_inside(|| TcpStream::connect(address).map(drop)).unwrap();
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_lossy_cable_drops_packets_and_tcp_retransmits_them() {
    if skipped() {
        return;
    }
    let lab = Lab::new("lossy").unwrap();
    let left = lab.host("left", HostOptions::default()).unwrap();
    let right = lab.host("right", HostOptions::default()).unwrap();
    let listener = left.run_inside(|| TcpListener::bind((left.address(), 0))).unwrap().unwrap();
    let server_address = listener.local_addr().unwrap();
    let echo = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut bytes = [0; 64];
        while stream.read_exact(&mut bytes).is_ok() {
            stream.write_all(&bytes).unwrap();
        }
    });
    let mut stream = right.run_inside(|| TcpStream::connect(server_address)).unwrap().unwrap();
    let loss = left.drop_packets(0.1).unwrap();
    let started_at = Instant::now();
    let mut sent = 0u64;
    while left.packet_counts().unwrap().lost < 5 {
        assert!(started_at.elapsed() < TIMEOUT, "{:?}", left.packet_counts());
        let message = [sent as u8; 64];
        let mut reply = [0; 64];
        stream.write_all(&message).unwrap();
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply, message);
        sent += 1;
    }
    drop(loss);
    let (before, packets) = (left.tcp_counters().unwrap(), left.packet_counts().unwrap());
    let retransmitted = right.tcp_counters().unwrap()["Tcp:RetransSegs"] + before["Tcp:RetransSegs"];
    assert!(retransmitted > 0, "TCP should retransmit lost segments");
    assert!(packets.seen > packets.lost, "not all packets should be lost: {packets:?}");
    stream.write_all(&[1; 64]).unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    assert_eq!(left.packet_counts().unwrap().lost, packets.lost, "a dropped `Loss` should end the loss");
    assert_eq!(left.interface_threads().len(), 1);
    drop(stream);
    echo.join().unwrap();
}

#[test]
fn processes_run_in_their_hosts_namespace_group_and_core() {
    if skipped() {
        return;
    }
    let lab = Lab::new("spawn").unwrap();
    let host = lab.host("only", HostOptions { core: Some(0), ..HostOptions::default() }).unwrap();
    let script = "grep Cpus_allowed_list /proc/self/status; cat /proc/self/cgroup; ulimit -n; \
                  cat /proc/net/fib_trie; cat";
    let mut process = host
        .spawn(&Launch::new("sh").args(["-c", script]).piped_stdin().open_files(1_000).output(Output::Files))
        .unwrap();
    drop(process.take_stdin());
    assert!(process.wait(TIMEOUT).unwrap().success(), "{}", process.last_output());
    let printed = process.stdout().unwrap();
    assert!(printed.contains("Cpus_allowed_list:\t0\n"), "{printed}");
    assert!(printed.contains(&format!("{}/only/processes", lab.run_name())), "{printed}");
    assert!(printed.contains("\n1000\n"), "{printed}");
    assert!(printed.contains(&format!("-- {}\n", host.address())), "{printed}");
    assert_eq!(process.stderr().unwrap(), "");

    let missing = host.spawn(&Launch::new("no-such-program")).unwrap_err();
    assert!(missing.to_string().contains("no-such-program"), "{missing}");
    for taken in ["only", "bridge"] {
        assert!(matches!(lab.host(taken, HostOptions::default()), Err(LabError::BadOption(_))), "{taken}");
    }
    let quota = Quota { percent_of_core: 10.0, period: Duration::from_millis(1) };
    assert!(lab.host("tiny", HostOptions { quota: Some(quota), ..HostOptions::default() }).is_err());
    assert!(lab.host("far", HostOptions { core: Some(9_999), ..HostOptions::default() }).is_err());
    let options = HostOptions { tx_checksums: false, ..HostOptions::default() };
    let without_checksums = lab.host("plain", options).unwrap().offloads().unwrap();
    assert!(
        without_checksums.gro && !without_checksums.tso && !without_checksums.tx_checksums,
        "{without_checksums}"
    );
}

#[test]
fn a_burner_occupies_its_share_of_a_core() {
    if skipped() {
        return;
    }
    let cores = std::thread::available_parallelism().unwrap().get();
    let burner = Burner::start(cores - 1, Duration::from_micros(300), Duration::from_micros(1_000)).unwrap();
    let started_at = Instant::now();
    while burner.burnt() < Duration::from_millis(100) && started_at.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(burner.burnt() >= Duration::from_millis(100));
    assert!(burner.percent_of_core() <= 35.0, "{}", burner.percent_of_core());
    drop(burner);
    assert!(Burner::start(0, Duration::from_micros(999), Duration::from_micros(1_000)).is_err());
}

fn exchange(address: SocketAddr, request: &[u8], reply_bytes: usize) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    let mut reply = vec![0; reply_bytes];
    stream.read_exact(&mut reply).unwrap();
    reply
}
