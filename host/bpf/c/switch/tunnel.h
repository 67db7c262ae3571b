/* Tunnels to servers of other racks, in host mode: IP-in-IP (RFC 2003, RFC 2473, RFC 4213). core/rules/src/tunnel.rs has the same
 * in Rust. */
#ifndef SPILLWAY_SWITCH_TUNNEL_H
#define SPILLWAY_SWITCH_TUNNEL_H

#include "rewrite.h"

/* The bits of the traffic class that the outer header gets: DSCP without ECN, so that the receiver need not transfer a mark of
 * congestion (the compatibility mode of RFC 6040 section 4.1). */
#define DSCP 0xfc

/* The Ethernet header with as many VLAN tags as are parsed. An outer header is longer than the tags, so that a frame which
 * enters a tunnel can be given all of these bytes. */
struct link_header {
    __u8 bytes[sizeof(struct ethernet) + VLAN_TAGS_MAX * sizeof(struct vlan_tag)];
};

_Static_assert(sizeof(struct link_header) <= sizeof(struct ethernet) + sizeof(struct ipv4),
               "the outer header is written over what follows the Ethernet header");

struct ipv6 {
    __be32 version_class;
    __be16 length;
    __u8 next;
    __u8 hop_limit;
    struct address source;
    struct address destination;
};

static __always_inline __u32 outer_bytes(const struct server *server)
{
    return is_ipv4(&server->address) ? sizeof(struct ipv4) : sizeof(struct ipv6);
}

/* Length of a frame's IP packet, as its header states it. */
static __always_inline __u32 stated_bytes(struct xdp_md *context, const struct packet *packet)
{
    __u32 at = packet->network + (packet->is_ipv6 ? 4 : __builtin_offsetof(struct ipv4, length));
    __be16 length = 0;

    load(context, at, &length, sizeof(length));
    return bpf_ntohs(length) + (packet->is_ipv6 ? IPV6_HEADER_BYTES : 0);
}

/* Length of a frame. (Not the difference of two pointers to the frame, which only a loader with CAP_PERFMON may compute.) */
static __always_inline __u32 frame_bytes(struct xdp_md *context)
{
    return (__u32)bpf_xdp_get_buff_len(context);
}

/* Length of the longest IP packet that fits into the tunnel to a server, with its header. */
static __always_inline __u32 packet_bytes_max(const struct frame *frame, const struct server *server)
{
    __u32 header = outer_bytes(server), mtu = frame->port.mtu;

    return mtu > header ? mtu - header : 0;
}

/* Whether a packet can go through the tunnel to a server: UNDECIDED, or the verdict with which the packet ends. */
static __always_inline int check_tunnel(struct xdp_md *context, const struct frame *frame, const struct server *server)
{
    struct settings *config = only(&settings);
    __u32 bytes_max = packet_bytes_max(frame, server);

    if (!config || !config->local)
        return DROP_NO_ROUTE;
    if (stated_bytes(context, &frame->packet) > bytes_max || frame_bytes(context) - frame->packet.network > bytes_max)
        return DROP_TOO_LONG;
    return UNDECIDED;
}

/* An IPv4 header that no router may fragment; such a packet needs no identification (RFC 6864 section 4.1). */
static __always_inline void make_ipv4(struct ipv4 *ip, __be32 source, __be32 destination, __u8 class, __u8 protocol,
                                      __u32 bytes)
{
    *ip = (struct ipv4){
        .version_length = 0x45,
        .service_type = class,
        .length = bpf_htons(sizeof(*ip) + bytes),
        .fragment = bpf_htons(IPV4_DONT_FRAGMENT),
        .hop_limit = HOP_LIMIT,
        .protocol = protocol,
        .source = source,
        .destination = destination,
    };
    ip->check = ~folded(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
}

static __always_inline void make_ipv6(struct ipv6 *ip, const struct address *source, const struct address *destination,
                                      __u8 class, __u8 protocol, __u32 bytes)
{
    *ip = (struct ipv6){
        .version_class = bpf_htonl(0x60000000 | (__u32)class << 20),
        .length = bpf_htons(bytes),
        .next = protocol,
        .hop_limit = HOP_LIMIT,
        .source = *source,
        .destination = *destination,
    };
}

/* Writes the Ethernet type before the IP header. */
static __always_inline void set_kind(struct xdp_md *context, const struct packet *packet, bool is_ipv6)
{
    __be16 kind = is_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);

    store(context, packet->network - sizeof(kind), &kind, sizeof(kind));
}

