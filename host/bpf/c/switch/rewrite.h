/* Changes of headers, with incremental updates of the checksums (RFC 1624, equation 3). A checksum that was
 * wrong stays wrong, and no checksum changes if no field does. */
#ifndef SPILLWAY_SWITCH_REWRITE_H
#define SPILLWAY_SWITCH_REWRITE_H

#include "frame.h"

/* What a change of 16 bits adds to the complement of a checksum: the change that adjusted() applies. */
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

static __always_inline void replace_ipv4(struct ipv4 *ip, struct tcp *tcp, bool is_source,
                                         const struct address *to, __be16 to_port)
{
    __be32 *address = is_source ? &ip->source : &ip->destination;
    __be16 *port = is_source ? &tcp->source : &tcp->destination;
    __be32 new = to->words[3];
    __u32 change = 0;

    if (*address != new) {
        change = change32(*address, new);
        ip->check = adjusted(ip->check, change);
        *address = new;
    }
    if (*port != to_port) {
        change += change16(*port, to_port);
        *port = to_port;
    }
    if (change)
        tcp->check = adjusted(tcp->check, change);
}

static __always_inline bool store(struct xdp_md *context, __u32 at, void *from, __u32 bytes)
{
    return bpf_xdp_store_bytes(context, at, from, bytes) == 0;
}

/* Adjusts the checksum at an offset of the frame. */
static __always_inline void adjust_at(struct xdp_md *context, __u32 at, __u32 change)
{
    __u16 check;

    if (!load(context, at, &check, sizeof(check)))
        return;
    check = adjusted(check, change);
    store(context, at, &check, sizeof(check));
}

/* Replaces an IPv4 address at an offset of the frame. Returns its change of checksums; 0 if it is the same. */
static __always_inline __u32 replace_address_ipv4(struct xdp_md *context, __u32 network, __u32 at, __be32 new)
{
    __be32 old = 0;
    __u32 change;

    if (!load(context, at, &old, sizeof(old)) || old == new)
        return 0;
    store(context, at, &new, sizeof(new));
    change = change32(old, new);
    adjust_at(context, network + __builtin_offsetof(struct ipv4, check), change);
    return change;
}

static __always_inline __u32 replace_address_ipv6(struct xdp_md *context, __u32 at, const struct address *new)
{
    struct address old;

    if (!load(context, at, &old, sizeof(old)) || same_address(&old, new))
        return 0;
    store(context, at, (void *)new, sizeof(*new));
    return change_address(&old, new);
}

/* replace_end() for frames whose headers are not at their usual offsets: see is_plain(). */
__noinline int replace_slowly(struct xdp_md *context, const struct packet *packet, bool is_source,
                              const struct address *to, __be16 to_port)
{
    __u32 network, port_at, change;
    __be16 port = 0;

    if (!packet || !to)
        return 0;
    network = packet->network;
    port_at = packet->transport + (is_source ? 0 : sizeof(port));
    if (packet->is_ipv6)
        change = replace_address_ipv6(context, network + 8 + (is_source ? 0 : sizeof(struct address)), to);
    else
        change = replace_address_ipv4(context, network, network + 12 + (is_source ? 0 : sizeof(__be32)),
                                      to->words[3]);
    if (load(context, port_at, &port, sizeof(port)) && port != to_port) {
        store(context, port_at, &to_port, sizeof(to_port));
        change += change16(port, to_port);
    }
    if (change)
        adjust_at(context, packet->transport + __builtin_offsetof(struct tcp, check), change);
    return 0;
}

/* Replaces the address and port at one end of a TCP packet whose header was checked by load_tcp(). */
static __always_inline void replace_end(struct xdp_md *context, const struct packet *packet, bool is_source,
                                        const struct address *to, __be16 to_port)
{
    void *data;

    if (!is_plain(packet))
        replace_slowly(context, packet, is_source, to, to_port);
    else if (head(context, PLAIN_TRANSPORT + sizeof(struct tcp), &data))
        replace_ipv4(data + PLAIN_NETWORK, data + PLAIN_TRANSPORT, is_source, to, to_port);
}

static __always_inline void set_target(struct xdp_md *context, const struct mac *mac)
{
    void *data;

    if (head(context, sizeof(struct ethernet), &data))
        ((struct ethernet *)data)->target = *mac;
}

static __always_inline void set_source(struct xdp_md *context, const struct mac *mac)
{
    void *data;

    if (head(context, sizeof(struct ethernet), &data))
        ((struct ethernet *)data)->source = *mac;
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
    void *data;

    if (is_plain(packet)) {
        if (!head(context, PLAIN_TRANSPORT, &data))
            return 0;
        return ((struct ipv4 *)(data + PLAIN_NETWORK))->hop_limit;
    }
    load(context, packet->network + offset, &limit, sizeof(limit));
    return limit;
}

__noinline int set_hop_limit_slowly(struct xdp_md *context, const struct packet *packet, __u8 limit)
{
    struct ipv4 ip;

    if (!packet)
        return 0;
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
    void *data;

    if (!is_plain(packet)) {
        set_hop_limit_slowly(context, packet, limit);
        return;
    }
    if (head(context, PLAIN_TRANSPORT, &data))
        set_hop_limit_ipv4(data + PLAIN_NETWORK, limit);
}

/* Changes a routed packet for its egress port: one hop less, and the port's Ethernet address as source. The caller
 * writes the Ethernet destination. False, and nothing changed, if the hop limit is used up: the kernel then answers
 * with the ICMP error. */
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
