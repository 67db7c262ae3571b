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
 * - An owned entry without flags, as most are, is read without the lock: the lock costs more than all else that a packet
 *   does with an entry. A change stores generation 0 first and the new generation last, and a reader takes what it has read
 *   only if state and generation are the same before and after. No owned entry returns to an earlier generation: each change
 *   to `owned` has a new one. A deleted element is STATE_ENDED, or has another generation. Otherwise the reader takes the
 *   lock. (`last_packet` may change meanwhile. Flags change without a new generation; with them, the reader takes the lock.)
 * - No BPF helper function may be called under a lock. Whether servers are alive is therefore decided on a copy (struct
 *   standing), before the change.
 */
#ifndef SPILLWAY_SWITCH_TABLE_H
#define SPILLWAY_SWITCH_TABLE_H

#include "load.h"

static __always_inline bool is_present(const struct flow *flow, const struct flow_key *key)
{
    return flow->state >= STATE_ASKED && flow->state <= STATE_OWNED && same_key(&flow->key, key);
}

static __always_inline bool is_unchanged(const struct flow *flow, const struct flow_key *key, __u8 state,
                                         __u64 generation)
{
    return flow->state == state && flow->generation == generation && same_key(&flow->key, key);
}

/* Orders accesses to memory before and after it, where the processor would reorder two reads or two writes. */
static __always_inline void order(void)
{
#ifdef __TARGET_ARCH_x86
    barrier(); /* for the compiler; the processor keeps the order */
#else
    __u64 word = 0;

    __sync_fetch_and_add(&word, 1);
    barrier_var(word);
#endif
}

/* Begins to read an entry without its lock; false if the caller must take the lock. */
static __always_inline bool begin_reading(const struct flow *flow, const struct flow_key *key, __u64 *generation)
{
    *generation = *(volatile const __u64 *)&flow->generation;
    order();
    return *generation && *(volatile const __u8 *)&flow->state == STATE_OWNED &&
           !*(volatile const __u8 *)&flow->flags && same_key(&flow->key, key);
}

/* Whether the entry was the same while it was read. The state first: a reused element has another generation by the time it
 * is owned again. */
static __always_inline bool end_reading(const struct flow *flow, __u64 generation)
{
    __u8 state;

    order();
    state = *(volatile const __u8 *)&flow->state;
    order();
    return state == STATE_OWNED && *(volatile const __u64 *)&flow->generation == generation;
}

/* Encloses, under the lock, a change of what is read without the lock. */
static __always_inline void begin_change(struct flow *flow)
{
    *(volatile __u64 *)&flow->generation = 0;
    order();
}

static __always_inline void end_change(struct flow *flow, __u64 generation)
{
    order();
    *(volatile __u64 *)&flow->generation = generation;
}

/* The standing of an entry that is read without the lock. */
static __always_inline void read_owned_standing(struct standing *at, const struct flow *flow, __u64 generation)
{
    *at = (struct standing){
        .generation = generation,
        .last_packet = *(volatile const __u64 *)&flow->last_packet,
        .owner = {.term = flow->owner_term, .server = flow->owner},
        .original = flow->original,
        .state = STATE_OWNED,
    };
}

/* Reads from the last cache line of an entry only what its state needs. */
static __always_inline void read_standing(struct standing *at, const struct flow *flow)
{
    at->generation = flow->generation;
    at->last_packet = flow->last_packet;
    at->owner = (struct party){.term = flow->owner_term, .server = flow->owner};
    at->original = flow->original;
    at->owner_claim = flow->owner_claim;
    at->state = flow->state;
    at->flags = flow->flags;
    at->zero = 0;
    at->deadline = 0;
    at->target = (struct party){};
    if (flow->state != STATE_OWNED) {
        at->deadline = flow->deadline;
        at->target = (struct party){.term = flow->target_term, .server = flow->target};
    }
    at->reset = flow->flags & RESET_OWNER ? flow->reset : 0;
    at->claim = flow->flags & FIN_CLAIMED ? flow->claim : 0;
}

static __always_inline void read_owner(const struct flow *flow, struct site *site)
{
    site->address = flow->owner_address;
    site->port = flow->owner_port;
    site->mac = flow->owner_mac;
    site->server = flow->owner;
    site->zero = 0;
    site->term = flow->owner_term;
}

static __always_inline void write_owner(struct flow *flow, const struct site *site)
{
    flow->owner_address = site->address;
    flow->owner_port = site->port;
    flow->owner_mac = site->mac;
    flow->owner = site->server;
    flow->owner_term = site->term;
}

static __always_inline void read_target(const struct flow *flow, struct site *site)
{
    site->address = flow->target_address;
    site->port = flow->target_port;
    site->mac = flow->target_mac;
    site->server = flow->target;
    site->zero = 0;
    site->term = flow->target_term;
}

