/* Reads what no socket option tells of a TCP connection: TS.Recent (RFC 7323). `src/peer_timestamp.rs` runs the program on a
 * "packet" that is a question, and reads the answer from it. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define NS_PER_S 1000000000ull

/* The fields that are read. The loader takes their offsets from the running kernel's type information. */
struct sock_common {
    struct {
        __s64 counter;
    } skc_cookie;
} __attribute__((preserve_access_index));

struct tcp_options_received {
    int ts_recent_stamp;
    __u32 ts_recent;
} __attribute__((preserve_access_index));

struct tcp_sock {
    struct tcp_options_received rx_opt;
} __attribute__((preserve_access_index));

struct question {
    __s64 cookie;
    /* The ends as in a received packet: the source is the peer. */
    struct bpf_sock_tuple ends;
    /* sizeof(ends.ipv4) or sizeof(ends.ipv6). */
    __u32 ends_bytes;
    /* The answer: whether there is a timestamp, the timestamp, and its age in seconds. */
    __u32 is_known;
    __u32 timestamp;
    __u32 age_s;
    __u32 zero;
};

SEC("xdp")
int peer_timestamp(struct xdp_md *context)
{
    struct question *question = (void *)(long)context->data;
    struct bpf_sock_tuple ends;
    struct bpf_sock *socket;
    struct tcp_sock *tcp;
    __u32 ends_bytes;

    if ((void *)(question + 1) > (void *)(long)context->data_end)
        return XDP_ABORTED;
    ends = question->ends;
    ends_bytes = question->ends_bytes == sizeof(ends.ipv4) ? sizeof(ends.ipv4) : sizeof(ends.ipv6);
    socket = bpf_skc_lookup_tcp(context, &ends, ends_bytes, BPF_F_CURRENT_NETNS, 0);
    if (!socket)
        return XDP_PASS;
    tcp = bpf_skc_to_tcp_sock(socket);
    /* The clock of ts_recent_stamp has whole seconds since the start; 0: no timestamp has arrived. */
    if (tcp && ((struct sock_common *)tcp)->skc_cookie.counter == question->cookie && tcp->rx_opt.ts_recent_stamp) {
        question->is_known = 1;
        question->timestamp = tcp->rx_opt.ts_recent;
        question->age_s = bpf_ktime_get_ns() / NS_PER_S - tcp->rx_opt.ts_recent_stamp;
    }
    bpf_sk_release(socket);
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
