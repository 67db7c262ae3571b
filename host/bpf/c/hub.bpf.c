/* Forwards unicast frames to known stations between the interfaces of a bridge. All other frames pass to the
 * bridge, which floods them. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

/* A laboratory has at most 62 hosts; the rest is a margin. */
#define STATIONS_MAX 256

struct station {
    __u8 address[ETH_ALEN];
    __u8 zero[2];
};

/* The index of the interface that leads to a station. The map is not in maps.h, because a program gets all
 * maps of the headers that it includes. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, STATIONS_MAX);
    __type(key, struct station);
    __type(value, __u32);
} stations SEC(".maps");

SEC("xdp")
int forward(struct xdp_md *context)
{
    struct ethhdr *header = (void *)(long)context->data;
    struct station target = {};
    __u32 *interface;

    if ((void *)(header + 1) > (void *)(long)context->data_end)
        return XDP_PASS;
    __builtin_memcpy(target.address, header->h_dest, ETH_ALEN);
    interface = bpf_map_lookup_elem(&stations, &target);
    if (!interface)
        return XDP_PASS;
    return bpf_redirect(*interface, 0);
}

char _license[] SEC("license") = "Dual MIT/GPL";
