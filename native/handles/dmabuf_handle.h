#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "handles/owner.h"

namespace rdma {

// A DMA-BUF mapped into this process. It needs no descriptor any more.
class DmabufMapping {
 public:
  static Outcome<std::shared_ptr<DmabufMapping>> Map(int fd, size_t length, bool writable);
  DmabufMapping(const DmabufMapping&) = delete;
  DmabufMapping& operator=(const DmabufMapping&) = delete;
  ~DmabufMapping();
  void* data() const { return data_; }

 private:
  DmabufMapping(void* data, size_t length) : data_(data), length_(length) {}
  void* data_;
  size_t length_;
};

// The descriptor of a DMA-BUF. The memory lives as long as anything that was made of it: other descriptors, mappings,
// memory regions.
class DmabufHandle final : public Owner {
 public:
  // By /dev/udmabuf of a part of a memfd; of one made for it where `memfd` is negative.
  static Outcome<std::shared_ptr<DmabufHandle>> CreateUdmabuf(int memfd, uint64_t offset, uint64_t length);
  // By the heap that this file stands for: /dev/dma_heap/system, say.
  static Outcome<std::shared_ptr<DmabufHandle>> AllocHeap(const std::string& path, uint64_t length);
  // Of a duplicate of the descriptor.
  static Outcome<std::shared_ptr<DmabufHandle>> Duplicate(int fd);
  // Of a duplicate of another process' descriptor.
  static Outcome<std::shared_ptr<DmabufHandle>> OfProcess(pid_t pid, int fd);
  // Of the descriptor itself, which this owns from now on.
  static std::shared_ptr<DmabufHandle> Own(int fd) { return std::shared_ptr<DmabufHandle>(new DmabufHandle(fd)); }
  ~DmabufHandle() override { Destroy(); }
  VerbError Destroy() override;

  // Before (`end` false) and after an access by the processor: waits for the devices, and sees to the caches.
  VerbError Sync(bool read, bool write, bool end) const;

  int fd() const { return fd_; }

 private:
  explicit DmabufHandle(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace rdma
