/* Stands in for the driver's libnvidia-ml.so.1, in tests alone.
 *
 * DRIVER_USED: GiB that MPS clients use, as pid:GiB words; pid 0 is the caller. DRIVER_FREE: GiB free of the GPU's 80 (70).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIB (1ULL << 30)

struct device {
    int number;
};
static struct device devices[2] = {{0}, {1}};

static unsigned long long gib_free(void)
{
    const char *text = getenv("DRIVER_FREE");

    return (text != NULL ? strtoull(text, NULL, 10) : 70) * GIB;
}

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **device)
{
    *device = &devices[index];
    return index < 2 ? 0 : 2;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
    unsigned int number = 0;

    if (sscanf(uuid, "GPU-00000000-0000-0000-0000-%12x", &number) != 1 || number > 1)
        return 6;
    *device = &devices[number];
    return 0;
}

int nvmlDeviceGetUUID(struct device *device, char *text, unsigned int length)
{
    snprintf(text, length, "GPU-00000000-0000-0000-0000-%012x", (unsigned int)device->number);
    return 0;
}

int nvmlDeviceGetMemoryInfo(struct device *device, unsigned long long *memory)
{
    (void)device;
    memory[0] = 80 * GIB;
    memory[1] = gib_free();
    memory[2] = memory[0] - memory[1];
    return 0;
}

struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory)
{
    (void)device;
    if (memory->version != (sizeof *memory | 2u << 24))
        return 25;
    memory->total = 80 * GIB;
    memory->reserved = GIB;
    memory->free = gib_free();
    memory->used = memory->total - memory->free - memory->reserved;
    return 0;
}

struct process {
    unsigned int pid;
    unsigned long long used;
    unsigned int instances[2];
};

int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *device, unsigned int *count, struct process *found)
{
    const char *text = getenv("DRIVER_USED");
    unsigned int number = 0;
    int length = 0;
    unsigned int pid;
    int used;

    (void)device;
    for (; text != NULL && number < *count && sscanf(text, "%u:%d%n", &pid, &used, &length) == 2; text += length)
        found[number++] = (struct process){pid != 0 ? pid : (unsigned int)getpid(), used < 0 ? ~0ULL : (unsigned)used * GIB, {0}};
    *count = number;
    return 0;
}
