//! The keys of the configuration file.

use std::collections::BTreeMap;

use serde::Deserialize;
use spillway_config::{Any, Section, Texts, section};
use toml::Spanned;

section! {
    /// Settings of the whole helper.
    HelperSection, "[helper]", { xdp: XdpSection }

    /// Name of the helper in status, metrics and logs, and for `spillway drain`.
    name: Any, "text", "this host's name";
    /// Transport: `sockets` (the kernel's), `xdp` (Spillway's own TCP stack on `interface`, beside the kernel: less CPU for
    /// each message, see [the TCP stack](tcp.md#beside-the-kernel-af_xdp)) or `auto` (`xdp` if nothing is missing for it,
    /// otherwise `sockets`; the log gives the choice and the reason). *Changed by a restart only.*
    engine: Any, "text", "\"sockets\"";
    /// The network interface of the engine `xdp`: that of the listening addresses, which also leads to the servers.
    /// *Changed by a restart only.*
    interface: Any, "text", "none; required for `xdp`";
    /// Network threads, each with its own links. 0: one pinned to each core that the process may use. At most 1024.
    /// *Changed by a restart only.*
    threads: Any, "number", "0";
    /// The admin socket, for its owner and group (mode 0660): status, reload, drain and override. An absolute path. The
    /// default is `helper.sock` in `/run/spillway` for a user who may write there, otherwise in
    /// `$XDG_RUNTIME_DIR/spillway`. *Changed by a restart only.*
    socket: Any, "path", "\"/run/spillway/helper.sock\"";
    /// A group, by name or number. With it, every user who can reach the admin socket may read (status and connections;
    /// mode 0666), and only members of the group, the helper's own user and root may reload, drain and override.
    /// *Changed by a restart only.*
    admin_group: Any, "text", "none: every user who can connect may operate";
    /// Address of `/metrics`, `/status`, `/health` and the status page, which are read-only and need no password:
    /// `HOST:PORT`, or `:PORT` for every IPv4 address of this host. *Changed by a restart only.*
    metrics: Any, "address", "off";
    /// Maximum number of clients of all services; further ones are refused. 1 to 10,000,000.
    max_connections: Any, "number", "50_000";
    /// Limit on the memory for data from and to clients: the allocated size of buffers, bytes that the kernel has not
    /// taken, and bytes that wait for links; each thread has an equal share. For the effects of three quarters of the
    /// limit and of the limit see [limits](limits.md#memory-of-a-helper). The process uses up to a quarter and 32 MiB
    /// more. At least `1MiB`; plan 1 MiB for each thread and link.
    max_memory: Any, "size", "\"1GiB\"";
    /// Time for clients to finish when the helper or a service drains; then they are reset. At most `24h`.
    drain_deadline: Any, "time", "\"30s\"";
    /// Whether the helper answers load queries of library clients, by UDP at the addresses of `link_listen`.
    /// Without answers clients choose a helper at random. *Changed by a restart only.*
    load_answers: Any, "true or false", "true";
    /// Bandwidth of the network in one direction, such as `10Gbit` (or `kbit`, `Mbit`). If it is given, the load
    /// includes the network; the headers of small packets are counted.
    network: Any, "rate", "not known";
    /// Load in percent (CPU of a thread's core, network, memory) from which the helper sends library clients to other
    /// helpers, a few each second, once that load has lasted for 3 s. It answers load queries with `full`
    /// from then on, and for 10 s after. 50 to 100; 0: never. Plain clients are never sent away.
    shed_above: Any, "number", "95";
    /// Load in percent below which the helper stops sending clients away; less than `shed_above`.
    shed_until: Any, "number", "ten less than `shed_above`";
}

