/* Stands in for the driver's libcuda.so.1, in tests alone: its exports as far as the front library meets them; launches,
 * streams and events in driver_streams.c.
 *
 * DRIVER_DEVICES: how many GPUs it has (1). DRIVER_ALIASES: cuGetProcAddress hands out other addresses than are exported.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((uint64_t)1 << 30)

typedef struct {
    unsigned char bytes[16];
} uuid_type;

void *driver_stream_function(const char *symbol, int version, int per_thread); /* driver_streams.c */

static _Thread_local int current;

static int devices(void)
{
    const char *text = getenv("DRIVER_DEVICES");

    return text != NULL ? atoi(text) : 1;
}

int cuInit(unsigned int flags)
{
    return flags == 0 ? 0 : 1;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

int cuDeviceGetCount(int *count)
{
    *count = devices();
    return 0;
}

/* GPU-00000000-0000-0000-0000-00000000000<device> */
int cuDeviceGetUuid(uuid_type *uuid, int device)
{
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[15] = (unsigned char)device;
    return device < devices() ? 0 : 101;
}

int cuCtxSetCurrent(void *device)
{
    current = (int)(intptr_t)device;
    return 0;
}

int cuCtxGetDevice(int *device)
{
    *device = current;
    return current < 0 ? 201 : 0;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    if (current < 0)
        return 201;
    const char *text = getenv("CUDA_FREE");

    *free_bytes = (text != NULL ? strtoull(text, NULL, 10) : 70) * GIB;
    *total = 80 * GIB;
    return 0;
}

int cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
    *free_bytes = 3 * (1u << 30);
    *total = 3 * (1u << 30) + 1;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = 80 * GIB;
    return device < devices() ? 0 : 101;
}

int cuDeviceTotalMem(unsigned int *bytes, int device)
{
    *bytes = 3 * (1u << 30) + 1;
    return device < devices() ? 0 : 101;
}

int cuLaunchNothing(int argument)
{
    return argument + 1;
}

static int mem_get_info_alias(size_t *free_bytes, size_t *total)
{
    return cuMemGetInfo_v2(free_bytes, total);
}

int cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags);

int cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status)
{
    const struct {
        const char *name;
        int since;
        void *found;
    } known[] = {
        {"cuInit", 2000, (void *)cuInit},
        {"cuMemGetInfo", 3020, (void *)cuMemGetInfo_v2},
        {"cuMemGetInfo", 2000, (void *)cuMemGetInfo},
        {"cuDeviceTotalMem", 3020, (void *)cuDeviceTotalMem_v2},
        {"cuDeviceTotalMem", 2000, (void *)cuDeviceTotalMem},
        {"cuGetProcAddress", 12000, (void *)cuGetProcAddress_v2},
        {"cuGetProcAddress", 11030, (void *)cuGetProcAddress},
        {"cuLaunchNothing", 2000, (void *)cuLaunchNothing},
    };

    *address = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known && *address == NULL; i++)
        if (strcmp(symbol, known[i].name) == 0 && version >= known[i].since)
            *address = known[i].found;
    if (*address == NULL)
        *address = driver_stream_function(symbol, version, (flags & 2) != 0);
    if (getenv("DRIVER_ALIASES") != NULL && *address == (void *)cuMemGetInfo_v2)
        *address = (void *)mem_get_info_alias;
    if (status != NULL)
        *status = *address == NULL;
    return *address == NULL ? 500 : 0;
}

int cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, address, version, flags, NULL);
}
