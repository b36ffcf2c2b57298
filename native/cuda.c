/* In front of libcuda.so.1: the memory of the GPU is shown as the grant.
 *
 * The runtime library (cudart), also linked statically, and what is built on it see the same: it asks these functions.
 */
#include "front.h"

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t cuuint64_t;

enum { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_FOUND = 500 };

struct CUuuid {
    unsigned char bytes[UUID_BYTES];
};

static struct grant grant;

static CUresult (*own_mem_get_info)(unsigned int *, unsigned int *);
static CUresult (*own_mem_get_info_v2)(size_t *, size_t *);
static CUresult (*own_device_total_mem)(unsigned int *, CUdevice);
static CUresult (*own_device_total_mem_v2)(size_t *, CUdevice);
static CUresult (*own_get_proc_address)(const char *, void **, int, cuuint64_t);
static CUresult (*own_get_proc_address_v2)(const char *, void **, int, cuuint64_t, int *);
static CUresult (*own_device_get_count)(int *);
static CUresult (*own_device_get_uuid)(struct CUuuid *, CUdevice);
static CUresult (*own_ctx_get_device)(CUdevice *);

#ifdef CLASSES
#include "launches.h"
#endif

static bool may_borrow; /* MPS' limit, from which the driver counts what is free, is above the grant */

__attribute__((constructor)) static void load(void)
{
    const struct wanted wanted[] = {
        {"cuMemGetInfo", (function *)&own_mem_get_info},
        {"cuMemGetInfo_v2", (function *)&own_mem_get_info_v2},
        {"cuDeviceTotalMem", (function *)&own_device_total_mem},
        {"cuDeviceTotalMem_v2", (function *)&own_device_total_mem_v2},
        {"cuGetProcAddress", (function *)&own_get_proc_address},
        {"cuGetProcAddress_v2", (function *)&own_get_proc_address_v2},
        {"cuDeviceGetCount", (function *)&own_device_get_count},
        {"cuDeviceGetUuid", (function *)&own_device_get_uuid},
        {"cuCtxGetDevice", (function *)&own_ctx_get_device},
    };
    uint64_t limit = 0;

    grant = read_grant();
    may_borrow = grant.bytes != 0 && read_number(getenv("GPUSHARE_MEMORY_LIMIT_BYTES"), &limit) &&
                 of_each(limit, grant.processes) > grant.bytes;
    find_functions(wanted, sizeof wanted / sizeof *wanted);
#ifdef CLASSES
    load_launches();
#endif
}

/* What is left of the grant, as the front of NVML's library says it, and at most `shown`; that where it is not known. */
static uint64_t left_of_grant(uint64_t shown)
{
    struct {
        unsigned long long total, free, used;
    } memory = {0, shown, 0};
    int (*init)(void) = NULL, (*by_uuid)(const char *, void **) = NULL, (*info)(void *, void *) = NULL;
    void *device = NULL, *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY); /* stays; further calls only count */

    if (nvml != NULL) {
        *(void **)&init = dlsym(nvml, "nvmlInit_v2");
        *(void **)&by_uuid = dlsym(nvml, "nvmlDeviceGetHandleByUUID");
        *(void **)&info = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    }
    (void)dlerror();
    if (init == NULL || by_uuid == NULL || info == NULL || init() != 0 ||
        by_uuid(grant.gpu_text, &device) != 0 || info(device, &memory) != 0)
        return shown;
    return memory.free < shown ? memory.free : shown;
}

/* An MPS client has one device, which is the grant's whatever its UUID is; of several the UUID tells. */
static bool is_granted_device(CUdevice device)
{
    int count = 0;
    struct CUuuid uuid = {{0}};

    if (own_device_get_count != NULL && own_device_get_count(&count) == CUDA_SUCCESS && count == 1)
        return true;
    return own_device_get_uuid != NULL && own_device_get_uuid(&uuid, device) == CUDA_SUCCESS &&
           is_granted(&grant, uuid.bytes);
}

static bool is_granted_context(void)
{
    CUdevice device = 0;

    return own_ctx_get_device != NULL && own_ctx_get_device(&device) == CUDA_SUCCESS && is_granted_device(device);
}

