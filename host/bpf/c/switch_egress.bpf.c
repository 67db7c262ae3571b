/* What the kernel of a server's host sends through the interface of a switch in host mode. All packets pass. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

SEC("tc")
int spillway_egress(struct __sk_buff *packet)
{
    (void)packet;
    return TC_ACT_UNSPEC; /* further filters decide */
}

char _license[] SEC("license") = "Dual MIT/GPL";
