/* Launches, streams, events and captures of the driver that stands in for NVIDIA's.
 *
 * A stream is a point in time: when all that it was given has ended. A kernel lasts as many microseconds as its grid is
 * wide (of a graph: as its handle says), and begins when its stream is free; the legacy stream when all are that do not
 * decline, and these begin after it. So it shows what waits for what, in real time. driverTrace tells what has been done.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int64_t nanoseconds;
enum { MOST = 256, TRACES = 65536, BROKEN_KERNEL = 99, NO_GREEN_KERNEL = 98 };

struct stream {
    nanoseconds end;
    int used, blocking, green, capturing, priority;
};
struct event {
    nanoseconds time;
    int used, timed;
};
struct trace {
    int kind; /* 1 kernel, 2 cooperative, 3 graph, 4 copy or fill, 5 event recorded, 6 wait, 7 host function */
    int what;
    int stream, green;
    nanoseconds called, begin, end;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream streams[MOST];
static struct event events[MOST * 16];
static struct trace traces[TRACES];
static int trace_count, violations, captures, contexts = 1;
static _Thread_local int own_stream, capture_mode;

static nanoseconds now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void sleep_until(nanoseconds end)
{
    struct timespec time = {end / 1000000000, end % 1000000000};

    while (now() < end)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

static int make_stream(int blocking, int green, int priority)
{
    for (int i = 3; i < MOST; i++)
        if (!streams[i].used) {
            streams[i] = (struct stream){0, 1, blocking, green, 0, priority};
            return i;
        }
    return -1;
}

/* 1: legacy. A thread's own stream is made when it is asked for. */
static int number_of(void *handle, int null)
{
    int number = handle == NULL ? null : (int)(intptr_t)handle;

    if (number == 2 && own_stream == 0)
        own_stream = make_stream(1, 0, 0);
    number = number == 2 ? own_stream : number;
    if (number != 1 && (number < 3 || number >= MOST || !streams[number].used))
        return -1;
    return number;
}

static nanoseconds begin_of(int number)
{
    nanoseconds begin = now() > streams[number].end ? now() : streams[number].end;

    for (int i = 1; number == 1 && i < MOST; i++)
        if (streams[i].used && streams[i].blocking && streams[i].end > begin)
            begin = streams[i].end;
    if (number != 1 && streams[number].blocking && streams[1].end > begin)
        begin = streams[1].end;
    return begin;
}

static void note(int kind, int what, int number, nanoseconds begin, nanoseconds end)
{
    if (trace_count < TRACES)
        traces[trace_count++] = (struct trace){kind, what, number, streams[number].green, now(), begin, end};
}

static int work(int kind, int what, void *handle, int null, nanoseconds duration)
{
    pthread_mutex_lock(&lock);
    int number = number_of(handle, null), result = number < 0 ? 400 : 0;

    if (result == 0 && (what == BROKEN_KERNEL || (what == NO_GREEN_KERNEL && streams[number].green)))
        result = 1;
    if (result == 0 && !streams[number].capturing) {
        nanoseconds begin = begin_of(number);
        streams[number].end = begin + duration;
        note(kind, what, number, begin, begin + duration);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* A call that ends a capture of another thread, unless this thread says that it knows. */
static void check_capture(void)
{
    if (captures > 0 && capture_mode != 2)
        violations++;
}

struct config {
    unsigned int gx, gy, gz, bx, by, bz, shared;
    void *stream;
    void *attributes;
    unsigned int count;
};

#define LAUNCHES(suffix, null)                                                                                         \
    int cuLaunchKernel##suffix(void *f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,            \
                               unsigned int by, unsigned int bz, unsigned int shared, void *s, void **p, void **e)     \
    {                                                                                                                  \
        (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)p, (void)e;                              \
        return work(1, (int)(intptr_t)f, s, null, gx * 1000LL);                                                        \
    }                                                                                                                  \
    int cuLaunchKernelEx##suffix(const struct config *c, void *f, void **p, void **e)                                  \
    {                                                                                                                  \
        (void)p, (void)e;                                                                                              \
        return c == NULL ? 1 : work(1, (int)(intptr_t)f, c->stream, null, c->gx * 1000LL);                             \
    }                                                                                                                  \
    int cuLaunchCooperativeKernel##suffix(void *f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, \
                                          unsigned int by, unsigned int bz, unsigned int shared, void *s, void **p)    \
    {                                                                                                                  \
        (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)p;                                       \
        return work(2, (int)(intptr_t)f, s, null, gx * 1000LL);                                                        \
    }                                                                                                                  \
    int cuGraphLaunch##suffix(void *g, void *s)                                                                        \
    {                                                                                                                  \
        return work(3, (int)(intptr_t)g, s, null, (intptr_t)g * 1000LL);                                               \
    }                                                                                                                  \
    int cuMemcpyAsync##suffix(uint64_t to, uint64_t from, size_t n, void *s)                                           \
    {                                                                                                                  \
        (void)to, (void)from;                                                                                          \
        return work(4, (int)(n >> 10), s, null, (nanoseconds)n / 4);                                                \
    }                                                                                                                  \
    int cuMemcpyHtoDAsync_v2##suffix(uint64_t to, const void *from, size_t n, void *s)                                 \
    {                                                                                                                  \
        return cuMemcpyAsync##suffix(to, (uint64_t)(uintptr_t)from, n, s);                                             \
    }                                                                                                                  \
    int cuMemcpyDtoHAsync_v2##suffix(void *to, uint64_t from, size_t n, void *s)                                       \
    {                                                                                                                  \
        return cuMemcpyAsync##suffix((uint64_t)(uintptr_t)to, from, n, s);                                             \
    }                                                                                                                  \
    int cuMemcpyDtoDAsync_v2##suffix(uint64_t to, uint64_t from, size_t n, void *s)                                    \
    {                                                                                                                  \
        return cuMemcpyAsync##suffix(to, from, n, s);                                                                  \
    }                                                                                                                  \
    int cuMemsetD8Async##suffix(uint64_t to, unsigned char value, size_t n, void *s)                                   \
    {                                                                                                                  \
        return cuMemcpyAsync##suffix(to, value, n, s);                                                                 \
    }                                                                                                                  \
    int cuMemsetD16Async##suffix(uint64_t to, unsigned short value, size_t n, void *s)                                 \
    {                                                                                                                  \
        return cuMemcpyAsync##suffix(to, value, 2 * n, s);                                                             \
    }                                                                                                                  \
    int cuMemsetD32Async##suffix(uint64_t to, unsigned int value, size_t n, void *s)                                   \
    {                                                                                                                  \
        return cuMemcpyAsync##suffix(to, value, 4 * n, s);                                                             \
    }                                                                                                                  \
    int cuStreamQuery##suffix(void *s)                                                                                 \
    {                                                                                                                  \
        pthread_mutex_lock(&lock);                                                                                     \
        int number = number_of(s, null), result = number < 0 ? 400 : begin_of(number) > now() ? 600 : 0;               \
        check_capture();                                                                                               \
        pthread_mutex_unlock(&lock);                                                                                   \
        return result;                                                                                                 \
    }                                                                                                                  \
    int cuStreamSynchronize##suffix(void *s)                                                                           \
    {                                                                                                                  \
        pthread_mutex_lock(&lock);                                                                                     \
        int number = number_of(s, null);                                                                               \
        nanoseconds end = number < 0 ? 0 : number == 1 ? begin_of(1) : streams[number].end;                            \
        pthread_mutex_unlock(&lock);                                                                                   \
        sleep_until(end);                                                                                              \
        return number < 0 ? 400 : 0;                                                                                   \
    }                                                                                                                  \
    int cuEventRecord##suffix(void *e, void *s)                                                                        \
    {                                                                                                                  \
        struct event *event = e;                                                                                       \
        pthread_mutex_lock(&lock);                                                                                     \
        int number = number_of(s, null);                                                                               \
        if (number >= 0 && event->used) {                                                                              \
            violations += streams[number].capturing && event->timed;                                                   \
            event->time = begin_of(number);                                                                            \
            note(5, 0, number, event->time, event->time);                                                              \
        }                                                                                                              \
        pthread_mutex_unlock(&lock);                                                                                   \
        return number < 0 || !event->used ? 400 : 0;                                                                   \
    }                                                                                                                  \
    int cuEventRecordWithFlags##suffix(void *e, void *s, unsigned int flags)                                           \
    {                                                                                                                  \
        (void)flags;                                                                                                   \
        return cuEventRecord##suffix(e, s);                                                                            \
    }                                                                                                                  \
    int cuStreamWaitEvent##suffix(void *s, void *e, unsigned int flags)                                                \
    {                                                                                                                  \
        struct event *event = e;                                                                                       \
        (void)flags;                                                                                                   \
        pthread_mutex_lock(&lock);                                                                                     \
        int number = number_of(s, null);                                                                               \
        if (number >= 0 && event->time > streams[number].end)                                                          \
            streams[number].end = event->time;                                                                         \
        if (number >= 0)                                                                                               \
            note(6, 0, number, streams[number].end, streams[number].end);                                              \
        pthread_mutex_unlock(&lock);                                                                                   \
        return number < 0 ? 400 : 0;                                                                                   \
    }                                                                                                                  \
    int cuLaunchHostFunc##suffix(void *s, void (*function)(void *), void *data)                                        \
    {                                                                                                                  \
        return host_function(s, null, function, data);                                                                 \
    }                                                                                                                  \
    int cuStreamIsCapturing##suffix(void *s, int *status)                                                              \
    {                                                                                                                  \
        pthread_mutex_lock(&lock);                                                                                     \
        int number = number_of(s, null);                                                                               \
        *status = number >= 0 && streams[number].capturing;                                                            \
        pthread_mutex_unlock(&lock);                                                                                   \
        return number < 0 ? 400 : 0;                                                                                   \
    }                                                                                                                  \
    int cuStreamBeginCapture_v2##suffix(void *s, int mode)                                                             \
    {                                                                                                                  \
        (void)mode;                                                                                                    \
        pthread_mutex_lock(&lock);                                                                                     \
        int number = number_of(s, null);                                                                               \
        if (number >= 3) {                                                                                             \
            streams[number].capturing = 1;                                                                             \
            captures++;                                                                                                \
        }                                                                                                              \
        pthread_mutex_unlock(&lock);                                                                                   \
        return number < 3 ? 900 : 0;                                                                                   \
    }                                                                                                                  \
    int cuStreamEndCapture##suffix(void *s, void **graph)                                                              \
    {                                                                                                                  \
        pthread_mutex_lock(&lock);                                                                                     \
        int number = number_of(s, null);                                                                               \
        streams[number].capturing = 0;                                                                                 \
        captures--;                                                                                                    \
        *graph = (void *)(intptr_t)500;                                                                                \
        pthread_mutex_unlock(&lock);                                                                                   \
        return 0;                                                                                                      \
    }

struct host_call {
    void (*function)(void *);
    void *data;
    nanoseconds at;
};

static void *run_host_function(void *data)
{
    struct host_call call = *(struct host_call *)data;

    free(data);
    sleep_until(call.at);
    call.function(call.data);
    return NULL;
}

static int host_function(void *s, int null, void (*function)(void *), void *data)
{
    pthread_t thread;
    struct host_call *call = malloc(sizeof *call);

    pthread_mutex_lock(&lock);
    int number = number_of(s, null);
    *call = (struct host_call){function, data, number < 0 ? 0 : begin_of(number)};
    if (number >= 0)
        note(7, 0, number, call->at, call->at);
    pthread_mutex_unlock(&lock);
    if (pthread_create(&thread, NULL, run_host_function, call) != 0)
        return 999;
    return pthread_detach(thread);
}

LAUNCHES(, 1)
LAUNCHES(_ptsz, 2)

#define COPIES(suffix, null)                                                       \
    int cuMemcpyHtoD_v2##suffix(uint64_t to, const void *from, size_t n)           \
    {                                                                              \
        (void)to, (void)from;                                                      \
        int result = work(4, (int)(n >> 10), NULL, null, (nanoseconds)n / 4);   \
        return result != 0 ? result : cuStreamSynchronize((void *)(intptr_t)null); \
    }                                                                              \
    int cuMemcpyDtoH_v2##suffix(void *to, uint64_t from, size_t n)                 \
    {                                                                              \
        return cuMemcpyHtoD_v2##suffix(from, to, n);                               \
    }
COPIES(, 1)
COPIES(_ptds, 2)

int cuStreamCreateWithPriority(void **s, unsigned int flags, int priority)
{
    pthread_mutex_lock(&lock);
    int number = make_stream((flags & 1) == 0, 0, priority);
    pthread_mutex_unlock(&lock);
    *s = (void *)(intptr_t)number;
    return number < 0 ? 2 : 0;
}

int cuStreamDestroy_v2(void *s)
{
    pthread_mutex_lock(&lock);
    int number = number_of(s, 0);
    if (number >= 3)
        streams[number].used = 0;
    pthread_mutex_unlock(&lock);
    return number < 3 ? 400 : 0;
}

int cuStreamGetPriority(void *s, int *priority)
{
    int number = number_of(s, 1);

    *priority = number < 0 ? 0 : streams[number].priority;
    return number < 0 ? 400 : 0;
}

int cuStreamGetGreenCtx(void *s, void **green)
{
    int number = number_of(s, 1);

    *green = number >= 0 && streams[number].green ? &streams[number] : NULL;
    return number < 0 ? 400 : 0;
}

int cuEventCreate(void **e, unsigned int flags)
{
    pthread_mutex_lock(&lock);
    check_capture();
    *e = NULL;
    for (int i = 0; i < MOST * 16 && *e == NULL; i++)
        if (!events[i].used) {
            events[i] = (struct event){0, 1, (flags & 2) == 0};
            *e = &events[i];
        }
    pthread_mutex_unlock(&lock);
    return *e == NULL ? 2 : 0;
}

int cuEventDestroy_v2(void *e)
{
    ((struct event *)e)->used = 0;
    return 0;
}

int cuEventQuery(void *e)
{
    pthread_mutex_lock(&lock);
    nanoseconds time = ((struct event *)e)->time;
    check_capture();
    pthread_mutex_unlock(&lock);
    return time > now() ? 600 : 0;
}

int cuEventSynchronize(void *e)
{
    pthread_mutex_lock(&lock);
    nanoseconds time = ((struct event *)e)->time;
    pthread_mutex_unlock(&lock);
    sleep_until(time);
    return 0;
}

int cuEventElapsedTime(float *milliseconds, void *from, void *to)
{
    pthread_mutex_lock(&lock);
    *milliseconds = (float)(((struct event *)to)->time - ((struct event *)from)->time) / 1e6f;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuCtxSynchronize(void)
{
    nanoseconds end = 0;

    pthread_mutex_lock(&lock);
    for (int i = 1; i < MOST; i++)
        if (streams[i].end > end)
            end = streams[i].end;
    pthread_mutex_unlock(&lock);
    sleep_until(end);
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = capture_mode;

    capture_mode = *mode;
    *mode = before;
    return 0;
}

int cuCtxGetCurrent(void **context)
{
    *context = (void *)(intptr_t)contexts;
    return 0;
}

/* From now on another context is current than the primary one. */
int driverSetContext(int number)
{
    contexts = number;
    return 0;
}

static int made, retained; /* contexts of the program's own, and users of the primary one */

/* How many contexts there are. */
int driverContexts(void)
{
    return made + (retained > 0);
}

int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
    *flags = 0;
    *active = retained > 0;
    return device == 0 ? 0 : 101;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    retained++;
    *context = (void *)(intptr_t)1;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    retained -= device == 0 && retained > 0;
    return device == 0 ? 0 : 101;
}

static int make_context(void **context, int device)
{
    *context = (void *)(intptr_t)++made;
    return device == 0 ? 0 : 101;
}

int cuCtxCreate_v2(void **context, unsigned int flags, int device)
{
    (void)flags;
    return make_context(context, device);
}

int cuCtxCreate_v3(void **context, void *affinities, int count, unsigned int flags, int device)
{
    (void)affinities, (void)count, (void)flags;
    return make_context(context, device);
}

int cuCtxCreate_v4(void **context, void *parameters, unsigned int flags, int device)
{
    (void)parameters, (void)flags;
    return make_context(context, device);
}

/* All events and streams go with it. */
int cuDevicePrimaryCtxReset_v2(int device)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST * 16; i++)
        events[i].used = 0;
    for (int i = 3; i < MOST; i++)
        streams[i].used = 0;
    pthread_mutex_unlock(&lock);
    return device == 0 ? 0 : 101;
}

