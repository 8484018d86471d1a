#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <vector>

#include "handles/cq_handle.h"
#include "handles/pd_handle.h"
#include "handles/srq_handle.h"
#include "handles/wq_handle.h"
#include "handles/xrcd_handle.h"

struct mlx5dv_qp_init_attr;

namespace rdma {

// How requests reach a send queue: ibv_post_send(3), or ibv_wr_post(3), which has traps with one provider.
enum class Posting { kClassic, kExtended, kExtendedRxe };

// What a queue pair needs, as far as it is not null: one that receives for XRC has a domain of its own kind and nothing
// else, one with receive side scaling a protection domain and a table, all others a protection domain and queues.
struct QpParents {
  std::shared_ptr<PdHandle> pd;
  std::shared_ptr<CqHandle> send_cq;
  std::shared_ptr<CqHandle> recv_cq;
  std::shared_ptr<SrqHandle> srq;
  std::shared_ptr<XrcdHandle> xrcd;
  std::shared_ptr<RwqIndTableHandle> table;
};

// A queue pair: struct ibv_qp.
class QpHandle final : public Owner {
 public:
  // Fills in the parents of `attr`, and leaves the granted capacities in it. With `mlx5` it is made by libmlx5.
  static Outcome<std::shared_ptr<QpHandle>> Create(QpParents parents, ibv_qp_init_attr_ex* attr,
                                                   mlx5dv_qp_init_attr* mlx5 = nullptr);
  // Another handle to a queue pair that receives for XRC, by its number.
  static Outcome<std::shared_ptr<QpHandle>> Open(std::shared_ptr<XrcdHandle> xrcd, uint32_t qp_num);
  ~QpHandle() override;
  VerbError Destroy() override;

  // May wait for the resolution of a neighbour, seconds long, so it is called on pool threads too.
  VerbError Modify(ibv_qp_attr* attr, int mask);

  // A queue pair in a group cannot be destroyed: one that nothing refers to any more leaves those that it is in.
  VerbError AttachMcast(const ibv_gid& gid, uint16_t lid);
  VerbError DetachMcast(const ibv_gid& gid, uint16_t lid);

  ibv_qp* get() const { return qp_; }
  Posting posting() const { return posting_; }
  // Who polls for the receives that it takes from a shared queue; null when it takes from none.
  Poller* shared_poller() const { return srq_ && recv_cq_ ? recv_cq_->poller() : nullptr; }
  // A connection takes no more receives.
  void Stop();

 private:
  QpHandle(QpParents parents, ibv_qp* qp, Posting posting)
      : pd_(std::move(parents.pd)),
        send_cq_(std::move(parents.send_cq)),
        recv_cq_(std::move(parents.recv_cq)),
        srq_(std::move(parents.srq)),
        xrcd_(std::move(parents.xrcd)),
        table_(std::move(parents.table)),
        qp_(qp),
        posting_(posting) {}
  Parent<PdHandle> pd_;
  Parent<CqHandle> send_cq_;
  Parent<CqHandle> recv_cq_;
  Parent<SrqHandle> srq_;
  Parent<XrcdHandle> xrcd_;
  Parent<RwqIndTableHandle> table_;
  ibv_qp* qp_;
  const Posting posting_;
  struct Group {
    ibv_gid gid;
    uint16_t lid;
  };
  std::vector<Group> groups_;
};

}  // namespace rdma
