#include "handles/qp_handle.h"

namespace rdma {

Outcome<std::shared_ptr<QpHandle>> QpHandle::Create(std::shared_ptr<PdHandle> pd, std::shared_ptr<CqHandle> send_cq,
                                                    std::shared_ptr<CqHandle> recv_cq, std::shared_ptr<SrqHandle> srq,
                                                    ibv_qp_init_attr* attr) {
  attr->send_cq = send_cq->get();
  attr->recv_cq = recv_cq->get();
  attr->srq = srq ? srq->get() : nullptr;
  errno = 0;
  auto qp = FromPtr("ibv_create_qp", ibv_create_qp(pd->get(), attr));
  if (qp.error) return qp.error;
  return std::shared_ptr<QpHandle>(
      new QpHandle(std::move(pd), std::move(send_cq), std::move(recv_cq), std::move(srq), qp.value));
}

VerbError QpHandle::Modify(ibv_qp_attr* attr, int mask) {
  if (qp_ == nullptr) return {"ibv_modify_qp", EBADF};
  errno = 0;
  return FromRet("ibv_modify_qp", ibv_modify_qp(qp_, attr, mask));
}

VerbError QpHandle::Destroy() {
  if (qp_ == nullptr) return {};
  VerbError error = FromDestroy(FromRet("ibv_destroy_qp", ibv_destroy_qp(qp_)));
  if (error) return error;
  qp_ = nullptr;
  pd_.Reset();
  send_cq_.Reset();
  recv_cq_.Reset();
  srq_.Reset();
  return {};
}

}  // namespace rdma
