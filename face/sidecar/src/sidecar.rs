//! Starts, drains and stops a sidecar's network threads.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_daemon::{ControlPorts, ServedPorts, SocketFile, ThreadWatch};
use spillway_discovery::Watcher;
use tracing::{info, warn};

use crate::mailbox::{Mailbox, Message};
use crate::settings::{Listen, Settings, StartError};
use crate::shared::Shared;
use crate::socket;
use crate::status::SidecarStatus;
use crate::thread_state::ThreadState;
use crate::worker::{Worker, WorkerSetup};

/// Descriptors of a local connection: its socket, the session's link, and the session's epoll set.
const DESCRIPTORS_PER_CONNECTION: u64 = 3;
/// Descriptors for listeners, epoll sets, files, and sessions that move between links.
const OTHER_DESCRIPTORS: u64 = 128;

/// A running sidecar. Dropping it resets its clients; see [`Sidecar::drain`].
pub struct Sidecar {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Files of the UNIX sockets, removed when dropped.
    socket_files: Vec<SocketFile>,
    ports: Option<ServedPorts>,
}

impl Sidecar {
    /// Binds the listening sockets and starts the threads. Each network thread calls `ended` when it ends.
    ///
    /// # Errors
    /// The settings are invalid, or the host lacks a resource. No thread is left running.
    pub fn start(
        settings: Settings,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Result<Sidecar, StartError> {
        Sidecar::start_watched(settings, ThreadWatch::new(ended))
    }

    /// Like [`start`](Self::start); `watch` records the end of each network thread.
    pub(crate) fn start_watched(mut settings: Settings, watch: ThreadWatch) -> Result<Sidecar, StartError> {
        settings.check()?;
        if let Some(connections) = raise_open_files(settings.max_connections) {
            warn!(
                connections,
                wanted = settings.max_connections,
                "the limit on open files allows fewer connections: raise it (LimitNOFILE=), or lower --max-connections"
            );
            settings.max_connections = connections;
        }
        let ports =
            ControlPorts::bind(settings.socket.as_deref(), settings.admin_group.as_ref(), settings.metrics)
                .map_err(StartError::Port)?;
        let BoundListeners { listeners, listen, socket_files } = BoundListeners::bind(&settings.listen)?;

        let settings = Arc::new(settings);
        let started = Instant::now();
        let connections = Arc::new(AtomicI64::new(0));
        let state = |_| Arc::new(ThreadState::new(started, Arc::clone(&connections)));
        let thread_states: Vec<Arc<ThreadState>> = (0..settings.threads).map(state).collect();
        let mailboxes = (0..settings.threads).map(|_| Mailbox::new().map(Arc::new));
        let mailboxes: Vec<Arc<Mailbox>> = mailboxes.collect::<io::Result<_>>().map_err(StartError::Host)?;
        let shared = Shared::new(settings, listen, thread_states, mailboxes, watch);
        let mut sidecar =
            Sidecar { shared: Arc::new(shared), threads: Vec::new(), socket_files, ports: None };
        sidecar.start_threads(&listeners).map_err(StartError::Host)?;
        sidecar.ports = Some(ports.serve(&sidecar.shared).map_err(StartError::Host)?);
        for listen in sidecar.shared.listen() {
            info!(server = %sidecar.shared.settings().server, "listening on {listen}");
        }
        Ok(sidecar)
    }

    fn start_threads(&mut self, listeners: &[Arc<OwnedFd>]) -> io::Result<()> {
        let settings = self.shared.settings();
        let watcher = settings.helpers.clone();
        let discovery = || spillway_discovery::Settings {
            etcd_access: settings.etcd.clone(),
            ..spillway_discovery::Settings::default()
        };
        let watcher = watcher.map(|source| Watcher::start(source, discovery()));
        let mut watcher = watcher.transpose()?;
        for (thread, (state, mailbox)) in
            self.shared.thread_states().iter().zip(self.shared.mailboxes()).enumerate()
        {
            let worker = Worker::new(WorkerSetup {
                settings: Arc::clone(settings),
                listeners: listeners.to_vec(),
                thread: Arc::clone(state),
                mailbox: Arc::clone(mailbox),
                all_mailboxes: self.shared.mailboxes().to_vec(),
                watcher: watcher.take(),
            })?;
            let started = self.shared.watch().spawn(&format!("sidecar-{thread}"), move || worker.run());
            self.threads.push(started?);
        }
        Ok(())
    }

    /// A snapshot of the sidecar's state.
    pub fn status(&self) -> SidecarStatus {
        self.shared.status()
    }

    /// The addresses on which the sidecar listens, with the ports that the host chose.
    pub fn listen(&self) -> &[Listen] {
        self.shared.listen()
    }

    /// Drains: accepts no more connections. Open connections end when they are idle, or are reset after `within`. Then
    /// the threads end.
    pub fn drain(&mut self, within: Duration) {
        self.shared.begin_drain();
        self.socket_files.clear();
        self.shared.put_all(|| Message::Drain(within));
    }

    /// Ends at once, and resets the clients. Further calls have no effect.
    pub(crate) fn end(&mut self) {
        self.shared.put_all(|| Message::End);
        for thread in self.threads.drain(..) {
            // A panic or an error is ignored here, because the watch has recorded it.
            let _ = thread.join();
        }
    }

    /// The address on which metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.ports.as_ref().and_then(ServedPorts::metrics_address)
    }

