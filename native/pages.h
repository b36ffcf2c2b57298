/* What a process with a class shares with its attach broker: the pages, and what is said on the broker's socket.
 *
 * Three kinds of page, each of 4 KiB and little-endian:
 * - the board, a file beside the broker's socket (read-only in containers): the broker writes it, everybody reads it;
 * - activity, one for each process: it alone writes, its broker reads;
 * - busy, one for each protected process: it alone writes, its broker and best-effort clients of its GPU read.
 *
 * The last two are memfds, made by the broker for a process that it knows by the kernel, sealed against another size. A
 * process maps its busy page and seals it against every later writable mapping and write (F_SEAL_FUTURE_WRITE) before it
 * says MAPPED. The broker looks at the seals and hands it to nobody without them: so whoever holds a descriptor of it,
 * opened again by /proc or not, as root or not, reads. Whoever reads a page bounds and checks each value: its process may
 * write anything, at any time.
 */
#ifndef GPUSHARE_PAGES_H
#define GPUSHARE_PAGES_H

#include <stddef.h>
#include <stdint.h>

enum { PAGE_BYTES = 4096, PAGES_VERSION = 1, MOST_PROTECTED = 16, MOST_LONGEST = 16, KERNEL_NAME = 56 };

#define BOARD_MAGIC 0x42737067u    /* "gpsB" */
#define ACTIVITY_MAGIC 0x41737067u /* "gpsA" */
#define BUSY_MAGIC 0x57737067u     /* "gpsW" */
#define ANSWER_MAGIC 0x50737067u   /* "gpsP" */

/* <attach directory>/board. Replaced by nobody: the same file for as long as the directory lives. */
struct board {
    uint32_t magic, version;
    uint64_t broker;     /* another one of each broker: a process with pages asks for new ones */
    uint64_t generation; /* another one when a protected process came or went: best effort asks who is there */
    uint32_t places;     /* containers that may have contexts at the same time, while others wait; 0: there is no queue */
    uint32_t reserved;
};

/* Times are nanoseconds: of CLOCK_MONOTONIC, or durations. */
struct activity {
    uint32_t magic, version;
    uint64_t launches;     /* kernels, graphs, and copies and fills of MOVED_BYTES */
    uint64_t last_launch;  /* when; within 10 ms */
    uint64_t active;       /* how long work was under way, in periods that have ended */
    uint64_t active_since; /* when the period under way began; 0: none is */
    uint64_t gave_way;     /* how long launches were held back for protected clients */
    uint64_t held_back;    /* launches that were */
    uint64_t by_floor;     /* launches that went while a protected client was busy, as best effort may always */
    uint64_t on_part;      /* launches that went through the green context */
    uint32_t part_sms, all_sms; /* of the green context and of the GPU; 0: there is none (yet) */
    uint64_t unpaced;      /* launches that could not be held back: the driver lacks a function, or answered an error */
    uint64_t reserved[5];
    uint64_t gave_way_to[MOST_PROTECTED]; /* parts of `gave_way`, by the place of the busy page in the latest answer */
    struct {
        uint64_t duration; /* the longest seen of this kernel, alone under way */
        char name[KERNEL_NAME]; /* its beginning, NUL at the end */
    } longest[MOST_LONGEST];
};

/* One word, so whoever reads it needs no lock. Bit 0: work is under way. The others count: they change with each period
 * that begins, and while it lasts at least every RENEWED by a process that goes on launching. A word that has not changed
 * for LAPSES is taken for idle. */
struct busy {
    uint32_t magic, version;
    uint64_t word;
};

enum { MOVED_BYTES = 1 << 20 }; /* copies and fills below that do not count and do not wait */
#define RENEWED ((int64_t)10 * 1000 * 1000)
#define LAPSES ((int64_t)1000 * 1000 * 1000)

/* On the broker's socket, after `OUTBCRED` and a NUL, in the place of "attach" (2): */
enum request {
    REQUEST_PAGES = 0x67700002, /* new pages of its own, in the place of earlier ones of this process, and BUSY's */
    REQUEST_BUSY = 0x67700003,  /* the busy pages of the protected processes, of best effort */
    REQUEST_PLACE = 0x67700004, /* whether the process may make a context; on a connection of its own */
};

enum class { CLASS_NONE, CLASS_PROTECTED, CLASS_NORMAL, CLASS_BEST_EFFORT };

/* The broker's answer, one packet. Its descriptors, in this order: `activity` times an activity page, `own_busy` times a
 * busy page (both to write; of PAGES alone), `protected` times a busy page to read. CLASS_NONE: none, and no descriptors.
 * To PAGES the process then says MAPPED, and hangs up. */
struct answer {
    uint32_t magic, version;
    uint32_t class;
    uint32_t sm_percent;    /* of the SMs that are best effort's while a protected client was active of late; 0: all */
    uint32_t floor_percent; /* of the time that is best effort's always */
    uint32_t activity, own_busy, protected;
    uint64_t broker, generation; /* of the board, when this was written */
};

#define MAPPED 0x6d737067u /* "gpsm", 4 bytes */

/* The broker's answers to PLACE, a packet each: at once, at each change of position, and each minute; after another state
 * than PLACE_WAITING it hangs up. A process that hangs up before that waits no longer. */
#define PLACE_MAGIC 0x4c737067u /* "gpsL" */

enum place_state {
    PLACE_NOT_NEEDED, /* there is no queue, or the container has no part of the GPU: the attach tells */
    PLACE_WAITING,
    PLACE_GIVEN,   /* to its container, which has it for a context that comes soon */
    PLACE_REFUSED, /* it waited as long as the share lets it wait */
};

struct place {
    uint32_t magic, version;
    uint32_t state;
    uint32_t position; /* 1: the next one */
    uint32_t waiting;  /* containers */
    uint32_t places;
};

_Static_assert(sizeof(struct board) == 32 && sizeof(struct busy) == 16 && sizeof(struct answer) == 48 &&
                   sizeof(struct place) == 24, "no padding");
_Static_assert(offsetof(struct activity, gave_way_to) == 128 && offsetof(struct activity, longest) == 256, "as written");
_Static_assert(sizeof(struct activity) == 256 + MOST_LONGEST * 64 && sizeof(struct activity) <= PAGE_BYTES, "one page");

#endif
