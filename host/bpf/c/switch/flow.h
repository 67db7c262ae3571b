/* Rule 4: TCP packets of flows, between clients and owners. */
#ifndef SPILLWAY_SWITCH_FLOW_H
#define SPILLWAY_SWITCH_FLOW_H

#include "outbound.h"
#include "rewrite.h"
#include "tunnel.h"

/* What a packet to a server needs of an entry. */
struct inbound {
    struct standing standing;
    struct site site; /* where it goes */
};

static __always_inline bool look_inbound(struct flow *flow, const struct flow_key *key, struct inbound *view)
{
    __u64 generation;
    bool found;

    if (begin_reading(flow, key, &generation)) {
        read_owned_standing(&view->standing, flow, generation);
        read_owner(flow, &view->site);
        if (end_reading(flow, generation))
            return true;
    }
    bpf_spin_lock(&flow->lock);
    found = is_present(flow, key);
    if (found) {
        read_standing(&view->standing, flow);
        if (flow->state == STATE_HELD) {
            read_target(flow, &view->site);
            /* Keeps two copies from constant offsets. Otherwise the compiler makes one copy from a computed pointer,
             * which only a loader with CAP_PERFMON may use. */
            barrier();
        } else {
            read_owner(flow, &view->site);
        }
    }
    bpf_spin_unlock(&flow->lock);
    return found;
}

/* Result of from_server(): rule 4b applies. */
#define NOT_FROM_PLACE (UNDECIDED + 1)

/* Rule 4a: a segment that arrives at a server's port and comes from a place. UNDECIDED: it passes, and is forwarded. */
__noinline int from_server(struct xdp_md *context, struct frame *frame)
{
    const struct packet *packet = &frame->packet;
    struct place *place;
    struct mac original = {};
    int verdict;

    if (!frame)
        return DROP_SHORT;
    place = place_of(&packet->source, packet->source_port);
    if (!place)
        return NOT_FROM_PLACE;
    verdict = check_source(context, frame, place, &original);
    if (verdict == UNDECIDED && frame->from_owner) {
        replace_end(context, packet, true, &place->service.address, place->service.port);
        set_source(context, &original);
    }
    return verdict;
}

/* In host mode, prepares a packet for a server on another host: UNDECIDED, or the verdict with which the packet ends. */
static __always_inline int from_host(struct xdp_md *context, struct frame *frame, const struct server *server, __u32 id)
{
    int verdict;

    if (hop_limit(context, &frame->packet) <= 1)
        return DROP_NO_ROUTE;
    if (server->is_encapsulated) {
        frame->tunnel = id;
        verdict = check_tunnel(context, frame, server);
        if (verdict != UNDECIDED)
            return verdict;
    }
    route_out(context, &frame->packet, server->port);
    return UNDECIDED;
}

/* Sends a packet to a server of a flow. The caller writes the address and port at which the server has the connection,
 * if the verdict is TO_OWNER or TO_TARGET. If `tunnel` of the frame is set, the main program calls finish_tunnel(). */
static __always_inline int to_site(struct xdp_md *context, struct frame *frame, const struct inbound *view)
{
    struct server *server = server_of(view->site.server);
    enum verdict reason = view->standing.state == STATE_HELD ? TO_TARGET : TO_OWNER;

    if (!server)
        return DROP_UNKNOWN_STATION;
    frame->egress = server->port;
    if (is_local_port(server->port))
        return reason;
    if (is_host) {
        int verdict = from_host(context, frame, server, view->site.server);

        if (verdict != UNDECIDED)
            return verdict;
    } else if (server->port == frame->ingress) {
        return DROP_SAME_PORT;
    } else if (frame->is_routed && !route_out(context, &frame->packet, server->port)) {
        return PASSED;
    }
    set_target(context, &view->site.mac);
    return reason;
}

/* Rule 4b: any other segment. UNDECIDED: its flow has no entry. */
__noinline int to_server(struct xdp_md *context, struct frame *frame)
{
    const struct packet *packet = &frame->packet;
    struct flow_key key;
    struct flow *flow;
    struct tcp tcp = {};
    struct inbound view;
    struct standing *at = &view.standing;
    bool is_short;
    int verdict;
    __u8 flags = 0;
    __u32 claim = 0;

    if (!frame)
        return DROP_SHORT;
    key = (struct flow_key){
        .client = packet->source,
        .service = packet->target,
        .client_port = packet->source_port,
        .service_port = packet->target_port,
    };
    flow = bpf_map_lookup_elem(&flows, &key);
    if (!flow || !look_inbound(flow, &key, &view))
        return UNDECIDED;
    if (may_be_due(at, frame->now) && settle(&key, at, frame->now)) {
        if (!look_inbound(flow, &key, &view))
            return UNDECIDED;
    }
    is_short = !load_tcp(context, packet, &tcp);
    if (!is_short && (tcp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN &&
        (at->flags & FIN_CLOSED) == FIN_CLOSED) {
        end_entry(flow, &key, at->state, at->generation, false);
        return UNDECIDED;
    }
    if (packet->is_fragment)
        return DROP_FRAGMENT;
    if (is_short)
        return DROP_SHORT;
    if (tcp.flags & TCP_FIN) {
        flags |= FIN_CLAIMED;
        claim = end_of(context, packet, &tcp);
    }
    if ((tcp.flags & TCP_ACK) && (at->flags & (FIN_OWNER | FIN_CONFIRMED)) == FIN_OWNER &&
        bpf_ntohl(tcp.acknowledgment) == at->owner_claim)
        flags |= FIN_CONFIRMED;
    note(flow, &key, flags, claim, frame->now);
    verdict = to_site(context, frame, &view);
    if (verdict == TO_OWNER || verdict == TO_TARGET)
        replace_end(context, packet, false, &view.site.address, view.site.port);
    return verdict;
}

static __always_inline enum verdict flow_rule(struct xdp_md *context, struct frame *frame)
{
    /* At a host's interface no server's segment is checked as it arrives: the egress program checks the local server's. */
    bool is_checked = !is_host && frame->port.is_server;
    int verdict = is_checked ? from_server(context, frame) : NOT_FROM_PLACE;

    return verdict == NOT_FROM_PLACE ? to_server(context, frame) : verdict;
}

#endif
