//! A server with sessions on the server library, and helpers in front of it, all in the test's process.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll;
use spillway_auth::{Key, KeyRing};
use spillway_batch::Role;
use spillway_helper::{Helper, HelperConfig, Service};
use spillway_server::{ClientId, CloseReason, Event, Links, Settings};

/// Distinguishes events of links in an epoll set from others; this server has no others.
const LINKS_MARK: u32 = 1;

/// Alters the received bytes before the server sends them back.
pub type Alter = fn(&mut Vec<u8>);

pub fn helper_key() -> Key {
    Key::from_secret([4; 32])
}

pub fn client_key() -> Key {
    Key::from_secret([5; 32])
}

/// Starts an echo server with a link port, on a thread that ends with the test's process.
pub fn server(alter: Alter) -> SocketAddr {
    let mut settings = Settings { keys: KeyRing::new(), ..Settings::default() };
    settings.keys.accept(Role::Client, client_key());
    settings.keys.accept(Role::Helper, helper_key());
    let links = Links::bind(Instant::now(), "127.0.0.1:0".parse().unwrap(), settings).unwrap();
    let address = links.address();
    std::thread::spawn(move || serve(links, alter));
    address
}

fn serve(mut links: Links, alter: Alter) {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let mut to_send: HashMap<ClientId, Vec<u8>> = HashMap::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        links.watch_in(&epoll, LINKS_MARK).unwrap(); // required after each turn
        let timeout = links.poll_timeout().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.unwrap_or(Duration::from_secs(1));
        let timeout =
            Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let mut event_space = [MaybeUninit::<epoll::Event>::uninit(); 64];
        let Ok((events, _)) = epoll::wait(&epoll, &mut event_space, Some(&timeout)) else { continue };
        let now = Instant::now();
        for event in events {
            if let Some(link) = links.handle_ready(now, event.data.u64(), event.flags) {
                let received = links.receive(link, &mut buffer);
                let mut input = &buffer[..received];
                let mut replies = Vec::new();
                while let Some(event) = links.decompose(now, link, &mut input) {
                    match event {
                        Event::Data { client, bytes } => replies.push((client, Some(bytes.to_vec()))),
                        Event::Closed { client, .. } | Event::Finished { client } => {
                            replies.push((client, None))
                        }
                        Event::CanCompose { client } => replies.push((client, Some(Vec::new()))),
                        Event::Connected { client, .. } => links.accept(client),
                        _ => {}
                    }
                }
                replies
                    .into_iter()
                    .for_each(|(client, bytes)| reply(&mut links, &mut to_send, client, bytes, alter));
            }
        }
        links.handle_timeout(now);
        let mut replies = Vec::new();
        while let Some(event) = links.poll_event() {
            match event {
                Event::Connected { client, .. } => links.accept(client),
                Event::CanCompose { client } => replies.push((client, Some(Vec::new()))),
                Event::Closed { client, .. } | Event::Finished { client } => replies.push((client, None)),
                _ => {}
            }
        }
        replies.into_iter().for_each(|(client, bytes)| reply(&mut links, &mut to_send, client, bytes, alter));
        links.flush(now);
    }
}

/// Echoes `bytes` after those that are still to be sent; without bytes, sends only these. `None`: closes the connection.
fn reply(
    links: &mut Links,
    to_send: &mut HashMap<ClientId, Vec<u8>>,
    client: ClientId,
    bytes: Option<Vec<u8>>,
    alter: Alter,
) {
    let Some(mut bytes) = bytes else {
        to_send.remove(&client);
        links.finish(client);
        return links.close(client, CloseReason::Normal);
    };
    let consumed = bytes.len();
    if consumed > 0 {
        alter(&mut bytes);
        links.consumed(client, consumed).unwrap();
    }
    let to_send = to_send.entry(client).or_default();
    to_send.append(&mut bytes);
    let composed = links.compose(client, to_send);
    to_send.drain(..composed);
}

/// A helper for library clients. Dropping it stops it, as [`stop`](Self::stop) does.
pub struct TestHelper {
    helper: Helper,
    pub link_port: SocketAddr,
}

impl TestHelper {
    pub fn start(server: SocketAddr) -> TestHelper {
        TestHelper::start_at(server, "127.0.0.1:0".parse().unwrap())
    }

    pub fn start_at(server: SocketAddr, link_port: SocketAddr) -> TestHelper {
        let mut service = Service::new("echo", server);
        service.link_listen.push(link_port);
        service.keys = vec![helper_key()];
        service.client_keys = vec![client_key()];
        let helper = Helper::start(HelperConfig { threads: 1, ..HelperConfig::new(vec![service]) }).unwrap();
        let link_port = helper.status().services[0].link_listen[0];
        let deadline = Instant::now() + super::TIMEOUT;
        while helper.status().services[0].links_up() == 0 {
            assert!(Instant::now() < deadline, "the helper has no link within 30 s: {}", helper.status());
            std::thread::sleep(Duration::from_millis(2));
        }
        TestHelper { helper, link_port }
    }

    pub fn stop(self) {
        self.helper.stop();
    }
}
