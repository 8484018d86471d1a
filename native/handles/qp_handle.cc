#include "handles/qp_handle.h"

#include <infiniband/mlx5dv.h>

#include "rdma_core/library.h"

namespace rdma {

namespace {

Posting PostingOf(ibv_qp* qp, const ibv_qp_init_attr_ex& attr) {
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) == 0) return Posting::kClassic;
  const ibv_qp_ex* extended = ibv_qp_to_qp_ex(qp);
  if (extended == nullptr) return Posting::kClassic;
  const auto* function = reinterpret_cast<const void*>(extended->wr_set_sge_list);
  return IsFunctionOf(function, "librxe") ? Posting::kExtendedRxe : Posting::kExtended;
}

}  // namespace

Outcome<std::shared_ptr<QpHandle>> QpHandle::Create(QpParents parents, ibv_qp_init_attr_ex* attr,
                                                    mlx5dv_qp_init_attr* mlx5) {
  attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
  attr->pd = parents.pd->get();
  attr->send_cq = parents.send_cq->get();
  attr->recv_cq = parents.recv_cq->get();
  attr->srq = parents.srq ? parents.srq->get() : nullptr;
  // With nothing beyond the domain the header calls ibv_create_qp().
  const char* verb = attr->comp_mask == IBV_QP_INIT_ATTR_PD ? "ibv_create_qp" : "ibv_create_qp_ex";
  if (mlx5 != nullptr) verb = "mlx5dv_create_qp";
  ibv_context* context = attr->pd->context;
  errno = 0;
  auto qp = FromPtr(verb, mlx5 ? mlx5dv_create_qp(context, attr, mlx5) : ibv_create_qp_ex(context, attr));
  if (qp.error) return qp.error;
  return std::shared_ptr<QpHandle>(new QpHandle(std::move(parents), qp.value, PostingOf(qp.value, *attr)));
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
