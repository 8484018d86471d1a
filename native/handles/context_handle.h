#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "handles/owner.h"

namespace rdma {

// An open device: struct ibv_context.
class ContextHandle final : public Owner {
 public:
  // Opens the device of that name; ENODEV when there is none.
  static Outcome<std::shared_ptr<ContextHandle>> Open(const std::string& device_name);
  // A context of an open device file: of the command descriptor of another one. The descriptor stays the caller's.
  static Outcome<std::shared_ptr<ContextHandle>> Import(int cmd_fd);
  ~ContextHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_context* get() const { return context_; }

 private:
  explicit ContextHandle(ibv_context* context) : context_(context) {}
  ibv_context* context_;
};

}  // namespace rdma
