/* The control messages that change entries: prepare, prepared, hold, own, release. */
#ifndef SPILLWAY_SWITCH_MOVE_H
#define SPILLWAY_SWITCH_MOVE_H

#include "table.h"

/* What the program does with a message. */
enum outcome {
    ANSWER,
    RELAY_OK,   /* to control->receiver, with status ok */
    RELAY_FULL, /* the same, with status full */
    RACED,      /* another CPU has changed the entry: decide again */
};

/* A decision in one number: the outcome in the low byte, and for answers the status above it. */
static __always_inline __u32 answer(enum status status)
{
    return ANSWER | status << 8;
}

static __always_inline enum outcome outcome_of(__u32 decision)
{
    return decision & 0xff;
}

static __always_inline enum status status_of(__u32 decision)
{
    return decision >> 8;
}

/* Whether a server takes part now: it has said hello and is not silent. */
static __always_inline bool is_active(__u32 id, __u64 now)
{
    struct owner *owner = owner_of(id);
    struct liveness at = liveness_at(now);

    return owner && owner->term && !is_silent(&at, owner);
}

/* Whether a message can be relayed to a server: status ok, or the status of the refusal. It is relayed as a plain packet
 * of the family of the server's address. VLAN tags, IPv4 options and IPv6 extension headers would be those of the
 * sender's network, under the switch's source address. */
static __always_inline enum status reaches(const struct control *control, __u32 id)
{
    struct server *server = server_of(id);

    if (!server)
        return STATUS_NO_OWNER;
    return control->is_plain && is_ipv4(&server->address) == !control->is_ipv6 ? STATUS_OK : STATUS_FORBIDDEN;
}

static __always_inline __u64 deadline_of(const struct control *control)
{
    return control->now + bpf_ntohl(control->message.lifetime) * NS_PER_MS;
}

/* Every move has a deadline, so that no flow stays with a target that has forgotten it. */
static __always_inline bool has_lifetime(const struct message *message)
{
    __u32 lifetime = bpf_ntohl(message->lifetime);

    return lifetime && lifetime <= LIFETIME_MS_MAX;
}

static __always_inline __u64 named_generation(const struct control *control)
{
    return bpf_be64_to_cpu(control->message.generation);
}

/* Whether the sender is the entry's owner: status ok, or that of the refusal. A server in a new term does not own the
 * flows of its earlier term, except those of which it is the original owner: they could only return to it. */
static __always_inline enum status owns(const struct control *control)
{
    const struct entry *entry = &control->entry;

    if (entry->owner.server != control->sender)
        return STATUS_FORBIDDEN;
    return entry->owner.term == control->term || entry->original.server == control->sender ? STATUS_OK
                                                                                             : STATUS_STALE;
}

/* The same for the entry's target. */
static __always_inline enum status is_target(const struct control *control)
{
    const struct entry *entry = &control->entry;

    if (entry->target.server != control->sender)
        return STATUS_FORBIDDEN;
    return entry->target.term == control->term ? STATUS_OK : STATUS_STALE;
}

/*
 * Checks the site in the message's fields owner and mac, and copies it to control->site. The Ethernet address must be
 * that of a server that may own the service; address and port must be the service endpoint, or a place of that server
 * for the service. `only_server`: the id that the server must have; 0 for any.
 */
__noinline int check_site(struct control *control, __u32 only_server)
{
    struct station *station;
    struct server *server;
    struct owner *owner;
    struct place *place;
    struct site *site;

    if (!control)
        return false;
    site = &control->site;
    station = station_of(&control->message.mac);
    if (!station || !station->server || (only_server && station->server != only_server))
        return false;
    read_endpoint(&control->message.owner, &site->address, &site->port);
    site->mac = control->message.mac;
    site->server = station->server;
    site->zero = 0;
    if (!same_address(&site->address, &control->key.service) || site->port != control->key.service_port) {
        place = place_of(&site->address, site->port);
        if (!place || place->server != site->server || place->service.port != control->key.service_port ||
            !same_address(&place->service.address, &control->key.service))
            return false;
    }
    owner = owner_of(site->server);
    server = server_of(site->server);
    if (!owner || !server || !may_own_at(&control->place, server->port))
        return false;
    site->term = owner->term;
    return true;
}

static __always_inline bool names_no_target(const struct message *message)
{
    struct address address;
    __be16 port;

    read_endpoint(&message->owner, &address, &port);
    return !(address.words[0] | address.words[1] | address.words[2] | address.words[3] | port |
             message->mac.words[0] | message->mac.words[1] | message->mac.words[2]);
}

