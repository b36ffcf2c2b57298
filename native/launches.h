/* The functions that classes stand in front of: each way to launch, to wait, and to make and end what is waited for.
 *
 * Each front calls the driver's function of the same name with the same arguments, once; of a launch that goes the detour
 * and is refused there a second time. What the driver answers is what the program gets. A name with `_ptsz` or `_ptds` is
 * the same function where 0 is the thread's own stream.
 */
#ifndef GPUSHARE_LAUNCHES_H
#define GPUSHARE_LAUNCHES_H

#include "give_way.h"
#include "place.h"

typedef uint64_t CUdeviceptr;
typedef void *CUgraphExec;

struct dimensions {
    unsigned int x, y, z;
};

struct CUlaunchAttribute {
    int id;
    int pad;
    union {
        int cooperative;
        unsigned char bytes[64];
    } value;
};

struct CUlaunchConfig {
    struct dimensions grid, block;
    unsigned int shared_bytes;
    CUstream stream;
    const struct CUlaunchAttribute *attributes;
    unsigned int count;
};

enum { ATTRIBUTE_COOPERATIVE = 2, MOST_ATTRIBUTES = 64 };

static CUstream handle_of(CUstream given, int null)
{
    return given != NULL ? given : (CUstream)(uintptr_t)null;
}

/* `size`: of a grid, or in bytes: a function of another size takes another time. */
static struct launch begin(CUstream given, int null, enum kind kind, const void *function, uint64_t size)
{
    const uint64_t key = ((uint64_t)(uintptr_t)function ^ size * 0x9E3779B97F4A7C15u) + (uint64_t)kind;
    struct launch launch = {handle_of(given, null), NULL, NULL, kind, function, key, false, false, NOT_TIMED, 0};

    if (!has_class())
        return launch;
    if (atomic_load_explicit(&process->class, memory_order_relaxed) == CLASS_BEST_EFFORT) {
        if (is_captured(launch.handle))
            return launch;
        launch.stream = stream_of(launch.handle);
        give_way(&launch);
    } else
        launch.stream = stream_of(launch.handle);
    launch_begins(launch.stream);
    return launch;
}

static uint64_t size_of(unsigned int x, unsigned int y, unsigned int z)
{
    return (uint64_t)x + ((uint64_t)y << 32) + ((uint64_t)z << 48);
}

/* CALL(stream): the driver's own. */
#define MADE(launch, given, CALL)                                       \
    bool detour = launch.to != NULL;                                    \
    CUresult result = CALL(detour ? launch.to : given);                 \
    if (detour && result != CUDA_SUCCESS) {                             \
        detour = false;                                                 \
        result = CALL(given);                                           \
        if (result == CUDA_SUCCESS)                                     \
            launch.stream->part = -1;                                   \
    }                                                                   \
    launched(&launch, result, detour);                                  \
    return result

static bool is_cooperative(const struct CUlaunchConfig *config)
{
    for (unsigned int i = 0; config->attributes != NULL && i < config->count && i < MOST_ATTRIBUTES; i++)
        if (config->attributes[i].id == ATTRIBUTE_COOPERATIVE && config->attributes[i].value.cooperative != 0)
            return true;
    return false;
}

#define GRID_SIZE size_of(config->grid.x, config->grid.y, config->grid.z)

