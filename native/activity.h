/* When a process has work under way, as its own calls tell it: no command is given to the GPU for that.
 *
 * Each launch has a number, and each stream the number of its latest launch that is not known to have ended. A call that
 * returns after work has ended (of a stream, an event, a context, a host function) takes the numbers away that it covers;
 * once there is none, nothing is under way. No lock is held: a launch writes its number before it says busy, and who says
 * idle looks at the numbers again afterwards.
 *
 * What is not known errs towards busy, for LAPSES at most: a stream that waits for another one covers what was recorded
 * then; a stream that waits for one that waits does not. A program that synchronizes by reading memory is not seen to.
 */
#ifndef GPUSHARE_ACTIVITY_H
#define GPUSHARE_ACTIVITY_H

#include "process.h"

enum { LEGACY = 1, PER_THREAD = 2, OTHERS = STREAMS };

/* A stream's handle; of the per-thread one, which is another in each thread, the thread's address. */
static inline uintptr_t key_of(CUstream handle)
{
    uintptr_t key = (uintptr_t)handle;

    if (key == 0)
        return LEGACY;
    return key == PER_THREAD ? (uintptr_t)__builtin_thread_pointer() | PER_THREAD : key;
}

static inline struct stream *stream_of(CUstream handle)
{
    const uintptr_t key = key_of(handle);
    unsigned int at = (unsigned int)((key * 0x9E3779B97F4A7C15u) >> 58);

    for (unsigned int tries = 0; tries < STREAMS; tries++, at = (at + 1) % STREAMS) {
        struct stream *stream = &process->streams[at];
        uintptr_t known = atomic_load_explicit(&stream->key, memory_order_relaxed);

        if (known == key || (known == 0 && (atomic_compare_exchange_strong(&stream->key, &known, key) || known == key)))
            return stream;
    }
    return &process->streams[OTHERS];
}

static inline uint64_t mark_of(const struct stream *stream, uint64_t number)
{
    return number << 8 | (uint64_t)(stream - process->streams);
}

/* The page has one writer, this process; of its threads the last one counts. */
static inline void put(uint64_t *place, uint64_t value)
{
    __atomic_store_n(place, value, __ATOMIC_RELAXED);
}

static void set_busy(nanoseconds at)
{
    uint64_t word = atomic_load(&pages->busy.word);

    while ((word & 1) == 0)
        if (atomic_compare_exchange_weak(&pages->busy.word, &word, ((word >> 1) + 1) << 1 | 1)) {
            const nanoseconds since = now();
            atomic_store(&process->renewed, at);
            atomic_store(&process->active_since, since);
            put(&pages->own.activity.active_since, (uint64_t)since);
            return;
        }
}

static void renew(nanoseconds at)
{
    uint64_t word = atomic_load(&pages->busy.word);

    atomic_store(&process->renewed, at);
    if (word & 1)
        atomic_compare_exchange_strong(&pages->busy.word, &word, ((word >> 1) + 1) << 1 | 1);
}

/* A launch is about to be made in the stream. */
static inline void launch_begins(struct stream *stream)
{
    const nanoseconds at = about_now();
    const uint64_t number = atomic_fetch_add(&process->numbers, 1) + 1;

    atomic_store_explicit(&stream->at, at, memory_order_relaxed);
    if (atomic_exchange(&stream->pending, number) == 0)
        atomic_fetch_add(&process->pending, 1);
    if ((atomic_load(&pages->busy.word) & 1) == 0)
        set_busy(at);
    else if (at - atomic_load_explicit(&process->renewed, memory_order_relaxed) >= RENEWED)
        renew(at);
    put(&pages->own.activity.launches, atomic_fetch_add_explicit(&process->launches, 1, memory_order_relaxed) + 1);
    put(&pages->own.activity.last_launch, (uint64_t)at);
}

static bool is_anything_under_way(void)
{
    if (atomic_load(&process->pending) <= 0)
        return false;
    const nanoseconds at = about_now();
    for (unsigned int i = 0; i <= OTHERS; i++) {
        if (atomic_load(&process->streams[i].pending) == 0)
            continue;
        if (at - atomic_load_explicit(&process->streams[i].at, memory_order_relaxed) < LAPSES)
            return true;
    }
    return false;
}

