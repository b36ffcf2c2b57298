/* How long a process keeps its GPU busy: the CUDA driver loads this library into a client, as CUDA_INJECTION64_PATH says.
 *
 * While we listen, CUPTI makes a record of each kernel and each graph that is launched, which costs the launching thread.
 * So we listen in a part of the time: all of it while there are fewer records than `records_per_second`, else as much as
 * makes so many, in windows with pauses of random length between them: the window before and the window after a pause stand
 * for half of it each. How long both are was settled before they began, so nothing that the program does is favoured.
 *
 * A record belongs to the window in which its kernel was launched, whenever it ran: no kernel is cut in two.
 *
 * The result is the name of our thread, `gpubusy` and hundredths of a second in 8 hexadecimal digits, which whoever may
 * list the process can read: no file, no socket, no right. `gpubusy-nocupti`: there is no libcupti that works.
 *
 * Guarantees: the program runs on, whatever fails here. No signal of the program is taken. At its exit no call of ours is
 * under way. Built without CUDA's headers: the few values used are the same in CUPTI 12 and 13.
 */
#define _GNU_SOURCE
#include "busytime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KERNEL = 10, GRAPH = 51, SUCCESS = 0 };   /* CUpti_ActivityKind, CUptiResult */
enum { KERNEL_TIMES = 16, GRAPH_TIMES = 8 };     /* where `start` and `end` are in a record, in bytes */
enum { BUFFER = 8192, MOST = 1 << 16 };          /* bytes; records between two flushes, others are lost */

static const double CYCLE = 0.1, LONGEST_CYCLE = 2, WINDOW = 0.005;   /* seconds; the last is the shortest window */
static const double RISE = 1, FALL = 10;   /* seconds in which the estimate of the launches follows */
static const double STEP = 0.02;           /* of sleeping, in seconds */

static int (*cuptiActivityRegisterCallbacks)(void (*)(uint8_t **, size_t *, size_t *),
                                             void (*)(void *, uint32_t, uint8_t *, size_t, size_t));
static int (*cuptiActivityEnable)(int);
static int (*cuptiActivityDisable)(int);
static int (*cuptiActivityFlushAll)(uint32_t);
static int (*cuptiActivityGetNextRecord)(uint8_t *, size_t, uint8_t **);

typedef struct { uint64_t start, end; } Interval;   /* ns */

__attribute__((visibility("default"))) Busytime gpushare_busytime = {.mode = WINDOWS, .records_per_second = 2000};

static pthread_mutex_t batch_lock = PTHREAD_MUTEX_INITIALIZER, call_lock = PTHREAD_MUTEX_INITIALIZER;
static Interval batch[MOST];
static size_t batched;
static volatile int ending;
static pid_t program;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Until then, or until the mode changes. */
static void rest(double until, int mode) {
    double left;
    while (!ending && gpushare_busytime.mode == mode && (left = until - now()) > 0) {
        struct timespec time = {0, (long)((left < STEP ? left : STEP) * 1e9)};
        nanosleep(&time, NULL);
    }
}

static double random_part(void) {
    static uint64_t state;
    if (!state) state = (uint64_t)(now() * 1e9) | 1;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (double)(state >> 11) / (double)(1ull << 53);
}

/* Called in a launching thread. */
static void request(uint8_t **buffer, size_t *size, size_t *records) {
    *size = BUFFER;
    *records = 0;
    if (posix_memalign((void **)buffer, 8, BUFFER)) *buffer = NULL;
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    uint8_t *record = NULL;
    pthread_mutex_lock(&batch_lock);
    while (valid && cuptiActivityGetNextRecord(buffer, valid, &record) == SUCCESS) {
        uint32_t kind;
        Interval one;
        memcpy(&kind, record, sizeof kind);
        if (kind != KERNEL && kind != GRAPH) continue;
        memcpy(&one, record + (kind == KERNEL ? KERNEL_TIMES : GRAPH_TIMES), sizeof one);
        if (kind == KERNEL) gpushare_busytime.kernels++;
        else gpushare_busytime.graphs++;
        if (!one.start || one.end < one.start) gpushare_busytime.without_times++;
        else if (batched < MOST) batch[batched++] = one;
    }
    pthread_mutex_unlock(&batch_lock);
    free(buffer);
}

static int by_start(const void *left, const void *right) {
    uint64_t a = ((const Interval *)left)->start, b = ((const Interval *)right)->start;
    return (a > b) - (a < b);
}

