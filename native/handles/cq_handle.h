#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "handles/pd_handle.h"

struct mlx5dv_cq_init_attr;

namespace rdma {

// A completion channel: struct ibv_comp_channel, its fd non-blocking from birth.
class ChannelHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<ChannelHandle>> Create(std::shared_ptr<ContextHandle> context);
  ~ChannelHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_comp_channel* get() const { return channel_; }
  // A queue of this channel went with its device.
  void LoseQueue() { has_lost_queues_ = true; }

 private:
  ChannelHandle(std::shared_ptr<ContextHandle> context, ibv_comp_channel* channel)
      : context_(std::move(context)), channel_(channel) {}
  Parent<ContextHandle> context_;
  ibv_comp_channel* channel_;
  bool has_lost_queues_ = false;
};

// Who polls a completion queue.
class Poller {
 public:
  Poller() = default;
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  // Takes all that is in the queue, to give it out later.
  virtual void TakeIn() = 0;
  // Drops of that what is of a queue pair that has gone. Its receives are over.
  virtual void Forget(uint32_t qp_num) = 0;

 protected:
  ~Poller() = default;
};

// A completion queue: struct ibv_cq. Its events are counted here when they are taken from the channel; ibv_destroy_cq
// waits for ever for one that was not acknowledged.
class CqHandle final : public Owner {
 public:
  // `channel` may be null. `id` is what events are told apart by. With `mlx5` it is made by libmlx5.
  static Outcome<std::shared_ptr<CqHandle>> Create(std::shared_ptr<ContextHandle> context, int cqe,
                                                   std::shared_ptr<ChannelHandle> channel, int comp_vector, uint32_t id,
                                                   mlx5dv_cq_init_attr* mlx5 = nullptr);
  // The same with an extended one: struct ibv_cq_ex. Fills in the context, the channel and the domain of `attr`.
  static Outcome<std::shared_ptr<CqHandle>> CreateEx(std::shared_ptr<ContextHandle> context, ibv_cq_init_attr_ex* attr,
                                                     std::shared_ptr<ChannelHandle> channel, uint32_t id,
                                                     std::shared_ptr<PdHandle> parent_domain);
  ~CqHandle() override { Destroy(); }
  VerbError Destroy() override;

  // Pins memory, so it is called on pool threads too: the providers guard it against polling.
  VerbError Resize(int cqe);

  ibv_cq* get() const { return cq_; }
  // Null when it is not extended.
  ibv_cq_ex* ex() const { return ex_; }
  // What an extended one tells of a completion: IBV_WC_EX_WITH_*.
  uint64_t wc_flags() const { return wc_flags_; }
  uint32_t id() const { return id_; }
  // Null when it was collected. Of the environment's thread.
  Poller* poller() const { return poller_; }
  void SetPoller(Poller* poller) { poller_ = poller; }

  // One event of this queue was taken. Acknowledging takes a mutex, so it is done in batches.
  void CountEvent();

 private:
  CqHandle(std::shared_ptr<ContextHandle> context, std::shared_ptr<ChannelHandle> channel, uint32_t id)
      : context_(std::move(context)), channel_(std::move(channel)), id_(id) {}
  void Acknowledge();

  Parent<ContextHandle> context_;
  Parent<ChannelHandle> channel_;
  Parent<PdHandle> parent_domain_{nullptr};
  const uint32_t id_;
  ibv_cq* cq_ = nullptr;
  ibv_cq_ex* ex_ = nullptr;
  uint64_t wc_flags_ = 0;
  Poller* poller_ = nullptr;
  unsigned int unacknowledged_ = 0;
};

}  // namespace rdma