section! {
    /// Settings of the engine `xdp`, or of `auto` where it chooses `xdp`. *Changed by a restart only.*
    XdpSection, "[helper.xdp]",

    /// An address for the helper alone, which the kernel does not have: IPv4, with the bits of the prefix of the interface's
    /// network, such as `10.0.0.9/24`. The helper listens only there, connects to servers from there, and answers ARP and `ping`.
    /// Without it the helper shares the interface's addresses with the kernel.
    address: Any, "text", "shared with the kernel";
    /// The router to other networks, for `address`. Without it, servers must be in the network of `address`.
    gateway: Any, "text", "none";
    /// Local ports of connections to servers, `FIRST-LAST`. At an address that it shares, the kernel must not use them: they are outside
    /// `net.ipv4.ip_local_port_range`, as the default is with Linux's, or in `net.ipv4.ip_local_reserved_ports`.
    ports: Any, "text", "\"61000-65535\"";
    /// Frames of 2 KiB for each receive queue, half of them for each direction: a power of two from 64 to 65536.
    frames: Any, "number", "4096";
    /// For how long a thread looks for frames after the last one, before it sleeps. Saves latency, and costs up to a core
    /// for each thread. At most `1s`.
    busy_poll: Any, "time", "\"0s\"";
    /// While a thread is loaded (from two frames in this time on), the kernel polls the interface at this interval instead of
    /// by interrupts. Saves much of the helper's CPU, and adds up to this time to each request and each reply, and to packets of
    /// the kernel's own connections on the interface. Below that load nothing is deferred. `200us` is a good choice for an
    /// interface that only the helper uses; at most `1ms`. Needs Linux 6.13, and excludes `busy_poll`.
    defer_interrupts: Any, "time", "\"0s\"";
    /// Whether the helper sets its interface as the engine needs it, and leaves it so: large receive offload and the removal
    /// of VLAN tags off, generic receive offload off where the driver has no XDP, and a receive queue for each thread, as
    /// far as the interface has them. Otherwise set them with `ethtool`.
    configure_interface: Any, "true or false", "false";
}

section! {
    /// A server to relieve; one section for each. NAME is your choice: 1 to 64 letters, digits, `-`, `_` and `.`.
    ServiceSection, "[service.NAME]", { batch: BatchSection }

    /// The server's link port, as given to `spillway run --link` there. `HOST:PORT`; a host name is looked up at start
    /// and at each reload.
    server: Any, "address", "required";
    /// Addresses for plain clients: any TCP programs that would otherwise connect to the server. `HOST:PORT`, or
    /// `:PORT` for every address of this host.
    listen: Texts, "list of addresses", "none; this or `link_listen` is required";
    /// Addresses for library clients and sidecars.
    link_listen: Texts, "list of addresses", "[]";
    /// This helper's keys for the server, newest first: if the server does not accept one, the helper tries the next. A
    /// relative name is looked up among the service manager's credentials, then beside this file. Files must have mode
    /// 0600 or 0400, or 0640 if root owns them. Not needed for a server on loopback.
    key_files: Texts, "list of paths", "[]";
    /// Keys that library clients may use on `link_listen`. Not needed on loopback.
    client_key_files: Texts, "list of paths", "[]";
    /// Latency that 99 of 100 requests should stay below, as promised to the service's clients. A quarter of it is the
    /// default of `max_delay`. `10us` to `4s`.
    sla: Any, "time", "not known";
    /// Whether to refuse links without encryption, to the server and from library clients: those of old peers, and
    /// those without a key. Otherwise links are encrypted if both ends support it and have a key.
    require_encryption: Any, "true or false", "false";
    /// Clients that may connect. The server has its own list (`spillway run --allow-clients`).
    clients: Texts, "list of address ranges", "private ranges, and loopback where the server is on loopback, too";
    /// Load balancers that announce their clients by PROXY protocol version 1 or 2. Plain clients from these ranges
    /// must begin with such a header; headers from other addresses are not trusted.
    proxy_protocol_from: Texts, "list of address ranges", "[]";
    /// Registration, by which library clients and sidecars find this helper: `etcd:https://HOST:PORT,…/PREFIX/`, or
    /// `http`. While the helper serves, the key PREFIX/NAME, with the helper's name, holds the address to connect to;
    /// the key disappears at once when the helper or the service drains, and within 10 s when the helper is killed.
    /// Each service needs its own prefix.
    register: Any, "text", "not registered";
    /// The registered address, to which clients connect. Required if `link_listen` has several addresses, or a
    /// wildcard, which clients of other hosts cannot use. A host name is looked up at start and at each reload.
    advertise: Any, "address", "the address of `link_listen`";
    /// Protocol of clients and server: `tcp` (any), `memcached` or `redis`. With one of the latter two the latency of
    /// requests is measured; bytes are never changed. *For clients that connect after a reload.*
    protocol: Any, "text", "\"tcp\"";
    /// One of this many plain clients is measured, if there is a `protocol`. 0 to 1,000,000; 0: none.
    measure_one_in: Any, "number", "16";
    /// Links from each thread to the server. 1 to 64.
    links_per_thread: Any, "number", "1";
    /// Timeout for connecting a link to the server. `1ms` to `60s`.
    connect_timeout: Any, "time", "\"1s\"";
    /// Idle time, in whole seconds, after which TCP probes a silent client (keep-alive); `0`: never. At most `9h`.
    client_keepalive: Any, "time", "\"30s\"";
    /// Treatment of clients while no link is up: `refuse`, so that health checks and load balancers detect it.
    when_server_down: Any, "text", "\"refuse\"";
}

