// What we use of the binary interface of ROCr, AMD's HSA runtime.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdma::hsa {

struct Agent {
  uint64_t handle;
};
struct Pool {
  uint64_t handle;
};

constexpr int kSuccess = 0;
constexpr int kNotInitialized = 0x100B;

constexpr int kSystemDmabufSupported = 0x204;
constexpr int kAgentName = 0;
constexpr int kAgentDevice = 17;
constexpr int kAgentBdf = 0xA006;
constexpr int kAgentProductName = 0xA009;
constexpr int kAgentDomain = 0xA00F;
constexpr int kDeviceGpu = 1;

constexpr int kPoolSegment = 0;
constexpr int kPoolGlobalFlags = 1;
constexpr int kPoolSize = 2;
constexpr int kPoolAllocAllowed = 5;
constexpr int kPoolAllocGranule = 6;
constexpr int kSegmentGlobal = 0;
constexpr uint32_t kFlagCoarseGrained = 4;

constexpr int kPointerHsa = 1;
struct PointerInfo {
  uint32_t size;
  int type;
  void* agent_base;
  void* host_base;
  size_t length;
  void* user_data;
  Agent owner;
  uint32_t global_flags;
  bool registered;
};

using EachAgent = int (*)(Agent, void*);
using EachPool = int (*)(Pool, void*);

// FN(name, name in the library, parameters)
#define RDMA_HSA_FUNCTIONS(FN)                                                       \
  FN(Init, "hsa_init", ())                                                           \
  FN(StatusString, "hsa_status_string", (int, const char**))                         \
  FN(SystemGetInfo, "hsa_system_get_info", (int, void*))                             \
  FN(IterateAgents, "hsa_iterate_agents", (EachAgent, void*))                        \
  FN(AgentGetInfo, "hsa_agent_get_info", (Agent, int, void*))                        \
  FN(IteratePools, "hsa_amd_agent_iterate_memory_pools", (Agent, EachPool, void*))   \
  FN(PoolGetInfo, "hsa_amd_memory_pool_get_info", (Pool, int, void*))                \
  FN(PoolAllocate, "hsa_amd_memory_pool_allocate", (Pool, size_t, uint32_t, void**)) \
  FN(PoolFree, "hsa_amd_memory_pool_free", (void*))                                  \
  FN(MemoryCopy, "hsa_memory_copy", (void*, const void*, size_t))                    \
  FN(PointerInfoOf, "hsa_amd_pointer_info", (const void*, PointerInfo*, void*, uint32_t*, Agent**))

// Younger: it came with ROCm 5.3.
#define RDMA_HSA_YOUNGER_FUNCTIONS(FN) \
  FN(ExportDmabuf, "hsa_amd_portable_export_dmabuf", (const void*, size_t, int*, uint64_t*))

struct Functions {
#define FN(name, symbol, parameters) int(*name) parameters;
  RDMA_HSA_FUNCTIONS(FN)
  RDMA_HSA_YOUNGER_FUNCTIONS(FN)
#undef FN
};

}  // namespace rdma::hsa
