/*
 * The table of flows. Its rules:
 *
 * - An entry changes under its lock, in one step that compares the key, the state and the generation.
 * - A deleted element can be used at once for another flow while another CPU still has a pointer to it.
 *   Therefore the value repeats the key, and the key is compared under the lock.
 * - An entry is created in state STATE_NONE, which every reader treats as absent, and filled in under the lock by
 *   its creator only: a reader never sees half of an insertion. It is marked STATE_ENDED under the lock before it is
 *   deleted, so that only one CPU deletes it, and nothing but what that CPU has seen.
 * - No helper may be called under a lock. Liveness is therefore decided on a copy, before the change.
 */
#ifndef SPILLWAY_SWITCH_TABLE_H
#define SPILLWAY_SWITCH_TABLE_H

#include "load.h"

/* The parts of an entry that decide whether it must be settled. */
struct standing {
    __u64 deadline;
    __u64 last_packet;
    __u64 reset;
    struct party owner;
    struct party target;
    __u32 original; /* server id */
    __u32 claim;
    __u8 state;
    __u8 flags;
    __u16 zero[3];
};

/* What a packet needs of an entry. */
struct view {
    __u64 generation;
    struct standing standing;
    struct site site;
    struct mac original;
};

static __always_inline bool is_present(const struct entry *entry, const struct flow_key *key)
{
    return entry->state >= STATE_ASKED && entry->state <= STATE_OWNED && same_key(&entry->key, key);
}

static __always_inline bool is_unchanged(const struct entry *entry, const struct flow_key *key, __u8 state,
                                         __u64 generation)
{
    return entry->state == state && entry->generation == generation && same_key(&entry->key, key);
}

static __always_inline struct standing standing_of(const struct entry *entry)
{
    return (struct standing){
        .deadline = entry->deadline,
        .last_packet = entry->last_packet,
        .reset = entry->reset,
        .owner = {.term = entry->owner.term, .server = entry->owner.server},
        .target = {.term = entry->target.term, .server = entry->target.server},
        .original = entry->original.server,
        .claim = entry->claim,
        .state = entry->state,
        .flags = entry->flags,
    };
}

/* Copies what a packet needs: to a server the site to which it goes, otherwise the owner's. */
static __always_inline bool look(struct flow *flow, const struct flow_key *key, struct view *view, bool to_server)
{
    bool found;

    bpf_spin_lock(&flow->lock);
    found = is_present(&flow->entry, key);
    if (found) {
        view->generation = flow->entry.generation;
        view->standing = standing_of(&flow->entry);
        view->original = flow->entry.original.mac;
        if (to_server && flow->entry.state == STATE_HELD)
            view->site = flow->entry.target;
        else
            view->site = flow->entry.owner;
    }
    bpf_spin_unlock(&flow->lock);
    return found;
}

/* Step 1 of settle: the connection has ended. */
static __always_inline bool has_ended(const struct standing *at, __u64 now)
{
    if ((at->flags & RESET_OWNER) && since(now, at->reset) >= RESET_NS)
        return true;
    return (at->flags & FIN_BOTH) == FIN_BOTH && since(now, at->last_packet) >= CLOSED_NS;
}

/* Step 1 too: an idle flow of the original owner, which needs no entry if it is at the service endpoint. */
static __always_inline bool is_idle(const struct standing *at, __u64 now)
{
    return at->state == STATE_OWNED && at->owner.server == at->original &&
           since(now, at->last_packet) >= IDLE_NS;
}

/* Step 2: the target of a move is dead, or the move takes too long; the owner keeps the flow. */
static __always_inline bool lacks_target(const struct standing *at, __u64 now)
{
    return at->state != STATE_OWNED && !is_alive(&at->target, now);
}

static __always_inline bool is_late(const struct standing *at, __u64 now)
{
    return at->state != STATE_OWNED && at->deadline && now >= at->deadline;
}

/* Step 3: the owner is dead; the flow returns to the original owner. */
static __always_inline bool is_orphan(const struct standing *at, __u8 state, __u64 now)
{
    return at->owner.server != at->original && state != STATE_HELD && !is_alive(&at->owner, now);
}

static __always_inline bool is_due(const struct standing *at, __u64 now)
{
    return has_ended(at, now) || is_idle(at, now) || is_late(at, now) || lacks_target(at, now) ||
           is_orphan(at, at->state, now);
}

/* Removes an entry, if it still has this generation. */
static __always_inline bool end_entry(struct flow *flow, const struct flow_key *key, __u8 state, __u64 generation)
{
    bool unchanged;

    bpf_spin_lock(&flow->lock);
    unchanged = is_unchanged(&flow->entry, key, state, generation);
    if (unchanged)
        flow->entry.state = STATE_ENDED;
    bpf_spin_unlock(&flow->lock);
    if (unchanged)
        bpf_map_delete_elem(&flows, key);
    return unchanged;
}

