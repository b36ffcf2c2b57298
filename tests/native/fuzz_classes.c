/* native/classes.c before a driver, a broker, a kernel and neighbours that answer anything, at any time that passes.
 *
 * What is checked: the program gets what the driver answered; each function of it is called once, or twice where a launch
 * was refused beside its stream; no descriptor is lost or closed twice; every wait ends; and, by the sanitizers, nothing
 * is touched beyond the process's own state and pages, each in a heap block of its size.
 */
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

static long fuzz_syscall(long number, ...);
static int fuzz_clock_gettime(clockid_t clock, struct timespec *time);

#define syscall(...) fuzz_syscall(__VA_ARGS__, 0L, 0L, 0L, 0L, 0L, 0L) /* all six are read */
#define clock_gettime fuzz_clock_gettime
#include "../../native/classes.c"
#undef syscall
#undef clock_gettime

/* Of fuzz.h, for other targets. */
__attribute__((unused)) static void *(*const unused_find)(const struct symbol *, size_t, const char *) = find;
__attribute__((unused)) static uint64_t (*const unused_size)(void) = take_size;

enum { DESCRIPTORS = 64, BLOCKS = 8, MOST_CALLS = 64, LONGEST_CALL = 20, LONGEST_WAIT = 36000 };

static nanoseconds clock_now;
static bool is_open[DESCRIPTORS];
static void *blocks[BLOCKS];
static int block_count;
static CUresult driver_result;
static CUstream driver_stream;
static int driver_calls;

static int fuzz_clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    clock_now += 1 + take_byte() % 4 * 20 * MICROSECONDS + 500;
    *time = (struct timespec){clock_now / SECONDS, clock_now % SECONDS};
    return 0;
}

static int opened(void)
{
    for (int i = 3; i < DESCRIPTORS; i++)
        if (!is_open[i]) {
            is_open[i] = true;
            return i;
        }
    abort();
}

static void take_bytes(void *place, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)place)[i] = take_byte();
}

/* A page as it should be, or with anything in it. */
static void fill_page(unsigned char *place)
{
    static const uint32_t magics[] = {BOARD_MAGIC, ACTIVITY_MAGIC, BUSY_MAGIC};
    const uint32_t head[2] = {magics[take_byte() % 3], PAGES_VERSION};

    memset(place, 0, PAGE_BYTES);
    memcpy(place, head, sizeof head);
    take_bytes(place + sizeof head, 16);
    if (take_byte() < 16)
        take_bytes(place, 64);
}

static long fuzz_map(unsigned char *place, size_t size, int flags)
{
    if (flags & MAP_ANONYMOUS && !(flags & MAP_FIXED)) {
        if (take_byte() == 1)
            return -1;
        CHECK(block_count < BLOCKS);
        blocks[block_count] = calloc(1, size);
        return (long)blocks[block_count++];
    }
    if (take_byte() < 8)
        return -1;
    if (flags & MAP_ANONYMOUS)
        memset(place, 0, size);
    else {
        CHECK(size == PAGE_BYTES && (place - (unsigned char *)pages) % PAGE_BYTES == 0);
        fill_page(place);
    }
    return (long)place;
}

/* What a broker says of places, as it should be or not. */
static long fuzz_place(struct kernel_message *message)
{
    struct place place = {PLACE_MAGIC, PAGES_VERSION, take_byte() % 5, take_byte(), take_byte(), take_byte()};
    const size_t size = take_byte() < 248 ? sizeof place : take_byte() % sizeof place;

    if (take_byte() >= 248)
        take_bytes(&place, sizeof place);
    memcpy(message->parts->base, &place, size);
    message->control_bytes = 0;
    return (long)size;
}

