// A CUDA driver whose device memory is the host's: what tests of the runtime load as libcuda.so.1.
// Kernels are run by a function that the test hands over.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {
std::map<std::string, long> settings = {{"init", 0}, {"devices", 1}, {"major", 9}, {"minor", 0}, {"version", 13000}, {"load", 0}, {"pending", 0}};
std::map<uint64_t, size_t> blocks;
long allocated = 0;
void (*run)(const char*, unsigned, void**) = nullptr;
}  // namespace

extern "C" {
void fake_set(const char* name, long value) { settings[name] = value; }
long fake_allocated() { return allocated; }
void fake_run(void (*function)(const char*, unsigned, void**)) { run = function; }

int cuInit(unsigned) { return settings["init"]; }
int cuDriverGetVersion(int* version) { return *version = settings["version"], 0; }
int cuDeviceGetCount(int* count) { return *count = settings["devices"], 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int length, int) { return strncpy(name, "Fake", length), 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  return *value = settings[attribute == 75 ? "major" : "minor"], 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &settings, 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void**) { return 0; }
int cuModuleLoadData(void** module, const void* image) {
  *module = const_cast<void*>(image);
  return memcmp(image, "\x7f" "ELF", 4) ? 200 : settings["load"];
}
int cuModuleGetFunction(void** function, void*, const char* name) { return *function = strdup(name), 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernel(void* function, unsigned x, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                   void** parameters, void**) {
  return run(static_cast<const char*>(function), x, parameters), 0;
}
int cuStreamCreate(void** stream, unsigned) { return *stream = &blocks, 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
int cuEventCreate(void** event, unsigned) { return *event = &blocks, 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventQuery(void*) { return settings["pending"]; }
int cuEventDestroy_v2(void*) { return 0; }
int cuMemPoolCreate(void** pool, const void*) { return *pool = &blocks, 0; }
int cuMemPoolSetAttribute(void*, int, void*) { return 0; }
int cuMemAllocFromPoolAsync(uint64_t* address, size_t size, void*, void*) {
  if (size > (1ul << 40)) return 2;
  void* memory = aligned_alloc(256, (size + 255) / 256 * 256);
  // What nobody wrote must not look like a result.
  memset(memory, 0x7f, (size + 255) / 256 * 256);
  *address = reinterpret_cast<uint64_t>(memory);
  blocks[*address] = size;
  allocated += size;
  return 0;
}
int cuMemFreeAsync(uint64_t address, void*) {
  if (!blocks.count(address)) return 1;
  allocated -= blocks[address];
  blocks.erase(address);
  free(reinterpret_cast<void*>(address));
  return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, void*) {
  return memcpy(reinterpret_cast<void*>(to), from, size), 0;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, void*) {
  return memcpy(to, reinterpret_cast<void*>(from), size), 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void*) {
  return memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size), 0;
}
int cuGetErrorString(int status, const char** text) {
  return *text = status == 2 ? "out of memory" : "something", 0;
}
}