/* The traffic class of the packet without ECN. */
static __always_inline __u8 dscp_of(struct xdp_md *context, const struct packet *packet)
{
    __be16 word = 0;

    load(context, packet->network, &word, sizeof(word));
    return (packet->is_ipv6 ? bpf_ntohs(word) >> 4 : bpf_ntohs(word)) & DSCP;
}

/* Puts a packet, which fits into the tunnel, behind an outer header. Not static, so that the verifier checks it once. */
__noinline int encapsulate(struct xdp_md *context, struct frame *frame)
{
    struct settings *config = only(&settings);
    struct link_header link = {};
    struct server *server, *local;
    __u32 bytes, network;
    __u8 class, protocol;

    if (!config || !frame)
        return DROP_NO_ROUTE;
    server = server_of(frame->tunnel);
    local = server_of(config->local);
    if (!server || !local)
        return DROP_NO_ROUTE; /* the configuration has changed meanwhile */
    network = frame->packet.network;
    bytes = stated_bytes(context, &frame->packet);
    class = dscp_of(context, &frame->packet);
    protocol = frame->packet.is_ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
    set_kind(context, &frame->packet, !is_ipv4(&server->address));
    set_target(context, &server->next_hop);
    if (!load(context, 0, &link, sizeof(link)) || bpf_xdp_adjust_head(context, -(int)outer_bytes(server)))
        return DROP_TOO_LONG; /* the driver has left no room before the frame */
    store(context, 0, &link, sizeof(link));
    if (is_ipv4(&server->address)) {
        struct ipv4 outer;

        make_ipv4(&outer, local->address.words[3], server->address.words[3], class, protocol, bytes);
        store(context, network, &outer, sizeof(outer));
    } else {
        struct ipv6 outer;

        make_ipv6(&outer, &local->address, &server->address, class, protocol, bytes);
        store(context, network, &outer, sizeof(outer));
    }
    return ENCAPSULATED;
}

/* Moves the Ethernet header with its VLAN tags to the beginning of the frame; false if it has no length that is parsed. */
static __always_inline bool store_link(struct xdp_md *context, struct link_header *link, __u32 bytes)
{
    if (bytes == sizeof(struct ethernet))
        return store(context, 0, link, sizeof(struct ethernet));
    if (bytes == sizeof(struct ethernet) + sizeof(struct vlan_tag))
        return store(context, 0, link, sizeof(struct ethernet) + sizeof(struct vlan_tag));
    if (bytes == sizeof(struct ethernet) + 2 * sizeof(struct vlan_tag))
        return store(context, 0, link, sizeof(struct ethernet) + 2 * sizeof(struct vlan_tag));
    return bytes == sizeof(*link) && store(context, 0, link, sizeof(*link));
}

/* Removes the outer header of a packet. False if the kernel refuses. */
static __always_inline bool decapsulate(struct xdp_md *context, struct frame *frame, bool is_ipv6)
{
    struct link_header link = {};
    __u32 network = frame->packet.network;

    set_kind(context, &frame->packet, is_ipv6);
    frame->egress = PORT_LOCAL;
    return load(context, 0, &link, sizeof(link)) &&
           !bpf_xdp_adjust_head(context, (int)(frame->packet.transport - network)) && store_link(context, &link, network);
}

#endif