static long fuzz_receive(struct kernel_message *message)
{
    if (message->parts->bytes == sizeof(struct place))
        return fuzz_place(message);

    struct answer answer = {ANSWER_MAGIC, PAGES_VERSION, 1 + take_byte() % 3, take_byte() % 101, 5, 0, 0, 0, 1, 1};
    const uint8_t kind = take_byte();
    const unsigned int count = kind < 192 ? 0 : take_byte() % 24;
    unsigned int given;

    answer.activity = 1;
    answer.own_busy = answer.class == CLASS_PROTECTED;
    answer.protected = answer.class == CLASS_BEST_EFFORT ? take_byte() % 18 : 0;
    answer.broker = take_byte() % 3;
    answer.generation = take_byte() % 3;
    if (kind >= 224)
        take_bytes(&answer, sizeof answer);
    given = kind < 192 ? answer.activity + answer.own_busy + answer.protected : count;
    given = given < MOST_DESCRIPTORS + 2 ? given : MOST_DESCRIPTORS + 2;
    const size_t wanted = take_byte() < 240 ? sizeof answer : take_byte();
    const size_t size = wanted < message->parts->bytes ? wanted : message->parts->bytes;
    memcpy(message->parts->base, &answer, size < sizeof answer ? size : sizeof answer);
    if (given == 0 || message->control_bytes < 16 + given * sizeof(int)) {
        message->control_bytes = 0;
        return (long)size;
    }
    const uint64_t bytes = 16 + given * sizeof(int);
    const int head[2] = {1, 1};
    memcpy(message->control, &bytes, sizeof bytes);
    memcpy((char *)message->control + 8, head, sizeof head);
    for (unsigned int i = 0; i < given; i++) {
        const int descriptor = opened();
        memcpy((char *)message->control + 16 + i * sizeof(int), &descriptor, sizeof descriptor);
    }
    message->control_bytes = bytes;
    return (long)size;
}

static long fuzz_syscall(long number, ...)
{
    va_list arguments;
    long a[6];

    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    switch (number) {
    case SYS_mmap: return fuzz_map((void *)a[0], (size_t)a[1], (int)a[3]);
    case SYS_madvise: return take_byte() == 1 ? -1 : 0;
    case SYS_socket:
    case SYS_openat: return take_byte() < 8 ? -1 : opened();
    case SYS_close:
        CHECK(a[0] >= 3 && (int)a[0] < DESCRIPTORS && is_open[(int)a[0]]);
        is_open[(int)a[0]] = false;
        return 0;
    case SYS_connect: CHECK(memchr((char *)a[1] + 2, 0, 108) != NULL); return take_byte() < 8 ? -1 : 0;
    case SYS_sendto: return take_byte() < 8 ? -1 : a[2];
    case SYS_ppoll: {
        struct kernel_poll *polled = (void *)a[0];
        const uint8_t kind = take_byte();
        clock_now += kind < 16 ? LOOK : MILLISECONDS;
        polled->found = polled->wanted;
        errno = EINTR;
        return a[3] != 0 && kind > 252 ? -1 : kind < 16 ? 0 : 1;
    }
    case SYS_rt_sigprocmask: memset((void *)a[2], 0, sizeof(uint64_t)); return 0;
    case SYS_write: CHECK(a[0] == 2 && a[2] > 0 && a[2] <= LONGEST_LINE && ((char *)a[1])[a[2] - 1] == '\n'); return a[2];
    case SYS_recvmsg: return take_byte() < 8 ? -1 : fuzz_receive((void *)a[1]);
    case SYS_lseek: return take_byte() < 8 ? 0 : PAGE_BYTES;
    case SYS_fcntl: return take_byte() < 8 ? -1 : 0;
    case SYS_nanosleep: clock_now += ((struct timespec *)a[0])->tv_nsec; return 0;
    case SYS_futex: clock_now += SECONDS; return 0;
    default: abort();
    }
}

/* The driver: whatever it is asked, it says `any_result`, and what it hands out may be anything that is a handle. */

static CUresult any_result(void)
{
    const uint8_t kind = take_byte();

    return kind < 192 ? CUDA_SUCCESS : kind < 224 ? NOT_READY : (CUresult)kind;
}

static void *handle(void)
{
    return (void *)(uintptr_t)(take_byte() % 96);
}

static CUresult noted(CUstream stream)
{
    driver_calls++;
    driver_stream = stream;
    return driver_result = any_result();
}

