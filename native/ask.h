/* How a process gets its pages from its attach broker, and hears that there is something new.
 *
 * It asks at the end of cuInit, and at a launch when the board says so; nobody waits long for a broker, and of several
 * threads one asks. What does not come as it has to changes nothing: then the process has no class until it asks again.
 */
#ifndef GPUSHARE_ASK_H
#define GPUSHARE_ASK_H

#include "process.h"

#define FIRST_ANSWER (1 * SECONDS)
#define LATER_ANSWER (50 * MILLISECONDS)
#define LATER_ANSWER_TO_BEST_EFFORT (500 * MILLISECONDS)
#define ASKED_AT_MOST (100 * MILLISECONDS) /* once in */
#define FIRST_PAUSE (1 * SECONDS)
#define LONGEST_PAUSE (64 * SECONDS)

enum {
    ATTACH_PATH = 96, /* of a socket's 107 */
    MOST_DESCRIPTORS = 2 + MOST_PROTECTED,
    FUTURE_WRITE = 0x10, ADD_SEALS = 1033, /* F_SEAL_FUTURE_WRITE, F_ADD_SEALS: of linux/fcntl.h */
    READABLE = 1, /* POLLIN */
};

/* The kernel's own, on each 64-bit processor. */
struct kernel_address {
    uint16_t family;
    char path[108];
};
struct kernel_message {
    void *name;
    uint64_t name_bytes;
    struct {
        void *base;
        uint64_t bytes;
    } *parts;
    uint64_t count;
    void *control;
    uint64_t control_bytes;
    uint64_t flags;
};
struct kernel_poll {
    int descriptor;
    short wanted, found;
};

struct reply {
    struct answer answer;
    int descriptors[MOST_DESCRIPTORS];
    unsigned int count;
};

static char attach_directory[ATTACH_PATH] = "/run/gpushare/mps";

static void hang_up(int descriptor)
{
    syscall(SYS_close, descriptor);
}

static bool in_attach_directory(char path[108], const char *name)
{
    size_t length = strlen(attach_directory);

    memset(path, 0, 108);
    memcpy(path, attach_directory, length);
    memcpy(path + length, name, strlen(name));
    return length > 0;
}

static int connection(void)
{
    struct kernel_address broker = {1 /* AF_UNIX */, ""};
    int sock = (int)syscall(SYS_socket, 1, 5 /* SOCK_SEQPACKET */ | 02000000 | 04000 /* close-on-exec, non-blocking */, 0);

    if (sock >= 0 && in_attach_directory(broker.path, "/control") &&
        syscall(SYS_connect, sock, &broker, sizeof broker) == 0)
        return sock;
    if (sock >= 0)
        hang_up(sock);
    return -1;
}

static bool say(int sock, const void *text, size_t bytes)
{
    return syscall(SYS_sendto, sock, text, bytes, 0x4000 /* MSG_NOSIGNAL */, NULL, 0) == (long)bytes;
}

/* The bytes of the next packet, with its descriptors; -1: none came. */
static long hear(int sock, void *text, size_t bytes, struct reply *reply, nanoseconds until)
{
    struct {
        uint64_t bytes;
        int level, kind;
        int descriptors[MOST_DESCRIPTORS + 2];
    } control = {0, 0, 0, {0}};
    struct kernel_message message = {0};
    struct kernel_poll waiting = {sock, READABLE, 0};
    nanoseconds left = until - now();
    struct timespec time = {left / SECONDS, left % SECONDS};
    void *part[2] = {text, (void *)bytes};

    if (left <= 0 || syscall(SYS_ppoll, &waiting, 1, &time, NULL, 0) != 1)
        return -1;
    message.parts = (void *)part;
    message.count = 1;
    message.control = &control;
    message.control_bytes = sizeof control;
    long got = syscall(SYS_recvmsg, sock, &message, 0x40000000 /* MSG_CMSG_CLOEXEC */);
    if (got < 0 || message.control_bytes < 16 || control.level != 1 /* SOL_SOCKET */ || control.kind != 1 /* SCM_RIGHTS */)
        return got;
    for (uint64_t at = 16; at + sizeof(int) <= control.bytes && at + sizeof(int) <= sizeof control; at += sizeof(int)) {
        int descriptor = control.descriptors[(at - 16) / sizeof(int)];
        if (reply != NULL && reply->count < MOST_DESCRIPTORS)
            reply->descriptors[reply->count++] = descriptor;
        else
            hang_up(descriptor);
    }
    return got;
}

