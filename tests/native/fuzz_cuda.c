/* native/cuda.c before a driver that answers anything: what it shows is the driver's answer, or the grant. */
#include "fuzz.h"

#include "../../native/cuda.c"

static struct {
    CUresult result;
    uint64_t free, total;
    int devices, device;
    struct CUuuid uuid;
    uint8_t answer; /* of cuGetProcAddress: which of `offered` */
    int nvml;
    uint64_t nvml_free;
} driver;

static CUresult driver_mem_get_info_v2(size_t *free_bytes, size_t *total)
{
    if (driver.result == CUDA_SUCCESS && free_bytes != NULL)
        *free_bytes = driver.free;
    if (driver.result == CUDA_SUCCESS && total != NULL)
        *total = driver.total;
    return driver.result;
}

static CUresult driver_mem_get_info(unsigned int *free_bytes, unsigned int *total)
{
    if (driver.result == CUDA_SUCCESS && free_bytes != NULL)
        *free_bytes = (unsigned int)driver.free;
    if (driver.result == CUDA_SUCCESS && total != NULL)
        *total = (unsigned int)driver.total;
    return driver.result;
}

static CUresult driver_total_mem_v2(size_t *bytes, CUdevice device)
{
    (void)device;
    return driver_mem_get_info_v2(NULL, bytes);
}

static CUresult driver_total_mem(unsigned int *bytes, CUdevice device)
{
    (void)device;
    return driver_mem_get_info(NULL, bytes);
}

static CUresult driver_get_count(int *count)
{
    *count = driver.devices;
    return driver.result;
}

static CUresult driver_get_uuid(struct CUuuid *uuid, CUdevice device)
{
    (void)device;
    *uuid = driver.uuid;
    return driver.result;
}

static CUresult driver_get_device(CUdevice *device)
{
    *device = driver.device;
    return driver.result;
}

static CUresult driver_other(void)
{
    return driver.result;
}

/* Under other addresses than it exports, as a driver may hand them out. */
static CUresult alias_mem_get_info_v2(size_t *free_bytes, size_t *total)
{
    return driver_mem_get_info_v2(free_bytes, total);
}

static CUresult driver_get_proc_address_v2(const char *symbol, void **address, int version, cuuint64_t flags, int *status);
static CUresult driver_get_proc_address(const char *symbol, void **address, int version, cuuint64_t flags);

static const function offered[] = {
    NULL,
    (function)driver_mem_get_info_v2,
    (function)alias_mem_get_info_v2,
    (function)driver_mem_get_info,
    (function)driver_total_mem_v2,
    (function)driver_total_mem,
    (function)driver_get_proc_address_v2,
    (function)driver_get_proc_address,
    (function)driver_other,
};

static CUresult driver_get_proc_address_v2(const char *symbol, void **address, int version, cuuint64_t flags, int *status)
{
    (void)symbol, (void)version, (void)flags;
    if (address != NULL)
        memcpy(address, &offered[driver.answer], sizeof *address);
    if (status != NULL)
        *status = 1;
    return driver.result;
}

static CUresult driver_get_proc_address(const char *symbol, void **address, int version, cuuint64_t flags)
{
    return driver_get_proc_address_v2(symbol, address, version, flags, NULL);
}

static int nvml_init(void)
{
    return driver.nvml & 1;
}

static int nvml_by_uuid(const char *uuid, void **device)
{
    CHECK(uuid != NULL && strlen(uuid) == strlen(GPU)); /* NVML reads it to its end */
    *device = &driver;
    return driver.nvml & 2;
}

static int nvml_memory_info(void *device, void *memory)
{
    const unsigned long long shown[] = {driver.total, driver.nvml_free, 0};

    CHECK(device == &driver);
    memcpy(memory, shown, sizeof shown);
    return driver.nvml & 4;
}

static void *fuzz_dlsym(void *library, const char *name)
{
    const struct symbol symbols[] = {
        {"cuMemGetInfo", (void *)driver_mem_get_info},
        {"cuMemGetInfo_v2", (void *)driver_mem_get_info_v2},
        {"cuDeviceTotalMem", (void *)driver_total_mem},
        {"cuDeviceTotalMem_v2", (void *)driver_total_mem_v2},
        {"cuGetProcAddress", (void *)driver_get_proc_address},
        {"cuGetProcAddress_v2", (void *)driver_get_proc_address_v2},
        {"cuDeviceGetCount", (void *)driver_get_count},
        {"cuDeviceGetUuid", (void *)driver_get_uuid},
        {"cuCtxGetDevice", (void *)driver_get_device},
        {"nvmlInit_v2", (void *)nvml_init},
        {"nvmlDeviceGetHandleByUUID", (void *)nvml_by_uuid},
        {"nvmlDeviceGetMemoryInfo", (void *)nvml_memory_info},
    };

    CHECK(library == &missing);
    return find(symbols, sizeof symbols / sizeof *symbols, name);
}

static void take_driver(void)
{
    uint8_t device = take_byte();

    missing = (uint32_t)(take_byte() < 128 ? 0 : take_number());
    no_driver = take_byte() == 1;
    no_nvml = take_byte() >= 192;
    driver.result = take_byte() < 224 ? CUDA_SUCCESS : (CUresult)take_byte();
    driver.free = take_size();
    driver.total = take_size();
    driver.devices = device % 3;
    driver.device = (int8_t)device;
    read_uuid(GPU, driver.uuid.bytes);
    driver.uuid.bytes[15] ^= take_byte() < 192 ? 0 : 1;
    driver.nvml = take_byte() < 192 ? 0 : take_byte();
    driver.nvml_free = take_size();
}

