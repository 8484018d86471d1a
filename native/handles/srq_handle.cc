#include "handles/srq_handle.h"

namespace rdma {

Outcome<std::shared_ptr<SrqHandle>> SrqHandle::Create(SrqParents parents, ibv_srq_init_attr_ex* attr) {
  attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
  attr->pd = parents.pd->get();
  if (parents.xrcd) {
    attr->comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
    attr->xrcd = parents.xrcd->get();
  }
  if (parents.cq) {
    attr->comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
    attr->cq = parents.cq->get();
  }
  // For a basic one the header calls ibv_create_srq().
  const char* verb = attr->comp_mask == IBV_SRQ_INIT_ATTR_PD ? "ibv_create_srq" : "ibv_create_srq_ex";
  errno = 0;
  auto srq = FromPtr(verb, ibv_create_srq_ex(attr->pd->context, attr));
  if (srq.error) return srq.error;
  // Only ibv_create_srq() does this itself.
  srq.value->srq_context = attr->srq_context;
  return std::shared_ptr<SrqHandle>(new SrqHandle(std::move(parents), srq.value));
}

VerbError SrqHandle::Destroy() {
  if (srq_ == nullptr) return {};
  VerbError error = FromDestroy(FromRet("ibv_destroy_srq", ibv_destroy_srq(srq_)));
  if (error) return error;
  srq_ = nullptr;
  pd_.Reset();
  xrcd_.Reset();
  cq_.Reset();
  return {};
}

}  // namespace rdma
