// What the driver of a GPU does for this package, through its own library. No Node-API here: called on pool threads
// too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "handles/outcome.h"

namespace rdma {

struct GpuInfo {
  std::string name;
  // Such as 0000:17:00.0.
  std::string pci_address;
  uint64_t memory = 0;
  // Whether memory of it can be exported as a DMA-BUF, and of which kind; else what is missing.
  bool dmabuf = false;
  bool virtual_memory = false;
  std::string missing;
};

// A range of a GPU's memory, and what its driver needs to free it.
struct GpuRange {
  uint64_t address = 0;
  size_t length = 0;
  uint32_t gpu = 0;
  // Of memory that was mapped to a range of addresses; 0 otherwise. And how many steps of freeing it are done.
  uint64_t physical = 0;
  int freed = 0;
  // Somebody else's: it is not freed.
  bool adopted = false;
};

// The descriptor of a DMA-BUF, and where in it the range begins.
struct GpuExport {
  int fd = -1;
  uint64_t offset = 0;
};

class GpuDriver {
 public:
  virtual ~GpuDriver() = default;

  // Whether the library is there and has what it must have; else which library, and why it is of no use.
  virtual bool Open() = 0;
  virtual std::string Describe() = 0;

  virtual Outcome<std::vector<GpuInfo>> List() = 0;
  // At least `length` bytes; with `virtual_memory` by the driver's functions for virtual memory.
  virtual Outcome<GpuRange> Alloc(uint32_t gpu, size_t length, bool virtual_memory) = 0;
  // Memory at an address that somebody else has allocated; ERANGE where that is less, EINVAL where it is no GPU's.
  virtual Outcome<GpuRange> Adopt(uint64_t address, size_t length) = 0;
  // Called again after a failure, it goes on where that was.
  virtual VerbError Free(GpuRange& range) = 0;
  virtual Outcome<GpuExport> Export(const GpuRange& range) = 0;
  virtual VerbError CopyTo(const GpuRange& range, size_t offset, const void* host, size_t length) = 0;
  virtual VerbError CopyFrom(const GpuRange& range, size_t offset, void* host, size_t length) = 0;
};

GpuDriver& Cuda();
GpuDriver& Hsa();

// Whole pages of the host around a range: what drivers export.
struct HostPages {
  explicit HostPages(const GpuRange& range);
  uint64_t first;
  size_t length;
  uint64_t offset;
};

// Such as 0000:17:00.0.
std::string PciAddress(uint32_t domain, uint32_t bus, uint32_t device, uint32_t function);

}  // namespace rdma
