/* ARP and neighbour discovery at servers' ports: no server announces an address of another one. */
#ifndef SPILLWAY_SWITCH_NEIGHBOUR_H
#define SPILLWAY_SWITCH_NEIGHBOUR_H

#include "frame.h"

/* The first and the last message of neighbour discovery (RFC 4861 section 4). */
#define ROUTER_SOLICITATION 133
#define REDIRECT 137
/* With redirect, the messages that announce the Ethernet address of their field *target*, besides that of the sender. */
#define NEIGHBOUR_ADVERTISEMENT 136

/* The first part of a neighbour solicitation, an advertisement or a redirect. */
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

/* Whether a frame from a server's port announces the Ethernet address of an address that belongs to servers of other
 * ports, or to the switch. Not static, so that the verifier checks it once. */
__noinline int announces_foreign(struct xdp_md *context, const struct frame *frame)
{
    struct discovery discovery;
    __u32 at;

    if (!frame)
        return false;
    /* Receivers learn the sender's address also from requests. */
    if (frame->parsed == PARSED_ARP)
        return is_foreign(&frame->packet.source, frame->ingress);
    if (frame->parsed != PARSED_NO_PORTS || !frame->packet.is_ipv6 || frame->packet.protocol != IPPROTO_ICMPV6)
        return false;
    at = frame->packet.transport;
    if (!load(context, at, &discovery.type, sizeof(discovery.type)) || discovery.type < ROUTER_SOLICITATION ||
        discovery.type > REDIRECT)
        return false;
    if (is_foreign(&frame->packet.source, frame->ingress))
        return true;
    if (discovery.type != NEIGHBOUR_ADVERTISEMENT && discovery.type != REDIRECT)
        return false;
    return load(context, at, &discovery, sizeof(discovery)) && is_foreign(&discovery.target, frame->ingress);
}

#endif
