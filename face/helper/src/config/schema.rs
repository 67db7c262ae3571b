//! The configuration file's keys: what is read, and what the reference says of them, from one table each.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Spanned, Value};

/// A value whose kind is checked later, so that all problems can be told at once.
pub(crate) type Any = Option<Spanned<Value>>;
/// A list of texts.
pub(crate) type Texts = Option<Spanned<Vec<Spanned<String>>>>;

/// What the reference says of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: &'static str,
    pub(crate) kind: &'static str,
    /// As in the file, or in words.
    pub(crate) default: &'static str,
    pub(crate) meaning: &'static [&'static str],
}

/// What the reference says of one section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) about: &'static [&'static str],
    pub(crate) entries: &'static [Entry],
}

/// One table for serde and for the reference: `key: type, kind, default;`, with its meaning above it.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $name:ident, $title:literal,
        { $($field:ident: $part:ty),* }
        $( $(#[doc = $meaning:literal])+ $key:ident: $type:ty, $kind:literal, $default:literal; )+
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $( $(#[doc = $meaning])+ pub(crate) $key: $type, )+
            $( #[serde(default)] pub(crate) $field: $part, )*
        }

        impl $name {
            pub(crate) const SECTION: Section = Section {
                title: $title,
                about: &[$($about),+],
                entries: &[
                    $( Entry {
                        key: stringify!($key),
                        kind: $kind,
                        default: $default,
                        meaning: &[$($meaning),+],
                    } ),+
                ],
            };
        }
    };
}

section! {
    /// The helper itself.
    HelperSection, "[helper]", {}

    /// Names the helper in status, metrics and logs, and for `spillway drain`.
    name: Any, "text", "this host's name";
    /// What carries bytes: `sockets` (the kernel's) or `auto` (the best on this host; the log says which and why).
    /// `xdp` is refused: this version does not have it. *Changed by a restart only.*
    engine: Any, "text", "\"sockets\"";
    /// Network threads, each with its own links. 0: one for each core that the process may use, each on its core.
    /// At most 1024. *Changed by a restart only.*
    threads: Any, "number", "0";
    /// The admin socket, for its owner and group (mode 0660): status, reload, drain and override. An absolute path. The
    /// default is `helper.sock` in `/run/spillway` for a user who may write there, otherwise in
    /// `$XDG_RUNTIME_DIR/spillway`. *Changed by a restart only.*
    socket: Any, "path", "\"/run/spillway/helper.sock\"";
    /// A group, by name or number. With it, every user who can reach the admin socket may read (status and connections;
    /// mode 0666), and only members of the group, the helper's own user and root may reload, drain and override. *Changed
    /// by a restart only.*
    admin_group: Any, "text", "none: who may connect, may do all";
    /// Where `/metrics`, `/status`, `/health` and the status page are served, read-only, to whoever can connect:
    /// `HOST:PORT`, or `:PORT` for every IPv4 address of this host. Off without it. *Changed by a restart only.*
    metrics: Any, "address", "off";
    /// Clients of all services at one time; more are refused. 1 to 10,000,000.
    max_connections: Any, "number", "50_000";
    /// Memory that may hold what waits for and from all clients, in buffers as they are allocated, with what the kernel
    /// has not taken and what piles up behind links; each thread has an equal share. Three quarters and the limit have
    /// effects: see [limits](limits.md#memory-of-a-helper). The process takes up to a quarter and 32 MiB more. At
    /// least `1MiB`; have 1 MiB for each thread and link.
    max_memory: Any, "size", "\"1GiB\"";
    /// How long clients may take to finish when the helper or one of its services goes; then they are reset. At most
    /// `24h`.
    drain_deadline: Any, "time", "\"30s\"";
    /// Whether library clients that ask how loaded the helper is are answered: by UDP, at the addresses of `link_listen`.
    /// Without answers they choose a helper at random. *Changed by a restart only.*
    load_answers: Any, "true or false", "true";
    /// What the network carries each second in one direction, such as `10Gbit` (or `kbit`, `Mbit`). Where it is given, the
    /// load has a part for it; the headers of small packets are counted.
    network: Any, "rate", "not known";
    /// Load in percent (CPU of a thread's core, network, memory) from which library clients are sent to other helpers, a
    /// few at each second, once it has lasted for 3 s. Clients that ask are told `full` from there, and for 10 s after.
    /// 50 to 100; 0 never sends anybody away. Plain clients are never sent away.
    shed_above: Any, "number", "95";
    /// Load in percent below which that ends; less than `shed_above`.
    shed_until: Any, "number", "ten less than `shed_above`";
}

section! {
    /// One server that is relieved; as many sections as there are servers. NAME is of your choice: 1 to 64 letters,
    /// digits, `-`, `_` and `.`.
    ServiceSection, "[service.NAME]", { batch: BatchSection }

    /// The server's link port: what `spillway run --link` was given there. `HOST:PORT`; a host name is looked up at
    /// start and at each reload.
    server: Any, "address", "required";
    /// Where plain clients come in: any TCP programs that would otherwise connect to the server. `HOST:PORT`, or
    /// `:PORT` for every address of this host.
    listen: Texts, "list of addresses", "none; this or `link_listen` is required";
    /// Where library clients and sidecars come in.
    link_listen: Texts, "list of addresses", "[]";
    /// This helper's keys for the server, newest first: where the server does not accept one, the next is tried. A
    /// relative name is looked for among the service manager's credentials, then beside this file. For their owner
    /// only (mode 0600 or 0400), or root's with a group that may read (0640). Not needed for a server on loopback.
    key_files: Texts, "list of paths", "[]";
    /// Keys that library clients may use on `link_listen`. Not needed on loopback.
    client_key_files: Texts, "list of paths", "[]";
    /// The latency that 99 of 100 requests are to stay below, as the service's clients were promised. A quarter of it is
    /// the default of `max_delay`. `10us` to `4s`.
    sla: Any, "time", "not known";
    /// Whether links that would not be encrypted are refused, to the server and of library clients: those of peers that
    /// are too old for it, and those without a key. Without it links are encrypted where both ends can and have a key.
    require_encryption: Any, "true or false", "false";
    /// Who may connect. The server has its own list (`spillway run --allow-clients`).
    clients: Texts, "list of address ranges", "private ranges, and loopback where the server is on loopback, too";
    /// Load balancers that say whom they speak for, with PROXY protocol version 1 or 2: plain clients from these
    /// ranges must begin with such a header, and nobody else's is believed.
    proxy_protocol_from: Texts, "list of address ranges", "[]";
    /// Where library clients and sidecars find this helper: `etcd:https://HOST:PORT,…/PREFIX/`, or `http`. While it serves, the key
    /// PREFIX/NAME, with the helper's name, holds the address to connect to; it disappears at once when the helper or
    /// the service drains, and within 10 s when the helper is killed. Another prefix for each service.
    register: Any, "text", "not registered";
    /// The address to connect to that is registered. Clients of other hosts cannot use a wildcard, so it is required
    /// where `link_listen` is one, or has several addresses. A name is looked up at start and at each reload.
    advertise: Any, "address", "the address of `link_listen`";
    /// What is spoken: `tcp` (anything), `memcached` or `redis`. For metrics by request, which this version does not
    /// have yet; bytes are never changed.
    protocol: Any, "text", "\"tcp\"";
    /// Links to the server, of each thread. 1 to 64.
    links_per_thread: Any, "number", "1";
    /// How long the server may take to accept a link's connection. `1ms` to `60s`.
    connect_timeout: Any, "time", "\"1s\"";
    /// Idle time after which the kernel asks whether a client is alive; `0` never asks. At most `9h`; whole seconds
    /// are used.
    client_keepalive: Any, "time", "\"30s\"";
    /// What happens to clients while no link is up: `refuse`, so that health checks and load balancers see it.
    when_server_down: Any, "text", "\"refuse\"";
}

section! {
    /// When batches to the server go. Changes apply to links that are open.
    BatchSection, "[service.NAME.batch]", {}

    /// `adaptive`: size and interval follow the load (PostMan, Algorithm 1), the interval at most `max_delay`.
    /// `algorithm1`: the same as published, without an upper bound: for comparison. `fixed`: always wait for
    /// `max_delay` or `max_bytes`. `deadline`: a batch goes when its first request has waited for seven eighths of
    /// `max_delay`, or sooner where few others are expected meanwhile. `following`: as `deadline`, and while the server has
    /// two batches that it has not answered the next one is held until a reply comes, for as long as replies take
    /// and at most four times `max_delay`.
    policy: Any, "text", "\"adaptive\"";
    /// Upper bound on the latency that waiting for a fuller batch adds; `0` sends what each turn brings. At most
    /// `1s`.
    max_delay: Any, "time", "a quarter of `sla`, otherwise `\"200us\"`";
    /// A batch of this size goes at once. `1KiB` to `1MiB`; more than `64KiB` gains nothing.
    max_bytes: Any, "size", "\"64KiB\"";
    /// Bytes of replies that may wait for one client; then the server is told to wait with this client's. `4KiB` to
    /// `16MiB`. (Requests: at most 64 KiB wait for each client.) Another value concerns new links.
    connection_buffer: Any, "size", "\"256KiB\"";
}

section! {
    /// Which etcd is trusted, and as whom it is asked, for `register`. Files are PEM, found as `key_files` are, and read at
    /// start and at each reload; those with secrets have the modes of key files.
    EtcdSection, "[etcd]", {}

    /// Certificates of the authorities that etcd's certificate may come from. Required for `https`.
    ca_file: Any, "path", "none";
    /// The client certificate, with its chain, for an etcd that asks for one.
    cert_file: Any, "path", "none";
    /// The client certificate's private key, without a passphrase.
    key_file: Any, "path", "none";
    /// The user, for an etcd with authentication. It may read and write PREFIX. Needs `https`.
    user: Any, "text", "none";
    /// The user's password, on one line.
    password_file: Any, "path", "none";
}

/// A whole file.
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
pub(crate) const SECTIONS: [Section; 4] =
    [HelperSection::SECTION, ServiceSection::SECTION, BatchSection::SECTION, EtcdSection::SECTION];
