/* The switch: forwards frames between its ports, sends the packets of flows to their owners, and answers control
 * messages with which servers change the owners. docs/switch.md has the rules; core/rules has them in Rust, and
 * tests compare the two. */
#include "switch/control.h"
#include "switch/flow.h"
#include "switch/forward.h"
#include "switch/icmp.h"
#include "switch/neighbour.h"
#include "switch/too_long.h"

/* In tests: sets `run` to the metadata before the frame, by which the caller of BPF_PROG_TEST_RUN gives time and port
 * and gets the decision. False if there is none. */
static __always_inline bool test_run(struct xdp_md *context, struct test_run **run)
{
    *run = (void *)(long)context->data_meta;
    return (void *)(*run + 1) <= (void *)(long)context->data;
}

/* Whether a run of the daemon is for a message of the local server: the number of its port is in the metadata before the
 * frame. */
static __always_inline bool is_marked_local(struct xdp_md *context)
{
    __u32 *number = (void *)(long)context->data_meta;

    return (void *)(number + 1) <= (void *)(long)context->data && *number == PORT_LOCAL;
}

/* Sets the number of an interface's port; false if the interface is not a port. */
static __always_inline bool port_of(__u32 interface, __u32 *port)
{
    __u32 index = interface & (INTERFACE_SLOTS - 1), *number;
    __u64 *slot = bpf_map_lookup_elem(&interface_slots, &index);
    /* Both parts at once, because the loader may be changing them. */
    __u64 content = slot ? *(volatile __u64 *)slot : 0;

    if ((__u32)content == interface && content >> 32) {
        *port = (content >> 32) - 1;
        return true;
    }
    number = bpf_map_lookup_elem(&interfaces, &interface);
    if (!number)
        return false;
    *port = *number;
    return true;
}

/* Sets time and ingress port; false if the frame arrived on an interface that is not a port. */
static __always_inline bool receive(struct xdp_md *context, struct frame *frame)
{
    __u32 interface = context->ingress_ifindex;
    struct port *port;

    if (is_test) {
        struct test_run *run;

        if (!test_run(context, &run))
            return false;
        interface = run->ingress;
        frame->now = run->now;
    } else {
        frame->now = bpf_ktime_get_ns();
    }
    if (!port_of(interface, &frame->ingress))
        return false;
    if (is_host && !is_test && frame->ingress == PORT_DAEMON && is_marked_local(context))
        frame->ingress = PORT_LOCAL;
    port = bpf_map_lookup_elem(&ports, &frame->ingress);
    if (!port)
        return false;
    frame->port = *port;
    return true;
}

/* Whether the frame may carry TCP behind headers that the program does not parse. Its receiver may parse them, so a
 * server could send under a service's address without the check of the owner (rule 4a). */
static __always_inline bool may_hide_tcp(const struct frame *frame)
{
    return frame->parsed == PARSED_LONG_CHAIN || frame->packet.has_more_tags;
}

static __always_inline enum verdict decide(struct xdp_md *context, struct frame *frame)
{
    enum verdict verdict;
    void *data;

    /* A host's frames pass also before its port is open. */
    if (!receive(context, frame))
        return is_host ? PASSED : DROP_UNKNOWN_PORT;
    frame->parsed = parse_frame(context, &frame->packet);
    if (head(context, sizeof(struct ethernet), &data)) {
        frame->target = ((struct ethernet *)data)->target;
        frame->source = ((struct ethernet *)data)->source;
    }
    if (frame->port.is_internal)
        return is_control(frame) ? control_rule(context, frame) : DROP_UNKNOWN_PORT;
    frame->is_routed = same_mac(&frame->target, &frame->port.mac);
    /* An Ethernet switch that does not know a station sends the frames for that one to all. */
    if (is_host && (!frame->is_routed || frame->parsed == PARSED_SHORT))
        return PASSED;
    if (is_link_local(&frame->target))
        return DROP_LINK_LOCAL;
    if (frame->parsed == PARSED_SHORT)
        return DROP_SHORT;
    if (is_control(frame))
        return control_rule(context, frame);
    if (frame->parsed == PARSED_PORTS && frame->packet.protocol == IPPROTO_TCP) {
        verdict = flow_rule(context, frame);
        if (verdict != UNDECIDED)
            return is_host && frame->tunnel ? finish_tunnel(context, frame, verdict) : verdict;
    }
    if (is_host) {
        verdict = from_arbiter(context, frame);
        if (verdict != UNDECIDED)
            return verdict;
    }
    if (!is_host && frame->port.is_server && may_hide_tcp(frame))
        return DROP_NOT_OWNER;
    if (!is_host && frame->port.is_server && announces_foreign(context, frame))
        return DROP_ANNOUNCEMENT;
    if (may_be_error(frame)) {
        verdict = about_flow_of_quote(context, frame);
        if (verdict != UNDECIDED)
            return is_host && frame->tunnel ? finish_tunnel(context, frame, verdict) : verdict;
    }
    if (is_host)
        return PASSED;
    verdict = forward(context, frame);
    return frame->from_owner && (verdict == SWITCHED || verdict == ROUTED) ? FROM_OWNER : verdict;
}

/* In host mode: the program of a user-level stack at the same interface, if there is one. */
struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} next_program SEC(".maps");

/* Passes a frame to the host: to the program of a user-level stack, otherwise to the kernel. */
static __always_inline int pass(struct xdp_md *context)
{
    if (is_host && !is_test)
        bpf_tail_call(context, &next_program, 0);
    return XDP_PASS;
}

/* Counts a verdict, reports it in tests, and carries it out. */
static __always_inline int act(struct xdp_md *context, const struct frame *frame, __u32 verdict)
{
    __u64 *packets = bpf_map_lookup_elem(&verdicts, &verdict);

    if (packets)
        ++*packets;
    if (is_test) {
        struct test_run *run;

        if (test_run(context, &run)) {
            run->verdict = verdict;
            run->egress = frame->egress;
        }
    }
    if (verdict >= DROP_UNKNOWN_PORT)
        return XDP_DROP;
    if (verdict == PASSED)
        return pass(context);
    if (verdict == FLOODED)
        return bpf_redirect_map(&egress, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
    /* The daemon reads the answer, or the message for another server, from the buffer of its BPF_PROG_TEST_RUN. */
    if (frame->port.is_internal)
        return XDP_TX;
    if (is_local_port(frame->egress))
        return pass(context);
    if (is_host)
        return XDP_TX;
    return bpf_redirect_map(&egress, frame->egress, XDP_DROP);
}

/*
 * Why many functions of the headers are not static: the verifier checks such a function once, for all arguments, and a
 * static one again at each call. If the loader lacks CAP_PERFMON, the verifier also follows branches that a CPU takes
 * only speculatively. Both together would exceed its limit of a million instructions.
 */
SEC("xdp")
int spillway_switch(struct xdp_md *context)
{
    struct frame frame = {};

    return act(context, &frame, decide(context, &frame));
}

char _license[] SEC("license") = "Dual MIT/GPL";
