/* Control messages of servers and of the switch's daemon: checks and dispatch. */
#ifndef SPILLWAY_SWITCH_CONTROL_H
#define SPILLWAY_SWITCH_CONTROL_H

#include "answer.h"
#include "replay.h"

/* Whether a frame is sent to a control endpoint. */
static __always_inline bool is_control(const struct frame *frame)
{
    const struct packet *packet = &frame->packet;
    struct settings *config;
    struct own_address *own;

    if (frame->parsed != PARSED_PORTS || packet->protocol != IPPROTO_UDP || packet->is_fragment)
        return false;
    config = only(&settings);
    if (!config || packet->target_port != config->control_port)
        return false;
    if (config->control_port && same_address(&packet->target, &config->control_address))
        return true;
    own = bpf_map_lookup_elem(&own_addresses, &packet->target);
    return own && own->is_control;
}

/* Copies the datagram of a frame whose headers are at their usual offsets; false if its length is another one. */
static __always_inline bool copy_plain(struct xdp_md *context, struct control *control)
{
    void *data, *beyond;

    if (!head(context, PLAIN_DATAGRAM_END, &data) || head(context, PLAIN_DATAGRAM_END + 1, &beyond))
        return false;
#pragma clang loop unroll(full)
    for (__u32 at = 0; at < DATAGRAM_BYTES; at += sizeof(__u64)) {
        __u64 word = read_word(data + PLAIN_TRANSPORT + at);

        __builtin_memcpy(__builtin_assume_aligned((void *)&control->udp + at, sizeof(word)), &word, sizeof(word));
    }
    return true;
}

static __always_inline bool copy_datagram(struct xdp_md *context, const struct packet *packet, struct control *control)
{
    if (is_plain(packet))
        return copy_plain(context, control);
    return bpf_xdp_get_buff_len(context) == packet->transport + DATAGRAM_BYTES &&
           load(context, packet->transport, &control->udp, DATAGRAM_BYTES);
}

/* Reads the datagram; false if it is not a message to the switch. */
static __always_inline bool read_message(struct xdp_md *context, const struct packet *packet,
                                         struct control *control)
{
    if (!copy_datagram(context, packet, control))
        return false;
    return control->udp.length == bpf_htons(DATAGRAM_BYTES) && control->message.magic == MESSAGE_MAGIC &&
           !(control->message.flags & bpf_htons(FLAG_FROM_SWITCH));
}

static __always_inline void forget_entry(struct control *control)
{
    control->entry.state = STATE_NONE;
    control->entry.generation = 0;
    control->entry.owner = (struct site){};
    control->entry.target.server = 0;
}

/* Settles the entry of the message's flow, and copies it to control->entry. Returns its element of the map; NULL
 * without an entry, which control->entry then shows as STATE_NONE. */
static __noinline struct flow *find(struct control *control)
{
    struct flow *flow = bpf_map_lookup_elem(&flows, &control->key);
    struct standing *at = &control->standing;

    if (flow && copy(flow, &control->key, &control->entry, at)) {
        if (!may_be_due(at, control->now) || !settle(&control->key, at, control->now))
            return flow;
        if (copy(flow, &control->key, &control->entry, at))
            return flow;
    }
    forget_entry(control);
    return NULL;
}

/* Begins a new term of the sender. The answer's generation is the term; see docs/wire.md for the other answers. */
static __noinline __u32 hello(struct control *control, struct owner *owner, const struct settings *config)
{
    __u64 sequence = bpf_be64_to_cpu(control->message.sequence);
    bool is_current = control->message.epoch == bpf_cpu_to_be64(config->epoch);
    bool is_new = false;
    __u64 term, clock, highest = *(volatile __u64 *)&owner->highest;

    control->message.state = STATE_NONE;
    control->message.generation = 0;
    control->message.epoch = bpf_cpu_to_be64(config->epoch);
    if (!is_current)
        return answer(STATUS_OK);
    if (sequence <= highest) {
        control->message.generation = bpf_cpu_to_be64(highest);
        return answer(STATUS_REPLAYED);
    }
    term = new_generation();
    clock = advance_silence_clock(control->now);
    bpf_spin_lock(&owner->lock);
    highest = owner->highest;
    is_new = sequence > highest;
    if (is_new) {
        owner->highest = sequence;
        /* Every lower sequence number counts as used: a message from before the server's restart may arrive late. */
        owner->window = ~0ULL;
        owner->term = term;
        owner->service = SERVICE_NONE;
        owner->load = 0xffffffff;
        owner->free_places = 0;
        owner->weight = 0;
        owner->last_heartbeat = control->now;
        owner->clock = clock;
        owner->control_port = control->udp.source;
    }
    bpf_spin_unlock(&owner->lock);
    control->message.generation = bpf_cpu_to_be64(is_new ? term : highest);
    if (!is_new)
        return answer(STATUS_REPLAYED);
    return answer(STATUS_OK);
}

