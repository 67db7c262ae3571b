/* Passes every packet: a baseline for measurements, and for the end of a veth whose peer redirects packets to it (it
 * switches the receiver's NAPI on). */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int pass(struct xdp_md *context __attribute__((unused)))
{
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
