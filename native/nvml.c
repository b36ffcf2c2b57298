/* In front of libnvidia-ml.so.1: the memory of the granted GPU is shown as the grant, also by nvidia-smi. */
#include <unistd.h>

#include "front.h"

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum { NVML_SUCCESS = 0, NVML_ERROR_FUNCTION_NOT_FOUND = 13, UUID_BUFFER = 96, MOST_PROCESSES = 64 };

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

struct process {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
};

#define MEMORY_V2 (sizeof(struct memory_v2) | 2u << 24) /* nvmlMemory_v2: the caller writes it into `version` */

static struct grant grant;

static nvmlReturn_t (*own_memory)(nvmlDevice_t, struct memory *);
static nvmlReturn_t (*own_memory_v2)(nvmlDevice_t, struct memory_v2 *);
static nvmlReturn_t (*own_uuid)(nvmlDevice_t, char *, unsigned int);
static nvmlReturn_t (*own_mps_processes)(nvmlDevice_t, unsigned int *, struct process *);

__attribute__((constructor)) static void load(void)
{
    const struct wanted wanted[] = {
        {"nvmlDeviceGetMemoryInfo", (function *)&own_memory},
        {"nvmlDeviceGetMemoryInfo_v2", (function *)&own_memory_v2},
        {"nvmlDeviceGetUUID", (function *)&own_uuid},
        {"nvmlDeviceGetMPSComputeRunningProcesses_v3", (function *)&own_mps_processes},
    };

    grant = read_grant();
    find_functions(wanted, sizeof wanted / sizeof *wanted);
}

static bool is_granted_device(nvmlDevice_t device)
{
    char text[UUID_BUFFER] = "";
    unsigned char uuid[UUID_BYTES];

    return own_uuid != NULL && own_uuid(device, text, sizeof text) == NVML_SUCCESS && read_uuid(text, uuid) &&
           is_granted(&grant, uuid);
}

/* Bytes of the grant that are taken, as far as NVML shows them here: by the container's one process or, where it may have
 * several, each with a part of its own, by this one. At most the grant. */
static uint64_t taken(nvmlDevice_t device)
{
    struct process processes[MOST_PROCESSES];
    unsigned int count = MOST_PROCESSES, own_pid = (unsigned int)getpid();
    uint64_t sum = 0;

    if (own_mps_processes == NULL || own_mps_processes(device, &count, processes) != NVML_SUCCESS)
        return 0;
    for (unsigned int i = 0; i < count && i < MOST_PROCESSES; i++) {
        bool known = processes[i].used != ~0ULL; /* NVML_VALUE_NOT_AVAILABLE */
        if (!known || (grant.processes > 1 && processes[i].pid != own_pid))
            continue;
        if (processes[i].used >= grant.bytes - sum)
            return grant.bytes;
        sum += processes[i].used;
    }
    return sum;
}

/* Free is what the GPU can give and the grant allows; all else of the grant is used. */
static void show(nvmlDevice_t device, unsigned long long *total, unsigned long long *free, unsigned long long *used)
{
    uint64_t left = grant.bytes - taken(device);

    *total = grant.bytes;
    *free = *free < left ? *free : left;
    *used = *total - *free;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *memory)
{
    if (own_memory == NULL)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = own_memory(device, memory);
    if (result == NVML_SUCCESS && grant.bytes != 0 && memory != NULL && memory->total > grant.bytes &&
        is_granted_device(device))
        show(device, &memory->total, &memory->free, &memory->used);
    return result;
}

/* A driver may take structures of other versions, with other fields and sizes: those stay as it filled them. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory)
{
    if (own_memory_v2 == NULL)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = own_memory_v2(device, memory);
    if (result == NVML_SUCCESS && grant.bytes != 0 && memory != NULL && memory->version == MEMORY_V2 &&
        memory->total > grant.bytes && is_granted_device(device)) {
        memory->reserved = 0; /* the driver's own need is not in a grant */
        show(device, &memory->total, &memory->free, &memory->used);
    }
    return result;
}
