//! The keys of the configuration file.

use serde::Deserialize;
use spillway_config::{Any, Section, Texts, section};
use toml::Spanned;

pub(crate) type Endpoints = Option<Spanned<Vec<Spanned<EndpointSection>>>>;
pub(crate) type Places = Option<Spanned<Vec<Spanned<PlaceSection>>>>;

section! {
    /// Settings of the whole switch.
    SwitchSection, "[switch]",

    /// Name of the switch in status, metrics and logs, and of the directory of its tables, `/sys/fs/bpf/spillway/NAME`. 1 to
    /// 64 letters, digits, `-` and `_`. *Changed by a restart only.*
    name: Any, "text", "\"switch\"";
    /// Where the switch runs: `gateway`, between several interfaces, or `host`, on a server's own interface (see
    /// [host mode](howto/switch.md#on-a-servers-own-interface)). A change needs new tables: stop the daemon, run `spillway switch
    /// --config FILE --detach` with the old file, and start it again.
    mode: Any, "`gateway` or `host`", "\"gateway\"";
    /// Where servers send control messages, by UDP: an address of this host and a port. One of IPv4, one of IPv6, or one of
    /// each with the same port.
    control: Texts, "list of addresses", "required";
    /// Further addresses of this host, at which it receives packets itself, such as those of `ssh`. The addresses of `control`
    /// need not be listed. At most 64.
    addresses: Texts, "list of IP addresses", "[]";
    /// Time without heartbeats after which a server is silent. Each of its flows returns to the original server at the flow's
    /// next packet or message. `20ms` to `1h`; a server should send ten heartbeats in this time.
    owner_timeout: Any, "time", "\"1s\"";
    /// Maximum number of flows with an entry: those that are moved, or were. 1 to 16,777,216, of about 280 bytes each, which
    /// the kernel takes at once: 36 MB with the default. A change takes effect when the tables are made anew, and every flow
    /// then belongs to its original server.
    flows_max: Any, "number", "131_072";
    /// The admin socket: status, flows and reload. An absolute path. The default is `switch.sock` in `/run/spillway` for a
    /// user who may write there, otherwise in `$XDG_RUNTIME_DIR/spillway`. *Changed by a restart only.*
    socket: Any, "path", "\"/run/spillway/switch.sock\"";
    /// A group, by name or number. With it, every user who can reach the admin socket may read (status and flows; mode
    /// 0666), and only members of the group, the daemon's own user and root may reload and clear flows. *Changed by a restart
    /// only.*
    admin_group: Any, "text", "none: every user who can connect may operate";
    /// Address of `/metrics`, `/status` and `/health`, which are read-only and need no password: `HOST:PORT`, or `:PORT` for
    /// every IPv4 address of this host. *Changed by a restart only.*
    metrics: Any, "address", "off";
}

section! {
    /// An interface of the switch; one section for each, 2 to 63. Packets of other interfaces are not touched. In host mode one
    /// section, with `may_own`: the server's own interface.
    PortSection, "[[port]]",

    /// The interface's name. Its Ethernet address is read at the start, at each reload, and when it is attached. An interface
    /// that does not exist is attached when it comes.
    interface: Any, "text", "required";
    /// The services whose flows the servers on this port may own: names of services, or address ranges (CIDR), which stand
    /// for the services whose endpoints they contain. Only ports with `may_own` are for servers: control messages from other
    /// ports are dropped.
    may_own: Texts, "list of names or ranges", "none: no server may be on this port";
}

section! {
    /// A host on one of the ports. The switch learns no addresses: packets to others are dropped and counted. Servers need no
    /// section of their own here. At most 4,096; none in host mode.
    StationSection, "[[station]]",

    /// The host's Ethernet address.
    mac: Any, "Ethernet address", "required";
    /// The interface of the port that leads to the host.
    port: Any, "text", "required";
}

