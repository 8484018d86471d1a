#include "datapath/extended_post.h"

#include <infiniband/mlx5dv.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace rdma {

namespace {

// Opcodes that are younger than our oldest header: rdma-core 45 and 44. lib/verbs/send-opcodes.ts has them too.
constexpr int kFlush = 14;
constexpr int kAtomicWrite = 15;

// In the place of a stream channel: the request belongs to none. lib/verbs/send-list.ts has it too.
constexpr unsigned int kNoStream = 0xffffffff;

// The members of struct ibv_qp_ex that came after wr_abort, its last one in our oldest header. A library that grants
// the send operation has the member.
struct YoungerFunctions {
  void (*atomic_write)(ibv_qp_ex*, uint32_t rkey, uint64_t remote_addr, const void* value);                    // 44
  void (*flush)(ibv_qp_ex*, uint32_t rkey, uint64_t remote_addr, size_t length, uint8_t type, uint8_t level);  // 45
};

const YoungerFunctions& Younger(ibv_qp_ex* qp) {
  auto* const end = reinterpret_cast<char*>(&qp->wr_abort) + sizeof qp->wr_abort;
  return *reinterpret_cast<YoungerFunctions*>(end);
}

// False when the provider has no such function for this queue pair.
template <class... Parameters, class... Arguments>
bool Call(ibv_qp_ex* qp, void (*function)(ibv_qp_ex*, Parameters...), Arguments... arguments) {
  if (function == nullptr) return false;
  function(qp, arguments...);
  return true;
}

// Names the data of the request that was begun. Every request gets exactly one call: it completes the request.
void SetData(ibv_qp_ex* qp, const ibv_send_wr& wr) {
  const ibv_sge* const sge = wr.sg_list;
  if ((wr.send_flags & IBV_SEND_INLINE) == 0) {
    if (wr.num_sge > 1) {
      ibv_wr_set_sge_list(qp, static_cast<size_t>(wr.num_sge), sge);
    } else if (wr.num_sge == 1) {
      ibv_wr_set_sge(qp, sge->lkey, sge->addr, sge->length);
    } else {
      ibv_wr_set_sge(qp, 0, 0, 0);
    }
  } else if (wr.num_sge == 1) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the address of a struct ibv_sge
    ibv_wr_set_inline_data(qp, reinterpret_cast<void*>(sge->addr), sge->length);
  } else {
    ibv_data_buf pieces[kMaxSge];
    for (int i = 0; i < wr.num_sge; i++) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      pieces[i] = {reinterpret_cast<void*>(sge[i].addr), sge[i].length};
    }
    ibv_wr_set_inline_data_list(qp, static_cast<size_t>(wr.num_sge), pieces);
  }
}

// ibv_send_wr has no fields for the target of dynamically connected transport, so they are where those of a binding
// are.
void SetTarget(ibv_qp_ex* qp, const ibv_send_wr& wr) {
  mlx5dv_qp_ex* const mlx5 = mlx5dv_qp_ex_from_ibv_qp_ex(qp);
  auto* const ah = reinterpret_cast<ibv_ah*>(wr.bind_mw.mw);
  const uint32_t dctn = wr.bind_mw.rkey;
  const uint64_t dc_key = wr.bind_mw.bind_info.addr;
  const unsigned int stream = wr.bind_mw.bind_info.mw_access_flags;
  if (stream == kNoStream) {
    mlx5dv_wr_set_dc_addr(mlx5, ah, dctn, dc_key);
  } else {
    mlx5dv_wr_set_dc_addr_stream(mlx5, ah, dctn, dc_key, static_cast<uint16_t>(stream));
  }
}

void SetAddress(ibv_qp_ex* qp, const ibv_send_wr& wr) {
  if (qp->qp_base.qp_type == IBV_QPT_UD) {
    ibv_wr_set_ud_addr(qp, wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey);
  } else if (qp->qp_base.qp_type == IBV_QPT_XRC_SEND) {
    ibv_wr_set_xrc_srqn(qp, wr.qp_type.xrc.remote_srqn);
  } else if (qp->qp_base.qp_type == IBV_QPT_DRIVER) {
    SetTarget(qp, wr);
  }
}