    pub(crate) fn running(&self) -> usize {
        self.shared.watch().running()
    }

    /// The name of the first thread that failed, and its error.
    pub fn failure(&self) -> Option<&str> {
        self.shared.watch().failure()
    }

    /// The number of turns that each thread has made; `None` for a thread that has ended. Also wakes each thread, so
    /// that its number is higher at the next call unless the thread hangs.
    pub(crate) fn turns(&self) -> Vec<Option<u64>> {
        self.shared.put_all(|| Message::Wake);
        let turns = |(thread, state): (&JoinHandle<_>, &Arc<ThreadState>)| {
            (!thread.is_finished()).then(|| state.counters.turns.value())
        };
        self.threads.iter().zip(self.shared.thread_states()).map(turns).collect()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.end();
    }
}

/// Raises the limit on open files for this number of connections. Returns a lower number if the limit allows fewer.
fn raise_open_files(connections: u32) -> Option<u32> {
    let needed = u64::from(connections) * DESCRIPTORS_PER_CONNECTION + OTHER_DESCRIPTORS;
    let allowed = spillway_daemon::raise_open_files(needed)?;
    let connections = u32::try_from(allowed.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS_PER_CONNECTION)
        .unwrap_or(u32::MAX);
    Some(connections.max(1))
}

struct BoundListeners {
    listeners: Vec<Arc<OwnedFd>>,
    /// Addresses with the ports that the host chose.
    listen: Vec<Listen>,
    socket_files: Vec<SocketFile>,
}

impl BoundListeners {
    fn bind(wanted: &[Listen]) -> Result<BoundListeners, StartError> {
        let mut bound =
            BoundListeners { listeners: Vec::new(), listen: Vec::new(), socket_files: Vec::new() };
        for listen in wanted {
            bound.add(listen).map_err(|error| StartError::Listen { listen: listen.clone(), error })?;
        }
        Ok(bound)
    }

    fn add(&mut self, listen: &Listen) -> io::Result<()> {
        let (listener, listen) = match listen {
            Listen::Tcp(address) => {
                let listener = socket::listen(*address)?;
                let address = socket::local_address(&listener)?;
                (listener, Listen::Tcp(address))
            }
            Listen::Unix { path, mode } => {
                let file = SocketFile::bind(path, *mode)?;
                file.listener.set_nonblocking(true)?;
                let listener = OwnedFd::from(file.listener.try_clone()?);
                self.socket_files.push(file);
                (listener, listen.clone())
            }
        };
        self.listeners.push(Arc::new(listener));
        self.listen.push(listen);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use spillway_client::Key;

    use super::*;

    #[test]
    fn panic_of_a_thread_is_a_failure() {
        let (sender, thread_ends) = std::sync::mpsc::channel();
        let mut settings = Settings::new(spillway_ports::free_address(), Key::loopback_only());
        settings.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
        settings.threads = 2;
        let sidecar = Sidecar::start(settings, move || sender.send(()).unwrap()).unwrap();
        sidecar.shared.mailboxes()[1].put(Message::Panic);
        thread_ends
            .recv_timeout(Duration::from_secs(30))
            .expect("the watch should report the thread's end within 30 s");
        assert_eq!(sidecar.running(), 1);
        let failure = "thread sidecar-1 panicked: injected";
        assert_eq!((sidecar.failure(), sidecar.shared.check_health()), (Some(failure), Err(failure.into())));
    }

    #[test]
    fn connection_that_awaits_its_proxy_header_counts_as_connected() {
        let mut settings = Settings::new(spillway_ports::free_address(), Key::loopback_only());
        settings.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
        settings.proxy_protocol_from = settings.allow_clients.clone();
        (settings.max_connections, settings.connect_timeout) = (1, Duration::from_secs(60));
        let sidecar = Sidecar::start(settings, || ()).unwrap();
        let Listen::Tcp(address) = sidecar.listen()[0] else { panic!("the sidecar should listen on TCP") };
        let _load_balancer = TcpStream::connect(address).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let is_full = || sidecar.shared.check_health().is_err_and(|why| why.starts_with("full: "));
        while !is_full() {
            assert!(Instant::now() < deadline, "not full within 30 s: {:?}", sidecar.shared.check_health());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn draining_thread_with_a_client_still_makes_turns() {
        let mut settings = Settings::new(spillway_ports::free_address(), Key::loopback_only());
        settings.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
        (settings.threads, settings.connect_timeout) = (2, Duration::from_secs(60));
        let mut sidecar = Sidecar::start(settings, || ()).unwrap();
        let Listen::Tcp(address) = sidecar.listen()[0] else { panic!("the sidecar should listen on TCP") };
        // The request gets no reply, so the client's thread drains until the deadline.
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"request").unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let wait_until = |what: &str, condition: &mut dyn FnMut() -> bool| {
            while !condition() {
                assert!(Instant::now() < deadline, "not within 30 s: {what}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait_until("the request has arrived", &mut || sidecar.status().request_bytes == 7);
        sidecar.drain(Duration::from_secs(60));
        let count_ended = |turns: &[Option<u64>]| turns.iter().filter(|turns| turns.is_none()).count();
        wait_until("the other thread ends", &mut || count_ended(&sidecar.turns()) == 1);
        let before = sidecar.turns();
        wait_until("the draining thread makes turns", &mut || {
            sidecar.turns().iter().max() > before.iter().max()
        });
        assert_eq!(count_ended(&sidecar.turns()), 1);
    }
}