/* Stores an owner's load. The answer to an owner that was silent, or has no term, is *no owner*: it must send hello
 * again. */
static __noinline __u32 heartbeat(struct control *control, struct owner *owner)
{
    const struct message *message = &control->message;
    struct liveness at;
    __u64 term = owner->term, clock;
    __be32 free_places;
    bool is_dead;

    clock = advance_silence_clock(control->now);
    at = liveness_at(control->now);
    is_dead = !term || is_silent(&at, owner);
    __builtin_memcpy(&free_places, message->free_places, sizeof(free_places));
    bpf_spin_lock(&owner->lock);
    if (owner->term != term) {
        is_dead = true; /* another CPU has ended the term, or handled a hello, meanwhile */
    } else if (is_dead) {
        owner->term = 0;
    } else {
        owner->load = bpf_ntohl(message->load);
        owner->free_places = bpf_ntohl(free_places);
        owner->weight = bpf_ntohs(message->weight);
        owner->service = control->place.number;
        owner->last_heartbeat = control->now;
        owner->clock = clock;
    }
    bpf_spin_unlock(&owner->lock);
    return answer(is_dead ? STATUS_NO_OWNER : STATUS_OK);
}

/* Whether the sender may own flows of the message's service. The daemon owns none. */
static __always_inline bool may_own(const struct control *control)
{
    return control->place.is_endpoint && may_own_at(&control->place, control->ingress);
}

/* Whether an answer may show the sender flows of the message's service. The daemon may see all. */
static __always_inline bool may_ask(const struct control *control)
{
    return !control->sender || may_own(control);
}

/* Describes the n-th owner of the service. */
static __noinline __u32 list(struct control *control, bool is_new)
{
    struct message *message = &control->message;
    struct site site = {};
    struct liveness at = liveness_at(control->now);
    struct server *server;
    struct owner *owner;
    __be32 free_places;
    __u64 age_ms;
    __u32 id;

    message->state = STATE_NONE;
    write_site(message, &site);
    if (!is_new)
        return answer(STATUS_REPLAYED);
    if (!control->place.is_endpoint || !may_ask(control))
        return answer(STATUS_FORBIDDEN);
    id = nth_owner(control->place.number, named_generation(control));
    server = server_of(id);
    owner = owner_of(id);
    if (!server || !owner)
        return answer(STATUS_NO_OWNER);
    site.address = server->address;
    site.mac = server->mac;
    write_site(message, &site);
    message->state = is_silent(&at, owner) ? STATE_NONE : STATE_OWNED;
    message->load = bpf_htonl(owner->load);
    free_places = bpf_htonl(owner->free_places);
    __builtin_memcpy(message->free_places, &free_places, sizeof(free_places));
    message->weight = bpf_htons(owner->weight);
    age_ms = since(control->now, owner->last_heartbeat) / NS_PER_MS;
    message->lifetime = bpf_htonl(age_ms > 0xffffffff ? 0xffffffff : age_ms);
    return answer(STATUS_OK);
}

