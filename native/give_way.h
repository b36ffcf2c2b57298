/* How best effort gives way: when a launch may be made, and what is kept under way.
 *
 * While a protected client was active of LATELY, a launch waits until none is busy, and as long as more than SHORT_WORK is
 * under way by what its kernels have taken before. A kernel of which that is not known is alone.
 *
 * Otherwise events tell what is under way, one after each launch or, of short ones, each BATCH or EVENT_EVERY. So many of
 * them may be under way that the oldest takes about BOUND: it is seen how long it took, and half as many or twice as many
 * may be next. One launch may still take longer, and is alone then.
 *
 * The floor: of the time in which a launch waited, `floor_percent` is owed; what has run is taken from that, and no more
 * than MOST_RUN of it is remembered. So who got its part in the gaps never breaks in, and who gets none does.
 *
 * The gate is held from the first look until the event after the launch: threads launch one after the other. Each wait
 * ends by itself; what took too long, and what the driver refuses, goes as it would without us.
 */
#ifndef GPUSHARE_GIVE_WAY_H
#define GPUSHARE_GIVE_WAY_H

#include "activity.h"
#include "ask.h"
#include "driver.h"
#include "part.h"

#define LATELY (100 * MILLISECONDS)
#define BOUND (2 * MILLISECONDS)
#define SHORT_WORK (100 * MICROSECONDS)
#define BRIEF (250 * MICROSECONDS)
#define NOT_KNOWN (1 * SECONDS)
#define SLOW_LAUNCH (200 * MICROSECONDS) /* of one that loads its kernel first: what it takes is not the kernel's */
#define EVENT_EVERY (200 * MICROSECONDS)
#define GATE_PATIENCE (5 * SECONDS)
#define OWN_PATIENCE (200 * MILLISECONDS)
#define MOST_RUN (50 * MILLISECONDS)
#define MOST_OWED (10 * MILLISECONDS)

enum { BATCH = 8, FIRST_WINDOW = 4, BRIEF_ONES = 4 };

enum kind { KERNEL, COOPERATIVE, GRAPH, MOVE };
enum { NOT_EXCHANGED = -1 };

struct launch {
    CUstream handle;       /* never 0 */
    CUstream to;           /* where it goes: what the program gave, or a stream beside it */
    struct stream *stream; /* NULL: nothing is done about it */
    enum kind kind;
    const void *function;
    uint64_t key;
    bool held, lately;
    int after; /* as in `under_way` */
    int mode;  /* of captures, that the thread had */
};

static bool hold_gate(nanoseconds until)
{
    int is_free = 0;

    if (atomic_compare_exchange_strong(&process->gate, &is_free, 1))
        return true;
    while (atomic_exchange(&process->gate, 2) != 0) {
        const nanoseconds left = until - now();
        struct timespec time = {left / SECONDS, left % SECONDS};

        if (left <= 0)
            return false;
        syscall(SYS_futex, &process->gate, 128 /* FUTEX_WAIT_PRIVATE */, 2, &time, NULL, 0);
    }
    return true;
}

static void leave_gate(void)
{
    if (atomic_exchange(&process->gate, 0) == 2)
        syscall(SYS_futex, &process->gate, 129 /* FUTEX_WAKE_PRIVATE */, 1, NULL, NULL, 0);
}

static void count(uint64_t *counter, uint64_t more)
{
    put(counter, *counter + more);
}

/* The first that is busy, by its place; -1: none is. Notes when one was active. */
static int look(nanoseconds at)
{
    int busy = -1;

    for (unsigned int i = 0; i < process->protected; i++) {
        const uint64_t word = atomic_load_explicit(&pages->others[i].word, memory_order_acquire);
        if (pages->others[i].magic != BUSY_MAGIC)
            continue;
        if (word != process->words[i]) {
            process->words[i] = word;
            process->changed[i] = at;
            process->seen_active = at;
        }
        if ((word & 1) == 0 || at - process->changed[i] >= LAPSES)
            continue;
        process->seen_active = at;
        busy = busy < 0 ? (int)i : busy;
    }
    return busy;
}