#define KERNELS(suffix, null)                                                                                          \
    static CUresult (*own_cuLaunchKernel##suffix)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,  \
                                                  unsigned int, unsigned int, unsigned int, CUstream, void **, void **); \
    EXPORT CUresult cuLaunchKernel##suffix(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,            \
                                           unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,     \
                                           CUstream given, void **parameters, void **extra)                            \
    {                                                                                                                  \
        if (own_cuLaunchKernel##suffix == NULL)                                                                        \
            return CUDA_ERROR_NOT_FOUND;                                                                               \
        struct launch launch = begin(given, null, KERNEL, f, size_of(gx, gy, gz));                                                          \
        MADE(launch, given, LAUNCH_KERNEL##suffix);                                                                    \
    }                                                                                                                  \
    static CUresult (*own_cuLaunchKernelEx##suffix)(const struct CUlaunchConfig *, CUfunction, void **, void **);      \
    EXPORT CUresult cuLaunchKernelEx##suffix(const struct CUlaunchConfig *config, CUfunction f, void **parameters,     \
                                             void **extra)                                                             \
    {                                                                                                                  \
        if (own_cuLaunchKernelEx##suffix == NULL)                                                                      \
            return CUDA_ERROR_NOT_FOUND;                                                                               \
        if (config == NULL)                                                                                            \
            return own_cuLaunchKernelEx##suffix(config, f, parameters, extra);                                         \
        struct launch launch = begin(config->stream, null, is_cooperative(config) ? COOPERATIVE : KERNEL, f, GRID_SIZE);         \
        struct CUlaunchConfig there = *config;                                                                         \
        there.stream = launch.to;                                                                                      \
        MADE(launch, config->stream, LAUNCH_KERNEL_EX##suffix);                                                        \
    }                                                                                                                  \
    static CUresult (*own_cuLaunchCooperativeKernel##suffix)(CUfunction, unsigned int, unsigned int, unsigned int,     \
                                                             unsigned int, unsigned int, unsigned int, unsigned int,   \
                                                             CUstream, void **);                                       \
    EXPORT CUresult cuLaunchCooperativeKernel##suffix(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, \
                                                      unsigned int bx, unsigned int by, unsigned int bz,               \
                                                      unsigned int shared, CUstream given, void **parameters)          \
    {                                                                                                                  \
        if (own_cuLaunchCooperativeKernel##suffix == NULL)                                                             \
            return CUDA_ERROR_NOT_FOUND;                                                                               \
        struct launch launch = begin(given, null, COOPERATIVE, f, size_of(gx, gy, gz));                                                     \
        MADE(launch, given, LAUNCH_COOPERATIVE##suffix);                                                               \
    }                                                                                                                  \
    static CUresult (*own_cuGraphLaunch##suffix)(CUgraphExec, CUstream);                                               \
    EXPORT CUresult cuGraphLaunch##suffix(CUgraphExec graph, CUstream given)                                           \
    {                                                                                                                  \
        if (own_cuGraphLaunch##suffix == NULL)                                                                         \
            return CUDA_ERROR_NOT_FOUND;                                                                               \
        struct launch launch = begin(given, null, GRAPH, graph, 0);                                                       \
        MADE(launch, given, LAUNCH_GRAPH##suffix);                                                                     \
    }

#define LAUNCH_KERNEL(s) own_cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, s, parameters, extra)
#define LAUNCH_KERNEL_ptsz(s) own_cuLaunchKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared, s, parameters, extra)
#define LAUNCH_KERNEL_EX(s) own_cuLaunchKernelEx((s) == launch.to && detour ? &there : config, f, parameters, extra)
#define LAUNCH_KERNEL_EX_ptsz(s) own_cuLaunchKernelEx_ptsz((s) == launch.to && detour ? &there : config, f, parameters, extra)
#define LAUNCH_COOPERATIVE(s) own_cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared, s, parameters)
#define LAUNCH_COOPERATIVE_ptsz(s) own_cuLaunchCooperativeKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared, s, parameters)
#define LAUNCH_GRAPH(s) own_cuGraphLaunch(graph, s)
#define LAUNCH_GRAPH_ptsz(s) own_cuGraphLaunch_ptsz(graph, s)

KERNELS(, LEGACY)
KERNELS(_ptsz, PER_THREAD)

/* Copies and fills; small ones do not count. */
static struct launch begin_move(CUstream given, int null, size_t bytes)
{
    struct launch launch = {handle_of(given, null), NULL, NULL, MOVE, NULL, 0, false, false, NOT_TIMED, 0};

    return bytes < MOVED_BYTES ? launch : begin(given, null, MOVE, NULL, bytes);
}

#define MOVES(suffix, null, _)                                                                                             \
    _(cuMemcpyAsync##suffix, null, n, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))          \
    _(cuMemcpyHtoDAsync_v2##suffix, null, n, (CUdeviceptr to, const void *from, size_t n, CUstream s), (to, from, n, s))   \
    _(cuMemcpyDtoHAsync_v2##suffix, null, n, (void *to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))         \
    _(cuMemcpyDtoDAsync_v2##suffix, null, n, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))   \
    _(cuMemsetD8Async##suffix, null, n, (CUdeviceptr to, unsigned char value, size_t n, CUstream s), (to, value, n, s))    \
    _(cuMemsetD16Async##suffix, null, 2 * n, (CUdeviceptr to, unsigned short value, size_t n, CUstream s), (to, value, n, s)) \
    _(cuMemsetD32Async##suffix, null, 4 * n, (CUdeviceptr to, unsigned int value, size_t n, CUstream s), (to, value, n, s))

#define MOVE_FRONT(symbol, null, bytes, parameters, arguments) \
    static CUresult(*own_##symbol) parameters;                 \
    EXPORT CUresult symbol parameters                          \
    {                                                          \
        if (own_##symbol == NULL)                              \
            return CUDA_ERROR_NOT_FOUND;                       \
        struct launch launch = begin_move(s, null, bytes);     \
        CUresult result = own_##symbol arguments;              \
        launched(&launch, result, false);                      \
        return result;                                         \
    }
MOVES(, LEGACY, MOVE_FRONT)
MOVES(_ptsz, PER_THREAD, MOVE_FRONT)

/* Those that return when a copy has ended, and with it what was before it in its stream. */
#define COPIES(suffix, null, _)                                                                                  \
    _(cuMemcpyHtoD_v2##suffix, null, (CUdeviceptr to, const void *from, size_t n), (to, from, n))                \
    _(cuMemcpyDtoH_v2##suffix, null, (void *to, CUdeviceptr from, size_t n), (to, from, n))

#define COPY_FRONT(symbol, null, parameters, arguments)                                \
    static CUresult(*own_##symbol) parameters;                                         \
    EXPORT CUresult symbol parameters                                                  \
    {                                                                                  \
        if (own_##symbol == NULL)                                                      \
            return CUDA_ERROR_NOT_FOUND;                                               \
        struct launch launch = begin_move(NULL, null, n);                              \
        const bool counts = has_class();                                               \
        const struct ending ending = counts ? ending_of(launch.handle) : NO_ENDING;    \
        CUresult result = own_##symbol arguments;                                      \
        launched(&launch, result, false);                                              \
        if (counts && result == CUDA_SUCCESS)                                          \
            has_ended(&ending);                                                        \
        return result;                                                                 \
    }
static const struct ending NO_ENDING;
COPIES(, LEGACY, COPY_FRONT)
COPIES(_ptds, PER_THREAD, COPY_FRONT)

/* A call after which what it names has ended, if it says so: `before` what had been launched when it was made. */
#define WAIT_FRONT(symbol, parameters, arguments, before)               \
    static CUresult(*own_##symbol) parameters;                          \
    EXPORT CUresult symbol parameters                                   \
    {                                                                   \
        if (own_##symbol == NULL)                                       \
            return CUDA_ERROR_NOT_FOUND;                                \
        const bool counts = has_class();                                \
        const struct ending ending = counts ? (before) : NO_ENDING;     \
        CUresult result = own_##symbol arguments;                       \
        if (counts && result == CUDA_SUCCESS)                           \
            has_ended(&ending);                                         \
        return result;                                                  \
    }
WAIT_FRONT(cuStreamSynchronize, (CUstream s), (s), ending_of(handle_of(s, LEGACY)))
WAIT_FRONT(cuStreamSynchronize_ptsz, (CUstream s), (s), ending_of(handle_of(s, PER_THREAD)))
WAIT_FRONT(cuStreamQuery, (CUstream s), (s), ending_of(handle_of(s, LEGACY)))
WAIT_FRONT(cuStreamQuery_ptsz, (CUstream s), (s), ending_of(handle_of(s, PER_THREAD)))
WAIT_FRONT(cuEventSynchronize, (CUevent event), (event), ending_of_event(event))
WAIT_FRONT(cuEventQuery, (CUevent event), (event), ending_of_event(event))

#define CONTEXT_WAIT_FRONT(symbol, parameters, arguments)                        \
    static CUresult(*own_##symbol) parameters;                                   \
    EXPORT CUresult symbol parameters                                            \
    {                                                                            \
        if (own_##symbol == NULL)                                                \
            return CUDA_ERROR_NOT_FOUND;                                         \
        const bool counts = has_class();                                         \
        const uint64_t number = counts ? atomic_load(&process->numbers) : 0;     \
        CUresult result = own_##symbol arguments;                                \
        if (counts && result == CUDA_SUCCESS)                                    \
            all_have_ended(number);                                              \
        return result;                                                           \
    }
CONTEXT_WAIT_FRONT(cuCtxSynchronize, (void), ())
CONTEXT_WAIT_FRONT(cuCtxSynchronize_v2, (CUcontext context), (context))

#define NOTED_FRONT(symbol, parameters, arguments, note)  \
    static CUresult(*own_##symbol) parameters;            \
    EXPORT CUresult symbol parameters                     \
    {                                                     \
        if (own_##symbol == NULL)                         \
            return CUDA_ERROR_NOT_FOUND;                  \
        CUresult result = own_##symbol arguments;         \
        if (result == CUDA_SUCCESS && has_class())        \
            note;                                         \
        return result;                                    \
    }
NOTED_FRONT(cuEventRecord, (CUevent e, CUstream s), (e, s), event_recorded(e, handle_of(s, LEGACY)))
NOTED_FRONT(cuEventRecord_ptsz, (CUevent e, CUstream s), (e, s), event_recorded(e, handle_of(s, PER_THREAD)))
NOTED_FRONT(cuEventRecordWithFlags, (CUevent e, CUstream s, unsigned int flags), (e, s, flags),
            event_recorded(e, handle_of(s, LEGACY)))
NOTED_FRONT(cuEventRecordWithFlags_ptsz, (CUevent e, CUstream s, unsigned int flags), (e, s, flags),
            event_recorded(e, handle_of(s, PER_THREAD)))
NOTED_FRONT(cuStreamWaitEvent, (CUstream s, CUevent e, unsigned int flags), (s, e, flags),
            stream_waits(handle_of(s, LEGACY), e))
NOTED_FRONT(cuStreamWaitEvent_ptsz, (CUstream s, CUevent e, unsigned int flags), (s, e, flags),
            stream_waits(handle_of(s, PER_THREAD), e))

static CUresult (*own_cuInit)(unsigned int);
EXPORT CUresult cuInit(unsigned int flags)
{
    if (own_cuInit == NULL)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = own_cuInit(flags);
    if (result == CUDA_SUCCESS)
        join_broker();
    return result;
}

/* A host function runs when what was before it in its stream has ended. */

typedef void (*host_function)(void *);

struct host_call {
    host_function function;
    void *data;
    struct ending ending;
};

static void ended_and_call(void *data)
{
    struct host_call call = *(struct host_call *)data;

    free(data);
    if (process != NULL && atomic_load(&process->started) != 0)
        has_ended(&call.ending);
    call.function(call.data);
}

static CUresult call_host(CUresult (*own)(CUstream, host_function, void *), CUstream given, int null,
                          host_function function, void *data)
{
    struct host_call *call;

    if (own == NULL)
        return CUDA_ERROR_NOT_FOUND;
    if (function == NULL || !has_class() || is_captured(handle_of(given, null)) || (call = malloc(sizeof *call)) == NULL)
        return own(given, function, data);
    *call = (struct host_call){function, data, ending_of(handle_of(given, null))};
    CUresult result = own(given, ended_and_call, call);
    if (result != CUDA_SUCCESS)
        free(call);
    return result;
}

#define HOST_FRONT(symbol, null)                                                              \
    static CUresult (*own_##symbol)(CUstream, host_function, void *);                         \
    EXPORT CUresult symbol(CUstream s, host_function function, void *data)                    \
    {                                                                                         \
        return call_host(own_##symbol, s, null, function, data);                              \
    }
HOST_FRONT(cuLaunchHostFunc, LEGACY)
HOST_FRONT(cuLaunchHostFunc_ptsz, PER_THREAD)

/* What goes takes what is beside it along. */

static CUresult (*own_cuStreamDestroy_v2)(CUstream);
EXPORT CUresult cuStreamDestroy_v2(CUstream s)
{
    if (own_cuStreamDestroy_v2 == NULL)
        return CUDA_ERROR_NOT_FOUND;
    if (has_class() && hold_gate(now() + GATE_PATIENCE)) {
        struct stream *stream = stream_of(handle_of(s, LEGACY));
        forget_stream(stream);
        drop_number(stream, atomic_load(&stream->pending));
        leave_gate();
    }
    return own_cuStreamDestroy_v2(s);
}

#define CONTEXT_END_FRONT(symbol, parameters, arguments)                   \
    static CUresult(*own_##symbol) parameters;                             \
    EXPORT CUresult symbol parameters                                      \
    {                                                                      \
        if (own_##symbol == NULL)                                          \
            return CUDA_ERROR_NOT_FOUND;                                   \
        if (has_class() && hold_gate(now() + GATE_PATIENCE)) {             \
            forget_context();                                              \
            leave_gate();                                                  \
        }                                                                  \
        return own_##symbol arguments;                                     \
    }
CONTEXT_END_FRONT(cuCtxDestroy_v2, (CUcontext context), (context))
CONTEXT_END_FRONT(cuDevicePrimaryCtxReset_v2, (CUdevice device), (device))
CONTEXT_END_FRONT(cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device))

/* A context is made by a container that has a place. One that is retained again is there already. */

static bool has_primary(CUdevice device)
{
    unsigned int flags = 0;
    int active = 0;

    return driver_primary_state != NULL && driver_primary_state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

#define CONTEXT_FRONT(symbol, parameters, arguments, exists)                     \
    static CUresult(*own_##symbol) parameters;                                   \
    EXPORT CUresult symbol parameters                                            \
    {                                                                            \
        if (own_##symbol == NULL)                                                \
            return CUDA_ERROR_NOT_FOUND;                                         \
        CUresult refused = (exists) ? CUDA_SUCCESS : wait_for_place();           \
        return refused != CUDA_SUCCESS ? refused : own_##symbol arguments;       \
    }
CONTEXT_FRONT(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device), (context, device), has_primary(device))
CONTEXT_FRONT(cuCtxCreate_v2, (CUcontext *context, unsigned int flags, CUdevice device), (context, flags, device), false)
CONTEXT_FRONT(cuCtxCreate_v3, (CUcontext *context, void *affinities, int count, unsigned int flags, CUdevice device),
              (context, affinities, count, flags, device), false)
CONTEXT_FRONT(cuCtxCreate_v4, (CUcontext *context, void *parameters, unsigned int flags, CUdevice device),
              (context, parameters, flags, device), false)

/* (name, first and last version of CUDA with this variant, symbol, whether it has a twin for the thread's own stream.) */
#define FRONTS(_, BOTH, COPY)                               \
    BOTH("cuLaunchKernel", 4000, 13999, cuLaunchKernel)     \
    BOTH("cuLaunchKernelEx", 11060, 13999, cuLaunchKernelEx) \
    BOTH("cuLaunchCooperativeKernel", 9000, 13999, cuLaunchCooperativeKernel) \
    BOTH("cuGraphLaunch", 10000, 13999, cuGraphLaunch)      \
    BOTH("cuMemcpyAsync", 4000, 13999, cuMemcpyAsync)       \
    BOTH("cuMemcpyHtoDAsync", 3020, 13999, cuMemcpyHtoDAsync_v2) \
    BOTH("cuMemcpyDtoHAsync", 3020, 13999, cuMemcpyDtoHAsync_v2) \
    BOTH("cuMemcpyDtoDAsync", 3020, 13999, cuMemcpyDtoDAsync_v2) \
    BOTH("cuMemsetD8Async", 3020, 13999, cuMemsetD8Async)   \
    BOTH("cuMemsetD16Async", 3020, 13999, cuMemsetD16Async) \
    BOTH("cuMemsetD32Async", 3020, 13999, cuMemsetD32Async) \
    COPY("cuMemcpyHtoD", 3020, 13999, cuMemcpyHtoD_v2)      \
    COPY("cuMemcpyDtoH", 3020, 13999, cuMemcpyDtoH_v2)      \
    BOTH("cuStreamSynchronize", 2000, 13999, cuStreamSynchronize) \
    BOTH("cuStreamQuery", 2000, 13999, cuStreamQuery)       \
    BOTH("cuEventRecord", 2000, 13999, cuEventRecord)       \
    BOTH("cuEventRecordWithFlags", 11010, 13999, cuEventRecordWithFlags) \
    BOTH("cuStreamWaitEvent", 3020, 13999, cuStreamWaitEvent) \
    BOTH("cuLaunchHostFunc", 10000, 13999, cuLaunchHostFunc) \
    _("cuEventSynchronize", 2000, 13999, cuEventSynchronize) \
    _("cuEventQuery", 2000, 13999, cuEventQuery)            \
    _("cuCtxSynchronize", 2000, 12999, cuCtxSynchronize)    \
    _("cuCtxSynchronize", 13000, 13999, cuCtxSynchronize_v2) \
    _("cuInit", 2000, 13999, cuInit)                        \
    _("cuStreamDestroy", 4000, 13999, cuStreamDestroy_v2)   \
    _("cuCtxDestroy", 4000, 13999, cuCtxDestroy_v2)         \
    _("cuDevicePrimaryCtxRetain", 7000, 13999, cuDevicePrimaryCtxRetain) \
    _("cuCtxCreate", 3020, 11039, cuCtxCreate_v2)           \
    _("cuCtxCreate", 11040, 12049, cuCtxCreate_v3)          \
    _("cuCtxCreate", 12050, 13999, cuCtxCreate_v4)          \
    _("cuDevicePrimaryCtxReset", 11000, 13999, cuDevicePrimaryCtxReset_v2) \
    _("cuDevicePrimaryCtxRelease", 11000, 13999, cuDevicePrimaryCtxRelease_v2)

static void load_launches(void)
{
#define ONE(name, since, until, symbol) {#symbol, (function *)&own_##symbol},
#define TWINS(name, since, until, symbol) ONE(, , , symbol) ONE(, , , symbol##_ptsz)
#define DEFAULT_TWINS(name, since, until, symbol) ONE(, , , symbol) ONE(, , , symbol##_ptds)
    const struct wanted wanted[] = {FRONTS(ONE, TWINS, DEFAULT_TWINS)};
#undef ONE
#undef TWINS
#undef DEFAULT_TWINS

    find_functions(wanted, sizeof wanted / sizeof *wanted);
    find_driver_functions();
    load_process();
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **address, int version, cuuint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags, int *status);

/* As `replace`, of what classes stand in front of. */
static void replace_launch(const char *symbol, void **address, int version, cuuint64_t flags)
{
#define ONE(name, since, until, symbol) {name, since, until, 0, (function)own_##symbol, (function)symbol},
#define TWIN(name, since, until, symbol) {name, since, until, 2, (function)own_##symbol, (function)symbol},
#define TWINS(name, since, until, symbol) TWIN(name, since, until, symbol##_ptsz) ONE(name, since, until, symbol)
#define DEFAULT_TWINS(name, since, until, symbol) TWIN(name, since, until, symbol##_ptds) ONE(name, since, until, symbol)
    const struct {
        const char *name;
        int since, until;
        unsigned int flag; /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
        function own, front;
    } known[] = {
        FRONTS(ONE, TWINS, DEFAULT_TWINS)
        {"cuGetProcAddress", 11030, 11999, 0, (function)own_get_proc_address, (function)cuGetProcAddress},
        {"cuGetProcAddress", 12000, 13999, 0, (function)own_get_proc_address_v2, (function)cuGetProcAddress_v2},
    };
#undef ONE
#undef TWIN
#undef TWINS
#undef DEFAULT_TWINS
    const size_t count = sizeof known / sizeof *known;

    function found, front = NULL;

    if (process == NULL || symbol == NULL || address == NULL || *address == NULL)
        return;
    memcpy(&found, address, sizeof found);
    for (size_t i = 0; i < count && front == NULL; i++)
        if (found == known[i].own)
            front = known[i].front;
    for (size_t i = 0; i < count && front == NULL; i++)
        if (known[i].own != NULL && strcmp(symbol, known[i].name) == 0 && version >= known[i].since &&
            version <= known[i].until && (flags & known[i].flag) == known[i].flag)
            front = known[i].front;
    if (front != NULL)
        memcpy(address, &front, sizeof front);
}

#endif