static CUresult asked_kernel(CUfunction f, unsigned int a, unsigned int b, unsigned int c, unsigned int d, unsigned int e,
                             unsigned int g, unsigned int h, CUstream s, void **p, void **x)
{
    (void)f, (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)h, (void)p, (void)x;
    return noted(s);
}
static CUresult asked_kernel_ex(const struct CUlaunchConfig *c, CUfunction f, void **p, void **x)
{
    (void)f, (void)p, (void)x;
    return noted(c != NULL ? c->stream : NULL);
}
static CUresult asked_cooperative(CUfunction f, unsigned int a, unsigned int b, unsigned int c, unsigned int d,
                                  unsigned int e, unsigned int g, unsigned int h, CUstream s, void **p)
{
    return asked_kernel(f, a, b, c, d, e, g, h, s, p, NULL);
}
static CUresult asked_graph(CUgraphExec g, CUstream s)
{
    (void)g;
    return noted(s);
}
static CUresult asked_move(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
{
    (void)to, (void)from, (void)n;
    return noted(s);
}
static CUresult asked_copy(void *to, CUdeviceptr from, size_t n)
{
    return asked_move((uintptr_t)to, from, n, NULL);
}
static CUresult asked_one(void *one)
{
    (void)one;
    return noted(NULL);
}
static CUresult asked_two(void *one, void *two)
{
    (void)two;
    return asked_one(one);
}
static CUresult asked_three(void *one, void *two, unsigned int flags)
{
    (void)flags;
    return asked_two(one, two);
}
static CUresult asked_host(CUstream s, host_function function, void *data)
{
    const CUresult result = noted(s);

    if (result == CUDA_SUCCESS && function != NULL)
        function(data);
    return result;
}
static CUresult asked_number(unsigned int number)
{
    (void)number;
    return noted(NULL);
}
static CUresult give_handle(void **handle_place)
{
    *handle_place = handle();
    return any_result();
}
static CUresult give_handle_of(void *one, void **handle_place)
{
    (void)one;
    return give_handle(handle_place);
}
static CUresult give_number(int *number)
{
    *number = take_byte() % 4;
    return any_result();
}
static CUresult give_number_of(void *one, int *number)
{
    (void)one;
    return give_number(number);
}
static CUresult give_event(CUevent *event, unsigned int flags)
{
    (void)flags;
    return give_handle((void **)event);
}
static CUresult give_elapsed(float *milliseconds, CUevent from, CUevent to)
{
    const uint32_t bits = (uint32_t)take_number();

    (void)from, (void)to;
    memcpy(milliseconds, &bits, sizeof bits);
    return any_result();
}
static CUresult give_primary(CUcontext *context, CUdevice device)
{
    (void)device;
    *context = handle();
    return any_result();
}
static CUresult give_state(CUdevice device, unsigned int *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = take_byte() % 2;
    return any_result();
}
static CUresult make_context(CUcontext *context, unsigned int flags, CUdevice device)
{
    (void)context, (void)flags, (void)device;
    return noted(NULL);
}
static CUresult give_resource(CUdevice device, struct resource *resource, int kind)
{
    (void)device;
    resource->kind = kind;
    resource->sm.count = (unsigned int)take_number();
    return any_result();
}
static CUresult split(struct resource *some, unsigned int *groups, const struct resource *all, struct resource *left,
                      unsigned int flags, unsigned int least)
{
    (void)flags;
    *some = *all;
    *left = *all;
    some->sm.count = least;
    *groups = take_byte() < 240;
    return any_result();
}
static CUresult describe(void **description, struct resource *resource, unsigned int count)
{
    (void)resource, (void)count;
    return give_handle(description);
}
static CUresult make_green(void **green, void *description, CUdevice device, unsigned int flags)
{
    (void)description, (void)device, (void)flags;
    return give_handle(green);
}
static CUresult make_green_stream(CUstream *stream, void *green, unsigned int flags, int priority)
{
    (void)green, (void)flags, (void)priority;
    return give_handle((void **)stream);
}
static CUresult give_name(const char **name, CUfunction function)
{
    static const char *const names[] = {"", "k", "a name of more than fifty-five bytes, which is more than there is room for"};

    (void)function;
    *name = names[take_byte() % 3];
    return any_result();
}
static CUresult look_up(const char *symbol, void **address, int version, cuuint64_t flags, int *status)
{
    static const function offered[] = {(function)asked_kernel, (function)asked_one, (function)give_number};

    (void)symbol, (void)version, (void)flags;
    memcpy(address, &offered[take_byte() % 3], sizeof *address);
    if (status != NULL)
        *status = 0;
    return driver_result = any_result();
}
static CUresult look_up_first(const char *symbol, void **address, int version, cuuint64_t flags)
{
    return look_up(symbol, address, version, flags, NULL);
}

static uint64_t lacking; /* a bit for every so many functions */

static void *fuzz_dlsym(void *library, const char *name)
{
    static const struct {
        const char *beginning;
        function found;
    } known[] = {
        {"cuLaunchKernelEx", (function)asked_kernel_ex},
        {"cuLaunchKernel", (function)asked_kernel},
        {"cuLaunchCooperativeKernel", (function)asked_cooperative},
        {"cuGraphLaunch", (function)asked_graph},
        {"cuMemcpyHtoD_", (function)asked_copy},
        {"cuMemcpyDtoH_", (function)asked_copy},
        {"cuMemcpy", (function)asked_move},
        {"cuMemset", (function)asked_move},
        {"cuStreamIsCapturing", (function)give_number_of},
        {"cuStreamGetPriority", (function)give_number_of},
        {"cuStreamGetGreenCtx", (function)give_handle_of},
        {"cuStreamWaitEvent", (function)asked_three},
        {"cuStream", (function)asked_one},
        {"cuThreadExchangeStreamCaptureMode", (function)give_number},
        {"cuEventCreate", (function)give_event},
        {"cuEventElapsedTime", (function)give_elapsed},
        {"cuEventRecordWithFlags", (function)asked_three},
        {"cuEventRecord", (function)asked_two},
        {"cuEvent", (function)asked_one},
        {"cuCtxGetCurrent", (function)give_handle},
        {"cuCtxGetDevice", (function)give_number},
        {"cuCtxCreate_v2", (function)make_context},
        {"cuCtx", (function)asked_one},
        {"cuDevicePrimaryCtxRetain", (function)give_primary},
        {"cuDevicePrimaryCtxGetState", (function)give_state},
        {"cuDevicePrimaryCtx", (function)asked_number},
        {"cuDeviceGetDevResource", (function)give_resource},
        {"cuDevSmResourceSplitByCount", (function)split},
        {"cuDevResourceGenerateDesc", (function)describe},
        {"cuGreenCtxCreate", (function)make_green},
        {"cuGreenCtxStreamCreate", (function)make_green_stream},
        {"cuGreenCtxDestroy", (function)asked_one},
        {"cuFuncGetName", (function)give_name},
        {"cuKernelGetName", (function)give_name},
        {"cuLaunchHostFunc", (function)asked_host},
        {"cuInit", (function)asked_number},
        {"cuGetProcAddress_v2", (function)look_up},
        {"cuGetProcAddress", (function)look_up_first},
    };
    void *address = NULL;

    CHECK(library == &missing);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(name, known[i].beginning, strlen(known[i].beginning)) == 0 && !(lacking >> i & 1)) {
            memcpy(&address, &known[i].found, sizeof address);
            break;
        }
    return address;
}

