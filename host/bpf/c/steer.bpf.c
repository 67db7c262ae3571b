/* Steers packets of the user-level TCP stack to its AF_XDP sockets. All others pass unchanged to the
 * kernel. */
#include "maps.h"

static __always_inline int count(__u32 verdict, int action)
{
    __u64 *packets = bpf_map_lookup_elem(&verdicts, &verdict);

    if (packets)
        ++*packets;
    return action;
}

/*
 * Redirects a packet to the socket of its queue. Without a socket the packet is dropped, because the kernel
 * would send a reset. Packets of connections that the stack has opened go to a socket for these, if any.
 */
static __always_inline int redirect(struct xdp_md *context, enum verdict verdict)
{
    int action = XDP_ABORTED;

    if (verdict == TO_RANGE)
        action = bpf_redirect_map(&opened_sockets, context->rx_queue_index, XDP_ABORTED);
    if (action != XDP_REDIRECT)
        action = bpf_redirect_map(&sockets, context->rx_queue_index, XDP_DROP);
    return count(action == XDP_REDIRECT ? verdict : DROP_NO_SOCKET, action);
}

/* The reason why a packet with ports belongs to the stack; PASS_FOREIGN if it does not. */
static __always_inline enum verdict owner(const struct packet *packet, const struct address_rule *rule)
{
    struct endpoint endpoint = {
        .address = packet->target,
        .port = packet->target_port,
        .protocol = packet->protocol,
    };
    struct flow flow = flow_of(packet);
    __u16 port = bpf_ntohs(packet->target_port);

    if (rule && packet->protocol == IPPROTO_TCP && rule->first_port && port >= rule->first_port &&
        port <= rule->last_port)
        return TO_RANGE;
    if (bpf_map_lookup_elem(&endpoints, &endpoint))
        return TO_ENDPOINT;
    if (bpf_map_lookup_elem(&flows, &flow))
        return TO_FLOW;
    return rule && rule->is_separate ? TO_ADDRESS : PASS_FOREIGN;
}

SEC("xdp")
int steer(struct xdp_md *context)
{
    struct packet packet = {0};
    enum parsed parsed = parse(context, &packet);
    struct address_rule *rule;
    enum verdict verdict;
    bool is_separate;

    if (parsed == PARSED_OTHER)
        return count(PASS_OTHER, XDP_PASS);
    if (parsed == PARSED_SHORT)
        return count(PASS_SHORT, XDP_PASS);
    rule = bpf_map_lookup_elem(&addresses, &packet.target);
    is_separate = rule && rule->is_separate;
    switch (parsed) {
    case PARSED_LATER_FRAGMENT:
        return is_separate ? count(DROP_FRAGMENT, XDP_DROP) : count(PASS_LATER_FRAGMENT, XDP_PASS);
    case PARSED_LONG_CHAIN:
        return rule ? count(DROP_LONG_CHAIN, XDP_DROP) : count(PASS_FOREIGN, XDP_PASS);
    case PARSED_PORTS:
        verdict = owner(&packet, rule);
        break;
    default:
        verdict = is_separate ? TO_ADDRESS : PASS_OTHER;
        break;
    }
    if (verdict == PASS_OTHER || verdict == PASS_FOREIGN)
        return count(verdict, XDP_PASS);
    if (packet.is_fragment)
        return count(DROP_FRAGMENT, XDP_DROP);
    return redirect(context, verdict);
}

char _license[] SEC("license") = "Dual MIT/GPL";