/* Sets control->site to the least loaded server, at the service's own address until *prepared* names another one. */
static __always_inline bool choose_site(struct control *control)
{
    __u32 id = least_loaded(&control->place, control->sender, control->now);
    struct owner *owner = owner_of(id);
    struct server *server = server_of(id);

    if (!id || !owner || !server)
        return false;
    control->site = (struct site){
        .address = control->key.service,
        .port = control->key.service_port,
        .mac = server->mac,
        .server = id,
        .term = owner->term,
    };
    return true;
}

/* Fills in a new entry, owned by the sender until the move succeeds. */
static __always_inline bool begin(struct control *control)
{
    struct entry *entry = &control->entry;
    struct server *server = server_of(control->sender);
    struct owner *owner = owner_of(control->sender);

    if (!server || !owner)
        return false;
    entry->key = control->key;
    entry->owner = (struct site){
        .address = control->key.service,
        .port = control->key.service_port,
        .mac = server->mac,
        .server = control->sender,
        .term = owner->term,
    };
    entry->service = control->place.number;
    return true;
}

/* Whether packets can have this client and service: one address family, and an address. */
static __always_inline bool is_possible(const struct flow_key *key)
{
    const __be32 *client = key->client.words;

    if (is_ipv4(&key->client) != is_ipv4(&key->service))
        return false;
    return client[3] || (!is_ipv4(&key->client) && (client[0] | client[1] | client[2]));
}

/* Whether the flows of a message's service have their entries here, if its sender is their original owner: in host mode, if
 * the sender is the local server. */
static __always_inline bool is_arbiter(const struct control *control)
{
    return !is_host || control->ingress == PORT_LOCAL;
}

static __noinline __u32 prepare(struct control *control, struct flow *flow)
{
    struct entry *entry = &control->entry;
    __u64 named = named_generation(control), generation = entry->generation;
    __u8 state = entry->state;
    bool is_chosen; /* by the switch, not by the sender */
    enum status status;
    struct owner *target;

    if (!has_lifetime(&control->message))
        return answer(STATUS_FORBIDDEN);
    if (state == STATE_ASKED || state == STATE_HELD) {
        if (owns(control) != STATUS_OK || entry->repeat_generation != named)
            return answer(STATUS_STALE);
        control->receiver = entry->target.server;
        status = reaches(control, control->receiver);
        return status == STATUS_OK ? RELAY_OK : answer(status);
    }
    if (state == STATE_OWNED)
        status = owns(control);
    else
        status = control->place.server == control->sender && is_arbiter(control) ? STATUS_OK : STATUS_FORBIDDEN;
    if (status != STATUS_OK)
        return answer(status);
    if (generation != named)
        return answer(STATUS_STALE);
    if (state == STATE_NONE && !is_possible(&control->key))
        return answer(STATUS_FORBIDDEN);
    is_chosen = names_no_target(&control->message);
    if (is_chosen) {
        if (!choose_site(control))
            return answer(STATUS_NO_OWNER);
    } else {
        if (!check_site(control, 0))
            return answer(STATUS_FORBIDDEN);
        if (!is_active(control->site.server, control->now))
            return answer(STATUS_NO_OWNER);
    }
    control->receiver = control->site.server;
    status = reaches(control, control->receiver);
    target = owner_of(control->receiver);
    if (status != STATUS_OK || !target)
        return answer(status);
    if (is_chosen)
        rotate();
    take_place(target);
    if (state == STATE_NONE && !begin(control))
        return answer(STATUS_NO_OWNER);
    entry->state = STATE_ASKED;
    entry->generation = new_generation();
    entry->repeat_generation = named;
    entry->target = control->site;
    entry->deadline = deadline_of(control);
    if (state != STATE_NONE)
        return flow && commit(flow, entry, state, generation, false) ? RELAY_OK : RACED;
    switch (create(entry, control->place.flows_max, control->now)) {
    case CREATED:
        return RELAY_OK;
    case CREATION_RACED:
        return RACED;
    default:
        /* The answer describes the absent entry. */
        entry->state = STATE_NONE;
        entry->generation = 0;
        entry->owner = (struct site){};
        return answer(STATUS_FULL);
    }
}