int cuCtxDestroy_v2(void *context)
{
    return context == NULL ? 201 : 0;
}

struct resource {
    int kind;
    unsigned char internal[92];
    unsigned int sms;
    unsigned char rest[44];
};

int cuDeviceGetDevResource(int device, struct resource *resource, int kind)
{
    resource->kind = kind;
    resource->sms = 132;
    return device == 0 && kind == 1 ? 0 : 1;
}

/* In steps of 8, as on Hopper. */
int cuDevSmResourceSplitByCount(struct resource *some, unsigned int *groups, const struct resource *all,
                                struct resource *left, unsigned int flags, unsigned int least)
{
    (void)flags;
    some->sms = (least + 7) / 8 * 8;
    left->sms = all->sms - some->sms;
    return *groups == 1 && some->sms <= all->sms ? 0 : 1;
}

int cuDevResourceGenerateDesc(void **description, struct resource *resource, unsigned int count)
{
    *description = resource;
    return count == 1 ? 0 : 1;
}

int cuGreenCtxCreate(void **green, void *description, int device, unsigned int flags)
{
    *green = description;
    return device == 0 && flags == 1 ? 0 : 1;
}

int cuGreenCtxDestroy(void *green)
{
    return green == NULL;
}

int cuGreenCtxStreamCreate(void **s, void *green, unsigned int flags, int priority)
{
    pthread_mutex_lock(&lock);
    int number = green != NULL && flags == 1 ? make_stream(0, 1, priority) : -1;
    pthread_mutex_unlock(&lock);
    *s = (void *)(intptr_t)number;
    return number < 0 ? 1 : 0;
}

