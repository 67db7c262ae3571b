//! A server of sessions on the server library, and helpers before it, all in the test's own process.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll;
use spillway_auth::{Key, KeyRing};
use spillway_batch::Role;
use spillway_helper::{Helper, HelperConfig, Service};
use spillway_server::{Client, CloseReason, Event, Links, Settings};

/// What the server makes of what it got before it sends it back.
pub type Alter = fn(&mut Vec<u8>);

pub fn helper_key() -> Key {
    Key::from_secret([4; 32])
}

pub fn client_key() -> Key {
    Key::from_secret([5; 32])
}

/// A link port that echoes. Its thread ends with the test's process.
pub fn server(alter: Alter) -> SocketAddr {
    let mut settings = Settings { ring: KeyRing::new(), ..Settings::default() };
    settings.ring.accept(Role::Client, client_key());
    settings.ring.accept(Role::Helper, helper_key());
    let links = Links::bind(Instant::now(), "127.0.0.1:0".parse().unwrap(), settings).unwrap();
    let address = links.address();
    std::thread::spawn(move || serve(links, alter));
    address
}

fn serve(mut links: Links, alter: Alter) {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let mut owed: HashMap<Client, Vec<u8>> = HashMap::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        links.watch_in(&epoll, 1).unwrap();
        let within = links.poll_timeout().map(|at| at.saturating_duration_since(Instant::now()));
        let within = within.unwrap_or(Duration::from_secs(1));
        let timeout =
            Timespec { tv_sec: within.as_secs().cast_signed(), tv_nsec: within.subsec_nanos().into() };
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); 64];
        let Ok((events, _)) = epoll::wait(&epoll, &mut space, Some(&timeout)) else { continue };
        let now = Instant::now();
        for event in events {
            if let Some(link) = links.handle_ready(now, event.data.u64(), event.flags) {
                let received = links.receive(link, &mut buffer);
                let mut input = &buffer[..received];
                let mut told = Vec::new();
                while let Some(event) = links.decompose(now, link, &mut input) {
                    match event {
                        Event::Data { client, bytes } => told.push((client, Some(bytes.to_vec()))),
                        Event::Closed { client, .. } | Event::Finished { client } => {
                            told.push((client, None))
                        }
                        Event::Room { client } => told.push((client, Some(Vec::new()))),
                        Event::Connected { client, .. } => links.accept(client),
                        _ => {}
                    }
                }
                told.into_iter()
                    .for_each(|(client, bytes)| reply(&mut links, &mut owed, client, bytes, alter));
            }
        }
        links.handle_timeout(now);
        let mut told = Vec::new();
        while let Some(event) = links.poll_event() {
            match event {
                Event::Connected { client, .. } => links.accept(client),
                Event::Room { client } => told.push((client, Some(Vec::new()))),
                Event::Closed { client, .. } | Event::Finished { client } => told.push((client, None)),
                _ => {}
            }
        }
        told.into_iter().for_each(|(client, bytes)| reply(&mut links, &mut owed, client, bytes, alter));
        links.flush(now);
    }
}

fn reply(
    links: &mut Links,
    owed: &mut HashMap<Client, Vec<u8>>,
    client: Client,
    bytes: Option<Vec<u8>>,
    alter: Alter,
) {
    let Some(mut bytes) = bytes else {
        owed.remove(&client);
        links.finish(client);
        return links.close(client, CloseReason::Normal);
    };
    let consumed = bytes.len();
    if consumed > 0 {
        alter(&mut bytes);
        links.consumed(client, consumed).unwrap();
    }
    let owed = owed.entry(client).or_default();
    owed.append(&mut bytes);
    let composed = links.compose(client, owed);
    owed.drain(..composed);
}

/// A helper whose clients are the library's; ended when dropped.
pub struct Relief {
    helper: Helper,
    pub link: SocketAddr,
}

impl Relief {
    pub fn start(server: SocketAddr) -> Relief {
        Relief::start_at(server, "127.0.0.1:0".parse().unwrap())
    }

    pub fn start_at(server: SocketAddr, link: SocketAddr) -> Relief {
        let mut service = Service::new("echo", server);
        service.link_listen.push(link);
        service.keys = vec![helper_key()];
        service.client_keys = vec![client_key()];
        let helper = Helper::start(HelperConfig { threads: 1, ..HelperConfig::new(vec![service]) }).unwrap();
        let link = helper.status().services[0].link_listen[0];
        let deadline = Instant::now() + super::PATIENCE;
        while helper.status().services[0].links_that_are_up() == 0 {
            assert!(Instant::now() < deadline, "no link: {}", helper.status());
            std::thread::sleep(Duration::from_millis(2));
        }
        Relief { helper, link }
    }

    pub fn stop(self) {
        self.helper.stop();
    }
}