bool BeginWithData(ibv_qp_ex* qp, const ibv_send_wr& wr) {
  const auto& rdma = wr.wr.rdma;
  const auto& atomic = wr.wr.atomic;
  switch (wr.opcode) {
    case IBV_WR_SEND:
      return Call(qp, qp->wr_send);
    case IBV_WR_SEND_WITH_IMM:
      return Call(qp, qp->wr_send_imm, wr.imm_data);
    case IBV_WR_SEND_WITH_INV:
      return Call(qp, qp->wr_send_inv, wr.invalidate_rkey);
    case IBV_WR_RDMA_WRITE:
      return Call(qp, qp->wr_rdma_write, rdma.rkey, rdma.remote_addr);
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return Call(qp, qp->wr_rdma_write_imm, rdma.rkey, rdma.remote_addr, wr.imm_data);
    case IBV_WR_RDMA_READ:
      return Call(qp, qp->wr_rdma_read, rdma.rkey, rdma.remote_addr);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return Call(qp, qp->wr_atomic_cmp_swp, atomic.rkey, atomic.remote_addr, atomic.compare_add, atomic.swap);
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return Call(qp, qp->wr_atomic_fetch_add, atomic.rkey, atomic.remote_addr, atomic.compare_add);
    case IBV_WR_TSO:
      return Call(qp, qp->wr_send_tso, wr.tso.hdr, wr.tso.hdr_sz, wr.tso.mss);
    default:
      return false;
  }
}

// Issues one request; false when the queue pair was not made for its opcode.
bool Issue(ibv_qp_ex* qp, const ibv_send_wr& wr) {
  qp->wr_id = wr.wr_id;
  // INLINE among them: the kernel driver of rdma_rxe goes by it, and others do not look.
  qp->wr_flags = wr.send_flags;
  const auto& atomic = wr.wr.atomic;
  switch (static_cast<int>(wr.opcode)) {
    case IBV_WR_LOCAL_INV:
      return Call(qp, qp->wr_local_inv, wr.invalidate_rkey);
    case IBV_WR_BIND_MW:
      return Call(qp, qp->wr_bind_mw, wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info);
    case kAtomicWrite:
      // The value is read now, as inline data is.
      return wr.num_sge == 1 && Call(qp, Younger(qp).atomic_write, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr,
                                     // NOLINTNEXTLINE(performance-no-int-to-ptr)
                                     reinterpret_cast<const void*>(wr.sg_list->addr));
    case kFlush:
      // ibv_send_wr has no fields for these, so they are where those of atomics are.
      return Call(qp, Younger(qp).flush, atomic.rkey, atomic.remote_addr, static_cast<size_t>(atomic.compare_add),
                  static_cast<uint8_t>(atomic.swap), static_cast<uint8_t>(atomic.swap >> 32));
    default:
      if (!BeginWithData(qp, wr)) return false;
      SetAddress(qp, wr);
      SetData(qp, wr);
      return true;
  }
}

// Posts the requests from `first` to before `end` as one.
int PostRun(ibv_qp* base, ibv_send_wr* first, const ibv_send_wr* end) {
  static_assert(offsetof(ibv_qp_ex, qp_base) == 0, "what ibv_qp_to_qp_ex() answers is the same address");
  auto* const qp = reinterpret_cast<ibv_qp_ex*>(base);
  ibv_wr_start(qp);
  for (const ibv_send_wr* wr = first; wr != end; wr = wr->next) {
    if (Issue(qp, *wr)) continue;
    ibv_wr_abort(qp);
    return EOPNOTSUPP;
  }
  return ibv_wr_complete(qp);
}

}  // namespace

int PostExtended(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
  const int rc = PostRun(qp, list, nullptr);
  if (rc != 0) *bad = list;
  return rc;
}

int PostExtendedRxe(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
  for (ibv_send_wr* first = list; first != nullptr;) {
    ibv_send_wr* end = first;
    while (end != nullptr && end->num_sge <= 1) end = end->next;
    if (end != first) {
      const int rc = PostRun(qp, first, end);
      if (rc != 0) {
        // These are from before the doorbell. When that fails, the requests are in the queue already.
        *bad = rc == ENOSPC || rc == EOPNOTSUPP ? first : end;
        return rc;
      }
      first = end;
      continue;
    }
    ibv_send_wr* const next = first->next;
    first->next = nullptr;
    const int rc = ibv_post_send(qp, first, bad);
    first->next = next;
    if (rc != 0) {
      if (*bad == nullptr) *bad = next;
      return rc;
    }
    first = next;
  }
  return 0;
}

}  // namespace rdma
