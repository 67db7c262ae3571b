/* Holds the packets of connections that move to this host until the kernel has them: a packet that came before would be answered
 * by a reset (Prism, Figure 3). Packets of held flows are copied to a ring and dropped; all others pass. `src/held` takes
 * the copies and gives them to the connections' sockets. */
#include "flow_key.h"

/* The longest packet that is copied: the longest one of IPv4, after the kernel or the sender's host has merged segments. */
#define PACKET_BYTES_MAX 65535

/* What has happened to a packet of a held flow. `src/held/counters.rs` has the same order. */
enum outcome {
    HELD,
    PASSED_DRAINED,      /* the flow is being released, and all its packets have been taken */
    DROP_OVER_BUDGET,    /* the flow has no room left */
    DROP_RING_FULL,      /* the ring has none */
    DROP_FRAGMENT,       /* a packet's first fragment: later ones have no ports, and pass */
    DROP_LENGTH,         /* longer than PACKET_BYTES_MAX */
    OUTCOMES,
};

/* Where a held flow's numbers are. Each use of a slot has a generation of its own. */
struct held {
    __u32 slot;
    __u32 generation;
};

/* What the program has put into the ring for a flow, and may put there. The kernel reuses a deleted element of `held_flows` at
 * once, and the loader reuses slots, while another CPU still has a pointer to the element: so the flow and its generation are
 * compared here, under the lock. */
struct buffer {
    struct bpf_spin_lock lock; /* first: without CAP_PERFMON the verifier refuses a lock at another offset */
    __u32 generation;
    struct flow flow;
    __u64 frames; /* since the flow is held */
    __u64 bytes;
    __u64 dropped_frames;
    __u64 bytes_max; /* in the ring and behind it, not taken yet */
    __u32 frames_max;
    __u32 zero;
};

/* What the connection's socket has been given of a flow. Only the loader writes it, without a lock; the program reads it under
 * the lock of `buffer`. */
struct taken {
    __u64 frames; /* of those in `buffer` */
    __u64 bytes;
    __u64 is_draining; /* packets pass as soon as none is left */
};

/* The head of a copy in the ring. */
struct head {
    struct held held;
};

struct copy {
    struct head head;
    __u8 packet[PACKET_BYTES_MAX];
};

/* The number of held flows. Without any, packets pass without a look at their headers. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} held_count SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 1); /* the loader sets it, here and below */
    __type(key, struct flow);
    __type(value, struct held);
} held_flows SEC(".maps");

/* By slot. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct buffer);
} buffers SEC(".maps");

/* By slot. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct taken);
} taken SEC(".maps");

/* Where a CPU builds its copy: the program runs with its CPU's soft interrupts off. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct copy);
} copies SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096); /* bytes */
} held_packets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, OUTCOMES);
    __type(key, __u32);
    __type(value, __u64);
} outcomes SEC(".maps");

static __always_inline bool is_same_flow(const struct flow *one, const struct flow *other)
{
    const __u32 *words = (const void *)one, *other_words = (const void *)other;
    __u32 difference = 0;

#pragma clang loop unroll(full)
    for (int word = 0; word < (int)(sizeof(*one) / sizeof(*words)); word++)
        difference |= words[word] ^ other_words[word];
    return !difference;
}

/* Whether the buffer is that of the flow. Under the buffer's lock. */
static __always_inline bool is_of(const struct buffer *buffer, const struct held *held, const struct flow *flow)
{
    return buffer->generation == held->generation && is_same_flow(&buffer->flow, flow);
}

/* Decides on a packet of a held flow. HELD: the packet is counted, and the caller must put it into the ring.
 *
 * `taken` is read under the lock of `buffer`. The loader ends a hold after it has written `taken`, and has then read, under the
 * same lock, that `buffer` has as many frames. A decision before that reading has counted its packet, and the hold goes on; one
 * after it finds the new number in `taken`, and passes the packet. The numbers of `taken` only grow: while the loader writes
 * them, the program may hold a packet too many. */
static __always_inline enum outcome admit(const struct flow *flow, const struct held *held, struct buffer *buffer,
                                          const volatile struct taken *taken, __u32 bytes)
{
    enum outcome outcome = HELD;
    __u64 taken_frames, taken_bytes, is_draining;

    bpf_spin_lock(&buffer->lock);
    taken_frames = taken->frames;
    taken_bytes = taken->bytes;
    is_draining = taken->is_draining;
    if (!is_of(buffer, held, flow) || (is_draining && buffer->frames == taken_frames)) {
        outcome = PASSED_DRAINED;
    } else if (buffer->frames - taken_frames >= buffer->frames_max ||
               buffer->bytes - taken_bytes + bytes > buffer->bytes_max) {
        buffer->dropped_frames += 1;
        outcome = DROP_OVER_BUDGET;
    } else {
        buffer->frames += 1;
        buffer->bytes += bytes;
    }
    bpf_spin_unlock(&buffer->lock);
    return outcome;
}

/* Undoes the admission of a packet that could not be put into the ring. */
static __always_inline void take_back(const struct flow *flow, const struct held *held, struct buffer *buffer,
                                      __u32 bytes)
{
    bpf_spin_lock(&buffer->lock);
    if (is_of(buffer, held, flow)) {
        buffer->frames -= 1;
        buffer->bytes -= bytes;
        buffer->dropped_frames += 1;
    }
    bpf_spin_unlock(&buffer->lock);
}

static __always_inline enum outcome keep(struct xdp_md *context, const struct packet *packet, const struct flow *flow,
                                         const struct held *found)
{
    struct held held = *found;
    struct buffer *buffer = bpf_map_lookup_elem(&buffers, &held.slot);
    struct taken *progress = bpf_map_lookup_elem(&taken, &held.slot);
    __u32 cpu = bpf_get_smp_processor_id();
    struct copy *copy = bpf_map_lookup_elem(&copies, &cpu);
    __u32 bytes = bpf_xdp_get_buff_len(context) - packet->network;
    enum outcome outcome;

    if (packet->is_fragment)
        return DROP_FRAGMENT;
    if (!buffer || !progress || !copy || bytes == 0 || bytes > PACKET_BYTES_MAX)
        return DROP_LENGTH;
    outcome = admit(flow, &held, buffer, progress, bytes);
    if (outcome != HELD)
        return outcome;
    copy->head.held = held;
    if (bpf_xdp_load_bytes(context, packet->network, copy->packet, bytes) ||
        bpf_ringbuf_output(&held_packets, copy, sizeof(copy->head) + bytes, 0)) {
        take_back(flow, &held, buffer, bytes);
        return DROP_RING_FULL;
    }
    return HELD;
}

SEC("xdp")
int hold(struct xdp_md *context)
{
    __u32 zero = 0, outcome;
    __u32 *count = bpf_map_lookup_elem(&held_count, &zero);
    struct packet packet = {0};
    struct held *held;
    struct flow flow;
    __u64 *packets;

    if (!count || !*count)
        return XDP_PASS;
    if (parse(context, &packet) != PARSED_PORTS || packet.protocol != IPPROTO_TCP)
        return XDP_PASS;
    flow = flow_of(&packet);
    held = bpf_map_lookup_elem(&held_flows, &flow);
    if (!held)
        return XDP_PASS;
    outcome = keep(context, &packet, &flow, held);
    packets = bpf_map_lookup_elem(&outcomes, &outcome);
    if (packets)
        *packets += 1;
    return outcome == PASSED_DRAINED ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
