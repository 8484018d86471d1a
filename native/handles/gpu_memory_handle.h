#pragma once

#include <memory>

#include "gpu/driver.h"
#include "handles/owner.h"

namespace rdma {

// Memory of a GPU. Regions of it hold a share: it is freed after the last of them is deregistered.
class GpuMemoryHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<GpuMemoryHandle>> Alloc(GpuDriver& driver, uint32_t gpu, size_t length,
                                                         bool virtual_memory);
  // Somebody else's memory, which is not freed.
  static Outcome<std::shared_ptr<GpuMemoryHandle>> Adopt(GpuDriver& driver, uint64_t address, size_t length);
  ~GpuMemoryHandle() override { Destroy(); }
  VerbError Destroy() override;

  Outcome<GpuExport> Export() const { return driver_.Export(range_); }
  VerbError CopyTo(size_t offset, const void* host, size_t length) const {
    return driver_.CopyTo(range_, offset, host, length);
  }
  VerbError CopyFrom(size_t offset, void* host, size_t length) const {
    return driver_.CopyFrom(range_, offset, host, length);
  }

  const GpuRange& range() const { return range_; }

 private:
  GpuMemoryHandle(GpuDriver& driver, const GpuRange& range) : driver_(driver), range_(range) {}
  GpuDriver& driver_;
  GpuRange range_;
  bool freed_ = false;
};

}  // namespace rdma
