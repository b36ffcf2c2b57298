/* native/nvml.c before a driver that answers anything: what it shows is the driver's answer, or the grant. */
#include "fuzz.h"

#include "../../native/nvml.c"

static struct {
    nvmlReturn_t result, uuid_result, list_result;
    struct memory_v2 memory;
    char uuid[UUID_BUFFER];
    unsigned int processes;
    struct process process; /* each of them */
} driver;

static nvmlReturn_t driver_memory(nvmlDevice_t device, struct memory *memory)
{
    (void)device;
    if (driver.result == NVML_SUCCESS && memory != NULL)
        *memory = (struct memory){driver.memory.total, driver.memory.free, driver.memory.used};
    return driver.result;
}

/* A driver that knows structures of another version writes as much of them as the caller said, and no more. */
static nvmlReturn_t driver_memory_v2(nvmlDevice_t device, struct memory_v2 *memory)
{
    (void)device;
    if (driver.result == NVML_SUCCESS && memory != NULL && memory->version == MEMORY_V2) {
        unsigned int version = memory->version;
        *memory = driver.memory;
        memory->version = version;
    }
    return driver.result;
}

static nvmlReturn_t driver_uuid(nvmlDevice_t device, char *text, unsigned int length)
{
    (void)device;
    memcpy(text, driver.uuid, length < sizeof driver.uuid ? length : sizeof driver.uuid);
    return driver.uuid_result;
}

static nvmlReturn_t driver_mps_processes(nvmlDevice_t device, unsigned int *count, struct process *processes)
{
    (void)device;
    for (unsigned int i = 0; i < *count && i < driver.processes; i++)
        processes[i] = driver.process;
    *count = driver.processes;
    return driver.list_result;
}

static void *fuzz_dlsym(void *library, const char *name)
{
    const struct symbol symbols[] = {
        {"nvmlDeviceGetMemoryInfo", (void *)driver_memory},
        {"nvmlDeviceGetMemoryInfo_v2", (void *)driver_memory_v2},
        {"nvmlDeviceGetUUID", (void *)driver_uuid},
        {"nvmlDeviceGetMPSComputeRunningProcesses_v3", (void *)driver_mps_processes},
    };

    CHECK(library == &missing);
    return find(symbols, sizeof symbols / sizeof *symbols, name);
}

static void take_driver(void)
{
    uint8_t uuid = take_byte();

    missing = take_byte() < 192 ? 0 : take_byte();
    no_driver = take_byte() == 1;
    no_nvml = false;
    driver.result = take_byte() < 224 ? NVML_SUCCESS : take_byte();
    driver.uuid_result = take_byte() < 224 ? NVML_SUCCESS : take_byte();
    driver.list_result = take_byte() < 224 ? NVML_SUCCESS : take_byte();
    driver.memory = (struct memory_v2){0, take_size(), take_size(), take_size(), take_size()};
    memset(driver.uuid, 'a', sizeof driver.uuid); /* without an end */
    if (uuid < 224)
        memcpy(driver.uuid, GPU, sizeof GPU);
    for (size_t i = 0; uuid >= 240 && i < sizeof driver.uuid; i++)
        driver.uuid[i] = (char)take_byte();
    driver.processes = take_byte() < 224 ? take_byte() % 4 : (unsigned int)take_number();
    driver.process.pid = take_byte() < 128 ? (unsigned int)getpid() : take_byte();
    driver.process.used = take_byte() == 1 ? ~0ULL : take_size();
}

static void check_shown(unsigned long long total, unsigned long long free_bytes, unsigned long long used)
{
    if (total == driver.memory.total) {
        CHECK(free_bytes == driver.memory.free && used == driver.memory.used);
        return;
    }
    CHECK(total == grant.bytes && total < driver.memory.total);
    CHECK(free_bytes <= driver.memory.free && free_bytes <= total && used == total - free_bytes);
}

static void ask(void)
{
    struct memory *memory = take_byte() == 1 ? NULL : calloc(1, sizeof *memory);
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo((nvmlDevice_t)&driver, memory);

    CHECK(result == (own_memory == NULL ? NVML_ERROR_FUNCTION_NOT_FOUND : driver.result));
    if (result == NVML_SUCCESS && memory != NULL)
        check_shown(memory->total, memory->free, memory->used);
    free(memory);
}

/* A structure of another version may be shorter than ours: nothing of it but the version is looked at. */
static void ask_v2(void)
{
    uint8_t kind = take_byte();
    unsigned int version = kind < 192 ? MEMORY_V2 : (unsigned int)take_number();
    struct memory_v2 *memory = kind == 1 ? NULL : calloc(1, version == MEMORY_V2 ? sizeof *memory : sizeof version);
    nvmlReturn_t result;

    if (memory != NULL)
        memcpy(memory, &version, sizeof version);
    result = nvmlDeviceGetMemoryInfo_v2((nvmlDevice_t)&driver, memory);
    CHECK(result == (own_memory_v2 == NULL ? NVML_ERROR_FUNCTION_NOT_FOUND : driver.result));
    if (result == NVML_SUCCESS && memory != NULL && version == MEMORY_V2)
        check_shown(memory->total, memory->free, memory->used);
    free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rest = data;
    rest_size = size;
    take_environment();
    take_driver();
    own_memory = NULL, own_memory_v2 = NULL, own_uuid = NULL, own_mps_processes = NULL;
    load();
    drop_environment();
    ask();
    ask_v2();
    return 0;
}
