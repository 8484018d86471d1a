// ROCr, the runtime of AMD's driver, opened at first use.
#include <cstring>
#include <mutex>

#include "gpu/driver.h"
#include "gpu/hsa_api.h"
#include "rdma_core/library.h"

namespace rdma {

namespace hsa {

namespace {

const char* NameOf(int status);
const char* TextOf(int status);
constexpr DriverErrors kErrors{NameOf, TextOf};

VerbError Failure(const char* function, int status) {
  return status == kSuccess ? VerbError{} : VerbError{function, status, &kErrors};
}

// NOLINTNEXTLINE(performance-no-int-to-ptr): an address is a number in JavaScript
void* At(uint64_t address) { return reinterpret_cast<void*>(uintptr_t{address}); }

class HsaDriver final : public GpuDriver {
 public:
  bool Open() override {
    std::call_once(once_, [this] {
      if (!library_.Open()) return;
      const char* missing = nullptr;
#define FN(name, symbol, parameters)                                      \
  f_.name = reinterpret_cast<decltype(f_.name)>(library_.Symbol(symbol)); \
  if (f_.name == nullptr) missing = symbol;
      RDMA_HSA_FUNCTIONS(FN)
#undef FN
#define FN(name, symbol, parameters) f_.name = reinterpret_cast<decltype(f_.name)>(library_.Symbol(symbol));
      RDMA_HSA_YOUNGER_FUNCTIONS(FN)
#undef FN
      missing_ = missing;
      if (missing_ == nullptr) init_ = f_.Init();
      if (missing_ != nullptr || init_ != kSuccess) return;
      failed_ = "hsa_iterate_agents: ";
      init_ = f_.IterateAgents(AddGpu, this);
    });
    return library_.Open() && missing_ == nullptr && init_ == kSuccess;
  }

  std::string Describe() override {
    if (Open()) return library_.path();
    if (!library_.Open()) return library_.error();
    if (missing_ != nullptr) return std::string(library_.path()) + " has no " + missing_;
    return std::string(failed_) + NameOf(init_) + ": " + TextOf(init_);
  }

  Outcome<std::vector<GpuInfo>> List() override {
    std::vector<GpuInfo> gpus;
    if (!Open()) return gpus;
    bool supported = false;
    (void)f_.SystemGetInfo(kSystemDmabufSupported, &supported);
    for (const Agent agent : gpus_) {
      GpuInfo gpu;
      char name[64] = "";
      uint32_t bdf = 0;
      uint32_t domain = 0;
      auto error = Failure("hsa_agent_get_info", f_.AgentGetInfo(agent, kAgentBdf, &bdf));
      if (error) return error;
      (void)f_.AgentGetInfo(agent, kAgentDomain, &domain);
      if (f_.AgentGetInfo(agent, kAgentProductName, name) != kSuccess) {
        (void)f_.AgentGetInfo(agent, kAgentName, name);
      }
      gpu.name = std::string(name, strnlen(name, sizeof name));
      gpu.pci_address = PciAddress(domain, bdf >> 8 & 0xff, bdf >> 3 & 0x1f, bdf & 7);
      const LocalPool local = PoolOf(agent);
      gpu.memory = local.size;
      if (f_.ExportDmabuf == nullptr) {
        gpu.missing = "the runtime is older than ROCm 5.3 and has no hsa_amd_portable_export_dmabuf";
      } else if (!supported) {
        gpu.missing = "the kernel's amdgpu exports no DMA-BUF (interface 1.12 of KFD or later)";
      } else {
        gpu.dmabuf = true;
      }
      gpus.push_back(std::move(gpu));
    }
    return gpus;
  }

  Outcome<GpuRange> Alloc(uint32_t gpu, size_t length, bool virtual_memory) override {
    if (virtual_memory) return VerbError{"hsa_amd_vmem_handle_create", EOPNOTSUPP};
    if (gpu >= gpus_.size()) return VerbError{"hsa_iterate_agents", ENODEV};
    const LocalPool local = PoolOf(gpus_[gpu]);
    if (local.status != kSuccess) return Failure("hsa_amd_agent_iterate_memory_pools", local.status);
    if (local.size == 0) return VerbError{"hsa_amd_agent_iterate_memory_pools", ENOMEM};
    void* address = nullptr;
    const size_t size = (length + local.granule - 1) / local.granule * local.granule;
    auto error = Failure("hsa_amd_memory_pool_allocate", f_.PoolAllocate(local.pool, size, 0, &address));
    if (error) return error;
    GpuRange range;
    range.address = reinterpret_cast<uintptr_t>(address);
    range.length = length;
    range.gpu = gpu;
    return range;
  }

