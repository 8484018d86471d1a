/* A stand-in for libcuda.so.1: two GPUs, whose memory is that of the host. */
#include <pthread.h>
#include <stdio.h>

#include "memory.h"

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  NOT_SUPPORTED = 801
};
enum { DEVICES = 2, GRANULARITY = 1 << 21, PAGE = 4096 };

struct context {
  int device;
  int count;
};
static struct context contexts[DEVICES] = {{0, 0}, {1, 0}};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int is_initialized;

/* Of this thread. */
static __thread struct context* stack[8];
static __thread int depth;

#define CHECK(name)                              \
  do {                                           \
    long status = wanted(name, SUCCESS);         \
    if (status) {                                \
      say("%s fails with %ld", name, status);    \
      return (int)status;                        \
    }                                            \
    if (!is_initialized) return NOT_INITIALIZED; \
  } while (0)
#define CHECK_CONTEXT(name)                                         \
  do {                                                              \
    CHECK(name);                                                    \
    if (!depth || !stack[depth - 1]->count) return INVALID_CONTEXT; \
  } while (0)

static struct {
  int status;
  const char *name, *text;
} statuses[] = {
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

EXPORT int cuGetErrorName(int status, const char** name) {
  for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
    if (statuses[i].status == status) return *name = statuses[i].name, SUCCESS;
  }
  return INVALID_VALUE;
}

EXPORT int cuGetErrorString(int status, const char** text) {
  for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
    if (statuses[i].status == status) return *text = statuses[i].text, SUCCESS;
  }
  return INVALID_VALUE;
}

EXPORT int cuInit(unsigned flags) {
  long status = wanted("cuInit", SUCCESS);
  say("cuInit %u", flags);
  is_initialized = !status;
  return (int)status;
}

EXPORT int cuDeviceGetCount(int* count) {
  CHECK("cuDeviceGetCount");
  *count = DEVICES;
  return SUCCESS;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  CHECK("cuDeviceGet");
  if (ordinal < 0 || ordinal >= DEVICES) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

EXPORT int cuDeviceGetName(char* name, int length, int device) {
  CHECK("cuDeviceGetName");
  snprintf(name, (size_t)length, "Stand-in GPU %d", device);
  return SUCCESS;
}

EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  CHECK("cuDeviceTotalMem");
  *bytes = (size_t)(device + 1) << 30;
  return SUCCESS;
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  CHECK("cuDeviceGetAttribute");
  char word[32];
  snprintf(word, sizeof word, "attribute %d", attribute);
  switch (attribute) {
    case 33: /* PCI bus */
      *value = 0x17 + device;
      return SUCCESS;
    case 34: /* PCI device */
    case 50: /* PCI domain */
      *value = 0;
      return SUCCESS;
    case 102: /* virtual memory */
    case 110: /* RDMA with it */
    case 116: /* RDMA */
    case 124: /* DMA-BUF */
      *value = (int)wanted(word, 1);
      return SUCCESS;
    default:
      return INVALID_VALUE;
  }
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  CHECK("cuDevicePrimaryCtxRetain");
  pthread_mutex_lock(&lock);
  contexts[device].count++;
  pthread_mutex_unlock(&lock);
  *context = &contexts[device];
  return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  CHECK("cuDevicePrimaryCtxRelease");
  pthread_mutex_lock(&lock);
  int left = --contexts[device].count;
  pthread_mutex_unlock(&lock);
  if (left < 0) return INVALID_CONTEXT;
  if (left == 0) say("context of %d is gone", device);
  return SUCCESS;
}

EXPORT int cuCtxPushCurrent_v2(void* context) {
  CHECK("cuCtxPushCurrent");
  if (depth == 8) return INVALID_VALUE;
  stack[depth++] = context;
  return SUCCESS;
}

EXPORT int cuCtxPopCurrent_v2(void** context) {
  CHECK("cuCtxPopCurrent");
  if (!depth) return INVALID_CONTEXT;
  *context = stack[--depth];
  return SUCCESS;
}

EXPORT int cuMemAlloc_v2(unsigned long long* address, size_t size) {
  CHECK_CONTEXT("cuMemAlloc");
  struct memory* memory = memory_new(size, stack[depth - 1]->device);
  if (!memory) return OUT_OF_MEMORY;
  *address = (uintptr_t)memory->data;
  say("cuMemAlloc %zu on %d", size, memory->device);
  return SUCCESS;
}

EXPORT int cuMemFree_v2(unsigned long long address) {
  CHECK_CONTEXT("cuMemFree");
  struct memory* memory = memory_of(address);
  if (!memory || (uintptr_t)memory->data != address) return INVALID_VALUE;
  say("cuMemFree %zu on %d", memory->size, memory->device);
  memory_free(memory);
  return SUCCESS;
}

static struct memory* range(unsigned long long address, size_t size) {
  struct memory* memory = memory_of(address);
  return memory && size <= memory->size - (address - (uintptr_t)memory->data) ? memory : NULL;
}

