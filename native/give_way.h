/* How best effort gives way: when a launch may be made, and what is kept under way.
 *
 * While a protected client was active of LATELY, one launch is under way, and the next one waits until none is busy.
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
#define EVENT_EVERY (200 * MICROSECONDS)
#define GATE_PATIENCE (5 * SECONDS)
#define OWN_PATIENCE (200 * MILLISECONDS)
#define MOST_RUN (50 * MILLISECONDS)
#define MOST_OWED (10 * MILLISECONDS)

enum { BATCH = 4, FIRST_WINDOW = 4, SHORT_WINDOW = 8 };

enum kind { KERNEL, COOPERATIVE, GRAPH, MOVE };

struct launch {
    CUstream handle;       /* never 0 */
    CUstream to;           /* where it goes: what the program gave, or a stream beside it */
    struct stream *stream; /* NULL: nothing is done about it */
    enum kind kind;
    const void *function;
    bool held, lately, timed;
    int mode; /* of captures, that the thread had */
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
        rest(sleep);
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

/* The oldest one under way has ended, or is not waited for any longer. */
static void let_go(bool ended)
{
    struct under_way *oldest = &process->ring[process->first];
    float milliseconds = 0;
    nanoseconds duration = now() - oldest->at;

    process->first = (process->first + 1) % UNDER_WAY;
    process->count--;
    if (!oldest->timed)
        return;
    if (ended && driver_event_elapsed != NULL &&
        driver_event_elapsed(&milliseconds, oldest->began, oldest->ended) == CUDA_SUCCESS && milliseconds >= 0 &&
        milliseconds < 1e6f)
        duration = (nanoseconds)((double)milliseconds * 1e6);
    charge(duration);
    note_duration(oldest->kind, oldest->function, duration);
}

static bool has_oldest_ended(void)
{
    const struct under_way *oldest = &process->ring[process->first];

    return driver_event_query(oldest->timed ? oldest->ended : oldest->plain) != NOT_READY;
}

/* The oldest one was waited for, and had been under way for so long. */
static void adapt_window(const struct under_way *oldest, nanoseconds took)
{
    if (took > BOUND + BOUND / 2)
        process->window = process->window > 1 ? process->window / 2 : 1;
    else if (took < BOUND / 2 && oldest->ahead + 1 >= process->window)
        process->window = process->window < UNDER_WAY / 2 ? 2 * process->window : UNDER_WAY;
}

/* Waits until nothing is under way; `all` false: until there is room for one more. */
static void wait_for_own(bool all)
{
    const nanoseconds began = now();
    nanoseconds at = began;
    bool waited = false;

    while (process->count > 0) {
        const nanoseconds took = at - process->ring[process->first].at;
        if (has_oldest_ended()) {
            if (waited && !all)
                adapt_window(&process->ring[process->first], took);
            let_go(true);
            waited = false;
        } else if (!all && process->count < process->window && took <= BOUND)
            return;
        else if (at - began >= OWN_PATIENCE)
            let_go(false);
        else {
            pause_after(at - began, (all ? 200 : 50) * MICROSECONDS, 30 * MICROSECONDS);
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

/* The kernel goes the detour if it may; its events are there before it is launched. */
static void take_detour(struct launch *launch)
{
    CUstream beside = launch->kind == KERNEL ? part_beside(launch->stream, launch->handle) : NULL;
    struct under_way *entry = newest();

    if (beside != NULL && record(&process->before, EVENT_UNTIMED, launch->handle) &&
        (entry->ended != NULL || record(&entry->ended, EVENT_TIMED, beside)) && driver_stream_wait(beside, process->before, 0) == CUDA_SUCCESS)
        launch->to = beside;
    launch->timed = record(&entry->began, EVENT_TIMED, launch->to != NULL ? launch->to : launch->handle);
}

static bool can_give_way(void)
{
    return driver_event_query != NULL && driver_event_record != NULL && driver_event_create != NULL;
}

/* Returns when the launch may be made. */
static void give_way(struct launch *launch)
{
    if (!can_give_way() || !hold_gate(now() + GATE_PATIENCE)) {
        count(&pages->own.activity.unpaced, 1);
        return;
    }
    launch->held = true;
    launch->mode = exchange_capture_mode(RELAXED);
    nanoseconds at = now();
    if (process->window == 0)
        process->window = FIRST_WINDOW;
    (void)look(at);
    for (int turn = 0; turn < 2; turn++) { /* in the first one a protected client may become active */
        wait_for_own(was_active(at));
        wait_for_protected();
        at = now();
        if (!was_active(at) || process->count == 0)
            break;
    }
    launch->lately = was_active(at) && process->count < UNDER_WAY;
    if (launch->lately)
        take_detour(launch);
    else if (process->last_launch != 0)
        charge(at - process->last_launch);
    process->last_launch = at;
}

static void remember(struct launch *launch, CUstream handle)
{
    struct under_way *entry = newest();
    CUevent *event = launch->timed ? &entry->ended : &entry->plain;

    if (!record(event, launch->timed ? EVENT_TIMED : EVENT_UNTIMED, handle)) {
        count(&pages->own.activity.unpaced, 1);
        return;
    }
    entry->at = now();
    entry->timed = launch->timed;
    entry->function = launch->function;
    entry->kind = launch->kind;
    entry->ahead = process->count++;
    if (handle != launch->handle) {
        if (driver_stream_wait(launch->handle, *event, 0) != CUDA_SUCCESS)
            wait_for_own(true);
        count(&pages->own.activity.on_part, 1);
    }
}

/* After the launch; `detour`: it went through the stream beside. */
static void launched(struct launch *launch, CUresult result, bool detour)
{
    if (!launch->held)
        return;
    if (result == CUDA_SUCCESS && launch->lately)
        remember(launch, detour ? launch->to : launch->handle);
    else if (result == CUDA_SUCCESS) {
        const nanoseconds at = process->last_launch;
        const unsigned int batch = process->window < SHORT_WINDOW ? 1 : BATCH;
        if (++launch->stream->since_event >= batch || at - process->last_event >= EVENT_EVERY) {
            launch->stream->since_event = 0;
            process->last_event = at;
            remember(launch, launch->handle);
        }
    }
    (void)exchange_capture_mode(launch->mode);
    leave_gate();
}

#endif
