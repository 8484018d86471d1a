#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <memory>

#include "handles/pd_handle.h"

namespace rdma {

// Page-aligned memory of our own, for pd.alloc().
class PageMemory {
 public:
  // Maps zeroed memory of at least `length` bytes; huge pages of the system's default size when asked for.
  static Outcome<std::shared_ptr<PageMemory>> Map(size_t length, bool huge_pages);
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  ~PageMemory();
  void* data() const { return data_; }

 private:
  PageMemory(void* data, size_t mapped) : data_(data), mapped_(mapped) {}
  void* data_;
  size_t mapped_;
};

// A memory region: struct ibv_mr, and a share of the memory it covers, which goes only after the deregistration.
class MrHandle final : public Owner {
 public:
  // Pins every page of the range: may take long, so it is called on pool threads too.
  static Outcome<std::shared_ptr<MrHandle>> Register(std::shared_ptr<PdHandle> pd, void* addr, size_t length,
                                                     unsigned int access, std::shared_ptr<void> memory);
  ~MrHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_mr* get() const { return mr_; }

 private:
  MrHandle(std::shared_ptr<PdHandle> pd, ibv_mr* mr, std::shared_ptr<void> memory)
      : memory_(std::move(memory)), pd_(std::move(pd)), mr_(mr) {}
  std::shared_ptr<void> memory_;
  Parent<PdHandle> pd_;
  ibv_mr* mr_;
};

}  // namespace rdma
