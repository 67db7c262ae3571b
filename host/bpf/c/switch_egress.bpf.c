/* The switch's program at the egress of a server's own interface (host mode). XDP sees only frames that arrive; this program
 * of tc sees those that the host's kernel sends. It uses the maps of switch.bpf.c. docs/switch.md has the rules; core/rules
 * has them in Rust, and tests compare the two. */
#define PROGRAM_IS_TC
#include <linux/pkt_cls.h>

#include "switch/egress.h"

/* In tests, `cb` has the time in its first two words, and gets the verdict in its third. */
static __always_inline __u64 time_of_test(const struct __sk_buff *skb)
{
    return (__u64)skb->cb[1] << 32 | skb->cb[0];
}

static __always_inline __u32 decide(struct __sk_buff *skb)
{
    struct frame frame = {.ingress = PORT_LOCAL};

    /* The program decides while the port is closed, too. While the XDP program is being replaced, packets of moved connections
     * reach the kernel, and its resets must not leave. */
    frame.parsed = parse_frame(skb, &frame.packet);
    if (frame.parsed != PARSED_PORTS || frame.packet.protocol != IPPROTO_TCP)
        return PASSED;
    frame.now = is_test ? time_of_test(skb) : bpf_ktime_get_ns();
    return egress_rule(skb, &frame);
}

SEC("tc")
int spillway_egress(struct __sk_buff *skb)
{
    __u32 verdict = decide(skb);
    __u64 *packets = bpf_map_lookup_elem(&verdicts, &verdict);

    if (packets)
        ++*packets;
    if (is_test)
        skb->cb[2] = verdict;
    /* Other filters of the interface see what passes. */
    return verdict >= DROP_UNKNOWN_PORT ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual MIT/GPL";
