/* Replay window of 64 sequence numbers for each sender. */
#ifndef SPILLWAY_SWITCH_REPLAY_H
#define SPILLWAY_SWITCH_REPLAY_H

#include "maps.h"

#define WINDOW_BITS 64

/* Records a sequence number; false if it has arrived before or is too old. */
static __always_inline bool record(struct owner *owner, __u64 sequence)
{
    bool is_new = true;
    __u64 distance, bit;

    bpf_spin_lock(&owner->lock);
    if (sequence > owner->highest) {
        distance = sequence - owner->highest;
        owner->window = distance < WINDOW_BITS ? owner->window << distance | 1 : 1;
        owner->highest = sequence;
    } else {
        distance = owner->highest - sequence;
        bit = 1ULL << (distance & (WINDOW_BITS - 1));
        is_new = distance < WINDOW_BITS && !(owner->window & bit);
        if (is_new)
            owner->window |= bit;
    }
    bpf_spin_unlock(&owner->lock);
    return is_new;
}

#endif
