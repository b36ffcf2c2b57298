/* CUPTI and a program for the library to listen to, in a time of their own: the library's sleeps make it pass, so a run of
 * minutes takes milliseconds and always goes the same way. See test_busytime.py.
 *
 * As with CUPTI, a record is made of what is launched while enabled, and a flush hands over the buffers of which every
 * record is complete.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RECORD = 216, BUFFERS = 4096 };

typedef struct { uint8_t *bytes; size_t size, used; double complete; } Buffer;

Stream work[STREAMS];
int streams, freely;
double until;
sem_t over;
volatile int driver_gone;
volatile long calls, made, lost;
double truly_busy;

static double covered;

static double time_now = 1000;
static int enabled[64];
static Buffer buffers[BUFFERS];
static int filled;
static void (*request)(uint8_t **, size_t *, size_t *);
static void (*complete)(void *, uint32_t, uint8_t *, size_t, size_t);

static void called(void) {
    calls++;
    if (driver_gone) abort();
}

static int refuses(const char *what) {
    const char *refused = getenv("FAKE_CUPTI_REFUSES");
    return refused && !strcmp(refused, what);
}

int cuptiActivityRegisterCallbacks(void *asked, void *done) {
    called();
    *(void **)&request = asked;
    *(void **)&complete = done;
    return refuses("register");
}
int cuptiActivityEnable(int kind) {
    called();
    enabled[kind] = 1;
    return refuses("enable");
}
int cuptiActivityDisable(int kind) { called(); enabled[kind] = 0; return 0; }
int cuptiActivityFlushAll(uint32_t forced) {
    called();
    int kept = 0;
    for (int i = 0; i < filled; i++) {
        Buffer it = buffers[i];
        if (forced || it.complete <= time_now) complete(NULL, 0, it.bytes, it.size, it.used);
        else buffers[kept++] = it;
    }
    filled = kept;
    return 0;
}
int cuptiActivityGetNextRecord(uint8_t *bytes, size_t valid, uint8_t **record) {
    *record = *record ? *record + RECORD : bytes;
    return *record + RECORD <= bytes + valid ? 0 : 12;
}

static void launch(Stream *it, double at) {
    double start = at > it->free ? at : it->free, end = start + it->seconds;
    uint32_t kind = it->graph ? 51 : 10;
    uint64_t times[] = {(uint64_t)(start * 1e9), (uint64_t)(end * 1e9)};
    it->free = end;
    if (end > covered) truly_busy += end - (start > covered ? start : covered), covered = end;
    if (!enabled[kind]) return;
    Buffer *last = filled ? &buffers[filled - 1] : NULL;
    if (!last || last->used + RECORD > last->size) {
        if (filled == BUFFERS) { lost++; return; }
        size_t records;
        last = &buffers[filled++];
        memset(last, 0, sizeof *last);
        request(&last->bytes, &last->size, &records);
    }
    memset(last->bytes + last->used, 0, RECORD);
    memcpy(last->bytes + last->used, &kind, sizeof kind);
    memcpy(last->bytes + last->used + (it->graph ? 8 : 16), times, sizeof times);
    last->used += RECORD;
    if (end > last->complete) last->complete = end;
    made++;
}

static void pass(double seconds) {
    double end = time_now + seconds;
    for (;;) {
        Stream *next = NULL;
        for (int i = 0; i < streams; i++) {
            Stream *it = &work[i];
            if (!it->next) it->next = 1000 + it->first;
            if (it->cycle) {
                double cycles = (double)(long)((it->next - 1000) / it->cycle + 1e-9);
                if (it->next - 1000 - it->cycle * cycles >= it->on) it->next = 1000 + it->cycle * (cycles + 1);
            }
            if (it->next < end && (!next || it->next < next->next)) next = it;
        }
        if (!next) break;
        time_now = next->next > time_now ? next->next : time_now;
        launch(next, next->next);
        next->next += next->period;
    }
    time_now = end;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    (void)clock;
    time->tv_sec = (time_t)time_now;
    time->tv_nsec = (long)((time_now - (double)time->tv_sec) * 1e9);
    return 0;
}
/* The library's only way to wait. */
int nanosleep(const struct timespec *asked, struct timespec *left) {
    (void)left;
    pass((double)asked->tv_sec + (double)asked->tv_nsec * 1e-9 + 20e-6);
    if (!freely && time_now - 1000 >= until) {
        sem_post(&over);
        for (;;) pause();
    }
    return 0;
}
