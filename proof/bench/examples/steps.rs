//! Measures one system of the scene at each given rate: the share of replies on time, and each host's CPU time.
//!
//! Run as root: `steps DIRECTORY plain|shimmed|helped|nutcracker MAX_DELAY_US CLIENT_HOSTS RATE…`. DIRECTORY contains
//! the built programs. The environment variable PLACEMENT=0,0,1,1 sets the cores of server, helper, clients and bridge.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use spillway_bench::goodput::{Driver, Timing};
use spillway_bench::programs::Programs;
use spillway_bench::scene::{Placement, Scene, Setting, System};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, system, delay_us, client_hosts, rates @ ..] = &arguments[..] else {
        return Err(
            "usage: steps DIRECTORY plain|shimmed|helped|nutcracker MAX_DELAY_US CLIENT_HOSTS RATE…".into()
        );
    };
    let system = match system.as_str() {
        "plain" => System::Plain,
        "shimmed" => System::Shimmed,
        "helped" => System::Helped,
        "nutcracker" => System::Nutcracker,
        other => {
            return Err(format!("unknown system {other}: give plain, shimmed, helped or nutcracker").into());
        }
    };
    let max_delay = Duration::from_micros(delay_us.parse()?);
    let client_hosts = client_hosts.parse()?;
    let mut setting =
        Setting { max_delay, client_hosts, ..Setting::new(Programs::in_directory(Path::new(directory))) };
    if let Ok(cores) = std::env::var("PLACEMENT") {
        let cores = cores.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
        let [server, helper, clients, bridge] = cores[..] else {
            return Err("PLACEMENT needs four cores, such as 0,0,1,1".into());
        };
        setting.placement = Placement { server, helper, clients, bridge };
    }
    let mut scene = Scene::create("steps", setting)?;
    if system == System::Nutcracker {
        scene.start_nutcracker()?;
    }
    let timing = Timing { warm_up: Duration::from_secs(1), ..Timing::default() };
    let mut driver = Driver::start(&mut scene, system, timing)?;
    for rate in rates {
        let step = driver.measure(rate.parse()?, timing.step)?;
        println!("{}", step.summary(1_000));
        driver.quiesce()?;
    }
    let tally = driver.finish()?;
    println!(
        "{} wrong, {} lost, {} resets of {} replies",
        tally.wrong, tally.lost, tally.resets, tally.replies
    );
    scene.close()?;
    Ok(())
}