static __always_inline bool is_at_service(const struct site *site, const struct flow_key *key)
{
    return site->port == key->service_port && same_address(&site->address, &key->service);
}

/* Applies what time has changed. If another CPU changes the entry meanwhile, its change stands. */
static __noinline int settle(struct flow *flow, const struct flow_key *key, __u64 now)
{
    struct view view;
    const struct standing *at = &view.standing;
    __u64 generation = 0;
    __u8 state;
    bool lost, orphan;

    if (!look(flow, key, &view, false))
        return 0;
    state = at->state;
    if (has_ended(at, now) || (is_idle(at, now) && is_at_service(&view.site, key))) {
        end_entry(flow, key, state, view.generation);
        return 0;
    }
    lost = lacks_target(at, now);
    if (lost)
        end_term(&at->target);
    if (lost || is_late(at, now)) {
        generation = new_generation();
        state = STATE_OWNED;
    }
    orphan = is_orphan(at, state, now);
    if (orphan) {
        end_term(&at->owner);
        generation = new_generation();
    }
    if (!generation)
        return 0;
    bpf_spin_lock(&flow->lock);
    if (is_unchanged(&flow->entry, key, at->state, view.generation)) {
        if (orphan)
            flow->entry.owner = flow->entry.original;
        flow->entry.state = STATE_OWNED;
        flow->entry.generation = generation;
        flow->entry.replaced = REPLACED_NONE;
        flow->entry.target = (struct site){};
        flow->entry.deadline = 0;
    }
    bpf_spin_unlock(&flow->lock);
    return 0;
}

/* Looks at the settled entry; false if there is none. */
static __always_inline bool look_settled(struct flow *flow, const struct flow_key *key, struct view *view,
                                         bool to_server, __u64 now)
{
    if (!look(flow, key, view, to_server))
        return false;
    if (!is_due(&view->standing, now))
        return true;
    settle(flow, key, now);
    return look(flow, key, view, to_server);
}

/*
 * Notes a packet of a flow. The time is written without the lock: at worst it is written to an element that was
 * reused meanwhile, whose last packet is as recent. FIN and RST need the lock. `claim`: with FIN_CLAIMED.
 */
static __always_inline void note(struct flow *flow, const struct flow_key *key, __u8 flags, __u32 claim,
                                 __u64 now)
{
    *(volatile __u64 *)&flow->entry.last_packet = now;
    if (!flags)
        return;
    bpf_spin_lock(&flow->lock);
    if (is_present(&flow->entry, key)) {
        if ((flags & RESET_OWNER) && !(flow->entry.flags & RESET_OWNER))
            flow->entry.reset = now;
        if (flags & FIN_CLAIMED)
            flow->entry.claim = claim;
        flow->entry.flags |= flags;
    }
    bpf_spin_unlock(&flow->lock);
}

/* Copies a whole entry; false if there is none. */
static __always_inline bool copy(struct flow *flow, const struct flow_key *key, struct entry *entry)
{
    bool found;

    bpf_spin_lock(&flow->lock);
    found = is_present(&flow->entry, key);
    if (found)
        *entry = flow->entry;
    bpf_spin_unlock(&flow->lock);
    return found;
}

/* Writes a changed copy back, if the entry still has this state and generation. */
static __always_inline bool commit(struct flow *flow, const struct entry *entry, __u8 state, __u64 generation)
{
    bool unchanged;

    bpf_spin_lock(&flow->lock);
    unchanged = is_unchanged(&flow->entry, &entry->key, state, generation);
    if (unchanged) {
        flow->entry.state = entry->state;
        flow->entry.generation = entry->generation;
        flow->entry.replaced = entry->replaced;
        flow->entry.owner = entry->owner;
        flow->entry.target = entry->target;
        flow->entry.deadline = entry->deadline;
    }
    bpf_spin_unlock(&flow->lock);
    return unchanged;
}

enum creation {
    CREATED,
    CREATION_RACED, /* another CPU creates or deletes this flow's entry */
    CREATION_FULL,
};

/* An element that is not filled in yet. Bytes, because a read-only variable cannot contain a lock. */
static const __u8 empty_flow[sizeof(struct flow)] __attribute__((aligned(8)));

static __always_inline enum creation create(const struct entry *entry)
{
    enum creation result = CREATION_RACED;
    struct flow *flow;
    long error = bpf_map_update_elem(&flows, &entry->key, &empty_flow, BPF_NOEXIST);

    if (error == -17) /* EEXIST */
        return CREATION_RACED;
    if (error)
        return CREATION_FULL;
    flow = bpf_map_lookup_elem(&flows, &entry->key);
    if (!flow)
        return CREATION_RACED;
    bpf_spin_lock(&flow->lock);
    flow->entry = *entry;
    bpf_spin_unlock(&flow->lock);
    return CREATED;
}

#endif
