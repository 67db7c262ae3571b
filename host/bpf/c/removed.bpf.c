/* Reports watched TCP sockets that the kernel has removed: they send nothing any more. `src/removed.rs` reads the reports. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* The field that is read. The loader takes its offset from the running kernel's type information. */
struct sock {
    int sk_err;
} __attribute__((preserve_access_index));

/* How a socket has left its last state. */
struct ending {
    /* A state of TCP, BPF_TCP_*. 0 if the socket has not left it since it is watched. */
    __u32 last_state;
    /* The error with which the connection ended, or 0. */
    __u32 error;
};

struct removal {
    __u64 cookie;
    struct ending ending;
};

/* Watched sockets by cookie. The reader of a report deletes the entry, so `removals` has room for all of them. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1); /* the loader sets it */
    __type(key, __u64);
    __type(value, struct ending);
} watched SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096); /* bytes; the loader sets it */
} removals SEC(".maps");

SEC("tp_btf/inet_sock_set_state")
int note_end(__u64 *arguments)
{
    struct sock *socket = (struct sock *)arguments[0];
    int old_state = arguments[1], new_state = arguments[2];
    struct ending *ending;
    __u64 cookie;

    if (new_state != BPF_TCP_CLOSE)
        return 0;
    cookie = bpf_get_socket_cookie(socket);
    ending = bpf_map_lookup_elem(&watched, &cookie);
    if (ending) {
        ending->last_state = old_state;
        ending->error = socket->sk_err;
    }
    return 0;
}

SEC("tp_btf/tcp_destroy_sock")
int report(__u64 *arguments)
{
    struct sock *socket = (struct sock *)arguments[0];
    struct removal removal = { .cookie = bpf_get_socket_cookie(socket) };
    struct ending *ending = bpf_map_lookup_elem(&watched, &removal.cookie);

    if (ending) {
        removal.ending = *ending;
        bpf_ringbuf_output(&removals, &removal, sizeof(removal), 0);
    }
    return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
