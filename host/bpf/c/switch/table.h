/*
 * The table of flows. Its rules:
 *
 * - An entry changes under its lock, in one step that compares the key, the state and the generation.
 * - A deleted element can be used at once for another flow while another CPU still has a pointer to it.
 *   Therefore the value repeats the key, and the key is compared under the lock.
 * - An entry is created in state STATE_NONE, which every reader treats as absent. Its creator alone fills it in, under
 *   the lock, so that no reader sees half of an insertion.
 * - Before a CPU deletes an entry, it marks the entry STATE_ENDED under the lock, if the entry is still as the CPU has
 *   read it. So only one CPU deletes an entry, and no entry that has changed meanwhile is deleted.
 * - No BPF helper function may be called under a lock. Whether servers are alive is therefore decided on a copy (struct
 *   standing), before the change.
 */
#ifndef SPILLWAY_SWITCH_TABLE_H
#define SPILLWAY_SWITCH_TABLE_H

#include "load.h"

static __always_inline bool is_present(const struct entry *entry, const struct flow_key *key)
{
    return entry->state >= STATE_ASKED && entry->state <= STATE_OWNED && same_key(&entry->key, key);
}

static __always_inline bool is_unchanged(const struct entry *entry, const struct flow_key *key, __u8 state,
                                         __u64 generation)
{
    return entry->state == state && entry->generation == generation && same_key(&entry->key, key);
}

static __always_inline void read_standing(struct standing *at, const struct entry *entry)
{
    at->generation = entry->generation;
    at->deadline = entry->deadline;
    at->last_packet = entry->last_packet;
    at->reset = entry->reset;
    at->owner = (struct party){.term = entry->owner.term, .server = entry->owner.server};
    at->target = (struct party){.term = entry->target.term, .server = entry->target.server};
    at->original = entry->original.server;
    at->claim = entry->claim;
    at->owner_claim = entry->owner_claim;
    at->state = entry->state;
    at->flags = entry->flags;
    at->zero = 0;
}

/* Step 1 of settling (docs/switch.md, Entries): the connection has ended. */
static __always_inline bool has_ended(const struct standing *at, __u64 now)
{
    if ((at->flags & RESET_OWNER) && since(now, at->reset) >= AFTER_RST_NS)
        return true;
    return (at->flags & FIN_BOTH) == FIN_BOTH && since(now, at->last_packet) >= AFTER_FINS_NS;
}

/* Step 1, too: an idle flow of the original owner. Its entry is redundant if the owner is at the service endpoint,
 * which end_entry() checks. */
static __always_inline bool is_idle(const struct standing *at, __u64 now)
{
    return at->state == STATE_OWNED && at->owner.server == at->original &&
           since(now, at->last_packet) >= AFTER_RETURN_NS;
}

/* Step 2, here and in is_late(): the target of a move is not alive, or the move's deadline has passed. The flow returns
 * to its owner. */
static __always_inline bool lacks_target(const struct standing *at, __u64 now)
{
    return at->state != STATE_OWNED && !is_alive(&at->target, now);
}

static __always_inline bool is_late(const struct standing *at, __u64 now)
{
    return at->state != STATE_OWNED && now >= at->deadline;
}

/* Step 3: the owner is not alive. The flow returns to the original owner. */
static __always_inline bool is_orphan(const struct standing *at, __u8 state, __u64 now)
{
    return at->owner.server != at->original && state != STATE_HELD && !is_alive(&at->owner, now);
}

/* Whether settle() may have something to do. A quick answer, no for most packets of flows that have not moved. */
static __always_inline bool may_be_due(const struct standing *at, __u64 now)
{
    return at->state != STATE_OWNED || at->owner.server != at->original || (at->flags & RESET_OWNER) ||
           (at->flags & FIN_BOTH) == FIN_BOTH || since(now, at->last_packet) >= AFTER_RETURN_NS;
}

/* Counts an entry of a service, before it is created; false if the service has as many as it may have. */
static __always_inline bool count_entry(__u32 service, __u64 flows_max)
{
    __u64 *count = bpf_map_lookup_elem(&service_flows, &service);

    if (!count)
        return false;
    if (__sync_fetch_and_add(count, 1) < flows_max)
        return true;
    __sync_fetch_and_add(count, -1);
    return false;
}

static __always_inline void uncount_entry(__u32 service)
{
    __u64 *count = bpf_map_lookup_elem(&service_flows, &service);

    if (count)
        __sync_fetch_and_add(count, -1);
}