/* Each amount in a block of its size, or none at all: a caller may give NULL. */
static void ask_memory(bool small)
{
    uint8_t given = take_byte();
    const size_t size = small ? sizeof(unsigned int) : sizeof(size_t);
    const uint64_t mask = small ? UINT32_MAX : UINT64_MAX;
    uint64_t free_bytes = 0, total = 0;
    void *first = given & 1 ? NULL : calloc(1, size), *second = given & 2 ? NULL : calloc(1, size);
    CUresult result = small ? cuMemGetInfo(first, second) : cuMemGetInfo_v2(first, second);

    if (first != NULL)
        memcpy(&free_bytes, first, size);
    if (second != NULL)
        memcpy(&total, second, size);
    free(first);
    free(second);
    if ((small ? (function)own_mem_get_info : (function)own_mem_get_info_v2) == NULL) {
        CHECK(result == CUDA_ERROR_NOT_FOUND);
        return;
    }
    CHECK(result == driver.result);
    if (result != CUDA_SUCCESS)
        return;
    CHECK(first == NULL || free_bytes <= (driver.free & mask));
    CHECK(second == NULL || total == (driver.total & mask) || (total == grant.bytes && total < (driver.total & mask)));
    if (second == NULL || total == (driver.total & mask))
        CHECK(first == NULL || free_bytes == (driver.free & mask));
    else
        CHECK(first == NULL || free_bytes <= grant.bytes);
}

static void ask_total(bool small)
{
    const uint64_t mask = small ? UINT32_MAX : UINT64_MAX;
    const size_t size = small ? sizeof(unsigned int) : sizeof(size_t);
    void *bytes = take_byte() == 1 ? NULL : calloc(1, size);
    uint64_t total = 0;
    CUresult result = small ? cuDeviceTotalMem(bytes, driver.device) : cuDeviceTotalMem_v2(bytes, driver.device);

    if (bytes != NULL)
        memcpy(&total, bytes, size);
    if ((small ? (function)own_device_total_mem : (function)own_device_total_mem_v2) == NULL)
        CHECK(result == CUDA_ERROR_NOT_FOUND);
    else
        CHECK(result == driver.result);
    if (bytes != NULL && result == CUDA_SUCCESS)
        CHECK(total == (driver.total & mask) || (total == grant.bytes && total < (driver.total & mask)));
    free(bytes);
}

/* What is handed out is what the driver handed out, or a front of a function that this driver has. */
static void check_address(function address, function own)
{
    const struct {
        function front, own;
    } fronts[] = {
        {(function)cuMemGetInfo, (function)own_mem_get_info},
        {(function)cuMemGetInfo_v2, (function)own_mem_get_info_v2},
        {(function)cuDeviceTotalMem, (function)own_device_total_mem},
        {(function)cuDeviceTotalMem_v2, (function)own_device_total_mem_v2},
        {(function)cuGetProcAddress, (function)own_get_proc_address},
        {(function)cuGetProcAddress_v2, (function)own_get_proc_address_v2},
    };
    bool known = address == own;

    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
        known |= address == fronts[i].front && fronts[i].own != NULL && own != NULL;
    CHECK(known);
}

static void look_up(bool first_version)
{
    static const char *const names[] = {"cuMemGetInfo", "cuDeviceTotalMem", "cuGetProcAddress", "cuInit"};
    static const int versions[] = {0, 2000, 3019, 3020, 11030, 12000, 13000, 14000};
    char *symbol = take_text(names[take_byte() % 4]);
    uint8_t given = take_byte();
    int version = given < 224 ? versions[given % 8] : (int)take_number();
    void **address = take_byte() == 1 ? NULL : calloc(1, sizeof *address);
    int *status = take_byte() % 4 == 1 ? NULL : calloc(1, sizeof *status);
    CUresult result;

    driver.answer = take_byte() % (sizeof offered / sizeof *offered);
    result = first_version ? cuGetProcAddress(symbol, address, version, take_byte())
                           : cuGetProcAddress_v2(symbol, address, version, take_byte(), status);
    if ((first_version ? (function)own_get_proc_address : (function)own_get_proc_address_v2) == NULL)
        CHECK(result == CUDA_ERROR_NOT_FOUND);
    else if (result == CUDA_SUCCESS && address != NULL)
        check_address(as_function(*address), offered[driver.answer]);
    free(symbol);
    free(address);
    free(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rest = data;
    rest_size = size;
    take_environment();
    take_driver();
    own_mem_get_info = NULL, own_mem_get_info_v2 = NULL;
    own_device_total_mem = NULL, own_device_total_mem_v2 = NULL;
    own_get_proc_address = NULL, own_get_proc_address_v2 = NULL;
    own_device_get_count = NULL, own_device_get_uuid = NULL, own_ctx_get_device = NULL;
    load();
    drop_environment();
    for (int calls = 0; calls == 0 || (rest_size > 0 && calls < 16); calls++) {
        uint8_t call = take_byte();

        switch (call % 3) {
        case 0: ask_memory(call & 128); break;
        case 1: ask_total(call & 128); break;
        default: look_up(call & 128);
        }
    }
    return 0;
}
