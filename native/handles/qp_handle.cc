#include "handles/qp_handle.h"

#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cstring>

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
  if (parents.pd) {
    attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
    attr->pd = parents.pd->get();
  }
  if (parents.xrcd) {
    attr->comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    attr->xrcd = parents.xrcd->get();
  }
  if (parents.table) {
    attr->comp_mask |= IBV_QP_INIT_ATTR_IND_TABLE;
    attr->rwq_ind_tbl = parents.table->get();
  }
  ibv_context* context = attr->pd != nullptr ? attr->pd->context : attr->xrcd->context;
  if (parents.send_cq) attr->send_cq = parents.send_cq->get();
  if (parents.recv_cq) attr->recv_cq = parents.recv_cq->get();
  if (parents.srq) attr->srq = parents.srq->get();
  // With nothing beyond the domain the header calls ibv_create_qp().
  const char* verb = attr->comp_mask == IBV_QP_INIT_ATTR_PD ? "ibv_create_qp" : "ibv_create_qp_ex";
  if (mlx5 != nullptr) verb = "mlx5dv_create_qp";
  errno = 0;
  auto qp = FromPtr(verb, mlx5 ? mlx5dv_create_qp(context, attr, mlx5) : ibv_create_qp_ex(context, attr));
  if (qp.error) return qp.error;
  return std::shared_ptr<QpHandle>(new QpHandle(std::move(parents), qp.value, PostingOf(qp.value, *attr)));
}

Outcome<std::shared_ptr<QpHandle>> QpHandle::Open(std::shared_ptr<XrcdHandle> xrcd, uint32_t qp_num) {
  ibv_qp_open_attr attr{};
  attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  attr.qp_num = qp_num;
  attr.xrcd = xrcd->get();
  attr.qp_type = IBV_QPT_XRC_RECV;
  // libmlx5 keeps no doorbell record for such a handle, and ends the process when it is destroyed (all releases up to
  // 64).
  const verbs_context* context = verbs_get_ctx(attr.xrcd->context);
  if (context != nullptr && IsFunctionOf(reinterpret_cast<const void*>(context->open_qp), "libmlx5")) {
    return VerbError{"ibv_open_qp", EOPNOTSUPP};
  }
  errno = 0;
  auto qp = FromPtr("ibv_open_qp", ibv_open_qp(attr.xrcd->context, &attr));
  if (qp.error) return qp.error;
  QpParents parents;
  parents.xrcd = std::move(xrcd);
  return std::shared_ptr<QpHandle>(new QpHandle(std::move(parents), qp.value, Posting::kClassic));
}

VerbError QpHandle::Modify(ibv_qp_attr* attr, int mask) {
  if (qp_ == nullptr) return {"ibv_modify_qp", EBADF};
  errno = 0;
  return FromRet("ibv_modify_qp", ibv_modify_qp(qp_, attr, mask));
}

void QpHandle::Stop() {
  // A datagram's can fail to be destroyed while it is in a multicast group, and would be of no use any more.
  if (qp_->qp_type != IBV_QPT_RC && qp_->qp_type != IBV_QPT_UC) return;
  if (qp_->state == IBV_QPS_RESET || qp_->state == IBV_QPS_INIT) return;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  // Of a device that is gone it fails.
  ibv_modify_qp(qp_, &attr, IBV_QP_STATE);
}

VerbError QpHandle::AttachMcast(const ibv_gid& gid, uint16_t lid) {
  errno = 0;
  VerbError error = FromRet("ibv_attach_mcast", ibv_attach_mcast(qp_, &gid, lid));
  if (!error) groups_.push_back({gid, lid});
  return error;
}

VerbError QpHandle::DetachMcast(const ibv_gid& gid, uint16_t lid) {
  errno = 0;
  VerbError error = FromRet("ibv_detach_mcast", ibv_detach_mcast(qp_, &gid, lid));
  if (error) return error;
  // It may have been attached more than once, which is the same as once.
  const auto is_left = [&](const Group& group) {
    return group.lid == lid && memcmp(group.gid.raw, gid.raw, sizeof gid.raw) == 0;
  };
  groups_.erase(std::remove_if(groups_.begin(), groups_.end(), is_left), groups_.end());
  return error;
}

QpHandle::~QpHandle() {
  if (qp_ == nullptr) return;
  for (const Group& group : groups_) ibv_detach_mcast(qp_, &group.gid, group.lid);
  Destroy();
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
  xrcd_.Reset();
  table_.Reset();
  return {};
}

}  // namespace rdma