section! {
    /// When batches to the server leave. Changes apply to open links.
    BatchSection, "[service.NAME.batch]",

    /// `adaptive`: size and interval follow the load (PostMan, Algorithm 1), the interval at most `max_delay`.
    /// `algorithm1`: the same as published, without an upper bound: for comparison. `fixed`: a batch
    /// leaves `max_delay` after the previous one, or at `max_bytes`. `deadline`: a batch leaves when its first request
    /// has waited for seven eighths of `max_delay`, or sooner if few more are expected. `following`: as `deadline`, and
    /// after two unanswered batches the next waits for a reply, as long as replies take and at most four times
    /// `max_delay`.
    policy: Any, "text", "\"adaptive\"";
    /// Upper bound on the latency that batching adds; `0`: batches leave at the end of each turn. At most `1s`.
    max_delay: Any, "time", "a quarter of `sla`, otherwise `\"200us\"`";
    /// A batch of this size leaves at once. `1KiB` to `1MiB`; more than `64KiB` gains nothing.
    max_bytes: Any, "size", "\"64KiB\"";
    /// Bytes of replies that may wait for one client; then the server must pause that client's replies. `4KiB` to
    /// `16MiB`. (Requests: at most 64 KiB wait for each client.) Changes apply to new links.
    connection_buffer: Any, "size", "\"256KiB\"";
}

section! {
    /// Certificates and user for etcd, for `register`. Files are PEM, found like `key_files`, and read at start and at
    /// each reload; files with secrets must have the modes of key files.
    EtcdSection, "[etcd]",

    /// Certificates of the authorities that may sign etcd's certificate. Required for `https`.
    ca_file: Any, "path", "none";
    /// The client certificate, with its chain, for an etcd that requires one.
    cert_file: Any, "path", "none";
    /// The client certificate's private key, without a passphrase.
    key_file: Any, "path", "none";
    /// The user, for an etcd with authentication. It must have read and write permission for PREFIX. Needs `https`.
    user: Any, "text", "none";
    /// The user's password, on one line.
    password_file: Any, "path", "none";
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default)]
    pub(crate) helper: HelperSection,
    #[serde(default)]
    pub(crate) etcd: EtcdSection,
    #[serde(default)]
    pub(crate) service: BTreeMap<Spanned<String>, ServiceSection>,
}

/// All sections, in the order of the reference.
pub(crate) const SECTIONS: [Section; 5] = [
    HelperSection::SECTION,
    XdpSection::SECTION,
    ServiceSection::SECTION,
    BatchSection::SECTION,
    EtcdSection::SECTION,
];