/* What the records since the last call add to the union of all intervals, in seconds. `*number`: how many they are. */
static double added(size_t *number) {
    static uint64_t covered;
    uint64_t sum = 0;
    pthread_mutex_lock(&batch_lock);
    qsort(batch, batched, sizeof *batch, by_start);
    for (size_t i = 0; i < batched; i++) {
        uint64_t start = batch[i].start > covered ? batch[i].start : covered;
        if (batch[i].end > start) sum += batch[i].end - start;
        if (batch[i].end > covered) covered = batch[i].end;
    }
    *number = batched;
    batched = 0;
    pthread_mutex_unlock(&batch_lock);
    return (double)sum * 1e-9;
}

/* Where graphs are not known, their kernels are recorded one by one. */
static int enabled, refused;
static void enable(void) { refused = cuptiActivityEnable(KERNEL), cuptiActivityEnable(GRAPH), enabled = 1; }
static void disable(void) { cuptiActivityDisable(KERNEL), cuptiActivityDisable(GRAPH), enabled = 0; }
static void flush(void) { cuptiActivityFlushAll(0); }

/* Not once the program ends: the driver is about to go. */
static void call(void (*what)(void)) {
    pthread_mutex_lock(&call_lock);
    double began = now();
    if (!ending) what();
    double took = now() - began;
    pthread_mutex_unlock(&call_lock);
    gpushare_busytime.called_s += took;
    if (took > gpushare_busytime.longest_s) gpushare_busytime.longest_s = took;
}

/* A child that was forked has no such thread, but may have its lock. */
static void end(void) {
    if (getpid() != program) return;
    pthread_mutex_lock(&call_lock);
    ending = 1;
    pthread_mutex_unlock(&call_lock);
}

static void name(const char *text) { pthread_setname_np(pthread_self(), text); }

static void publish(void) {
    char text[16];
    snprintf(text, sizeof text, "gpubusy%08x", (unsigned)(gpushare_busytime.busy_s * 100));
    name(text);
}

/* The launches in a second, as they were lately: it rises quickly, so that a burst costs little. */
static double followed(double rate, double seen, double seconds) {
    double part = seconds / (seen > rate ? RISE : FALL);
    return rate + (seen - rate) * (part < 1 ? part : 1);
}

static void *nothing(void *unused) {
    (void)unused;
    name("gpubusy-nocupti");
    for (;;) pause();
    return NULL;
}

static void *run(void *unused) {
    (void)unused;
    double rate = 0, busy_before = 0;
    publish();
    while (!ending) {
        int mode = gpushare_busytime.mode;
        if (mode == SILENT) {
            rest(now() + CYCLE, mode);
            continue;
        }
        double part = mode == ALWAYS || rate < gpushare_busytime.records_per_second
                          ? 1 : gpushare_busytime.records_per_second / rate;
        double cycle = part * CYCLE < WINDOW ? WINDOW / part : CYCLE;
        if (cycle > LONGEST_CYCLE) cycle = LONGEST_CYCLE;
        double window = part * cycle < WINDOW ? WINDOW : part * cycle, began = now();
        if (part < 1) {
            if (enabled) call(disable);
            rest(began + (cycle - window) * 2 * random_part(), mode);
        }
        double opened = now(), half = part < 1 ? (opened - began) / 2 : 0;
        if (!enabled) call(enable);
        if (refused) return nothing(NULL);
        rest(now() + window, mode);
        if (part < 1 || gpushare_busytime.mode != mode) call(disable);
        double listened = now() - opened;
        call(flush);
        size_t records;
        double busy = added(&records) / listened;
        rate = followed(rate, (double)records / listened, now() - began);
        gpushare_busytime.busy_s += busy_before * half + busy * (half + listened);
        busy_before = busy;
        gpushare_busytime.listened_s += listened;
        gpushare_busytime.windows++;
        publish();
    }
    return NULL;
}

/* The one that the program uses already: two of them in one process disturb each other. Else any that is found. */
static void *cupti(void) {
    const char *names[] = {getenv("BUSYTIME_CUPTI"), "libcupti.so.13", "libcupti.so.12"};
    void *found = NULL;
    for (unsigned i = 1; !found && i < 3; i++) found = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
    for (unsigned i = 0; !found && i < 3; i++)
        if (names[i]) found = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return found;
}

static int begin(void) {
    void *library = cupti();
    if (!library) return 0;
#define FIND(function) (*(void **)&function = dlsym(library, #function))
    return FIND(cuptiActivityRegisterCallbacks) && FIND(cuptiActivityEnable) && FIND(cuptiActivityDisable) &&
           FIND(cuptiActivityFlushAll) && FIND(cuptiActivityGetNextRecord) &&
           cuptiActivityRegisterCallbacks(request, complete) == SUCCESS;
}

/* The driver calls it once, in cuInit. */
__attribute__((visibility("default"))) int InitializeInjection(void) {
    int works = begin();
    program = getpid();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    if (!pthread_create(&thread, NULL, works ? run : nothing, NULL)) pthread_detach(thread), atexit(end);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return 1;
}
