// A driver and a compiler that compute nothing, to see what becomes of their errors. Built as
// libcuda.so and libnvrtc.so; FAKE_CUDA says what goes wrong, as NAME=NUMBER.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int fault(const char *name, int otherwise) {
    const char *set = getenv("FAKE_CUDA");
    size_t len = strlen(name);
    if (set == NULL || strncmp(set, name, len) != 0 || set[len] != '=') return otherwise;
    return atoi(set + len + 1);
}

int cuInit(unsigned flags) { return fault("init", 0); }
int cuDriverGetVersion(int *version) { return *version = fault("version", 13000), 0; }
int cuDeviceGetCount(int *count) { return *count = fault("count", 1), 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDeviceGetName(char *name, int len, int device) { return strncpy(name, "Imaginary", len), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = (size_t)1 << 30, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    // 75 and 76 are the compute capability.
    return *value = attribute == 75 ? fault("major", 9) : 0, 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &cuInit, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuStreamCreate(void **stream, unsigned flags) { return *stream = &cuInit, 0; }
int cuStreamDestroy_v2(void *stream) { return 0; }
int cuStreamSynchronize(void *stream) { return fault("synchronize", 0); }

static size_t used;
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *total = (size_t)fault("memory", 1 << 30);
    return *free_bytes = *total - used, 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    size_t free_bytes, total;
    cuMemGetInfo_v2(&free_bytes, &total);
    if (bytes > free_bytes) return 2;
    used += bytes;
    return *address = (uint64_t)(uintptr_t)calloc(bytes, 1), 0;
}
int cuMemFree_v2(uint64_t address) { return free((void *)(uintptr_t)address), 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    return memcpy((void *)(uintptr_t)to, from, bytes), 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    return memcpy(to, (void *)(uintptr_t)from, bytes), 0;
}
int cuMemsetD32Async(uint64_t to, unsigned word, size_t n, void *stream) {
    return 0;
}
int cuModuleLoadData(void **module, const void *image) {
    if (memcmp(image, "//", 2) == 0) return *module = &cuInit, fault("ptx", 0);
    return *module = &cuInit, memcmp(image, "cubin", 5) == 0 ? 0 : 200;
}
int cuModuleUnload(void *module) { return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    return *function = &cuInit, 0;
}
static int most_shared = 48 << 10;
int cuFuncSetAttribute(void *function, int attribute, int value) {
    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    if (attribute == 8) most_shared = value;
    return 0;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty,
                   unsigned tz, unsigned shared, void *stream, void **params, void **extra) {
    if (shared > most_shared) return 1;
    return fault("launch", 0);
}

int cuGraphCreate(void **graph, unsigned flags) { return *graph = &cuInit, fault("graph", 0); }
int cuGraphAddKernelNode_v2(void **node, void *graph, void *const *before, size_t n, const void *params) {
    return *node = &cuInit, 0;
}
int cuGraphInstantiateWithFlags(void **ready, void *graph, unsigned long long flags) {
    return *ready = &cuInit, fault("instantiate", 0);
}
int cuGraphExecKernelNodeSetParams_v2(void *ready, void *node, const void *params) {
    return fault("change", 0);
}
int cuGraphLaunch(void *ready, void *stream) { return fault("graphs", 0); }
int cuGraphExecDestroy(void *ready) { return 0; }
int cuGraphDestroy(void *graph) { return 0; }

int nvrtcVersion(int *major, int *minor) { return *major = fault("nvrtc", 13), *minor = 0; }
int nvrtcGetNumSupportedArchs(int *n) { return *n = 1, 0; }
int nvrtcGetSupportedArchs(int *archs) { return *archs = fault("arch", 90), 0; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int n,
                       const char *const *headers, const char *const *names) {
    return *program = &cuInit, 0;
}
int nvrtcDestroyProgram(void **program) { return 0; }
int nvrtcCompileProgram(void *program, int n, const char *const *options) {
    return fault("compile", 0);
}
int nvrtcGetProgramLogSize(void *program, size_t *size) { return *size = 12, 0; }
int nvrtcGetProgramLog(void *program, char *log) { return memcpy(log, "line 7: odd", 12), 0; }
int nvrtcGetCUBINSize(void *program, size_t *size) { return *size = 5, 0; }
int nvrtcGetCUBIN(void *program, char *cubin) { return memcpy(cubin, "cubin", 5), 0; }
