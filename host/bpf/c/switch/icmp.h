/* Rule 4c: ICMP errors that quote a segment of a flow go where the flow's packets go, so that path MTU discovery works
 * for connections that have moved. */
#ifndef SPILLWAY_SWITCH_ICMP_H
#define SPILLWAY_SWITCH_ICMP_H

#include "flow.h"

/* Bytes of an error before the packet that it quotes (RFC 792, RFC 4443 section 3). */
#define ERROR_HEADER_BYTES 8
/* Offset of the checksum in an error. */
#define ERROR_CHECK 2

/* The beginning of a TCP packet that an error quotes. */
struct quote {
    struct flow_key key; /* of the quoted packet's flow */
    /* Offsets in the frame. */
    __u32 network;
    __u32 transport;
    __u32 end; /* of the error's packet, as its header states it */
};

/* Types of errors: unreachable, time exceeded, parameter problem; over IPv6 also packet too big. */
static __always_inline bool is_error(__u8 type, bool is_ipv6)
{
    return is_ipv6 ? type >= 1 && type <= 4 : type == 3 || type == 11 || type == 12;
}

/* Source and destination of the quoted packet, and the offset of its TCP header. False if the packet is not whole
 * enough, or no TCP packet. IPv6 extension headers in it are not parsed. */
static __always_inline bool read_quoted_addresses(struct xdp_md *context, bool is_ipv6, struct quote *quote)
{
    if (is_ipv6) {
        struct ipv6hdr header;

        if (!load(context, quote->network, &header, sizeof(header)) || header.version != 6 ||
            header.nexthdr != IPPROTO_TCP)
            return false;
        __builtin_memcpy(&quote->key.service, &header.saddr, sizeof(quote->key.service));
        __builtin_memcpy(&quote->key.client, &header.daddr, sizeof(quote->key.client));
        quote->transport = quote->network + sizeof(header);
    } else {
        struct iphdr header;

        if (!load(context, quote->network, &header, sizeof(header)) || header.version != 4 || header.ihl < 5 ||
            header.protocol != IPPROTO_TCP || (header.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET)))
            return false;
        quote->key.service = mapped(header.saddr);
        quote->key.client = mapped(header.daddr);
        quote->transport = quote->network + header.ihl * 4;
    }
    return true;
}

/* What an error quotes. False if the packet is not an error, or if what it quotes is not a TCP packet that the error's
 * receiver has sent. */
__noinline int read_quote(struct xdp_md *context, const struct packet *packet, struct quote *quote)
{
    struct ports ports;
    __u32 length_at;
    __be16 length;
    __u8 type;

    if (!packet || !quote)
        return false;
    if (!load(context, packet->transport, &type, sizeof(type)) || !is_error(type, packet->is_ipv6))
        return false;
    quote->network = packet->transport + ERROR_HEADER_BYTES;
    if (!read_quoted_addresses(context, packet->is_ipv6, quote) ||
        !same_address(&quote->key.service, &packet->target))
        return false;
    length_at = packet->network + (packet->is_ipv6 ? 4 : __builtin_offsetof(struct ipv4, length));
    if (!load(context, length_at, &length, sizeof(length)))
        return false;
    quote->end = packet->network + bpf_ntohs(length) + (packet->is_ipv6 ? IPV6_HEADER_BYTES : 0);
    if (quote->transport + sizeof(ports) > quote->end || !load(context, quote->transport, &ports, sizeof(ports)))
        return false;
    quote->key.service_port = ports.source;
    quote->key.client_port = ports.destination;
    return true;
}

/* Replaces the 16-bit word at an offset. Returns its change of checksums; 0 if it is the same. */
static __always_inline __u32 replace_word(struct xdp_md *context, __u32 at, __u16 new)
{
    __u16 old = 0;

    if (!load(context, at, &old, sizeof(old)) || old == new)
        return 0;
    store(context, at, &new, sizeof(new));
    return change16(old, new);
}

/* Adjusts a checksum of the quoted packet. Returns its own change, which the error's checksum covers. */
static __always_inline __u32 adjust_quoted(struct xdp_md *context, __u32 at, __u32 change)
{
    __u16 check = 0;

    if (!change || !load(context, at, &check, sizeof(check)))
        return 0;
    return replace_word(context, at, adjusted(check, change));
}

/* Writes the source of the quoted packet. Returns the change of the error's checksum. */
static __always_inline __u32 replace_quoted_source(struct xdp_md *context, const struct quote *quote, bool is_ipv6,
                                                   const struct site *to)
{
    __u32 tcp_check = quote->transport + __builtin_offsetof(struct tcp, check);
    __u32 change, all;

    if (is_ipv6) {
        change = replace_address_ipv6(context, quote->network + 8, &to->address);
        all = change;
    } else {
        __u32 at = quote->network + __builtin_offsetof(struct ipv4, source);
        __be32 address = to->address.words[3];

        change = replace_word(context, at, address) + replace_word(context, at + 2, address >> 16);
        all = change;
        all += adjust_quoted(context, quote->network + __builtin_offsetof(struct ipv4, check), change);
    }
    {
        __u32 port = replace_word(context, quote->transport, to->port);

        change += port;
        all += port;
    }
    /* Many errors quote only 8 bytes of the segment. */
    if (tcp_check + sizeof(__u16) <= quote->end)
        all += adjust_quoted(context, tcp_check, change);
    return all;
}

