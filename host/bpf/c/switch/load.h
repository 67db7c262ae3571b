/* Owners: who is alive, and the choice of the least loaded one. */
#ifndef SPILLWAY_SWITCH_LOAD_H
#define SPILLWAY_SWITCH_LOAD_H

#include "maps.h"

/* The clock of silence at a time, and the owner timeout, in ns. */
struct liveness {
    __u64 clock;
    __u64 timeout;
};

static __always_inline __u64 gap(__u64 now, __u64 last)
{
    __u64 passed = since(now, last);

    return passed < GAP_MAX_NS ? passed : GAP_MAX_NS;
}

static __always_inline struct liveness liveness_at(__u64 now)
{
    struct liveness liveness = {};
    struct settings *config = only(&settings);
    struct shared *state = only(&shared);

    if (!config || !state)
        return liveness;
    /* Read without the lock, for which all CPUs would compete with each packet. advance_silence_clock() writes `clock`
     * last, and here it is read first: with an old clock the result is too small, but no gap counts twice. (If a CPU
     * reorders the two reads, one gap counts twice: the result is at most GAP_MAX_NS too large.) */
    liveness.clock = *(volatile __u64 *)&state->clock;
    liveness.clock += gap(now, *(volatile __u64 *)&state->last_heartbeat);
    liveness.timeout = config->owner_timeout;
    return liveness;
}

static __always_inline bool is_silent(const struct liveness *at, const struct owner *owner)
{
    return since(at->clock, owner->clock) > at->timeout;
}

/*
 * Advances the clock of silence at a valid heartbeat or hello of any owner, and returns it. The clock advances by at
 * most GAP_MAX_NS from one call to the next, so that a pause of the switch, in which no heartbeat arrives, makes no
 * owner silent.
 */
static __always_inline __u64 advance_silence_clock(__u64 now)
{
    struct shared *state = only(&shared);
    __u64 last, clock;

    if (!state)
        return 0;
    bpf_spin_lock(&state->lock);
    last = state->is_running ? state->last_heartbeat : now;
    clock = state->clock + gap(now, last);
    *(volatile __u64 *)&state->last_heartbeat = now > last ? now : last;
    *(volatile __u64 *)&state->clock = clock;
    state->is_running = 1;
    bpf_spin_unlock(&state->lock);
    return clock;
}

static __always_inline struct owner *owner_of(__u32 id)
{
    return bpf_map_lookup_elem(&owners, &id);
}

static __always_inline bool is_alive(const struct party *party, __u64 now)
{
    struct owner *owner = owner_of(party->server);
    struct liveness at = liveness_at(now);

    return owner && owner->term && owner->term == party->term && !is_silent(&at, owner);
}

/* Ends the term of an owner that is not alive, unless the owner has another term already. The answer to the owner's next
 * heartbeat is *no owner*, which shows the owner that it has lost flows. */
static __always_inline void end_term(const struct party *party)
{
    struct owner *owner = owner_of(party->server);

    if (!owner)
        return;
    bpf_spin_lock(&owner->lock);
    if (owner->term == party->term)
        owner->term = 0;
    bpf_spin_unlock(&owner->lock);
}

/* Takes one of a target's free places. Two CPUs may take the last one: the target then refuses with *full*. */
static __always_inline void take_place(struct owner *owner)
{
    bpf_spin_lock(&owner->lock);
    if (owner->free_places)
        owner->free_places--;
    bpf_spin_unlock(&owner->lock);
}

/* The search for the least loaded owner. */
struct choice {
    const struct place *place; /* of the service */
    struct liveness at;
    __u64 load;
    __u64 weight;
    __u32 first; /* id at which the scan begins */
    __u32 last;  /* highest id; after it the scan continues at 1 */
    __u32 sender;
    __u32 service;
    __u32 id; /* that is compared: here, because each copy of compare_owner() would need a place on the stack */
    __u32 best; /* server id; 0: none found */
};