  Outcome<GpuRange> Adopt(uint64_t address, size_t length) override {
    PointerInfo info{};
    info.size = sizeof info;
    auto error = Failure("hsa_amd_pointer_info", f_.PointerInfoOf(At(address), &info, nullptr, nullptr, nullptr));
    if (error) return error;
    const auto start = reinterpret_cast<uintptr_t>(info.agent_base);
    GpuRange range;
    range.adopted = true;
    range.address = address;
    for (range.gpu = 0; range.gpu < gpus_.size(); range.gpu++) {
      if (gpus_[range.gpu].handle == info.owner.handle) break;
    }
    if (info.type != kPointerHsa || range.gpu == gpus_.size() || address < start || address >= start + info.length) {
      return VerbError{"hsa_amd_pointer_info", EINVAL};
    }
    if (length > start + info.length - address) return VerbError{"hsa_amd_pointer_info", ERANGE};
    range.length = length;
    return range;
  }

  VerbError Free(GpuRange& range) override {
    if (range.adopted) return {};
    // At the end of the process the runtime may be gone before us, with all its memory.
    const int status = f_.PoolFree(At(range.address));
    return status == kNotInitialized ? VerbError{} : Failure("hsa_amd_memory_pool_free", status);
  }

  Outcome<GpuExport> Export(const GpuRange& range) override {
    const char* function = "hsa_amd_portable_export_dmabuf";
    if (f_.ExportDmabuf == nullptr) return VerbError{function, EOPNOTSUPP};
    const HostPages pages(range);
    GpuExport exported;
    auto error = Failure(function, f_.ExportDmabuf(At(pages.first), pages.length, &exported.fd, &exported.offset));
    if (error) return error;
    exported.offset += pages.offset;
    return exported;
  }

  VerbError CopyTo(const GpuRange& range, size_t offset, const void* host, size_t length) override {
    return Failure("hsa_memory_copy", f_.MemoryCopy(At(range.address + offset), host, length));
  }

  VerbError CopyFrom(const GpuRange& range, size_t offset, void* host, size_t length) override {
    return Failure("hsa_memory_copy", f_.MemoryCopy(host, At(range.address + offset), length));
  }

  const char* Text(int status) {
    const char* text = nullptr;
    return f_.StatusString != nullptr && f_.StatusString(status, &text) == kSuccess && text != nullptr
               ? text
               : "unknown status";
  }

 private:
  // The memory on the GPU itself.
  struct LocalPool {
    Pool pool{};
    size_t size = 0;
    size_t granule = 4096;
    int status = kSuccess;
  };
  struct Search {
    const Functions* f;
    LocalPool found;
  };

  static int AddGpu(Agent agent, void* self) {
    auto* driver = static_cast<HsaDriver*>(self);
    uint32_t type = 0;
    const int status = driver->f_.AgentGetInfo(agent, kAgentDevice, &type);
    if (status == kSuccess && type == kDeviceGpu) driver->gpus_.push_back(agent);
    return status;
  }

  LocalPool PoolOf(Agent agent) const {
    Search search{&f_, {}};
    const int status = f_.IteratePools(
        agent,
        [](Pool pool, void* data) {
          auto* search = static_cast<Search*>(data);
          const Functions& f = *search->f;
          uint32_t segment = 0;
          uint32_t flags = 0;
          bool allowed = false;
          const int status = f.PoolGetInfo(pool, kPoolSegment, &segment);
          if (status != kSuccess) return status;
          (void)f.PoolGetInfo(pool, kPoolGlobalFlags, &flags);
          (void)f.PoolGetInfo(pool, kPoolAllocAllowed, &allowed);
          if (segment != kSegmentGlobal || (flags & kFlagCoarseGrained) == 0 || !allowed) return kSuccess;
          if (search->found.size != 0) return kSuccess;
          search->found.pool = pool;
          (void)f.PoolGetInfo(pool, kPoolSize, &search->found.size);
          (void)f.PoolGetInfo(pool, kPoolAllocGranule, &search->found.granule);
          return kSuccess;
        },
        &search);
    search.found.status = status;
    return search.found;
  }

  Library library_{"libhsa-runtime64.so.1", "NODE_RDMA_LIBHSA"};
  std::once_flag once_;
  Functions f_{};
  const char* missing_ = nullptr;
  const char* failed_ = "hsa_init: ";
  int init_ = kSuccess;
  std::vector<Agent> gpus_;
};

HsaDriver& Driver() {
  static HsaDriver driver;
  return driver;
}

// The runtime has a text for each status, and names for none.
const char* NameOf(int status) {
  switch (status) {
    case 0x1001:
      return "HSA_STATUS_ERROR_INVALID_ARGUMENT";
    case 0x1003:
      return "HSA_STATUS_ERROR_INVALID_ALLOCATION";
    case 0x1004:
      return "HSA_STATUS_ERROR_INVALID_AGENT";
    case 0x1008:
      return "HSA_STATUS_ERROR_OUT_OF_RESOURCES";
    case kNotInitialized:
      return "HSA_STATUS_ERROR_NOT_INITIALIZED";
    default:
      return "HSA_STATUS_ERROR";
  }
}
const char* TextOf(int status) { return Driver().Text(status); }

}  // namespace

}  // namespace hsa

GpuDriver& Hsa() { return hsa::Driver(); }

}  // namespace rdma