/* Removes an entry, if it still has this state and generation and, with `only_at_service`, its owner is at the service
 * endpoint. False otherwise. */
static __always_inline bool end_entry(struct flow *flow, const struct flow_key *key, __u8 state, __u64 generation,
                                      bool only_at_service)
{
    bool ends;
    __u16 service;

    bpf_spin_lock(&flow->lock);
    ends = is_unchanged(&flow->entry, key, state, generation);
    if (ends && only_at_service)
        ends = flow->entry.owner.port == key->service_port &&
               same_address(&flow->entry.owner.address, &key->service);
    service = flow->entry.service;
    if (ends)
        flow->entry.state = STATE_ENDED;
    bpf_spin_unlock(&flow->lock);
    if (!ends)
        return false;
    if (bpf_map_delete_elem(&flows, key) == 0) {
        uncount_entry(service);
        return true;
    }
    /* The kernel could not lock the element's bucket. The entry stays until it is settled or released again. */
    bpf_spin_lock(&flow->lock);
    if (is_unchanged(&flow->entry, key, STATE_ENDED, generation))
        flow->entry.state = state;
    bpf_spin_unlock(&flow->lock);
    return false;
}

/*
 * Settles the entry of which `at` is a copy: ends the entry, or returns its flow. True if the entry may have changed
 * since it was copied, so that the caller must read it again. If another CPU has changed the entry meanwhile, that
 * change stands. Not static, so that the verifier checks it once and not for each call.
 */
__noinline int settle(const struct flow_key *key, const struct standing *at, __u64 now)
{
    __u64 generation = 0;
    struct flow *flow;
    bool ended, lost, orphan;

    if (!key || !at)
        return false;
    ended = has_ended(at, now);
    if (ended || is_idle(at, now)) {
        flow = bpf_map_lookup_elem(&flows, key);
        if (flow && end_entry(flow, key, at->state, at->generation, !ended))
            return true;
    }
    lost = lacks_target(at, now);
    if (lost)
        end_term(&at->target);
    if (lost || is_late(at, now))
        generation = new_generation();
    orphan = is_orphan(at, generation ? STATE_OWNED : at->state, now);
    if (orphan) {
        end_term(&at->owner);
        generation = new_generation();
    }
    if (!generation)
        return false;
    flow = bpf_map_lookup_elem(&flows, key);
    if (!flow)
        return true;
    bpf_spin_lock(&flow->lock);
    if (is_unchanged(&flow->entry, key, at->state, at->generation)) {
        if (orphan)
            flow->entry.owner = flow->entry.original;
        flow->entry.state = STATE_OWNED;
        flow->entry.generation = generation;
        flow->entry.replaced = orphan ? REPLACED_NONE : at->generation;
        flow->entry.target = (struct site){};
        flow->entry.deadline = 0;
    }
    bpf_spin_unlock(&flow->lock);
    return true;
}

/*
 * Notes a packet of a flow. The time is written without the lock: at worst it is written to an element that was reused
 * meanwhile, whose last packet is as recent. FIN and RST need the lock. `claim`: the acknowledgment number of the FIN,
 * if `flags` has FIN_CLAIMED (the client's) or FIN_OWNER.
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
        if (flags & FIN_OWNER)
            flow->entry.owner_claim = claim;
        flow->entry.flags |= flags;
    }
    bpf_spin_unlock(&flow->lock);
}

/* Copies a whole entry; false if the element is not this flow's, or not an entry (any more). */
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

/* Writes a changed copy back, if the entry still has this state and generation. Flags that packets have set meanwhile
 * stay. */
static __always_inline bool commit(struct flow *flow, const struct entry *entry, __u8 state, __u64 generation,
                                   bool has_moved)
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
        /* The RST of a former owner says nothing about the connection of the new one. */
        if (has_moved)
            flow->entry.flags &= ~RESET_OWNER;
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

static __always_inline enum creation create(const struct entry *entry, __u64 flows_max)
{
    struct flow *flow = NULL;
    long error;

    if (!count_entry(entry->service, flows_max))
        return CREATION_FULL;
    error = bpf_map_update_elem(&flows, &entry->key, &empty_flow, BPF_NOEXIST);
    if (!error)
        flow = bpf_map_lookup_elem(&flows, &entry->key);
    if (!flow) {
        uncount_entry(entry->service);
        return !error || error == -17 /* EEXIST */ ? CREATION_RACED : CREATION_FULL;
    }
    bpf_spin_lock(&flow->lock);
    flow->entry = *entry;
    bpf_spin_unlock(&flow->lock);
    return CREATED;
}

#endif
