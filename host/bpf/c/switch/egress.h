/* Frames that leave a host through its interface. Rule 4a checks the local server's segments of flows whose arbiter is here;
 * segments of flows whose arbiter is elsewhere get the service's address as their source. */
#ifndef SPILLWAY_SWITCH_EGRESS_H
#define SPILLWAY_SWITCH_EGRESS_H

#include "outbound.h"

static __always_inline bool is_local_server(__u32 id)
{
    struct server *server = server_of(id);

    return server && server->port == PORT_LOCAL;
}

/* Writes address and port of a TCP packet's source, with the checksums; false if a helper function of
 * the kernel fails. These functions take into account whether the interface computes the TCP checksum: then the header has only a part of the sum. */
static __always_inline bool replace_source(struct __sk_buff *skb, const struct packet *packet, const struct endpoint *to)
{
    __u32 check = packet->transport + __builtin_offsetof(struct tcp, check);
    __u32 ip_check = packet->network + __builtin_offsetof(struct ipv4, check);
    __u32 ip_source = packet->network + (packet->is_ipv6 ? 8 : __builtin_offsetof(struct ipv4, source));
    struct address old = packet->source, new = to->address;

    if (same_address(&old, &new)) {
        /* only the port changes */
    } else if (packet->is_ipv6) {
        __s64 change = bpf_csum_diff(old.words, sizeof(old), new.words, sizeof(new), 0);

        if (change < 0 || bpf_l4_csum_replace(skb, check, 0, change, BPF_F_PSEUDO_HDR) ||
            bpf_skb_store_bytes(skb, ip_source, new.words, sizeof(new), 0))
            return false;
    } else {
        if (bpf_l4_csum_replace(skb, check, old.words[3], new.words[3], BPF_F_PSEUDO_HDR | sizeof(__be32)) ||
            bpf_l3_csum_replace(skb, ip_check, old.words[3], new.words[3], sizeof(__be32)) ||
            bpf_skb_store_bytes(skb, ip_source, &new.words[3], sizeof(__be32), 0))
            return false;
    }
    if (packet->source_port == to->port)
        return true;
    return !bpf_l4_csum_replace(skb, check, packet->source_port, to->port, sizeof(__be16)) &&
           !bpf_skb_store_bytes(skb, packet->transport, &to->port, sizeof(__be16), 0);
}

/* Whether the TCP header can be rewritten: UNDECIDED, or the verdict with which the segment is dropped. */
static __always_inline int check_whole(struct __sk_buff *skb, const struct packet *packet)
{
    struct tcp tcp;

    if (packet->is_fragment)
        return DROP_FRAGMENT;
    return load_tcp(skb, packet, &tcp) ? UNDECIDED : DROP_SHORT;
}

/* Not static, so that the verifier checks it once. */
__noinline int egress_rule(struct __sk_buff *skb, struct frame *frame)
{
    const struct packet *packet = &frame->packet;
    struct place *place, *service;
    struct endpoint to;
    struct mac original = {};
    int verdict;

    if (!frame)
        return PASSED;
    place = place_of(&packet->source, packet->source_port);
    /* Segments from another server's address are not checked, even if the local server has taken that address over: only the
     * other server's arbiter knows the owners of these flows. */
    if (!place || !is_local_server(place->server))
        return PASSED;
    service = place_of(&place->service.address, place->service.port);
    if (!service || !service->is_endpoint)
        return PASSED;
    to = place->service;
    if (is_local_server(service->server)) {
        verdict = check_source(skb, frame, place, &original);
        if (verdict == UNDECIDED && !frame->from_owner)
            return PASSED;
    } else {
        verdict = check_whole(skb, packet);
    }
    if (verdict != UNDECIDED)
        return verdict;
    return replace_source(skb, packet, &to) ? FROM_OWNER : DROP_SHORT;
}

#endif
