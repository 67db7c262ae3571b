//! Measures the CPU time of a request on two hosts: a client, and a memcached with a quota of 10 % of a core.
//!
//! Run as root: `cargo run --release -p spillway-lab --example small_server`

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use spillway_lab::peers::Memcached;
use spillway_lab::{HostCpu, HostOptions, Lab, LabOptions, Place, Quota};

const CONNECTIONS: usize = 50;
const ROUNDS: usize = 100;
const VALUE: &[u8] = b"VALUE key 0 5\r\nhello\r\nEND\r\n";

fn main() -> Result<(), Box<dyn Error>> {
    let begin = Instant::now();
    let last = std::thread::available_parallelism()?.get() - 1;
    let lab = Lab::with_options("example", LabOptions { bridge_core: Some(last), ..LabOptions::default() })?;
    let quota = Quota { percent_of_core: 10.0, period: Duration::from_millis(10) };
    let server =
        lab.host("server", HostOptions { core: Some(0), quota: Some(quota), ..HostOptions::default() })?;
    let client = lab.host("client", HostOptions { core: Some(last), ..HostOptions::default() })?;
    println!("{} ready in {:.0?}, {}", lab.run_name(), begin.elapsed(), lab.control_groups());
    println!("server offloads: {}", server.offloads()?);
    let memcached = Memcached::default().start(&Place::from(&server))?;
    println!("memcached {} at {}", memcached.pid(), memcached.address());

    let before = (server.cpu()?, client.cpu()?, lab.bridge_cpu()?);
    let begin = Instant::now();
    client.run_inside(|| run_requests(memcached.address()))??;
    let elapsed = begin.elapsed();
    let after = (server.cpu()?, client.cpu()?, lab.bridge_cpu()?);

    let count = CONNECTIONS * ROUNDS;
    println!("{count} requests over {CONNECTIONS} connections in {elapsed:.2?}");
    print("server", after.0.since(&before.0), elapsed);
    print("client", after.1.since(&before.1), elapsed);
    print("bridge", after.2.since(&before.2), elapsed);
    lab.close()?;
    Ok(())
}

fn run_requests(target: std::net::SocketAddr) -> std::io::Result<()> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        connections.push(stream);
    }
    connections[0].write_all(b"set key 0 0 5\r\nhello\r\n")?;
    connections[0].read_exact(&mut [0; 8])?;
    let mut reply = [0; VALUE.len()];
    for _ in 0..ROUNDS {
        for connection in &mut connections {
            connection.write_all(b"get key\r\n")?;
        }
        for connection in &mut connections {
            connection.read_exact(&mut reply)?;
            if reply != *VALUE {
                return Err(std::io::Error::other("memcached sent a wrong reply"));
            }
        }
    }
    Ok(())
}

fn print(name: &str, used: HostCpu, elapsed: Duration) {
    let us_per_request = |time: Duration| time.as_secs_f64() * 1e6 / (CONNECTIONS * ROUNDS) as f64;
    println!(
        "{name:>7}: {:5.1} % of a core; per request {:5.1} µs in processes + {:5.1} µs in its interface; \
         throttled in {} of {} periods",
        used.percent_of_core(elapsed),
        us_per_request(used.process),
        us_per_request(used.interface),
        used.throttled_periods,
        used.periods
    );
}