EXPORT int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t size) {
  CHECK_CONTEXT("cuMemcpyHtoD");
  return memory_copy(to, from, NULL, size) ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t size) {
  CHECK_CONTEXT("cuMemcpyDtoH");
  return memory_copy(from, NULL, to, size) ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuPointerGetAttribute(void* value, int attribute, unsigned long long address) {
  CHECK("cuPointerGetAttribute");
  struct memory* memory = memory_of(address);
  if (!memory) return INVALID_VALUE;
  switch (attribute) {
    case 2: /* memory type: of a device */
      *(unsigned*)value = 2;
      return SUCCESS;
    case 9: /* device ordinal */
      *(int*)value = memory->device;
      return SUCCESS;
    case 11: /* start of the range */
      *(unsigned long long*)value = (uintptr_t)memory->data;
      return SUCCESS;
    case 12: /* its size */
      *(size_t*)value = memory->size;
      return SUCCESS;
    default:
      return INVALID_VALUE;
  }
}

EXPORT int cuPointerSetAttribute(const void* value, int attribute, unsigned long long address) {
  CHECK_CONTEXT("cuPointerSetAttribute");
  if (attribute != 6 || !memory_of(address)) return INVALID_VALUE;
  say("synchronous copies %d", *(const int*)value);
  return SUCCESS;
}

EXPORT_YOUNGER int cuMemGetHandleForAddressRange(int* fd, unsigned long long address, size_t size, int type,
                                                 unsigned long long flags) {
  CHECK_CONTEXT("cuMemGetHandleForAddressRange");
  struct memory* memory = range(address, size);
  if (!memory || type != 1 || flags || address % PAGE || size % PAGE) return INVALID_VALUE;
  *fd = memory_export(memory, address - (uintptr_t)memory->data, size);
  if (*fd < 0) return NOT_SUPPORTED;
  say("cuMemGetHandleForAddressRange %zu", size);
  return SUCCESS;
}

/* Virtual memory: the physical memory is a number, and becomes memory when it is mapped. */
struct prop {
  int type, handle_types, location_type, device;
  void* win32;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
static struct {
  size_t size;
  int device;
  struct memory* mapped;
  int is_released;
} physical;
static size_t reserved;

EXPORT_YOUNGER int cuMemGetAllocationGranularity(size_t* granularity, const struct prop* prop, int option) {
  CHECK("cuMemGetAllocationGranularity");
  if (prop->type != 1 || prop->location_type != 1 || option != 1) return INVALID_VALUE;
  *granularity = GRANULARITY;
  return SUCCESS;
}

EXPORT_YOUNGER int cuMemCreate(unsigned long long* handle, size_t size, const struct prop* prop,
                               unsigned long long flags) {
  CHECK("cuMemCreate");
  if (size % GRANULARITY || prop->rdma != 1 || flags) return INVALID_VALUE;
  if (physical.size) return OUT_OF_MEMORY;
  physical.size = size;
  physical.device = prop->device;
  physical.is_released = 0;
  *handle = 77;
  say("cuMemCreate %zu on %d", size, prop->device);
  return SUCCESS;
}

EXPORT_YOUNGER int cuMemAddressReserve(unsigned long long* address, size_t size, size_t alignment,
                                       unsigned long long hint, unsigned long long flags) {
  CHECK("cuMemAddressReserve");
  if (size % GRANULARITY || alignment != GRANULARITY || hint || flags || !physical.size) return INVALID_VALUE;
  physical.mapped = memory_new(size, physical.device);
  if (!physical.mapped) return OUT_OF_MEMORY;
  reserved = size;
  *address = (uintptr_t)physical.mapped->data;
  say("cuMemAddressReserve %zu", size);
  return SUCCESS;
}

EXPORT_YOUNGER int cuMemMap(unsigned long long address, size_t size, size_t offset, unsigned long long handle,
                            unsigned long long flags) {
  CHECK("cuMemMap");
  if (handle != 77 || size != reserved || offset || flags || memory_of(address) != physical.mapped)
    return INVALID_VALUE;
  say("cuMemMap %zu", size);
  return SUCCESS;
}

EXPORT_YOUNGER int cuMemSetAccess(unsigned long long address, size_t size, const int* desc, size_t count) {
  CHECK("cuMemSetAccess");
  if (size != reserved || count != 1 || desc[0] != 1 || desc[1] != physical.device || desc[2] != 3)
    return INVALID_VALUE;
  say("cuMemSetAccess %d", memory_of(address) == physical.mapped);
  return SUCCESS;
}

EXPORT_YOUNGER int cuMemUnmap(unsigned long long address, size_t size) {
  CHECK("cuMemUnmap");
  if (memory_of(address) != physical.mapped || size != reserved) return INVALID_VALUE;
  say("cuMemUnmap %zu", size);
  return SUCCESS;
}

EXPORT_YOUNGER int cuMemAddressFree(unsigned long long address, size_t size) {
  CHECK("cuMemAddressFree");
  if (memory_of(address) != physical.mapped || size != reserved) return INVALID_VALUE;
  memory_free(physical.mapped);
  physical.mapped = NULL;
  say("cuMemAddressFree %zu", size);
  return SUCCESS;
}

EXPORT_YOUNGER int cuMemRelease(unsigned long long handle) {
  CHECK("cuMemRelease");
  if (handle != 77 || !physical.size) return INVALID_VALUE;
  physical.size = 0;
  say("cuMemRelease");
  return SUCCESS;
}

__attribute__((destructor)) static void at_exit(void) {
  say("exit with %zu allocations, %d and %d shares of contexts", memory_count(), contexts[0].count, contexts[1].count);
}
