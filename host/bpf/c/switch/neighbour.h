/* ARP, neighbour discovery and redirects at servers' ports: no server announces an address of another one, or a route. */
#ifndef SPILLWAY_SWITCH_NEIGHBOUR_H
#define SPILLWAY_SWITCH_NEIGHBOUR_H

#include "frame.h"

/* The first and the last message of neighbour discovery (RFC 4861 section 4). */
#define ROUTER_SOLICITATION 133
#define REDIRECT 137
/* With redirects of both families (RFC 792), the messages that announce a route. */
#define ROUTER_ADVERTISEMENT 134
#define REDIRECT_IPV4 5
/* The message that announces the Ethernet address of its field *target*, besides that of the sender. */
#define NEIGHBOUR_ADVERTISEMENT 136

/* The first part of a neighbour solicitation or an advertisement. */
struct discovery {
    __u8 type;
    __u8 code;
    __u16 check;
    __be32 reserved;
    struct address target;
};

/* Whether an address belongs to servers of other ports, or to the switch. */
static __always_inline bool is_foreign(const struct address *address, __u32 port)
{
    __u64 *home = bpf_map_lookup_elem(&homes, address);

    return home && !((*home >> (port & (PORTS_MAX - 1))) & 1);
}

/* Whether a frame from a server's port announces a route, or the Ethernet address of an address that belongs to servers
 * of other ports, or to the switch. Not static, so that the verifier checks it once. */
__noinline int announces_foreign(struct xdp_md *context, const struct frame *frame)
{
    struct discovery discovery;
    __u32 at;
    __u8 type;

    if (!frame)
        return false;
    /* Receivers learn the sender's address also from requests. */
    if (frame->parsed == PARSED_ARP)
        return is_foreign(&frame->packet.source, frame->ingress);
    if (!is_icmp(frame))
        return false;
    at = frame->packet.transport;
    if (!load(context, at, &type, sizeof(type)))
        return false;
    if (!frame->packet.is_ipv6)
        return type == REDIRECT_IPV4;
    if (type < ROUTER_SOLICITATION || type > REDIRECT)
        return false;
    if (type == ROUTER_ADVERTISEMENT || type == REDIRECT || is_foreign(&frame->packet.source, frame->ingress))
        return true;
    return type == NEIGHBOUR_ADVERTISEMENT && load(context, at, &discovery, sizeof(discovery)) &&
           is_foreign(&discovery.target, frame->ingress);
}

#endif
