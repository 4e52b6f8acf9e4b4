/* An NVIDIA driver's library with one GPU, for nvidia-ml-py: busy while the file that FAKE_GPU_BUSY names is there. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned gpu, memory; } Use;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } Process;

#define GB (1ull << 30)

static int is_busy(void) {
    const char *file = getenv("FAKE_GPU_BUSY");
    return file != NULL && access(file, F_OK) == 0;
}
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "the fake driver has no such thing"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &is_busy; return index == 0 ? 0 : 2; }
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = 0; return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { strncpy(text, "GPU-fake", size); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, "Fake H200", size); return 0; }
int nvmlDeviceGetUtilizationRates(void *device, Use *use) { use->gpu = is_busy() ? 100 : 0; use->memory = 0; return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) { *celsius = 40; return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory) {
    memory->total = 140 * GB;
    memory->reserved = 0;
    memory->used = is_busy() ? 100 * GB : 0;
    memory->free = memory->total - memory->used;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    unsigned room = *count;
    *count = is_busy() ? 1 : 0;
    if (room < *count) return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    if (*count) found[0] = (Process){1, 100 * GB, ~0u, ~0u}; /* init: no process of Ray's */
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *found) { *count = 0; return 0; }
