/* Passes every packet: a baseline for measurements. On an end of a veth, to which the other end redirects
 * packets, it also switches the NAPI on. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int pass(struct xdp_md *context __attribute__((unused)))
{
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