static bool was_active(nanoseconds at)
{
    return process->seen_active != 0 && at - process->seen_active < LATELY;
}

static void pause_after(nanoseconds waited, nanoseconds spin, nanoseconds sleep)
{
    if (waited < spin)
        breathe();
    else
        sleep_for(sleep);
}

static void charge(nanoseconds ran)
{
    process->credit -= ran < MOST_RUN ? ran : MOST_RUN;
    if (process->credit < -MOST_RUN)
        process->credit = -MOST_RUN;
}

static void write_name(char name[KERNEL_NAME], enum kind kind, const void *function)
{
    const char *text = NULL;
    CUfunction handle;

    memcpy(&handle, &function, sizeof handle);
    if (kind == GRAPH)
        text = "(graph)";
    else if (kind == MOVE)
        text = "(copy or fill)";
    else if ((driver_function_name == NULL || driver_function_name(&text, handle) != CUDA_SUCCESS) &&
             (driver_kernel_name == NULL || driver_kernel_name(&text, handle) != CUDA_SUCCESS))
        text = NULL;
    memset(name, 0, KERNEL_NAME);
    for (int i = 0; text != NULL && i < KERNEL_NAME - 1 && text[i] != '\0'; i++)
        name[i] = text[i];
}

static void note_duration(enum kind kind, const void *function, nanoseconds duration)
{
    struct activity *activity = &pages->own.activity;
    int shortest = 0;

    for (int i = 0; i < MOST_LONGEST; i++) {
        if (process->longest[i] == function && activity->longest[i].duration != 0) {
            if ((uint64_t)duration > activity->longest[i].duration)
                put(&activity->longest[i].duration, (uint64_t)duration);
            return;
        }
        if (activity->longest[i].duration < activity->longest[shortest].duration)
            shortest = i;
    }
    if ((uint64_t)duration <= activity->longest[shortest].duration)
        return;
    put(&activity->longest[shortest].duration, 0);
    write_name(activity->longest[shortest].name, kind, function);
    put(&activity->longest[shortest].duration, (uint64_t)duration);
    process->longest[shortest] = function;
}

/* How long what the key names takes, by what it took. */

static unsigned int place_of_key(uint64_t key)
{
    return (unsigned int)((key * 0x9E3779B97F4A7C15u) >> 56);
}

static nanoseconds expected_of(uint64_t key)
{
    const unsigned int place = place_of_key(key);

    return process->durations[place].key == key && key != 0 ? process->durations[place].duration : NOT_KNOWN;
}

static void learn(uint64_t key, nanoseconds duration)
{
    const unsigned int place = place_of_key(key);
    const nanoseconds before = process->durations[place].key == key ? process->durations[place].duration : 0;

    process->durations[place].key = key;
    process->durations[place].duration = duration > before ? duration : (7 * before + duration) / 8;
}

/* Of an entry that has ended; negative: it is not known. */
static nanoseconds duration_of(const struct under_way *entry)
{
    float milliseconds = 0;
    CUevent began = entry->after >= 0 ? process->ring[entry->after].ended : entry->began;

    if (entry->after == NOT_TIMED || driver_event_elapsed == NULL ||
        driver_event_elapsed(&milliseconds, began, entry->ended) != CUDA_SUCCESS || !(milliseconds >= 0) ||
        milliseconds > 1e6f)
        return -1;
    return (nanoseconds)((double)milliseconds * 1e6);
}

/* The oldest one under way has ended, or is not waited for any longer. */
static void let_go(bool ended)
{
    const struct under_way *oldest = &process->ring[process->first];
    const nanoseconds duration = ended ? duration_of(oldest) : now() - oldest->at;

    process->first = (process->first + 1) % UNDER_WAY;
    process->count--;
    process->expected -= oldest->expected;
    if (duration >= 0)
        process->brief = duration <= BRIEF ? process->brief + 1 : 0;
    if (!oldest->is_alone || duration < 0)
        return;
    charge(duration);
    if (oldest->key != 0)
        learn(oldest->key, duration);
    note_duration(oldest->kind, oldest->function, duration);
}

