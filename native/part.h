/* Part of the SMs for a process, while that is wanted, by streams of a green context beside its own streams.
 *
 * A kernel goes the detour: an event in its stream, for which the other stream waits; the kernel there; an event there, for
 * which its own stream waits. So order is as it was, and nothing else of the program changes. Each stream has another one
 * beside it, for kernels of two streams may wait for each other. All of this is below the gate.
 *
 * What cannot go the detour goes as it is: kernels of a context that is not the primary one, in streams of a green context
 * of the program's own, in more than STREAMS streams; and all, with a driver that knows no green contexts (before 550).
 */
#ifndef GPUSHARE_PART_H
#define GPUSHARE_PART_H

#include "activity.h"
#include "driver.h"

static bool is_primary(CUcontext context, CUdevice device)
{
    CUcontext primary = NULL;

    if (driver_primary_release == NULL || driver_primary_retain(&primary, device) != CUDA_SUCCESS)
        return false;
    (void)driver_primary_release(device);
    return primary == context;
}

static bool has_green_functions(void)
{
    return driver_context_current != NULL && driver_context_device != NULL && driver_primary_retain != NULL &&
           driver_device_resource != NULL && driver_split_resource != NULL && driver_describe_resource != NULL &&
           driver_green_create != NULL && driver_green_stream != NULL && driver_event_record != NULL &&
           driver_stream_wait != NULL;
}

/* Once for each life of the primary context; it takes about 2 ms. */
static bool make_part(void)
{
    struct resource all = {0}, some = {0}, left = {0};
    unsigned int groups = 1;
    void *description = NULL;
    CUdevice device = 0;
    CUcontext context = NULL;

    process->part = -1;
    if (process->sm_percent == 0 || process->sm_percent >= 100 || !has_green_functions())
        return false;
    if (driver_context_current(&context) != CUDA_SUCCESS || driver_context_device(&device) != CUDA_SUCCESS ||
        !is_primary(context, device) || driver_device_resource(device, &all, RESOURCE_SM) != CUDA_SUCCESS)
        return false;
    const unsigned int wanted = all.sm.count * process->sm_percent / 100;
    if (driver_split_resource(&some, &groups, &all, &left, 0, wanted > 0 ? wanted : 1) != CUDA_SUCCESS || groups != 1 ||
        driver_describe_resource(&description, &some, 1) != CUDA_SUCCESS ||
        driver_green_create(&process->green, description, device, DEFAULT_STREAM) != CUDA_SUCCESS)
        return false;
    process->part = 1;
    process->part_context = context;
    pages->own.activity.part_sms = some.sm.count;
    pages->own.activity.all_sms = all.sm.count;
    return true;
}

static bool is_of_green_context(CUstream handle)
{
    void *green = NULL;

    if ((uintptr_t)handle == LEGACY || (uintptr_t)handle == PER_THREAD || driver_stream_green == NULL)
        return false;
    return driver_stream_green(handle, &green) != CUDA_SUCCESS || green != NULL;
}

/* The stream beside this one; NULL: there is none. */
static CUstream part_beside(struct stream *stream, CUstream handle)
{
    CUcontext context = NULL;
    int priority = 0;

    if (stream == &process->streams[OTHERS] || process->part < 0 || (process->part == 0 && !make_part()))
        return NULL;
    if (driver_context_current(&context) != CUDA_SUCCESS || context != process->part_context)
        return NULL;
    if (stream->part == 0) {
        stream->part = -1;
        if (driver_stream_priority != NULL)
            (void)driver_stream_priority(handle, &priority);
        if (!is_of_green_context(handle) &&
            driver_green_stream(&stream->part_stream, process->green, NON_BLOCKING, priority) == CUDA_SUCCESS)
            stream->part = 1;
    }
    return stream->part == 1 ? stream->part_stream : NULL;
}

/* The stream is about to be destroyed; another one may get its handle. */
static void forget_stream(struct stream *stream)
{
    if (stream == &process->streams[OTHERS])
        return;
    if (stream->part == 1 && driver_stream_destroy != NULL)
        (void)driver_stream_destroy(stream->part_stream);
    stream->part = 0;
}

/* A context is about to go. A green context would keep the primary one alive. Events are made again where they are needed;
 * those of a context that goes on are lost. */
static void forget_context(void)
{
    for (unsigned int i = 0; i < STREAMS; i++)
        forget_stream(&process->streams[i]);
    if (process->part == 1 && driver_green_destroy != NULL)
        (void)driver_green_destroy(process->green);
    process->part = 0;
    process->before = NULL;
    memset(process->ring, 0, sizeof process->ring);
    process->first = process->count = 0;
}

#endif
