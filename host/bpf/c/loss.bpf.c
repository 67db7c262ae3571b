/* Drops a share of the received IPv4 packets, but no ARP: a lost reply would add an unrelated pause (1 s). */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* A packet is dropped if 32 random bits are below this number. */
const volatile __u32 threshold = 0;

SEC("xdp")
int lose(struct xdp_md *context)
{
    struct ethhdr *header = (void *)(long)context->data;

    if ((void *)(header + 1) > (void *)(long)context->data_end || header->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    return bpf_get_prandom_u32() < threshold ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