/* Whether a size that the driver says is above the grant. */
static bool exceeds(uint64_t total)
{
    return grant.bytes != 0 && total > grant.bytes;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    if (own_mem_get_info_v2 == NULL)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = own_mem_get_info_v2(free_bytes, total);
    if (result != CUDA_SUCCESS || total == NULL || !exceeds(*total) || !is_granted_context())
        return result;
    *total = grant.bytes;
    if (free_bytes != NULL && *free_bytes > grant.bytes)
        *free_bytes = grant.bytes;
    if (free_bytes != NULL && may_borrow)
        *free_bytes = left_of_grant(*free_bytes);
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    if (own_device_total_mem_v2 == NULL)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = own_device_total_mem_v2(bytes, device);
    if (result == CUDA_SUCCESS && bytes != NULL && exceeds(*bytes) && is_granted_device(device))
        *bytes = grant.bytes;
    return result;
}

/* The two of before CUDA 3.2, with sizes of 32 bits. */

EXPORT CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
    if (own_mem_get_info == NULL)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = own_mem_get_info(free_bytes, total);
    if (result != CUDA_SUCCESS || total == NULL || !exceeds(*total) || !is_granted_context())
        return result;
    *total = (unsigned int)grant.bytes;
    if (free_bytes != NULL && *free_bytes > grant.bytes)
        *free_bytes = (unsigned int)grant.bytes;
    return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    if (own_device_total_mem == NULL)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = own_device_total_mem(bytes, device);
    if (result == CUDA_SUCCESS && bytes != NULL && exceeds(*bytes) && is_granted_device(device))
        *bytes = (unsigned int)grant.bytes;
    return result;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **address, int version, cuuint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags, int *status);

static function as_function(const void *address)
{
    function found;

    memcpy(&found, &address, sizeof found);
    return found;
}

/* The front of what the driver's cuGetProcAddress found, else that itself.
 *
 * The address tells which function it is. Where the driver hands out another one than it exports, name and version do:
 * of which CUDA each variant is (cudaTypedefs.h). A version of which this file does not know what it brings is left alone,
 * and so is a function that this driver does not export: a front would have nothing to ask.
 */
static void replace(const char *symbol, void **address, int version)
{
    const struct {
        const char *name;
        int since, until;
        function own, front;
    } known[] = {
        {"cuMemGetInfo", 2000, 3019, (function)own_mem_get_info, (function)cuMemGetInfo},
        {"cuMemGetInfo", 3020, 13999, (function)own_mem_get_info_v2, (function)cuMemGetInfo_v2},
        {"cuDeviceTotalMem", 2000, 3019, (function)own_device_total_mem, (function)cuDeviceTotalMem},
        {"cuDeviceTotalMem", 3020, 13999, (function)own_device_total_mem_v2, (function)cuDeviceTotalMem_v2},
        {"cuGetProcAddress", 11030, 11999, (function)own_get_proc_address, (function)cuGetProcAddress},
        {"cuGetProcAddress", 12000, 13999, (function)own_get_proc_address_v2, (function)cuGetProcAddress_v2},
    };
    const size_t count = sizeof known / sizeof *known;
    function found, front = NULL;

    if (grant.bytes == 0 || symbol == NULL || address == NULL || *address == NULL)
        return;
    found = as_function(*address);
    for (size_t i = 0; i < count && front == NULL; i++)
        if (found == known[i].own)
            front = known[i].front;
    for (size_t i = 0; i < count && front == NULL; i++)
        if (known[i].own != NULL && strcmp(symbol, known[i].name) == 0 && version >= known[i].since && version <= known[i].until)
            front = known[i].front;
    if (front != NULL)
        memcpy(address, &front, sizeof front);
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **address, int version, cuuint64_t flags)
{
    if (own_get_proc_address == NULL)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = own_get_proc_address(symbol, address, version, flags);
    if (result == CUDA_SUCCESS)
        replace(symbol, address, version);
#ifdef CLASSES
    if (result == CUDA_SUCCESS)
        replace_launch(symbol, address, version, flags);
#endif
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags, int *status)
{
    if (own_get_proc_address_v2 == NULL)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = own_get_proc_address_v2(symbol, address, version, flags, status);
    if (result == CUDA_SUCCESS)
        replace(symbol, address, version);
#ifdef CLASSES
    if (result == CUDA_SUCCESS)
        replace_launch(symbol, address, version, flags);
#endif
    return result;
}
