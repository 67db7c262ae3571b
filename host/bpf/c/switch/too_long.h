/* Packets that do not fit into a tunnel. The sender gets the ICMP error by which it finds the path MTU (RFC 1191, RFC 8201). */
#ifndef SPILLWAY_SWITCH_TOO_LONG_H
#define SPILLWAY_SWITCH_TOO_LONG_H

#include "tunnel.h"

/* The smallest path MTUs that an error states: what each host must accept (RFC 791 section 3.1, RFC 8200 section 5). */
#define IPV4_MTU_MIN 576
#define IPV6_MTU_MIN 1280

#define ERROR_BYTES (8 + QUOTED_BYTES)

/* Whether a client that sends a shorter packet would reach the tunnel's end, and may be told so. */
static __always_inline bool is_answerable(struct xdp_md *context, const struct packet *packet, __u32 bytes_max)
{
    __be16 flags = 0;

    if (packet->protocol != IPPROTO_TCP || frame_bytes(context) - packet->network <= bytes_max)
        return false;
    if (packet->is_ipv6)
        return bytes_max >= IPV6_MTU_MIN;
    load(context, packet->network + __builtin_offsetof(struct ipv4, fragment), &flags, sizeof(flags));
    return bytes_max >= IPV4_MTU_MIN && (flags & bpf_htons(IPV4_DONT_FRAGMENT));
}

/* Exchanges the Ethernet addresses. */
static __always_inline void turn_around_ethernet(struct xdp_md *context, const struct frame *frame)
{
    set_target(context, &frame->source);
    set_source(context, &frame->target);
}

/* Turns a client's packet that is too long into the error for the client. Not static, so that the verifier checks it once. */
__noinline int answer_too_long(struct xdp_md *context, struct frame *frame)
{
    struct too_long *error = only(&error_scratch);
    struct server *server = frame ? server_of(frame->tunnel) : NULL;
    __u32 sum = 0, bytes_max, network, header, end;
    bool is_ipv6;

    if (!error || !frame || !server)
        return DROP_TOO_LONG;
    bytes_max = packet_bytes_max(frame, server);
    if (!is_answerable(context, &frame->packet, bytes_max))
        return DROP_TOO_LONG;
    network = frame->packet.network;
    is_ipv6 = frame->packet.is_ipv6;
    if (!load(context, network, error->quoted, sizeof(error->quoted)))
        return DROP_TOO_LONG;
    error->source = frame->packet.target;
    error->destination = frame->packet.source;
    error->length = bpf_htonl(ERROR_BYTES);
    error->protocol = bpf_htonl(IPPROTO_ICMPV6);
    /* "Packet too big", and "unreachable: fragmentation needed". */
    error->type = is_ipv6 ? 2 : 3;
    error->code = is_ipv6 ? 0 : 4;
    error->check = 0;
    error->zero = 0;
    error->mtu = bpf_htons(bytes_max);
    if (is_ipv6)
        sum = bpf_csum_diff(NULL, 0, (__be32 *)error, __builtin_offsetof(struct too_long, type), 0);
    error->check = ~folded(bpf_csum_diff(NULL, 0, (__be32 *)&error->type, ERROR_BYTES, sum));
    header = is_ipv6 ? sizeof(struct ipv6) : sizeof(struct ipv4);
    end = network + header + ERROR_BYTES;
    if (bpf_xdp_adjust_tail(context, (int)(end - frame_bytes(context))))
        return DROP_TOO_LONG;
    if (is_ipv6) {
        struct ipv6 ip;

        make_ipv6(&ip, &error->source, &error->destination, 0, IPPROTO_ICMPV6, ERROR_BYTES);
        store(context, network, &ip, sizeof(ip));
    } else {
        struct ipv4 ip;

        make_ipv4(&ip, error->source.words[3], error->destination.words[3], 0, IPPROTO_ICMP, ERROR_BYTES);
        store(context, network, &ip, sizeof(ip));
    }
    store(context, network + header, &error->type, ERROR_BYTES);
    turn_around_ethernet(context, frame);
    frame->egress = frame->ingress;
    return TOO_LONG_ANSWERED;
}

/* Puts a packet whose addresses are written into the tunnel that was chosen for it, or answers one that does not fit. Called by
 * the main program, because the functions that choose the tunnel leave too little of the stack. */
static __always_inline int finish_tunnel(struct xdp_md *context, struct frame *frame, int verdict)
{
    if (verdict == TO_OWNER || verdict == TO_TARGET)
        return encapsulate(context, frame);
    return verdict == DROP_TOO_LONG ? answer_too_long(context, frame) : verdict;
}

#endif
