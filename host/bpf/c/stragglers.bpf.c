/* A filter for the socket of a connection that moves: the socket accepts no packet any more, and each is copied for the process
 * that moves the connection. `src/stragglers.rs` reads the copies. */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The longest TCP segment without jumbo payloads (RFC 2675), after the kernel has merged segments. */
#define SEGMENT_BYTES_MAX 65535
/* The longest IP header that is copied, with its extension headers. */
#define HEADER_BYTES_MAX 255
#define IPV6_HEADER_BYTES 40

/* The head of a copy in the ring. */
struct head {
    __u64 cookie;
};

struct copy {
    struct head head;
    __u8 packet[HEADER_BYTES_MAX + SEGMENT_BYTES_MAX];
};

/* Where a CPU builds its copy: the filter runs with its CPU's soft interrupts off. The loader sets the number of CPUs. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct copy);
} copies SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096); /* bytes; the loader sets it */
} stragglers SEC(".maps");

/* Packets that are not in the ring: it was full, or they were too long. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} dropped SEC(".maps");

/* Length of the packet from its network header on; 0 if it has none. */
static __always_inline __u32 packet_bytes(struct __sk_buff *skb)
{
    __u8 version = 0;
    __be16 length = 0;
    int error = bpf_skb_load_bytes_relative(skb, 0, &version, sizeof(version), BPF_HDR_START_NET);

    if (version >> 4 == 4) {
        error |= bpf_skb_load_bytes_relative(skb, 2, &length, sizeof(length), BPF_HDR_START_NET);
        return error ? 0 : bpf_ntohs(length);
    }
    error |= bpf_skb_load_bytes_relative(skb, 4, &length, sizeof(length), BPF_HDR_START_NET);
    /* A jumbo payload has length 0. */
    return error || !length ? 0 : IPV6_HEADER_BYTES + bpf_ntohs(length);
}

static __always_inline int copy_packet(struct __sk_buff *skb)
{
    /* The filter's packet begins with the TCP header. */
    __u32 cpu = bpf_get_smp_processor_id(), segment_bytes = skb->len;
    __u32 header_bytes = packet_bytes(skb) - segment_bytes;
    struct copy *copy = bpf_map_lookup_elem(&copies, &cpu);

    if (!copy || segment_bytes == 0 || segment_bytes > SEGMENT_BYTES_MAX)
        return -1;
    if (header_bytes == 0 || header_bytes > HEADER_BYTES_MAX)
        return -1;
    copy->head.cookie = bpf_get_socket_cookie(skb);
    if (bpf_skb_load_bytes_relative(skb, 0, copy->packet, header_bytes, BPF_HDR_START_NET))
        return -1;
    if (bpf_skb_load_bytes(skb, 0, copy->packet + header_bytes, segment_bytes))
        return -1;
    return bpf_ringbuf_output(&stragglers, copy, sizeof(copy->head) + header_bytes + segment_bytes, 0);
}

SEC("socket")
int keep(struct __sk_buff *skb)
{
    __u32 zero = 0;
    __u64 *count;

    if (copy_packet(skb)) {
        count = bpf_map_lookup_elem(&dropped, &zero);
        if (count)
            *count += 1;
    }
    return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
