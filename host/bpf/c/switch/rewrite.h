/* Changes of headers, with incremental updates of the checksums (RFC 1624, equation 3). A checksum that was
 * wrong stays wrong, and no checksum changes if no field does. */
#ifndef SPILLWAY_SWITCH_REWRITE_H
#define SPILLWAY_SWITCH_REWRITE_H

#include "frame.h"

/* What a change of 16 bits adds to the complement of a checksum. */
static __always_inline __u32 change16(__u16 old, __u16 new)
{
    return (__u16)~old + new;
}

static __always_inline __u32 change32(__u32 old, __u32 new)
{
    return change16(old, new) + change16(old >> 16, new >> 16);
}

static __always_inline __u32 change_address(const struct address *old, const struct address *new)
{
    return change32(old->words[0], new->words[0]) + change32(old->words[1], new->words[1]) +
           change32(old->words[2], new->words[2]) + change32(old->words[3], new->words[3]);
}

static __always_inline __u16 folded(__u32 sum)
{
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u16 adjusted(__u16 check, __u32 change)
{
    return ~folded((__u16)~check + change);
}

/* One end of a flow, and what replaces it. */
struct replacement {
    bool is_source;
    struct address *address;
    __be16 port;
};

static __always_inline void replace_ipv4(struct ipv4 *ip, struct tcp *tcp, const struct replacement *to)
{
    __be32 *address = to->is_source ? &ip->source : &ip->destination;
    __be16 *port = to->is_source ? &tcp->source : &tcp->destination;
    __be32 new = to->address->words[3];
    __u32 change = 0;

    if (*address != new) {
        change = change32(*address, new);
        ip->check = adjusted(ip->check, change);
        *address = new;
    }
    if (*port != to->port) {
        change += change16(*port, to->port);
        *port = to->port;
    }
    if (change)
        tcp->check = adjusted(tcp->check, change);
}

static __always_inline void replace_ipv6(struct address *address, struct tcp *tcp, const struct replacement *to)
{
    __be16 *port = to->is_source ? &tcp->source : &tcp->destination;
    __u32 change = 0;

    if (!same_address(address, to->address)) {
        change = change_address(address, to->address);
        *address = *to->address;
    }
    if (*port != to->port) {
        change += change16(*port, to->port);
        *port = to->port;
    }
    if (change)
        tcp->check = adjusted(tcp->check, change);
}

/* Frames whose headers are not at their usual offsets. */
static __noinline int replace_slowly(struct xdp_md *context, const struct packet *packet,
                                     const struct replacement *to)
{
    struct tcp tcp;

    if (!load(context, packet->transport, &tcp, sizeof(tcp)))
        return 0;
    if (packet->is_ipv6) {
        __u32 at = packet->network + 8 + (to->is_source ? 0 : sizeof(struct address));
        struct address address;

        if (!load(context, at, &address, sizeof(address)))
            return 0;
        replace_ipv6(&address, &tcp, to);
        bpf_xdp_store_bytes(context, at, &address, sizeof(address));
    } else {
        struct ipv4 ip;

        if (!load(context, packet->network, &ip, sizeof(ip)))
            return 0;
        replace_ipv4(&ip, &tcp, to);
        bpf_xdp_store_bytes(context, packet->network, &ip, sizeof(ip));
    }
    bpf_xdp_store_bytes(context, packet->transport, &tcp, sizeof(tcp));
    return 0;
}

/* Replaces the address and port at one end of a TCP packet whose header was checked by load_tcp(). */
static __always_inline void replace_end(struct xdp_md *context, const struct packet *packet,
                                        const struct replacement *to)
{
    void *data;

    if (!is_plain(packet)) {
        replace_slowly(context, packet, to);
        return;
    }
    data = head(context, PLAIN_TRANSPORT + sizeof(struct tcp));
    if (data)
        replace_ipv4(data + PLAIN_NETWORK, data + PLAIN_TRANSPORT, to);
}

static __always_inline void set_target(struct xdp_md *context, const struct mac *mac)
{
    struct ethernet *ethernet = head(context, sizeof(*ethernet));

    if (ethernet)
        ethernet->target = *mac;
}

static __always_inline void set_source(struct xdp_md *context, const struct mac *mac)
{
    struct ethernet *ethernet = head(context, sizeof(*ethernet));

    if (ethernet)
        ethernet->source = *mac;
}

static __always_inline void set_hop_limit_ipv4(struct ipv4 *ip, __u8 hop_limit)
{
    __u16 old, new;

    if (ip->hop_limit == hop_limit)
        return;
    /* The word of the checksum that has the hop limit, in the byte order of the header. */
    old = bpf_htons(ip->hop_limit << 8 | ip->protocol);
    new = bpf_htons(hop_limit << 8 | ip->protocol);
    ip->check = adjusted(ip->check, change16(old, new));
    ip->hop_limit = hop_limit;
}

/* Offset of the hop limit in an IPv6 header. */
#define IPV6_HOP_LIMIT 7

static __always_inline __u8 hop_limit(struct xdp_md *context, const struct packet *packet)
{
    __u32 offset = packet->is_ipv6 ? IPV6_HOP_LIMIT : __builtin_offsetof(struct ipv4, hop_limit);
    __u8 limit = 0;

    if (is_plain(packet)) {
        struct ethernet *ethernet = head(context, PLAIN_TRANSPORT);

        return ethernet ? ((struct ipv4 *)(ethernet + 1))->hop_limit : 0;
    }
    load(context, packet->network + offset, &limit, sizeof(limit));
    return limit;
}

static __noinline int set_hop_limit_slowly(struct xdp_md *context, const struct packet *packet, __u8 limit)
{
    struct ipv4 ip;

    if (packet->is_ipv6) {
        bpf_xdp_store_bytes(context, packet->network + IPV6_HOP_LIMIT, &limit, sizeof(limit));
        return 0;
    }
    if (!load(context, packet->network, &ip, sizeof(ip)))
        return 0;
    set_hop_limit_ipv4(&ip, limit);
    bpf_xdp_store_bytes(context, packet->network, &ip, sizeof(ip));
    return 0;
}

static __always_inline void set_hop_limit(struct xdp_md *context, const struct packet *packet, __u8 limit)
{
    struct ethernet *ethernet;

    if (!is_plain(packet)) {
        set_hop_limit_slowly(context, packet, limit);
        return;
    }
    ethernet = head(context, PLAIN_TRANSPORT);
    if (ethernet)
        set_hop_limit_ipv4((struct ipv4 *)(ethernet + 1), limit);
}

/* Prepares a routed packet for its egress port, except for the destination address. False if the packet must
 * pass to the kernel, which answers that its hop limit has run out. */
static __always_inline bool route_out(struct xdp_md *context, const struct packet *packet, __u32 port)
{
    struct port *out = bpf_map_lookup_elem(&ports, &port);
    __u8 limit = hop_limit(context, packet);

    if (limit <= 1)
        return false;
    set_hop_limit(context, packet, limit - 1);
    if (out)
        set_source(context, &out->mac);
    return true;
}

#endif