/* Addresses an error to the sender of the segment that it quotes. Not static, so that the verifier checks it once. */
__noinline int rewrite_error(struct xdp_md *context, const struct packet *packet, const struct quote *quote,
                             const struct site *to)
{
    __u32 change, network;

    if (!packet || !quote || !to)
        return 0;
    network = packet->network;
    change = replace_quoted_source(context, quote, packet->is_ipv6, to);
    /* Only the checksum of ICMPv6 covers the addresses of its own packet. */
    if (packet->is_ipv6)
        change += replace_address_ipv6(context, network + 8 + sizeof(struct address), &to->address);
    else
        replace_address_ipv4(context, network, network + __builtin_offsetof(struct ipv4, destination),
                             to->address.words[3]);
    if (change)
        adjust_at(context, packet->transport + ERROR_CHECK, change);
    return 0;
}

/* Rule 4c. UNDECIDED: the packet is not an error about a flow with an entry, and is forwarded. */
__noinline int about_flow_of_quote(struct xdp_md *context, struct frame *frame)
{
    struct quote quote = {};
    struct inbound view;
    struct standing *at = &view.standing;
    struct flow *flow;
    int verdict;

    if (!frame || !read_quote(context, &frame->packet, &quote))
        return UNDECIDED;
    flow = bpf_map_lookup_elem(&flows, &quote.key);
    if (!flow || !look_inbound(flow, &quote.key, &view))
        return UNDECIDED;
    if (may_be_due(at, frame->now) && settle(&quote.key, at, frame->now)) {
        if (!look_inbound(flow, &quote.key, &view))
            return UNDECIDED;
    }
    /* Any host can send an error, so an error must not keep an entry: its time is not noted. */
    verdict = to_site(context, frame, &view);
    if (verdict == TO_OWNER || verdict == TO_TARGET)
        rewrite_error(context, &frame->packet, &quote, &view.site);
    return verdict;
}

static __always_inline bool may_be_error(const struct frame *frame)
{
    return is_icmp(frame) && !frame->packet.is_fragment;
}

/* The endpoint of the local server's host to which the packet in a tunnel goes; false if it is neither TCP nor an error about
 * TCP. Not static, so that the verifier checks it once. */
__noinline int read_inner(struct xdp_md *context, __u32 at, bool is_ipv6, struct endpoint *to)
{
    struct packet inner = {};
    struct quote quote = {};
    enum parsed parsed;

    if (!to)
        return false;
    parsed = is_ipv6 ? parse_ipv6(context, at, &inner) : parse_ipv4(context, at, &inner);
    if (inner.is_fragment)
        return false;
    if (parsed == PARSED_PORTS && inner.protocol == IPPROTO_TCP) {
        to->address = inner.target;
        to->port = inner.target_port;
        return true;
    }
    if (parsed != PARSED_NO_PORTS || inner.protocol != (inner.is_ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) ||
        !read_quote(context, &inner, &quote))
        return false;
    to->address = quote.key.service;
    to->port = quote.key.service_port;
    return true;
}

/* Passes a packet to the kernel without its outer header, if the arbiter of a service has sent it through a tunnel to the local
 * server, and the local server may have the connection. UNDECIDED for all other packets. */
__noinline int from_arbiter(struct xdp_md *context, struct frame *frame)
{
    struct settings *config = only(&settings);
    struct endpoint to = {};
    struct place *place, *service;
    struct server *arbiter, *local;
    bool is_ipv6;

    if (!config || !frame || !config->local || frame->parsed != PARSED_NO_PORTS || frame->packet.is_fragment)
        return UNDECIDED;
    is_ipv6 = frame->packet.protocol == IPPROTO_IPV6;
    local = server_of(config->local);
    if (!local || !(is_ipv6 || frame->packet.protocol == IPPROTO_IPIP) ||
        !same_address(&local->address, &frame->packet.target))
        return UNDECIDED;
    if (!read_inner(context, frame->packet.transport, is_ipv6, &to))
        return UNDECIDED;
    place = place_of(&to.address, to.port);
    if (!place || !(place->is_endpoint || place->server == config->local) || !may_own_at(place, frame->ingress))
        return UNDECIDED;
    service = place_of(&place->service.address, place->service.port);
    if (!service || !service->is_endpoint)
        return UNDECIDED;
    arbiter = server_of(service->server);
    if (!arbiter || !arbiter->is_encapsulated || !same_address(&arbiter->address, &frame->packet.source))
        return UNDECIDED;
    return decapsulate(context, frame, is_ipv6) ? DECAPSULATED : DROP_SHORT;
}

#endif
