/* What a process with a class keeps of itself, and the system calls that it needs.
 *
 * All of it lies in two mappings of fixed addresses: `process`, which a forked child finds as zeros (MADV_WIPEONFORK), so
 * no child writes what is its parent's or waits for a lock of a thread that it does not have; and the pages, which are
 * the process's own memory until its broker hands it some. So no pointer to them is ever another one.
 *
 * System calls are made by number, with the kernel's structures: those of C libraries differ. None of them is a point at
 * which a thread can be cancelled, which matters while the gate is held.
 */
#ifndef GPUSHARE_PROCESS_H
#define GPUSHARE_PROCESS_H

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "front.h"
#include "pages.h"

typedef int64_t nanoseconds;

#define MICROSECONDS ((nanoseconds)1000)
#define MILLISECONDS (1000 * MICROSECONDS)
#define SECONDS (1000 * MILLISECONDS)

enum { STREAMS = 64, COVERED = 4, EVENTS = 128, UNDER_WAY = 64, DURATIONS = 256, NOT_TIMED = -2 };

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

struct CUstream_st;
struct CUevent_st;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef void *CUcontext;

/* A stream that was launched in, by its key: see key_of. */
struct stream {
    _Atomic(uintptr_t) key;    /* 0: free */
    _Atomic uint64_t pending;  /* number of the latest launch that is not known to have ended; 0: there is none */
    _Atomic nanoseconds at;    /* when that one was; within 10 ms */
    _Atomic uint64_t covers[COVERED]; /* launches of other streams that it waits for, as mark_of */
    _Atomic uint32_t next_cover;
    /* Below the gate. */
    unsigned int since_event;
    int part; /* 0: not tried; 1: `part_stream` is there; -1: its kernels go as they are */
    CUstream part_stream;
};

struct under_way {
    CUevent began, ended;
    nanoseconds at, expected; /* when, and how long it will take */
    int after;                /* it begins when this one of the ring ends; -1: at `began`; NOT_TIMED */
    unsigned int ahead;       /* others that were under way then */
    bool is_alone;            /* one launch, and not several */
    int kind;
    CUstream to;
    const void *function;
    uint64_t key; /* of the function and its grid */
};

struct process {
    _Atomic int started;  /* 0: of a child that was just forked, too */
    _Atomic int starting; /* somebody is about to set `started`, or asks the broker */
    _Atomic int class;
    _Atomic uint64_t broker, generation;
    _Atomic nanoseconds ask_at, ask_pause;
    _Atomic uint64_t launches, numbers;
    _Atomic int pending; /* streams with such a number */
    _Atomic uint64_t active;
    _Atomic nanoseconds active_since, renewed;
    unsigned int sm_percent, floor_percent;
    struct stream streams[STREAMS + 1]; /* the last: all that have no room */
    struct {
        _Atomic(uintptr_t) event;
        _Atomic uint64_t mark;
    } events[EVENTS];
    /* Below the gate. */
    _Atomic int gate;
    unsigned int protected;
    uint64_t words[MOST_PROTECTED];
    nanoseconds changed[MOST_PROTECTED], seen_active, last_event, last_launch;
    nanoseconds credit; /* what best effort is owed of its floor */
    struct under_way ring[UNDER_WAY];
    unsigned int first, count, window; /* window: so many of the ring may be under way */
    unsigned int brief;                /* so many were short, one after the other */
    nanoseconds expected;              /* of all that is under way */
    struct {
        uint64_t key;
        nanoseconds duration;
    } durations[DURATIONS];
    int part; /* as of a stream */
    CUcontext part_context;
    void *green;
    CUevent before;
    const void *longest[MOST_LONGEST];
};

struct pages {
    union {
        struct activity activity;
        unsigned char bytes[PAGE_BYTES];
    } own;
    union {
        struct {
            uint32_t magic, version;
            _Atomic uint64_t word;
        };
        unsigned char bytes[PAGE_BYTES];
    } busy;
    union {
        struct {
            uint32_t magic, version;
            _Atomic uint64_t broker, generation;
            _Atomic uint32_t places;
        };
        unsigned char bytes[PAGE_BYTES];
    } board;
    union {
        struct {
            uint32_t magic, version;
            _Atomic uint64_t word;
        };
        unsigned char bytes[PAGE_BYTES];
    } others[MOST_PROTECTED];
};

static struct process *process; /* NULL: this process has asked for no class, or cannot have one */
static struct pages *pages;

static nanoseconds clock_of(clockid_t clock)
{
    struct timespec time = {0, 0};

    clock_gettime(clock, &time);
    return (nanoseconds)time.tv_sec * SECONDS + time.tv_nsec;
}

static nanoseconds now(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

/* Within 10 ms, and for a fifth of the price. */
static nanoseconds about_now(void)
{
    return clock_of(CLOCK_MONOTONIC_COARSE);
}

static void sleep_for(nanoseconds duration)
{
    struct timespec time = {duration / SECONDS, duration % SECONDS};

    syscall(SYS_nanosleep, &time, NULL);
}

static inline void breathe(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The process's own memory, at a place of its own or in the place of what is at `place`; NULL: there is none. */
static void *own_memory_at(void *place, size_t size)
{
    void *memory = (void *)syscall(SYS_mmap, place, size, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | (place != NULL ? MAP_FIXED : 0), -1, 0L);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Where the kernel cannot keep a child from its parent's state, no process has a class. */
static void make_process(void)
{
    process = own_memory_at(NULL, sizeof *process);
    pages = process != NULL ? own_memory_at(NULL, sizeof *pages) : NULL;
    if (pages == NULL || syscall(SYS_madvise, process, sizeof *process, MADV_WIPEONFORK) != 0)
        process = NULL;
}

#endif