/* What neighbours and the broker may do at any time: write another word on a page that is read here. */
static void disturb(void)
{
    if (pages == NULL || process == NULL)
        return;
    if (take_byte() < 64)
        atomic_store(&pages->board.generation, take_byte());
    if (take_byte() < 16)
        atomic_store(&pages->board.broker, take_byte());
    if (take_byte() < 16)
        atomic_store(&pages->board.places, take_byte() % 2);
    for (int i = 0; i < 2 && take_byte() < 96; i++)
        atomic_store(&pages->others[i].word, take_number());
    clock_now += take_byte() * MILLISECONDS;
}

/* The driver's answer to the last call of its own, however many there were for our own needs. */
static void check_call(CUresult result, function own)
{
    CHECK(own != NULL || result == CUDA_ERROR_NOT_FOUND);
    CHECK(process == NULL || atomic_load(&process->gate) == 0);
}

static void call(void)
{
    nanoseconds began = clock_now;
    CUstream s = handle();
    CUevent e = handle();
    struct CUlaunchAttribute *attributes = calloc(2, sizeof *attributes);
    struct CUlaunchConfig *config = calloc(1, sizeof *config);
    const size_t size = (size_t)take_byte() << 16;
    void *address = NULL;
    const bool own_stream = take_byte() & 1;

    *config = (struct CUlaunchConfig){{1, 2, 3}, {4, 5, 6}, 7, s, attributes, 2};
    attributes[1].id = take_byte() % 4;
    attributes[1].value.cooperative = 1;
    driver_calls = 0;
    if (take_byte() < 16) {
        CUcontext context = NULL;
        CUresult result = cuCtxCreate_v2(&context, 0, 0);
        CHECK(own_cuCtxCreate_v2 == NULL || (driver_calls == 0 ? result == NO_PLACE : result == driver_result));
        CHECK(clock_now - began < LONGEST_WAIT * SECONDS);
        began = clock_now;
    }
    driver_calls = 0;
    switch (take_byte() % 16) {
    case 0: case 1: case 2:
        if (own_stream)
            check_call(cuLaunchKernel_ptsz(handle(), 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL), (function)own_cuLaunchKernel_ptsz);
        else
            check_call(cuLaunchKernel(handle(), 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL), (function)own_cuLaunchKernel);
        break;
    case 3: check_call(cuLaunchKernelEx(take_byte() ? config : NULL, handle(), NULL, NULL), (function)own_cuLaunchKernelEx); break;
    case 4: check_call(cuLaunchCooperativeKernel(handle(), 1, 1, 1, 1, 1, 1, 0, s, NULL), (function)own_cuLaunchCooperativeKernel); break;
    case 5: check_call(cuGraphLaunch(handle(), s), (function)own_cuGraphLaunch); break;
    case 6: check_call(cuMemcpyAsync(1, 2, size, s), (function)own_cuMemcpyAsync); break;
    case 7: check_call(cuMemcpyDtoH_v2(NULL, 2, size), (function)own_cuMemcpyDtoH_v2); break;
    case 8: check_call(cuEventRecord(e, s), (function)own_cuEventRecord); break;
    case 9: check_call(cuStreamWaitEvent(s, e, 0), (function)own_cuStreamWaitEvent); break;
    case 10: check_call(own_stream ? cuStreamSynchronize(s) : cuStreamQuery(s),
                        own_stream ? (function)own_cuStreamSynchronize : (function)own_cuStreamQuery); break;
    case 11: check_call(cuEventSynchronize(e), (function)own_cuEventSynchronize); break;
    case 12: check_call(own_stream ? cuCtxSynchronize() : cuCtxDestroy_v2(s),
                        own_stream ? (function)own_cuCtxSynchronize : (function)own_cuCtxDestroy_v2); break;
    case 13: check_call(cuStreamDestroy_v2(s), (function)own_cuStreamDestroy_v2); break;
    case 14: check_call(cuLaunchHostFunc(s, take_byte() ? free : NULL, NULL), (function)own_cuLaunchHostFunc); break;
    default: {
        char *symbol = take_text("cuLaunchKernel");
        if (own_get_proc_address_v2 != NULL)
            CHECK(cuGetProcAddress_v2(symbol, &address, take_byte() * 100, take_byte(), NULL) == driver_result);
        free(symbol);
    }
    }
    CHECK(clock_now - began < LONGEST_CALL * SECONDS);
    free(attributes);
    free(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rest = data;
    rest_size = size;
    clock_now = SECONDS;
    take_environment();
    missing = 0;
    no_driver = take_byte() == 1;
    lacking = take_byte() < 192 ? 0 : take_number();
    process = NULL;
    pages = NULL;
    memcpy(attach_directory, "/run/gpushare/mps", sizeof "/run/gpushare/mps");
    load();
    drop_environment();
    if (own_cuInit != NULL)
        (void)cuInit(0);
    for (int calls = 0; calls < 4 || (rest_size > 0 && calls < MOST_CALLS); calls++) {
        disturb();
        call();
    }
    for (int i = 3; i < DESCRIPTORS; i++)
        CHECK(!is_open[i]);
    while (block_count > 0)
        free(blocks[--block_count]);
    return 0;
}