/* Decides a message about a flow: all kinds but list, heartbeat and hello. */
__noinline __u32 about_flow(struct control *control, bool is_new)
{
    struct flow *flow;

    if (!control)
        return answer(STATUS_STALE);
    flow = find(control);
    if (!is_new)
        return answer(STATUS_REPLAYED);
    if (control->message.kind == KIND_GET)
        return !may_ask(control) ? answer(STATUS_FORBIDDEN)
                                 : answer(control->entry.state == STATE_NONE ? STATUS_NO_ENTRY : STATUS_OK);
    if (control->sender) {
        struct owner *owner = owner_of(control->sender);

        if (!owner || !is_active(control->sender, control->now))
            return answer(STATUS_NO_OWNER);
        control->term = owner->term;
        if (!may_own(control))
            return answer(STATUS_FORBIDDEN);
    } else if (control->message.kind != KIND_RELEASE) {
        return answer(STATUS_FORBIDDEN);
    }
    return move(control, flow);
}

/* The checks of docs/wire.md from *unknown version* on, and the change. Leaves flags, status and tag to the caller. */
static __always_inline __u32 decide_message(struct control *control, const struct server *sender,
                                            struct owner *owner, const struct settings *config)
{
    struct message *message = &control->message;
    struct place *place;
    __u32 decision;
    bool is_new;

    forget_entry(control);
    if (message->version != MESSAGE_VERSION || message->kind < KIND_PREPARE || message->kind > KIND_LIST) {
        write_state(control, &control->entry.owner);
        return answer(STATUS_UNKNOWN_VERSION);
    }
    if (sender->port != control->ingress) {
        write_state(control, &control->entry.owner);
        return answer(STATUS_FORBIDDEN);
    }
    if (message->kind == KIND_HELLO)
        return hello(control, owner, config);
    if (message->epoch != bpf_cpu_to_be64(config->epoch)) {
        write_state(control, &control->entry.owner);
        return answer(STATUS_NO_OWNER);
    }
    read_endpoint(&message->client, &control->key.client, &control->key.client_port);
    read_endpoint(&message->service, &control->key.service, &control->key.service_port);
    place = place_of(&control->key.service, control->key.service_port);
    if (place)
        control->place = *place;
    else
        control->place = (struct place){};
    is_new = record(owner, bpf_be64_to_cpu(message->sequence));
    if (message->kind == KIND_HEARTBEAT) {
        message->state = STATE_NONE;
        message->generation = 0;
        if (!is_new)
            return answer(STATUS_REPLAYED);
        return control->sender && may_own(control) ? heartbeat(control, owner) : answer(STATUS_FORBIDDEN);
    }
    if (message->kind == KIND_LIST)
        return list(control, is_new);
    decision = about_flow(control, is_new);
    /* Another CPU has changed the entry meanwhile: decide again, as if the message had come after that change. */
    if (outcome_of(decision) == RACED)
        decision = about_flow(control, is_new);
    if (outcome_of(decision) == RACED) {
        find(control);
        decision = answer(STATUS_STALE);
    }
    /* The answer must not show a server the flows of services that it may not own. */
    if (!may_ask(control))
        forget_entry(control);
    if (outcome_of(decision) == ANSWER)
        write_state(control, &control->entry.owner);
    return decision;
}

/* Handles a frame that is_control() has found. */
__noinline int control_rule(struct xdp_md *context, struct frame *frame)
{
    __u32 index = frame && frame->port.is_internal;
    struct control *control = bpf_map_lookup_elem(&scratch, &index);
    struct settings *config = only(&settings);
    struct server *sender;
    struct owner *owner;
    __u32 decision;

    if (!control || !config || !frame || !(frame->port.is_server || frame->port.is_internal))
        return DROP_CONTROL_PORT;
    if (!read_message(context, &frame->packet, control))
        return DROP_CONTROL_INVALID;
    control->sender = bpf_ntohl(control->message.sender);
    sender = server_of(control->sender);
    owner = owner_of(control->sender);
    if (!sender || !owner)
        return DROP_CONTROL_INVALID;
    if (message_tag(&control->message, sender->key[0], sender->key[1]) != control->message.tag)
        return DROP_CONTROL_TAG;
    control->now = frame->now;
    control->ingress = frame->ingress;
    control->is_ipv6 = frame->packet.is_ipv6;
    control->is_plain = has_plain_headers(&frame->packet);
    decision = decide_message(control, sender, owner, config);
    if (outcome_of(decision) == ANSWER)
        return send_answer(context, frame, control, sender, status_of(decision));
    return relay(context, frame, control, outcome_of(decision));
}

#endif
