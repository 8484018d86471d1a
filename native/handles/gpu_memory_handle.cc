#include "handles/gpu_memory_handle.h"

namespace rdma {

Outcome<std::shared_ptr<GpuMemoryHandle>> GpuMemoryHandle::Alloc(GpuDriver& driver, uint32_t gpu, size_t length,
                                                                 bool virtual_memory) {
  auto range = driver.Alloc(gpu, length, virtual_memory);
  if (range.error) return range.error;
  return std::shared_ptr<GpuMemoryHandle>(new GpuMemoryHandle(driver, range.value));
}

Outcome<std::shared_ptr<GpuMemoryHandle>> GpuMemoryHandle::Adopt(GpuDriver& driver, uint64_t address, size_t length) {
  auto range = driver.Adopt(address, length);
  if (range.error) return range.error;
  return std::shared_ptr<GpuMemoryHandle>(new GpuMemoryHandle(driver, range.value));
}

VerbError GpuMemoryHandle::Destroy() {
  if (freed_) return {};
  VerbError error = driver_.Free(range_);
  if (error) return error;
  freed_ = true;
  return {};
}

}  // namespace rdma
