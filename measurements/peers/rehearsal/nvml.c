/* Stands in for the driver's libnvidia-ml.so.1 where GPUs are simulated: what NVIDIA's device plugin asks for, and no
 * more. The compiler is told GPUS, their number, UUIDS, PRODUCT and MEMORY_MIB. No GPU ever has an event.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, TIMEOUT = 10 };

struct device {
    unsigned int index;
};
struct pci {
    char legacy_id[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char id[32];
};
struct memory {
    unsigned long long total, free, used;
};

static struct device devices[GPUS];
static const char *const uuids[GPUS] = {UUIDS};
static int event_set;

int nvmlInit_v2(void)
{
    for (unsigned int index = 0; index < GPUS; index++)
        devices[index].index = index;
    return SUCCESS;
}

int nvmlShutdown(void)
{
    return SUCCESS;
}

const char *nvmlErrorString(int error)
{
    return error == SUCCESS ? "Success" : error == TIMEOUT ? "Timeout" : "an error of the simulated NVML";
}

int nvmlSystemGetDriverVersion(char *text, unsigned int length)
{
    snprintf(text, length, "simulated");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = GPUS;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **device)
{
    if (index >= GPUS)
        return INVALID_ARGUMENT;
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
    for (unsigned int index = 0; index < GPUS; index++)
        if (strcmp(uuids[index], uuid) == 0)
            return nvmlDeviceGetHandleByIndex_v2(index, device);
    return NOT_FOUND;
}

int nvmlDeviceGetName(struct device *device, char *text, unsigned int length)
{
    (void)device;
    snprintf(text, length, PRODUCT);
    return SUCCESS;
}

int nvmlDeviceGetUUID(struct device *device, char *text, unsigned int length)
{
    snprintf(text, length, "%s", uuids[device->index]);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(struct device *device, unsigned int *number)
{
    *number = device->index;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = device->index + 1;
    snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory)
{
    (void)device;
    *memory = (struct memory){(unsigned long long)MEMORY_MIB << 20, (unsigned long long)MEMORY_MIB << 20, 0};
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
    (void)device;
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(struct device *device, unsigned long long *types)
{
    (void)device;
    *types = ~0ULL;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, int *set)
{
    (void)device, (void)types, (void)set;
    return SUCCESS;
}

int nvmlEventSetCreate(int **set)
{
    *set = &event_set;
    return SUCCESS;
}

int nvmlEventSetFree(int *set)
{
    (void)set;
    return SUCCESS;
}

int nvmlEventSetWait_v2(int *set, void *event, unsigned int milliseconds)
{
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};

    (void)set, (void)event;
    nanosleep(&time, NULL);
    return TIMEOUT;
}