static __always_inline void write_target(struct flow *flow, const struct site *site)
{
    flow->target_address = site->address;
    flow->target_port = site->port;
    flow->target_mac = site->mac;
    flow->target = site->server;
    flow->target_term = site->term;
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

/* Whether settle() may have something to do. Without a call, because most packets of flows have nothing to settle. */
static __always_inline bool may_be_due(const struct standing *at, __u64 now)
{
    return at->state != STATE_OWNED || (at->flags & RESET_OWNER) || (at->flags & FIN_BOTH) == FIN_BOTH ||
           since(now, at->last_packet) >= AFTER_RETURN_NS || is_orphan(at, STATE_OWNED, now);
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
    ends = is_unchanged(flow, key, state, generation);
    if (ends && only_at_service)
        ends = flow->owner_port == key->service_port && same_address(&flow->owner_address, &key->service);
    service = flow->service;
    if (ends)
        flow->state = STATE_ENDED;
    bpf_spin_unlock(&flow->lock);
    if (!ends)
        return false;
    if (bpf_map_delete_elem(&flows, key) == 0) {
        uncount_entry(service);
        return true;
    }
    /* The kernel could not lock the element's bucket. The entry stays until it is settled or released again. */
    bpf_spin_lock(&flow->lock);
    if (is_unchanged(flow, key, STATE_ENDED, generation))
        flow->state = state;
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
    if (is_unchanged(flow, key, at->state, at->generation)) {
        begin_change(flow);
        if (orphan) {
            flow->owner_address = key->service;
            flow->owner_port = key->service_port;
            flow->owner_mac = flow->original_mac;
            flow->owner = flow->original;
            flow->owner_term = 0;
        }
        flow->state = STATE_OWNED;
        flow->repeat_generation = orphan ? REPEAT_NONE : at->generation;
        end_change(flow, generation);
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
    *(volatile __u64 *)&flow->last_packet = now;
    if (!flags)
        return;
    bpf_spin_lock(&flow->lock);
    if (is_present(flow, key)) {
        if ((flags & RESET_OWNER) && !(flow->flags & RESET_OWNER))
            flow->reset = now;
        if (flags & FIN_CLAIMED)
            flow->claim = claim;
        if (flags & FIN_OWNER)
            flow->owner_claim = claim;
        flow->flags |= flags;
    }
    bpf_spin_unlock(&flow->lock);
}

static __always_inline void clear_target(struct entry *entry)
{
    entry->target = (struct site){};
    entry->deadline = 0;
}

/* Copies a whole entry, and its standing; false if the element is not this flow's, or not an entry (any more). */
static __always_inline bool copy(struct flow *flow, const struct flow_key *key, struct entry *entry,
                                 struct standing *at)
{
    __u64 seen;
    bool found;

    entry->key = *key;
    if (begin_reading(flow, key, &seen)) {
        read_owned_standing(at, flow, seen);
        read_owner(flow, &entry->owner);
        clear_target(entry);
        entry->state = STATE_OWNED;
        entry->flags = 0;
        entry->service = flow->service;
        entry->generation = seen;
        entry->repeat_generation = flow->repeat_generation;
        entry->original.server = flow->original;
        entry->original.mac = flow->original_mac;
        if (end_reading(flow, seen))
            return true;
    }
    bpf_spin_lock(&flow->lock);
    found = is_present(flow, key);
    if (found) {
        read_standing(at, flow);
        read_owner(flow, &entry->owner);
        /* After a return to the owner the element still has the former target. */
        if (flow->state == STATE_OWNED)
            clear_target(entry);
        else
            read_target(flow, &entry->target);
        entry->state = flow->state;
        entry->flags = flow->flags;
        entry->service = flow->service;
        entry->generation = flow->generation;
        entry->repeat_generation = flow->repeat_generation;
        entry->original.server = flow->original;
        entry->original.mac = flow->original_mac;
        entry->deadline = flow->deadline;
    }
    bpf_spin_unlock(&flow->lock);
    return found;
}

/* Writes a changed copy back, if the entry still has this state and generation; the owner only with `has_moved`. Flags that
 * packets have set meanwhile stay. */
static __always_inline bool commit(struct flow *flow, const struct entry *entry, __u8 state, __u64 generation,
                                   bool has_moved)
{
    bool unchanged;

    bpf_spin_lock(&flow->lock);
    unchanged = is_unchanged(flow, &entry->key, state, generation);
    if (unchanged) {
        begin_change(flow);
        flow->state = entry->state;
        flow->repeat_generation = entry->repeat_generation;
        flow->deadline = entry->deadline;
        write_target(flow, &entry->target);
        /* The RST of a former owner says nothing about the connection of the new one. */
        if (has_moved) {
            write_owner(flow, &entry->owner);
            flow->flags &= ~RESET_OWNER;
        }
        end_change(flow, entry->generation);
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

static __always_inline enum creation create(const struct entry *entry, __u64 flows_max, __u64 last_packet)
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
    flow->key = entry->key;
    flow->state = entry->state;
    flow->service = entry->service;
    flow->last_packet = last_packet;
    flow->generation = entry->generation;
    flow->repeat_generation = entry->repeat_generation;
    flow->deadline = entry->deadline;
    flow->original = entry->owner.server;
    flow->original_mac = entry->owner.mac;
    write_owner(flow, &entry->owner);
    write_target(flow, &entry->target);
    bpf_spin_unlock(&flow->lock);
    return CREATED;
}

#endif