/* Of a process that was greeted. */
static bool say_request(int sock, uint32_t request)
{
    static const char credentials[9] = "OUTBCRED";

    return say(sock, credentials, sizeof credentials) && say(sock, &request, sizeof request);
}

/* What the broker answers; its descriptors are the caller's, whatever the answer is. */
static bool answered(int sock, uint32_t request, struct reply *reply, nanoseconds until)
{
    const struct answer *answer = &reply->answer;
    char greeting[64];

    if (hear(sock, greeting, sizeof greeting, NULL, until) <= 0 || !say_request(sock, request))
        return false;
    if (hear(sock, &reply->answer, sizeof reply->answer, reply, until) != sizeof reply->answer)
        return false;
    return answer->magic == ANSWER_MAGIC && answer->version == PAGES_VERSION && answer->class <= CLASS_BEST_EFFORT &&
           answer->sm_percent <= 100 && answer->floor_percent <= 100 && answer->activity <= 1 && answer->own_busy <= 1 &&
           answer->protected <= MOST_PROTECTED &&
           answer->activity + answer->own_busy + answer->protected == reply->count;
}

/* Takes the page in the place of what is at `place`. It has its whole size, or an access would end the process. */
static bool map_page(void *place, int descriptor, int access)
{
    return syscall(SYS_lseek, descriptor, 0L, 2 /* SEEK_END */) >= PAGE_BYTES &&
           syscall(SYS_mmap, place, (long)PAGE_BYTES, access, MAP_SHARED | MAP_FIXED, descriptor, 0L) == (long)place;
}

/* A file on the broker's side, so it may be anything: one that is no board is as none. */
static bool map_board(void)
{
    char path[108];
    int file = in_attach_directory(path, "/board") ? (int)syscall(SYS_openat, -100 /* AT_FDCWD */, path, 02000000, 0) : -1;
    bool mapped = file >= 0 && map_page(&pages->board, file, PROT_READ) && pages->board.magic == BOARD_MAGIC &&
                  pages->board.version == PAGES_VERSION;

    if (file >= 0)
        hang_up(file);
    return mapped;
}

/* What was counted goes on in the new page, which begins with zeros. */
static bool take_own(const struct reply *reply)
{
    const int *descriptor = reply->descriptors;
    struct activity counted = pages->own.activity;

    if (reply->answer.activity != 1 || !map_page(&pages->own, *descriptor, PROT_READ | PROT_WRITE))
        return false;
    counted.magic = ACTIVITY_MAGIC;
    counted.version = PAGES_VERSION;
    pages->own.activity = counted;
    descriptor += reply->answer.activity;
    if (reply->answer.own_busy == 0)
        return true;
    return map_page(&pages->busy, *descriptor, PROT_READ | PROT_WRITE) &&
           syscall(SYS_fcntl, *descriptor, ADD_SEALS, FUTURE_WRITE) == 0;
}

/* The busy pages of protected processes. Below the gate: who reads them holds it. */
static void take_others(const struct reply *reply)
{
    const unsigned int own = reply->answer.activity + reply->answer.own_busy;
    unsigned int count = 0;

    for (; count < reply->answer.protected; count++) {
        if (!map_page(&pages->others[count], reply->descriptors[own + count], PROT_READ))
            break;
        process->words[count] = atomic_load(&pages->others[count].word);
        process->changed[count] = now();
    }
    process->protected = count;
}

static void take_settings(const struct answer *answer)
{
    process->sm_percent = answer->sm_percent;
    process->floor_percent = answer->floor_percent;
    atomic_store(&process->broker, answer->broker);
    atomic_store(&process->generation, answer->generation);
}

static bool hold_gate(nanoseconds until);
static void leave_gate(void);