int cuFuncGetName(const char **name, void *f)
{
    static char text[64];

    snprintf(text, sizeof text, "kernel_%d", (int)(intptr_t)f);
    *name = text;
    return 0;
}

/* What has been done, in the order of the calls; returns how much of it. Violations: calls that end somebody's capture. */
int driverTrace(struct trace *result, int most, int *found_violations)
{
    pthread_mutex_lock(&lock);
    int count = trace_count < most ? trace_count : most;
    memcpy(result, traces, (size_t)count * sizeof *traces);
    *found_violations = violations;
    pthread_mutex_unlock(&lock);
    return count;
}

int driverForget(void)
{
    trace_count = 0;
    return 0;
}

#define ONE(name, symbol) {name, 0, (void *)symbol}, {name, 2, (void *)symbol},
#define TWINS(name, symbol) {name, 2, (void *)symbol##_ptsz}, {name, 0, (void *)symbol},
#define DEFAULT_TWINS(name, symbol) {name, 2, (void *)symbol##_ptds}, {name, 0, (void *)symbol},

void *driver_stream_function(const char *symbol, int version, int per_thread)
{
    static const struct {
        const char *name;
        int flag;
        void *found;
    } known[] = {
        TWINS("cuLaunchKernel", cuLaunchKernel) TWINS("cuLaunchKernelEx", cuLaunchKernelEx)
        TWINS("cuLaunchCooperativeKernel", cuLaunchCooperativeKernel) TWINS("cuGraphLaunch", cuGraphLaunch)
        TWINS("cuMemcpyAsync", cuMemcpyAsync) TWINS("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2)
        TWINS("cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2) TWINS("cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2)
        TWINS("cuMemsetD8Async", cuMemsetD8Async) TWINS("cuMemsetD16Async", cuMemsetD16Async)
        TWINS("cuMemsetD32Async", cuMemsetD32Async) TWINS("cuStreamQuery", cuStreamQuery)
        TWINS("cuStreamSynchronize", cuStreamSynchronize) TWINS("cuEventRecord", cuEventRecord)
        TWINS("cuEventRecordWithFlags", cuEventRecordWithFlags) TWINS("cuStreamWaitEvent", cuStreamWaitEvent)
        TWINS("cuLaunchHostFunc", cuLaunchHostFunc) TWINS("cuStreamIsCapturing", cuStreamIsCapturing)
        DEFAULT_TWINS("cuMemcpyHtoD", cuMemcpyHtoD_v2) DEFAULT_TWINS("cuMemcpyDtoH", cuMemcpyDtoH_v2)
        ONE("cuEventQuery", cuEventQuery) ONE("cuEventSynchronize", cuEventSynchronize)
        ONE("cuCtxSynchronize", cuCtxSynchronize) ONE("cuStreamDestroy", cuStreamDestroy_v2)
        ONE("cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset_v2)
        ONE("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain)
        ONE("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2) ONE("cuCtxDestroy", cuCtxDestroy_v2)
    };

    if (strcmp(symbol, "cuCtxCreate") == 0)
        return version < 11040 ? (void *)cuCtxCreate_v2 : version < 12050 ? (void *)cuCtxCreate_v3 : (void *)cuCtxCreate_v4;
    for (size_t i = 0; version >= 4000 && i < sizeof known / sizeof *known; i++)
        if (strcmp(symbol, known[i].name) == 0 && known[i].flag == (per_thread ? 2 : 0))
            return known[i].found;
    return NULL;
}
