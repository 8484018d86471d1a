#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <memory>

#include "handles/context_handle.h"

namespace rdma {

// Memory on the device: struct ibv_dm.
class DmHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<DmHandle>> Alloc(std::shared_ptr<ContextHandle> context, size_t length,
                                                  uint32_t log_align);
  // The memory that another context of the same device file has allocated; it frees it.
  static Outcome<std::shared_ptr<DmHandle>> Import(std::shared_ptr<ContextHandle> context, uint32_t handle);
  ~DmHandle() override { Destroy(); }
  VerbError Destroy() override;

  VerbError CopyTo(uint64_t offset, const void* host, size_t length);
  VerbError CopyFrom(void* host, uint64_t offset, size_t length);

  ibv_dm* get() const { return dm_; }

 private:
  DmHandle(std::shared_ptr<ContextHandle> context, ibv_dm* dm, bool imported)
      : context_(std::move(context)), dm_(dm), imported_(imported) {}
  Parent<ContextHandle> context_;
  ibv_dm* dm_;
  const bool imported_;
};

}  // namespace rdma