static bool has_oldest_ended(void)
{
    return driver_event_query(process->ring[process->first].ended) != NOT_READY;
}

/* The oldest one had been under way for so long, or less. */
static void adapt_window(const struct under_way *oldest, nanoseconds took)
{
    if (took > BOUND + BOUND / 2)
        process->window = process->window > 1 ? process->window / 2 : 1;
    else if (took < BOUND / 2 && oldest->ahead + 1 >= process->window)
        process->window = process->window < UNDER_WAY / 2 ? 2 * process->window : UNDER_WAY;
}

/* Waits until there is room for one launch more. The GPU is asked only where there may be none. */
static void wait_for_room(bool lately)
{
    const nanoseconds began = now(), spin = (lately ? 200 : 50) * MICROSECONDS;
    nanoseconds at = began;
    bool waited = false, asked = false;

    while (process->count > 0) {
        const nanoseconds took = at - process->ring[process->first].at;
        const bool room = lately ? process->expected <= SHORT_WORK && process->count < UNDER_WAY - 1
                                 : process->count < process->window && took <= BOUND;
        if (room && (lately || (took < BOUND / 2 && !asked)))
            return;
        asked = true; /* and then as far as it has come: the next launches need not ask */
        if (has_oldest_ended()) {
            if (!lately && (waited || took < BOUND / 2))
                adapt_window(&process->ring[process->first], took);
            let_go(true);
            waited = false;
        } else if (room)
            return;
        else if (at - began >= OWN_PATIENCE)
            let_go(false);
        else {
            pause_after(at - began, spin, 30 * MICROSECONDS);
            waited = true;
        }
        at = now();
    }
}

static void wait_for_protected(void)
{
    struct activity *activity = &pages->own.activity;
    const unsigned int floor = process->floor_percent > 0 ? process->floor_percent : 1;
    const nanoseconds began = now();
    nanoseconds at = began;
    bool waited = false;

    for (int who = look(at); who >= 0; who = look(at)) {
        if (process->credit > 0) {
            count(&activity->by_floor, 1);
            break;
        }
        pause_after(at - began, 20 * MICROSECONDS, 20 * MICROSECONDS);
        const nanoseconds then = now(), passed = then - at;
        process->credit += passed * floor / 100;
        if (process->credit > MOST_OWED)
            process->credit = MOST_OWED;
        count(&activity->gave_way, (uint64_t)passed);
        count(&activity->gave_way_to[who], (uint64_t)passed);
        waited = true;
        at = then;
    }
    if (waited)
        count(&activity->held_back, 1);
}

/* Records the event, which is made where there is none or where its context is gone. */
static bool record(CUevent *event, unsigned int flags, CUstream handle)
{
    if (*event != NULL && driver_event_record(*event, handle) == CUDA_SUCCESS)
        return true;
    *event = NULL;
    if (driver_event_create == NULL || driver_event_create(event, flags) != CUDA_SUCCESS) {
        *event = NULL;
        return false;
    }
    return driver_event_record(*event, handle) == CUDA_SUCCESS;
}

static struct under_way *newest(void)
{
    return &process->ring[(process->first + process->count) % UNDER_WAY];
}

/* The entry before the next one, if it is still under way in this stream and all between them was seen: where it ends the
 * next one begins. NOT_TIMED: nothing says when that begins. */
static int begins_after(CUstream handle)
{
    const unsigned int last = (process->first + process->count + UNDER_WAY - 1) % UNDER_WAY;

    return process->count > 0 && process->ring[last].to == handle ? (int)last : NOT_TIMED;
}

/* The kernel goes the detour if it may; its events are there before it is launched. */
static void take_detour(struct launch *launch)
{
    CUstream beside = launch->kind == KERNEL ? part_beside(launch->stream, launch->handle) : NULL;
    struct under_way *entry = newest();

    if (beside != NULL && record(&process->before, EVENT_UNTIMED, launch->handle) &&
        (entry->ended != NULL || record(&entry->ended, EVENT_TIMED, beside)) &&
        driver_stream_wait(beside, process->before, 0) == CUDA_SUCCESS)
        launch->to = beside;
}

