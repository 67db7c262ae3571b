/* Turns the frame of a control message into its answer, or into the message for another server. */
#ifndef SPILLWAY_SWITCH_ANSWER_H
#define SPILLWAY_SWITCH_ANSWER_H

#include "move.h"
#include "rewrite.h"
#include "siphash.h"

static __always_inline void write_site(struct message *message, const struct site *site)
{
    write_endpoint(&message->owner, &site->address, site->port);
    message->mac = site->mac;
}

/* Writes the state of the flow, as it is after the message, into the message. `site`: its owner or its target. */
static __always_inline void write_state(struct control *control, const struct site *site)
{
    control->message.state = control->entry.state;
    control->message.generation = bpf_cpu_to_be64(control->entry.generation);
    write_site(&control->message, site);
}

/* The checksum of the datagram (RFC 768). In `control` its pseudo-header, header and payload follow each other. */
static __always_inline __u16 datagram_check(struct control *control)
{
    __u32 bytes = __builtin_offsetof(struct control, message) + sizeof(control->message);
    __u16 check;

    control->length = bpf_htonl(sizeof(control->udp) + sizeof(control->message));
    control->protocol = bpf_htonl(IPPROTO_UDP);
    control->udp.check = 0;
    check = ~folded(bpf_csum_diff(NULL, 0, (__be32 *)control, bytes, 0));
    return check ? check : 0xffff;
}

/* Writes the datagram into a frame whose headers are at their usual offsets. The checksum is added up on the way. */
static __always_inline void write_plain(struct xdp_md *context, const struct control *control, bool is_answer)
{
    __be32 source = control->source.words[3], destination = control->destination.words[3];
    struct ipv4 *ip;
    struct udp *udp;
    __u64 sum;
    __u16 check;
    void *data;

    if (!head(context, PLAIN_DATAGRAM_END, &data))
        return;
    ip = data + PLAIN_NETWORK;
    set_hop_limit_ipv4(ip, HOP_LIMIT);
    /* The sum of an answer, whose addresses are swapped, stays the same. */
    if (!is_answer)
        ip->check = adjusted(ip->check, change32(ip->source, source) + change32(ip->destination, destination));
    ip->source = source;
    ip->destination = destination;
    udp = data + PLAIN_TRANSPORT;
    udp->source = control->udp.source;
    udp->destination = control->udp.destination;
    sum = (__u64)source + destination + bpf_htons(IPPROTO_UDP) + bpf_htons(DATAGRAM_BYTES) + control->udp.source +
          control->udp.destination + bpf_htons(DATAGRAM_BYTES);
#pragma clang loop unroll(full)
    for (__u32 at = 0; at < MESSAGE_BYTES; at += sizeof(__u64)) {
        __u64 word;

        __builtin_memcpy(&word, __builtin_assume_aligned((void *)&control->message + at, sizeof(word)), sizeof(word));
        write_word(data + PLAIN_TRANSPORT + sizeof(*udp) + at, word);
        sum += (__u32)word;
        sum += word >> 32;
    }
    sum = (sum & 0xffffffff) + (sum >> 32);
    /* The sum has at most 34 bits before this, and 32 bits after it. */
    sum = (sum & 0xffffffff) + (sum >> 32);
    check = ~folded((__u32)sum);
    udp->check = check ? check : 0xffff;
}

static __always_inline void write_ipv4(struct xdp_md *context, const struct packet *packet,
                                       const struct control *control, bool is_answer)
{
    struct ipv4 ip;
    __be32 source = control->source.words[3], destination = control->destination.words[3];

    if (!load(context, packet->network, &ip, sizeof(ip)))
        return;
    set_hop_limit_ipv4(&ip, HOP_LIMIT);
    /* The sum of an answer, whose addresses are swapped, stays the same. */
    if (!is_answer)
        ip.check = adjusted(ip.check, change32(ip.source, source) + change32(ip.destination, destination));
    ip.source = source;
    ip.destination = destination;
    bpf_xdp_store_bytes(context, packet->network, &ip, sizeof(ip));
}

static __always_inline void write_ipv6(struct xdp_md *context, const struct packet *packet,
                                       const struct control *control)
{
    __u8 limit = HOP_LIMIT;

    bpf_xdp_store_bytes(context, packet->network + IPV6_HOP_LIMIT, &limit, sizeof(limit));
    /* source and destination follow each other here as in the header */
    bpf_xdp_store_bytes(context, packet->network + IPV6_HOP_LIMIT + 1, (void *)&control->source,
                        2 * sizeof(struct address));
}

/* write_datagram() for frames whose headers are not at their usual offsets: see is_plain(). */
__noinline int write_slowly(struct xdp_md *context, const struct packet *packet, struct control *control,
                            bool is_answer)
{
    if (!packet || !control)
        return 0;
    control->udp.check = datagram_check(control);
    if (packet->is_ipv6)
        write_ipv6(context, packet, control);
    else
        write_ipv4(context, packet, control, is_answer);
    return bpf_xdp_store_bytes(context, packet->transport, &control->udp,
                               sizeof(control->udp) + sizeof(control->message));
}

/* Writes the datagram into the frame: addresses, ports and message of `control`. */
static __always_inline void write_datagram(struct xdp_md *context, const struct packet *packet,
                                           struct control *control, bool is_answer)
{
    if (is_plain(packet))
        write_plain(context, control, is_answer);
    else
        write_slowly(context, packet, control, is_answer);
}

static __always_inline void tag(struct message *message, const struct server *receiver)
{
    message->tag = message_tag(message, receiver->key[0], receiver->key[1]);
}

/* Turns the message into the answer to its sender. */
static __always_inline int send_answer(struct xdp_md *context, struct frame *frame, struct control *control,
                                       const struct server *sender, enum status status)
{
    const struct packet *packet = &frame->packet;

    control->message.flags = bpf_htons(FLAG_FROM_SWITCH);
    control->message.status = status;
    tag(&control->message, sender);
    control->source = packet->target;
    control->destination = packet->source;
    control->udp.source = packet->target_port;
    control->udp.destination = packet->source_port;
    write_datagram(context, packet, control, true);
    set_target(context, &frame->source);
    set_source(context, &frame->target);
    frame->egress = frame->ingress;
    return ANSWERED;
}

/* Turns the message into the one for control->receiver, which reaches() has checked. */
static __noinline int relay(struct xdp_md *context, struct frame *frame, struct control *control,
                            enum outcome outcome)
{
    const struct packet *packet = &frame->packet;
    struct server *receiver = server_of(control->receiver);
    struct owner *owner = owner_of(control->receiver);
    __u32 egress = receiver ? receiver->port : 0;
    struct port *port = bpf_map_lookup_elem(&ports, &egress);

    if (!receiver || !owner || !port)
        return DROP_CONTROL_INVALID; /* the configuration has changed since reaches() */
    control->message.flags = bpf_htons(FLAG_FROM_SWITCH);
    control->message.status = outcome == RELAY_OK ? STATUS_OK : STATUS_FULL;
    write_state(control, &control->entry.target);
    tag(&control->message, receiver);
    frame->egress = egress;
    /* The daemon hands the message on. With the switch's own address as source the host's kernel would drop it. */
    if (is_local_port(egress)) {
        control->source = packet->source;
        control->destination = packet->target;
        write_datagram(context, packet, control, true);
        return RELAYED;
    }
    control->source = packet->target;
    control->destination = receiver->address;
    control->udp.source = packet->target_port;
    control->udp.destination = owner->control_port;
    write_datagram(context, packet, control, false);
    set_target(context, &receiver->next_hop);
    set_source(context, &port->mac);
    return RELAYED;
}

#endif