/* Asks, and takes what comes. Called by one thread at a time. */
static bool ask(uint32_t request, nanoseconds until)
{
    struct reply reply = {{0}, {0}, 0};
    const uint32_t mapped = MAPPED;
    bool taken = false;
    int sock = connection();

    if (sock < 0)
        return false;
    if (answered(sock, request, &reply, until) && reply.answer.class != CLASS_NONE && hold_gate(until)) {
        taken = request == REQUEST_BUSY || take_own(&reply);
        if (taken) {
            take_others(&reply);
            take_settings(&reply.answer);
            atomic_store(&process->class, (int)reply.answer.class);
        }
        leave_gate();
    }
    if (taken && request == REQUEST_PAGES)
        say(sock, &mapped, sizeof mapped);
    for (unsigned int i = 0; i < reply.count; i++)
        hang_up(reply.descriptors[i]);
    hang_up(sock);
    return taken;
}

/* What there is to ask for; 0: nothing. */
static uint32_t wanted_of_broker(void)
{
    const int class = atomic_load_explicit(&process->class, memory_order_relaxed);
    const uint64_t broker = atomic_load_explicit(&process->broker, memory_order_relaxed);

    if (class == CLASS_NONE || atomic_load_explicit(&pages->board.broker, memory_order_relaxed) != broker)
        return REQUEST_PAGES;
    if (class == CLASS_BEST_EFFORT && atomic_load_explicit(&pages->board.generation, memory_order_relaxed) !=
                                          atomic_load_explicit(&process->generation, memory_order_relaxed))
        return REQUEST_BUSY;
    return 0;
}

static void ask_if_due(uint32_t request, nanoseconds at, nanoseconds patience)
{
    int nobody = 0;
    nanoseconds pause = atomic_load(&process->ask_pause);

    if (at < atomic_load(&process->ask_at) || !atomic_compare_exchange_strong(&process->starting, &nobody, 1))
        return;
    bool told = (atomic_load(&process->broker) != 0 || map_board()) && ask(request, now() + patience);
    pause = told ? 0 : pause == 0 ? FIRST_PAUSE : pause < LONGEST_PAUSE ? 2 * pause : LONGEST_PAUSE;
    atomic_store(&process->ask_pause, pause);
    atomic_store(&process->ask_at, now() + (told ? ASKED_AT_MOST : pause));
    atomic_store(&process->starting, 0);
}

/* The first call of a process, or of a child that was forked: its pages are its own memory. */
static void start_process(void)
{
    int nobody = 0;

    if (!atomic_compare_exchange_strong(&process->starting, &nobody, 1))
        return;
    if (atomic_load(&process->started) == 0 && own_memory_at(pages, sizeof *pages) != NULL)
        atomic_store(&process->started, 1);
    atomic_store(&process->starting, 0);
}

/* Whether this process has a class now. */
static inline bool has_class(void)
{
    if (process == NULL)
        return false;
    if (atomic_load_explicit(&process->started, memory_order_acquire) == 0)
        start_process();
    uint32_t request = wanted_of_broker();
    if (request != 0)
        ask_if_due(request, about_now(), request == REQUEST_BUSY ? LATER_ANSWER_TO_BEST_EFFORT : LATER_ANSWER);
    return atomic_load_explicit(&process->class, memory_order_relaxed) != CLASS_NONE;
}

/* At the end of cuInit: the process has attached, and has launched nothing yet. */
static void join_broker(void)
{
    if (process == NULL)
        return;
    if (atomic_load(&process->started) == 0)
        start_process();
    if (atomic_load(&process->class) == CLASS_NONE)
        ask_if_due(REQUEST_PAGES, now(), FIRST_ANSWER);
}

/* `GPUSHARE_CLASS` says that there is one; the broker says which. `GPUSHARE_ATTACH`: where the broker is in tests. */
static void load_process(void)
{
    const char *class = getenv("GPUSHARE_CLASS"), *directory = getenv("GPUSHARE_ATTACH");

    if (class == NULL || (strcmp(class, "Protected") != 0 && strcmp(class, "Normal") != 0 &&
                          strcmp(class, "BestEffort") != 0))
        return;
    if (directory != NULL && strlen(directory) < ATTACH_PATH) {
        memset(attach_directory, 0, sizeof attach_directory);
        memcpy(attach_directory, directory, strlen(directory));
    }
    make_process();
}

#endif