static void note_beginning(struct launch *launch)
{
    CUstream handle = launch->to != NULL ? launch->to : launch->handle;

    launch->after = begins_after(handle);
    if (launch->after == NOT_TIMED && record(&newest()->began, EVENT_TIMED, handle))
        launch->after = -1;
}

static bool can_give_way(void)
{
    return driver_event_query != NULL && driver_event_record != NULL && driver_event_create != NULL;
}

/* Whether it is plain that there is room, and nobody to wait for. */
static bool is_free(nanoseconds at)
{
    return look(at) < 0 && !was_active(at) &&
           (process->count == 0 ||
            (process->count < process->window && at - process->ring[process->first].at < BOUND / 2));
}

/* Returns when the launch may be made. */
static void give_way(struct launch *launch)
{
    nanoseconds at = now();

    if (!can_give_way() || !hold_gate(at + GATE_PATIENCE)) {
        count(&pages->own.activity.unpaced, 1);
        return;
    }
    launch->held = true;
    launch->mode = NOT_EXCHANGED;
    if (process->window == 0)
        process->window = FIRST_WINDOW;
    if (!is_free(at)) {
        launch->mode = exchange_capture_mode(RELAXED);
        at = now();
        for (int turn = 0; turn < 2; turn++) { /* in the first one a protected client may become active */
            wait_for_room(was_active(at));
            wait_for_protected();
            at = now();
            if (!was_active(at) || process->expected <= SHORT_WORK)
                break;
        }
    }
    launch->lately = was_active(at) && process->count < UNDER_WAY - 1;
    if (launch->lately) {
        take_detour(launch);
        note_beginning(launch);
    } else if (process->last_launch != 0)
        charge(at - process->last_launch);
    process->last_launch = at;
}

static void remember(struct launch *launch, CUstream handle, bool is_alone)
{
    struct under_way *entry = newest();
    const nanoseconds at = now();

    if (!record(&entry->ended, EVENT_TIMED, handle)) {
        count(&pages->own.activity.unpaced, 1);
        return;
    }
    *entry = (struct under_way){
        entry->began, entry->ended, at, is_alone ? expected_of(launch->key) : NOT_KNOWN,
        at - process->last_launch > SLOW_LAUNCH ? NOT_TIMED : launch->after, process->count, is_alone,
        (int)launch->kind, handle, launch->function, launch->key,
    };
    process->expected += entry->expected;
    process->count++;
    if (handle == launch->handle)
        return;
    count(&pages->own.activity.on_part, 1);
    while (driver_stream_wait(launch->handle, entry->ended, 0) != CUDA_SUCCESS &&
           driver_event_query(entry->ended) == NOT_READY) /* its order is not ours to lose */
        sleep_for(100 * MICROSECONDS);
}

/* After a launch while nobody protected was active: whether it is time for an event. */
static void remember_some(struct launch *launch)
{
    const unsigned int batch = process->brief < BRIEF_ONES ? 1 : BATCH;

    if (++launch->stream->since_event < batch && process->last_launch - process->last_event < EVENT_EVERY)
        return;
    if (launch->mode == NOT_EXCHANGED)
        launch->mode = exchange_capture_mode(RELAXED);
    launch->stream->since_event = 0;
    process->last_event = process->last_launch;
    launch->after = begins_after(launch->handle);
    remember(launch, launch->handle, false);
}

/* After the launch; `detour`: it went through the stream beside. */
static void launched(struct launch *launch, CUresult result, bool detour)
{
    if (!launch->held)
        return;
    if (result == CUDA_SUCCESS && launch->lately)
        remember(launch, detour ? launch->to : launch->handle, true);
    else if (result == CUDA_SUCCESS)
        remember_some(launch);
    if (launch->mode != NOT_EXCHANGED)
        (void)exchange_capture_mode(launch->mode);
    leave_gate();
}

#endif
