/* A stand-in for libhsa-runtime64.so.1: a processor and a GPU, whose memory is that of the host. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "memory.h"

enum {
  SUCCESS = 0,
  ERROR = 0x1000,
  INVALID_ARGUMENT = 0x1001,
  INVALID_ALLOCATION = 0x1003,
  INVALID_AGENT = 0x1004,
  OUT_OF_RESOURCES = 0x1008,
  NOT_INITIALIZED = 0x100B
};
enum { CPU = 100, GPU = 200, FINE_POOL = 1, COARSE_POOL = 2, GRANULE = 4096 };

struct agent {
  uint64_t handle;
};
struct pool {
  uint64_t handle;
};

static int count;

#define CHECK(name)                           \
  do {                                        \
    long status = wanted(name, SUCCESS);      \
    if (status) {                             \
      say("%s fails with %ld", name, status); \
      return (int)status;                     \
    }                                         \
    if (!count) return NOT_INITIALIZED;       \
  } while (0)

EXPORT int hsa_init(void) {
  long status = wanted("hsa_init", SUCCESS);
  if (!status) say("hsa_init, the %d. time", ++count);
  return (int)status;
}

EXPORT int hsa_status_string(int status, const char** text) {
  *text = status == OUT_OF_RESOURCES
              ? "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources."
              : "HSA_STATUS_ERROR: A generic error has occurred.";
  return SUCCESS;
}

EXPORT int hsa_system_get_info(int attribute, void* value) {
  CHECK("hsa_system_get_info");
  if (attribute != 0x204) return INVALID_ARGUMENT;
  *(bool*)value = wanted("attribute 516", 1) != 0;
  return SUCCESS;
}

EXPORT int hsa_iterate_agents(int (*each)(struct agent, void*), void* data) {
  CHECK("hsa_iterate_agents");
  const uint64_t agents[] = {CPU, GPU};
  for (int i = 0; i < 2; i++) {
    int status = each((struct agent){agents[i]}, data);
    if (status) return status;
  }
  return SUCCESS;
}

EXPORT int hsa_agent_get_info(struct agent agent, int attribute, void* value) {
  CHECK("hsa_agent_get_info");
  if (agent.handle != CPU && agent.handle != GPU) return INVALID_AGENT;
  switch (attribute) {
    case 17: /* type */
      *(uint32_t*)value = agent.handle == GPU;
      return SUCCESS;
    case 0xA006: /* bus, device and function */
      *(uint32_t*)value = 0x83 << 8 | 0 << 3 | 0;
      return SUCCESS;
    case 0xA00F: /* domain */
      *(uint32_t*)value = 0;
      return SUCCESS;
    case 0xA009: /* product name */
      memset(value, 0, 64);
      strcpy(value, "Stand-in of Instinct");
      return SUCCESS;
    default:
      return INVALID_ARGUMENT;
  }
}

EXPORT int hsa_amd_agent_iterate_memory_pools(struct agent agent, int (*each)(struct pool, void*), void* data) {
  CHECK("hsa_amd_agent_iterate_memory_pools");
  if (agent.handle != GPU) return INVALID_AGENT;
  for (uint64_t pool = FINE_POOL; pool <= COARSE_POOL; pool++) {
    int status = each((struct pool){pool}, data);
    if (status) return status;
  }
  return SUCCESS;
}

EXPORT int hsa_amd_memory_pool_get_info(struct pool pool, int attribute, void* value) {
  CHECK("hsa_amd_memory_pool_get_info");
  switch (attribute) {
    case 0: /* segment: global */
      *(uint32_t*)value = 0;
      return SUCCESS;
    case 1: /* flags */
      *(uint32_t*)value = pool.handle == COARSE_POOL ? 4 : 2;
      return SUCCESS;
    case 2: /* size */
      *(size_t*)value = (size_t)1 << 34;
      return SUCCESS;
    case 5: /* whether it may be allocated from */
      *(bool*)value = true;
      return SUCCESS;
    case 6: /* granule */
      *(size_t*)value = GRANULE;
      return SUCCESS;
    default:
      return INVALID_ARGUMENT;
  }
}

EXPORT int hsa_amd_memory_pool_allocate(struct pool pool, size_t size, uint32_t flags, void** address) {
  CHECK("hsa_amd_memory_pool_allocate");
  if (pool.handle != COARSE_POOL || flags || size % GRANULE) return INVALID_ARGUMENT;
  struct memory* memory = memory_new(size, 0);
  if (!memory) return OUT_OF_RESOURCES;
  *address = memory->data;
  say("hsa_amd_memory_pool_allocate %zu", size);
  return SUCCESS;
}

EXPORT int hsa_amd_memory_pool_free(void* address) {
  CHECK("hsa_amd_memory_pool_free");
  struct memory* memory = memory_of((uintptr_t)address);
  if (!memory || memory->data != address) return INVALID_ALLOCATION;
  say("hsa_amd_memory_pool_free %zu", memory->size);
  memory_free(memory);
  return SUCCESS;
}

EXPORT int hsa_memory_copy(void* to, const void* from, size_t size) {
  CHECK("hsa_memory_copy");
  int is_ours = memory_of((uintptr_t)to) ? memory_copy((uintptr_t)to, from, NULL, size)
                                         : memory_copy((uintptr_t)from, NULL, to, size);
  return is_ours ? SUCCESS : INVALID_ARGUMENT;
}

struct pointer_info {
  uint32_t size;
  int type;
  void *agent_base, *host_base;
  size_t length;
  void* user_data;
  struct agent owner;
  uint32_t global_flags;
  bool registered;
};

EXPORT int hsa_amd_pointer_info(const void* address, struct pointer_info* info, void* allocate, uint32_t* agents,
                                struct agent** accessible) {
  CHECK("hsa_amd_pointer_info");
  if (info->size != sizeof *info || allocate || agents || accessible) return INVALID_ARGUMENT;
  struct memory* memory = memory_of((uintptr_t)address);
  info->type = memory != NULL;
  if (!memory) return SUCCESS;
  info->agent_base = memory->data;
  info->length = memory->size;
  info->owner.handle = GPU;
  return SUCCESS;
}

/* As ROCr does: a DMA-BUF of all the memory, and where in it the address is. */
EXPORT_YOUNGER int hsa_amd_portable_export_dmabuf(const void* address, size_t size, int* fd, uint64_t* offset) {
  CHECK("hsa_amd_portable_export_dmabuf");
  struct memory* memory = memory_of((uintptr_t)address);
  if (!memory || size > memory->size - (size_t)((const uint8_t*)address - memory->data)) return INVALID_ALLOCATION;
  *fd = memory_export(memory, 0, memory->size);
  *offset = (uint64_t)((const uint8_t*)address - memory->data);
  if (*fd < 0) return OUT_OF_RESOURCES;
  say("hsa_amd_portable_export_dmabuf %zu at %lu", size, (unsigned long)*offset);
  return SUCCESS;
}

__attribute__((destructor)) static void at_exit(void) { say("exit with %zu allocations", memory_count()); }
