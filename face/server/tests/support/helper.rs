//! A helper in the test's own process.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use spillway_client::{Key, LinkTarget};
use spillway_helper::{Helper, HelperConfig, Service};

use super::Keys;

pub struct TestHelper {
    helper: Helper,
    pub plain_port: SocketAddr,
    pub link_port: SocketAddr,
}

impl TestHelper {
    /// Starts a helper, and waits until its link to the link port `server` is up.
    pub fn start(keys: &Keys, server: SocketAddr) -> TestHelper {
        let helper = TestHelper::start_with(keys.helper.clone(), keys, server);
        helper.await_links(1);
        helper
    }

    /// Starts a helper with this link port for library clients.
    pub fn start_at(keys: &Keys, server: SocketAddr, link_port: SocketAddr) -> TestHelper {
        TestHelper::start_on(keys.helper.clone(), keys, server, link_port)
    }

    pub fn start_with(key: Key, keys: &Keys, server: SocketAddr) -> TestHelper {
        TestHelper::start_on(key, keys, server, SocketAddr::new(server.ip(), 0))
    }

    fn start_on(key: Key, keys: &Keys, server: SocketAddr, link_port: SocketAddr) -> TestHelper {
        let mut service = Service::new("echo", server);
        service.listen.push(SocketAddr::new(server.ip(), 0));
        service.link_listen.push(link_port);
        service.keys = vec![key];
        service.client_keys = vec![keys.client.clone()];
        let config = HelperConfig { threads: 1, ..HelperConfig::new(vec![service]) };
        // Another test may start a child process, which holds this process's sockets between fork and exec. So binding
        // a port that was just closed may fail at first.
        let deadline = Instant::now() + Duration::from_secs(60);
        let helper = loop {
            match Helper::start(config.clone()) {
                Err(error) if link_port.port() == 0 || Instant::now() >= deadline => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
                Ok(helper) => break helper,
            }
        };
        let status = helper.status();
        let (plain_port, link_port) = (status.services[0].listen[0], status.services[0].link_listen[0]);
        TestHelper { helper, plain_port, link_port }
    }

    pub fn target(&self, keys: &Keys) -> LinkTarget {
        LinkTarget {
            address: self.link_port,
            key: keys.client.clone(),
            server: None,
            encryption: Default::default(),
        }
    }

    pub fn library_clients(&self) -> u32 {
        self.helper.status().services[0].library_clients
    }

    /// Waits until this many links to the server are up.
    pub fn await_links(&self, links: usize) {
        self.await_condition("the links to the server", || {
            self.helper.status().services[0].links_up() == links
        });
    }

    pub fn await_condition(&self, description: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(
                Instant::now() < deadline,
                "{description} should occur within 60 s: {}",
                self.helper.status()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn drain(&self, deadline: Duration) {
        self.helper.drain(deadline);
    }

    pub fn is_drained(&self) -> bool {
        self.helper.is_drained()
    }

    pub fn stop(self) {
        self.helper.stop();
    }
}
