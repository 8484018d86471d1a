#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "handles/cq_handle.h"
#include "handles/pd_handle.h"
#include "handles/srq_handle.h"

namespace rdma {

// A queue pair: struct ibv_qp.
class QpHandle final : public Owner {
 public:
  // Fills in the queues of `attr` (`srq` may be null), and leaves the granted capacities in it.
  static Outcome<std::shared_ptr<QpHandle>> Create(std::shared_ptr<PdHandle> pd, std::shared_ptr<CqHandle> send_cq,
                                                   std::shared_ptr<CqHandle> recv_cq, std::shared_ptr<SrqHandle> srq,
                                                   ibv_qp_init_attr* attr);
  ~QpHandle() override { Destroy(); }
  VerbError Destroy() override;

  // May wait for the resolution of a neighbour, seconds long, so it is called on pool threads too.
  VerbError Modify(ibv_qp_attr* attr, int mask);

  ibv_qp* get() const { return qp_; }

 private:
  QpHandle(std::shared_ptr<PdHandle> pd, std::shared_ptr<CqHandle> send_cq, std::shared_ptr<CqHandle> recv_cq,
           std::shared_ptr<SrqHandle> srq, ibv_qp* qp)
      : pd_(std::move(pd)), send_cq_(std::move(send_cq)), recv_cq_(std::move(recv_cq)), srq_(std::move(srq)), qp_(qp) {}
  Parent<PdHandle> pd_;
  Parent<CqHandle> send_cq_;
  Parent<CqHandle> recv_cq_;
  Parent<SrqHandle> srq_;
  ibv_qp* qp_;
};

}  // namespace rdma
