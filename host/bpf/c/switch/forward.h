/* Plain forwarding (rule 5): configured stations, prefixes, and floods. */
#ifndef SPILLWAY_SWITCH_FORWARD_H
#define SPILLWAY_SWITCH_FORWARD_H

#include "rewrite.h"

#define ICMPV6_NEIGHBOUR_SOLICITATION 135

/* The first part of a neighbour solicitation (RFC 4861 §4.3). */
struct solicitation {
    __u8 type;
    __u8 code;
    __u16 check;
    __be32 reserved;
    struct address target;
};

static __always_inline bool is_own(const struct address *address)
{
    return bpf_map_lookup_elem(&own_addresses, address);
}

static __always_inline bool is_ip(enum parsed parsed)
{
    return parsed != PARSED_OTHER && parsed != PARSED_ARP && parsed != PARSED_SHORT;
}

/* 01:80:c2:00:00:00 to 01:80:c2:00:00:0f. */
static __always_inline bool is_link_local(const struct mac *mac)
{
    return mac->words[0] == bpf_htons(0x0180) && mac->words[1] == bpf_htons(0xc200) &&
           (mac->words[2] & bpf_htons(0xfff0)) == 0;
}

static __always_inline bool is_group(const struct mac *mac)
{
    return mac->words[0] & bpf_htons(0x0100);
}

/* Whether a frame to a group address is an ARP request or a neighbour solicitation for an IP address of the switch's
 * host. */
static __always_inline bool asks_for_own(struct xdp_md *context, const struct frame *frame)
{
    const struct packet *packet = &frame->packet;
    struct solicitation solicitation;

    if (frame->parsed == PARSED_ARP)
        return is_own(&packet->target);
    if (frame->parsed != PARSED_NO_PORTS || !packet->is_ipv6 || packet->is_fragment ||
        packet->protocol != IPPROTO_ICMPV6)
        return false;
    return load(context, packet->transport, &solicitation, sizeof(solicitation)) &&
           solicitation.type == ICMPV6_NEIGHBOUR_SOLICITATION && is_own(&solicitation.target);
}

/* A link-local address of IPv6: fe80::/10. */
static __always_inline bool is_link_local_ipv6(const struct address *address)
{
    return (address->words[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Whether a router forwards packets with this source or destination (RFC 1812 section 5.3.7, RFC 4291 section 2.5): not
 * if it is unspecified, of loopback, link-local, multicast or broadcast, nor an IPv4 address in an IPv6 packet. */
static __always_inline bool is_routable(const struct address *address, bool is_ipv6)
{
    __u32 ipv4 = bpf_ntohl(address->words[3]), first = ipv4 >> 24;
    bool is_low; /* :: or ::1 */

    if (!is_ipv6)
        return first != 0 && first != 127 && (first < 224 || first >= 240) && ipv4 >> 16 != 0xa9fe &&
               ipv4 != 0xffffffff;
    is_low = !(address->words[0] | address->words[1] | address->words[2]) && ipv4 <= 1;
    return !is_low && !is_ipv4(address) && (address->words[0] & bpf_htonl(0xff000000)) != bpf_htonl(0xff000000) &&
           !is_link_local_ipv6(address);
}

/* A frame that is addressed to the ingress port. */
static __always_inline enum verdict route(struct xdp_md *context, struct frame *frame)
{
    struct prefix prefix = {.bits = PREFIX_BITS, .family = frame->packet.is_ipv6 ? 6 : 4};
    struct next_hop *next;

    __builtin_memcpy(prefix.address, &frame->packet.target, sizeof(prefix.address));
    if (!is_ip(frame->parsed) || is_own(&frame->packet.target))
        return PASSED;
    /* The host's own link-local addresses are in no table. Its kernel does not forward such packets either. */
    if (frame->packet.is_ipv6 && is_link_local_ipv6(&frame->packet.target))
        return PASSED;
    if (!is_routable(&frame->packet.source, frame->packet.is_ipv6) ||
        !is_routable(&frame->packet.target, frame->packet.is_ipv6))
        return DROP_NO_ROUTE;
    next = bpf_map_lookup_elem(&prefixes, &prefix);
    if (!next)
        return DROP_NO_ROUTE;
    if (!route_out(context, &frame->packet, next->port))
        return PASSED;
    set_target(context, &next->mac);
    frame->egress = next->port;
    return next->port == frame->ingress ? DROP_SAME_PORT : ROUTED;
}

static __always_inline enum verdict forward(struct xdp_md *context, struct frame *frame)
{
    struct station *station;

    if (frame->is_routed)
        return route(context, frame);
    if (is_group(&frame->target))
        return asks_for_own(context, frame) ? PASSED : FLOODED;
    station = station_of(&frame->target);
    if (!station || station->port == PORT_NONE)
        return DROP_UNKNOWN_STATION;
    frame->egress = station->port;
    return station->port == frame->ingress ? DROP_SAME_PORT : SWITCHED;
}

#endif
