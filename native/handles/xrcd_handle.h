#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "handles/context_handle.h"

namespace rdma {

// A domain of extended reliable connections: struct ibv_xrcd.
class XrcdHandle final : public Owner {
 public:
  // `fd` is of the file that names it to other processes, or -1: then it is this one's alone.
  static Outcome<std::shared_ptr<XrcdHandle>> Open(std::shared_ptr<ContextHandle> context, int fd, int oflags);
  ~XrcdHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_xrcd* get() const { return xrcd_; }

 private:
  XrcdHandle(std::shared_ptr<ContextHandle> context, ibv_xrcd* xrcd) : context_(std::move(context)), xrcd_(xrcd) {}
  Parent<ContextHandle> context_;
  ibv_xrcd* xrcd_;
};

}  // namespace rdma