static void say_idle(void)
{
    uint64_t word = atomic_load(&pages->busy.word);

    if ((word & 1) == 0 || is_anything_under_way())
        return;
    while ((word & 1) != 0 && !atomic_compare_exchange_weak(&pages->busy.word, &word, word & ~(uint64_t)1))
        ;
    const nanoseconds since = atomic_exchange(&process->active_since, 0);
    if (since != 0) {
        const uint64_t period = (uint64_t)(now() - since);
        put(&pages->own.activity.active_since, 0);
        put(&pages->own.activity.active, atomic_fetch_add(&process->active, period) + period);
    }
    if (is_anything_under_way())
        set_busy(about_now());
}

static void drop_number(struct stream *stream, uint64_t number)
{
    if (number != 0 && atomic_compare_exchange_strong(&stream->pending, &number, 0))
        atomic_fetch_sub(&process->pending, 1);
}

/* What the launches of a stream had come to, and those that it waits for, before a call that waits for them. */
struct ending {
    struct stream *stream;
    uint64_t number, covers[COVERED];
};

static inline struct ending ending_of(CUstream handle)
{
    struct ending ending = {stream_of(handle), 0, {0}};

    ending.number = atomic_load(&ending.stream->pending);
    for (int i = 0; i < COVERED; i++)
        ending.covers[i] = atomic_load_explicit(&ending.stream->covers[i], memory_order_relaxed);
    return ending;
}

static void drop_mark(uint64_t mark)
{
    if (mark != 0 && (mark & 0xff) <= OTHERS)
        drop_number(&process->streams[mark & 0xff], mark >> 8);
}

static void has_ended(const struct ending *ending)
{
    drop_number(ending->stream, ending->number);
    for (int i = 0; i < COVERED; i++)
        drop_mark(ending->covers[i]);
    say_idle();
}

/* All launches up to `number`: of a context that was waited for. */
static void all_have_ended(uint64_t number)
{
    for (unsigned int i = 0; i <= OTHERS; i++) {
        uint64_t pending = atomic_load(&process->streams[i].pending);
        if (pending != 0 && pending <= number)
            drop_number(&process->streams[i], pending);
    }
    say_idle();
}

/* Events: what had been launched in their stream when they were recorded. */

static unsigned int place_of(CUevent event)
{
    return (unsigned int)(((uintptr_t)event * 0x9E3779B97F4A7C15u) >> 57);
}

static void event_recorded(CUevent event, CUstream handle)
{
    struct stream *stream = stream_of(handle);
    const uint64_t number = atomic_load(&stream->pending);
    const unsigned int place = place_of(event);

    atomic_store(&process->events[place].mark, 0);
    atomic_store(&process->events[place].event, (uintptr_t)event);
    atomic_store(&process->events[place].mark, mark_of(stream, number)); /* of number 0 too: the stream covers others */
}

/* 0: not known. */
static uint64_t mark_of_event(CUevent event)
{
    const unsigned int place = place_of(event);
    const uint64_t mark = atomic_load(&process->events[place].mark);
    const bool same = atomic_load(&process->events[place].event) == (uintptr_t)event &&
                      atomic_load(&process->events[place].mark) == mark;

    return same ? mark : 0;
}

/* The launches that a mark names, and what their stream waits for: `ending_of` for an event. */
static struct ending ending_of_event(CUevent event)
{
    const uint64_t mark = mark_of_event(event);
    struct ending ending = {&process->streams[OTHERS], 0, {0}};

    if ((mark & 0xff) < OTHERS) {
        ending.stream = &process->streams[mark & 0xff];
        ending.number = mark >> 8;
        for (int i = 0; mark != 0 && i < COVERED; i++)
            ending.covers[i] = atomic_load_explicit(&ending.stream->covers[i], memory_order_relaxed);
    }
    return ending;
}

static void stream_waits(CUstream handle, CUevent event)
{
    const uint64_t mark = mark_of_event(event);
    struct stream *stream = stream_of(handle);

    if (mark >> 8 == 0 || (mark & 0xff) == (uint64_t)(stream - process->streams))
        return;
    const uint32_t place = atomic_fetch_add(&stream->next_cover, 1) % COVERED;
    atomic_store(&stream->covers[place], mark);
}

#endif