static __noinline __u32 prepared(struct control *control, struct flow *flow)
{
    struct entry *entry = &control->entry;
    __u64 generation = entry->generation;
    __u8 refusal = control->message.status;
    enum status status;

    status = is_target(control);
    if (status != STATUS_OK)
        return answer(status);
    if (generation != named_generation(control) || entry->state == STATE_OWNED)
        return answer(STATUS_STALE);
    control->receiver = entry->owner.server;
    if (entry->state == STATE_HELD) {
        status = reaches(control, control->receiver);
        return status == STATUS_OK ? RELAY_OK : answer(status);
    }
    if (refusal != STATUS_NONE && refusal != STATUS_OK && refusal != STATUS_FULL)
        return answer(STATUS_FORBIDDEN);
    if (refusal != STATUS_FULL && !check_site(control, control->sender))
        return answer(STATUS_FORBIDDEN);
    status = reaches(control, control->receiver);
    if (status != STATUS_OK)
        return answer(status);
    if (refusal == STATUS_FULL) {
        entry->state = STATE_OWNED;
        entry->generation = new_generation();
        entry->repeat_generation = generation;
        clear_target(entry);
        return commit(flow, entry, STATE_ASKED, generation, false) ? RELAY_FULL : RACED;
    }
    entry->state = STATE_HELD;
    entry->target = control->site;
    return commit(flow, entry, STATE_ASKED, generation, false) ? RELAY_OK : RACED;
}

static __noinline __u32 hold(struct control *control, struct flow *flow)
{
    struct entry *entry = &control->entry;
    __u64 generation = entry->generation;
    enum status status;

    status = owns(control);
    if (status != STATUS_OK)
        return answer(status);
    if (entry->state != STATE_OWNED || generation != named_generation(control))
        return answer(STATUS_STALE);
    if (!check_site(control, 0))
        return answer(STATUS_FORBIDDEN);
    if (!is_active(control->site.server, control->now))
        return answer(STATUS_NO_OWNER);
    entry->state = STATE_HELD;
    entry->generation = new_generation();
    entry->repeat_generation = REPEAT_NONE;
    entry->target = control->site;
    entry->deadline = deadline_of(control);
    return commit(flow, entry, STATE_OWNED, generation, false) ? answer(STATUS_OK) : RACED;
}

static __noinline __u32 own(struct control *control, struct flow *flow)
{
    struct entry *entry = &control->entry;
    __u64 generation = entry->generation, named = named_generation(control);
    __u8 state = entry->state;
    enum status as_target = is_target(control), as_owner = owns(control);
    bool by_target = as_target == STATUS_OK && state == STATE_HELD;

    if (as_target == STATUS_FORBIDDEN && as_owner == STATUS_FORBIDDEN)
        return answer(STATUS_FORBIDDEN);
    /* A repetition, because the answer may have been lost. The move in the generation that the message names has ended,
     * by the first message or otherwise, and the sender owns the flow. */
    if (state == STATE_OWNED && as_owner == STATUS_OK && entry->repeat_generation == named)
        return answer(STATUS_OK);
    if (generation != named ||
        (!by_target && (as_owner != STATUS_OK || state == STATE_OWNED)))
        return answer(STATUS_STALE);
    if (by_target)
        entry->owner = entry->target;
    entry->state = STATE_OWNED;
    entry->generation = new_generation();
    entry->repeat_generation = named;
    clear_target(entry);
    return commit(flow, entry, state, generation, by_target) ? answer(STATUS_OK) : RACED;
}

static __noinline __u32 release(struct control *control, struct flow *flow)
{
    struct entry *entry = &control->entry;
    enum status status = control->sender ? owns(control) : STATUS_OK;

    if (status != STATUS_OK)
        return answer(status);
    if ((control->sender && entry->state != STATE_OWNED) || entry->generation != named_generation(control))
        return answer(STATUS_STALE);
    if (!end_entry(flow, &control->key, entry->state, entry->generation, false))
        return RACED;
    entry->state = STATE_NONE;
    entry->generation = 0;
    entry->owner = (struct site){};
    return answer(STATUS_OK);
}

/* Decides a message that changes an entry. The copy in `control` is settled; `flow` is its element, if any. */
static __always_inline __u32 move(struct control *control, struct flow *flow)
{
    __u8 kind = control->message.kind;

    if (kind == KIND_PREPARE)
        return prepare(control, flow);
    if (kind == KIND_HOLD && !has_lifetime(&control->message))
        return answer(STATUS_FORBIDDEN);
    if (!flow || control->entry.state == STATE_NONE)
        return answer(STATUS_NO_ENTRY);
    if (kind == KIND_PREPARED)
        return prepared(control, flow);
    if (kind == KIND_HOLD)
        return hold(control, flow);
    if (kind == KIND_OWN)
        return own(control, flow);
    return release(control, flow);
}

#endif
