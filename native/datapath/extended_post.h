// Posting by ibv_wr_post(3): what a queue pair does that was made with send operations. It takes the same list of
// requests as ibv_post_send(3) and fails in the same way, so that everything above is the same on both paths.
#pragma once

#include <infiniband/verbs.h>

#include "handles/qp_handle.h"

namespace rdma {

// Elements of a request beyond what any provider grants: rdma_rxe has 32.
constexpr uint32_t kMaxSge = 256;

// As ibv_post_send(), of a queue pair with send operations: all of the list, or with an error nothing of it.
int PostExtended(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad);

// The same for the provider of rdma_rxe, which gets lists of elements wrong before rdma-core 64: it multiplies the
// length of the first, and sends nothing of inline data. A request with several goes through ibv_post_send(), which is
// right in every release. The provider's release cannot be asked for.
int PostExtendedRxe(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad);

// By the path that the queue pair was made for.
inline int PostSend(const QpHandle& qp, ibv_send_wr* list, ibv_send_wr** bad) {
  switch (qp.posting()) {
    case Posting::kExtended:
      return PostExtended(qp.get(), list, bad);
    case Posting::kExtendedRxe:
      return PostExtendedRxe(qp.get(), list, bad);
    default:
      return ibv_post_send(qp.get(), list, bad);
  }
}

}  // namespace rdma
