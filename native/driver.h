/* The driver's own functions that classes need by themselves, beside those that they stand in front of. */
#ifndef GPUSHARE_DRIVER_H
#define GPUSHARE_DRIVER_H

#include "process.h"

typedef void *CUfunction;

enum {
    NOT_READY = 600,
    EVENT_TIMED = 0,
    EVENT_UNTIMED = 2,
    RELAXED = 2, /* CU_STREAM_CAPTURE_MODE_RELAXED */
    RESOURCE_SM = 1,
    DEFAULT_STREAM = 1, /* CU_GREEN_CTX_DEFAULT_STREAM */
    NON_BLOCKING = 1,
};

/* CUdevResource, CUDA 12.4 to 13: in its first fields a number of SMs. Larger than any of them. */
struct resource {
    int kind;
    unsigned char internal[92];
    struct {
        unsigned int count;
        unsigned char rest[156];
    } sm;
};

/* (name here, the driver's, arguments). A stream that is given to them is never 0: its handle says which one it is. */
#define DRIVER_FUNCTIONS(_)                                                                             \
    _(is_capturing, "cuStreamIsCapturing", (CUstream, int *))                                           \
    _(exchange_mode, "cuThreadExchangeStreamCaptureMode", (int *))                                      \
    _(event_create, "cuEventCreate", (CUevent *, unsigned int))                                         \
    _(event_elapsed, "cuEventElapsedTime", (float *, CUevent, CUevent))                                 \
    _(stream_priority, "cuStreamGetPriority", (CUstream, int *))                                        \
    _(stream_green, "cuStreamGetGreenCtx", (CUstream, void **))                                         \
    _(context_current, "cuCtxGetCurrent", (CUcontext *))                                                \
    _(context_device, "cuCtxGetDevice", (CUdevice *))                                                   \
    _(primary_state, "cuDevicePrimaryCtxGetState", (CUdevice, unsigned int *, int *))                   \
    _(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                              \
    _(device_resource, "cuDeviceGetDevResource", (CUdevice, struct resource *, int))                    \
    _(split_resource, "cuDevSmResourceSplitByCount",                                                    \
      (struct resource *, unsigned int *, const struct resource *, struct resource *, unsigned int, unsigned int)) \
    _(describe_resource, "cuDevResourceGenerateDesc", (void **, struct resource *, unsigned int))       \
    _(green_create, "cuGreenCtxCreate", (void **, void *, CUdevice, unsigned int))                      \
    _(green_stream, "cuGreenCtxStreamCreate", (CUstream *, void *, unsigned int, int))                  \
    _(green_destroy, "cuGreenCtxDestroy", (void *))                                                     \
    _(function_name, "cuFuncGetName", (const char **, CUfunction))                                      \
    _(kernel_name, "cuKernelGetName", (const char **, CUfunction))                                      \
    _(event_record, "cuEventRecord", (CUevent, CUstream))                                               \
    _(event_query, "cuEventQuery", (CUevent))                                                           \
    _(stream_wait, "cuStreamWaitEvent", (CUstream, CUevent, unsigned int))                              \
    _(stream_destroy, "cuStreamDestroy_v2", (CUstream))                                                 \
    _(primary_release, "cuDevicePrimaryCtxRelease_v2", (CUdevice))

#define DECLARE(name, symbol, arguments) static CUresult(*driver_##name) arguments;
DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE

static void find_driver_functions(void)
{
#define WANTED(name, symbol, arguments) {symbol, (function *)&driver_##name},
    const struct wanted wanted[] = {DRIVER_FUNCTIONS(WANTED)};
#undef WANTED

    find_functions(wanted, sizeof wanted / sizeof *wanted);
}

/* Whether nothing may be recorded or waited for in the stream, or the driver does not say. */
static inline bool is_captured(CUstream handle)
{
    int status = 0;

    return driver_is_capturing == NULL || driver_is_capturing(handle, &status) != CUDA_SUCCESS || status != 0;
}

/* While one thread captures, calls of others may end its capture; but for a thread that says it knows. Returns what the
 * thread had said, to be given back by the same call. */
static inline int exchange_capture_mode(int mode)
{
    if (driver_exchange_mode != NULL)
        (void)driver_exchange_mode(&mode);
    return mode;
}

#endif