/* The owner becomes `best` if it has room and less load than the best so far. Its server is looked at last, because most
 * owners are not better. `position`: its place in the scan, from 0 on. */
static __always_inline void compare_owner(struct choice *choice, __u32 position)
{
    __u32 id = choice->first + position;
    struct server *server;
    struct owner *owner;
    __u64 load, weight;

    if (position >= choice->last)
        return;
    if (id > choice->last)
        id -= choice->last;
    choice->id = id;
    owner = bpf_map_lookup_elem(&owners, &choice->id);
    if (!owner || id == choice->sender || !owner->term || owner->service != choice->service ||
        !owner->free_places || !owner->weight || is_silent(&choice->at, owner))
        return;
    load = owner->load;
    weight = owner->weight;
    if (choice->best && load * choice->weight >= choice->load * weight)
        return;
    server = bpf_map_lookup_elem(&servers, &choice->id);
    if (!server || !server->is_configured || !may_own_at(choice->place, server->port))
        return;
    choice->best = id;
    choice->load = load;
    choice->weight = weight;
}

/* Owners that one call of compare_owners() compares: a call takes longer than the comparison of two owners. */
#define OWNERS_AT_ONCE 8

/* Called by bpf_loop() for each group of OWNERS_AT_ONCE ids. */
static long compare_owners(__u64 group, struct choice *choice)
{
#pragma clang loop unroll(full)
    for (__u32 at = 0; at < OWNERS_AT_ONCE; at++) {
        /* Keeps the compiler from computing the addresses for all copies first: they would fill the stack. */
        barrier_var(choice);
        barrier_var(group);
        compare_owner(choice, (__u32)group * OWNERS_AT_ONCE + at);
    }
    return 0;
}

/*
 * The id of the least loaded live owner of a service, other than the sender, that has room; 0 without such an owner.
 * The scan begins at another id after each choice, so that ties rotate.
 */
__noinline __u32 least_loaded(const struct place *place, __u32 sender, __u64 now)
{
    struct settings *config = only(&settings);
    struct shared *state = only(&shared);
    struct choice choice = {.place = place, .sender = sender};

    if (!place || !config || !state || !config->server_last)
        return 0;
    choice.at = liveness_at(now);
    choice.service = place->number;
    choice.last = config->server_last;
    choice.first = 1 + state->rotation % (SERVERS_MAX - 1);
    if (choice.first > choice.last)
        choice.first = 1;
    /* A loop would need CAP_PERFMON: without it the verifier does not track a loop's counter. */
    bpf_loop((choice.last + OWNERS_AT_ONCE - 1) / OWNERS_AT_ONCE, compare_owners, &choice, 0);
    return choice.best;
}

static __always_inline void rotate(void)
{
    struct shared *state = only(&shared);

    if (state)
        __sync_fetch_and_add(&state->rotation, 1);
}

/* The search for the n-th owner of a service. */
struct position {
    __u64 remaining;
    __u32 service;
    __u32 found;
    bool is_found;
};

/* Called by bpf_loop() for each id: counts owners of the service down to the one that is wanted. 1 ends the loop. */
static long count_owner(__u64 index, struct position *position)
{
    __u32 id = index;
    struct owner *owner = bpf_map_lookup_elem(&owners, &id);

    if (!owner || !owner->term || owner->service != position->service)
        return 0;
    if (position->remaining--)
        return 0;
    position->found = id;
    position->is_found = true;
    return 1;
}

/* The id of the n-th owner of a service, counted from 0; SERVERS_MAX if there are fewer. */
__noinline __u32 nth_owner(__u32 service, __u64 n)
{
    struct position position = {.remaining = n, .service = service};

    if (n < SERVERS_MAX)
        bpf_loop(SERVERS_MAX, count_owner, &position, 0);
    return position.is_found ? position.found : SERVERS_MAX;
}

#endif