section! {
    /// A route: where packets go whose Ethernet destination is the switch itself. Prefixes must not overlap; only `0.0.0.0/0`
    /// and `::/0`, the default routes, contain others. At most 1,024; none in host mode.
    PrefixSection, "[[prefix]]",

    /// The addresses, in CIDR notation.
    prefix: Any, "address range", "required";
    /// Ethernet address of the next hop: a router, or the host itself.
    next_hop: Any, "Ethernet address", "required";
    /// The interface of the port that leads to the next hop.
    port: Any, "text", "required";
}

section! {
    /// A service whose flows may move between servers; one section for each, at most 256.
    ServiceSection, "[[service]]",

    /// Your choice: 1 to 64 letters, digits, `-`, `_` and `.`.
    name: Any, "text", "required";
    /// The addresses to which clients connect, as below.
    endpoints: Endpoints, "list of tables", "required";
    /// Maximum number of the service's flows with an entry, so that its servers cannot fill the table for all: 1 to
    /// 16,777,216. At the bound, further flows of the service stay where they are: *prepare* is answered *full*. Entries
    /// above a bound that a reload has lowered stay.
    flows_max: Any, "number", "none: the table's";
}

section! {
    /// An entry of `endpoints`: `{ address = "10.0.0.5:11211", server = "a" }`.
    EndpointSection, "endpoints",

    /// Address and TCP port to which clients connect.
    address: Any, "address", "required";
    /// The name of the original server: it owns each flow that has not been moved, and gets the flows of dead servers back.
    server: Any, "text", "required";
}

section! {
    /// A server that may own flows; one section for each, at most 255. In host mode one of them is this host's own server: the
    /// one with the Ethernet address of the port's interface.
    ServerSection, "[[server]]",

    /// Your choice: 1 to 64 letters, digits, `-`, `_` and `.`.
    name: Any, "text", "required";
    /// The server's number in control messages, 1 to 255, which its agent must be given, too. Without it the switch takes
    /// the lowest free numbers in the order of the file, and keeps them at reloads and restarts.
    id: Any, "number", "the lowest free one";
    /// The server's own IP address, to which the switch sends control messages.
    address: Any, "IP address", "required";
    /// The server's Ethernet address.
    mac: Any, "Ethernet address", "required";
    /// The interface of the port that leads to the server. The port must have `may_own`.
    port: Any, "text", "required";
    /// The server's key (`spillway key new`), a different one for each server. A relative name is looked up among the service
    /// manager's credentials, then beside this file. The file must have mode 0600 or 0400, or 0640 if root owns it.
    key_file: Any, "path", "required";
    /// Where the server imports connections under an address of its own, as below. Not needed for a server that takes over
    /// the service's own address.
    places: Places, "list of tables", "[]";
}

section! {
    /// An entry of `places`: `{ address = "10.0.0.6:21211", service = "cache" }`.
    PlaceSection, "places",

    /// The server's own address, and the TCP port of imported connections.
    address: Any, "address", "required";
    /// The name of the service.
    service: Any, "text", "required";
    /// The service's endpoint, for a service with several.
    endpoint: Any, "address", "the only endpoint";
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default)]
    pub(crate) switch: SwitchSection,
    #[serde(default)]
    pub(crate) port: Vec<Spanned<PortSection>>,
    #[serde(default)]
    pub(crate) station: Vec<Spanned<StationSection>>,
    #[serde(default)]
    pub(crate) prefix: Vec<Spanned<PrefixSection>>,
    #[serde(default)]
    pub(crate) service: Vec<Spanned<ServiceSection>>,
    #[serde(default)]
    pub(crate) server: Vec<Spanned<ServerSection>>,
}

/// All sections, in the order of the reference.
pub(crate) const SECTIONS: [Section; 8] = [
    SwitchSection::SECTION,
    PortSection::SECTION,
    StationSection::SECTION,
    PrefixSection::SECTION,
    ServiceSection::SECTION,
    EndpointSection::SECTION,
    ServerSection::SECTION,
    PlaceSection::SECTION,
];
