#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <memory>

#include "handles/dm_handle.h"
#include "handles/pd_handle.h"

namespace rdma {

// A memory region: struct ibv_mr, and a share of the memory it covers, which goes only after the deregistration.
// Registering pins every page of the range: it may take long, so it is called on pool threads too.
class MrHandle final : public Owner {
 public:
  // The IO virtual address is the address itself unless another is given.
  static Outcome<std::shared_ptr<MrHandle>> Register(std::shared_ptr<PdHandle> pd, void* addr, size_t length,
                                                     const uint64_t* iova, unsigned int access,
                                                     std::shared_ptr<void> memory);
  static Outcome<std::shared_ptr<MrHandle>> AllocNull(std::shared_ptr<PdHandle> pd);
  static Outcome<std::shared_ptr<MrHandle>> RegisterDm(std::shared_ptr<PdHandle> pd, std::shared_ptr<DmHandle> dm,
                                                       uint64_t offset, size_t length, unsigned int access);
  // The region keeps the memory of the DMA-BUF: the descriptor may be closed. `memory` is held besides.
  static Outcome<std::shared_ptr<MrHandle>> RegisterDmabuf(std::shared_ptr<PdHandle> pd, int fd, uint64_t offset,
                                                           size_t length, uint64_t iova, unsigned int access,
                                                           std::shared_ptr<void> memory);
  // The region that another context of the same device file has registered; it deregisters it.
  static Outcome<std::shared_ptr<MrHandle>> Import(std::shared_ptr<PdHandle> pd, uint32_t handle, uint64_t iova);
  ~MrHandle() override { Destroy(); }
  VerbError Destroy() override;

  // How a re-registration ended: whether the region is still what it was, where it failed.
  struct Reregistered {
    int err = 0;
    bool kept = false;
  };
  // `memory` is held from now on, beside what was held before where the device may still use that.
  Reregistered Rereg(int flags, const std::shared_ptr<PdHandle>& pd, void* addr, size_t length, unsigned int access,
                     std::shared_ptr<void> memory);

  ibv_mr* get() const { return mr_; }
  // The address that requests name its first byte by.
  uint64_t iova() const { return iova_; }

 private:
  MrHandle(std::shared_ptr<PdHandle> pd, ibv_mr* mr, uint64_t iova, std::shared_ptr<void> memory)
      : memory_(std::move(memory)), pd_(std::move(pd)), dm_(nullptr), mr_(mr), iova_(iova) {}
  std::shared_ptr<void> memory_;
  Parent<PdHandle> pd_;
  Parent<DmHandle> dm_;
  ibv_mr* mr_;
  uint64_t iova_;
  bool imported_ = false;
};

}  // namespace rdma
