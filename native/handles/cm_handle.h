#pragma once

#include <rdma/rdma_cma.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "handles/owner.h"

namespace rdma {

// A channel of connection events: struct rdma_event_channel, its fd non-blocking from birth.
class CmChannelHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<CmChannelHandle>> Create();
  ~CmChannelHandle() override { Destroy(); }
  VerbError Destroy() override;

  rdma_event_channel* get() const { return channel_; }

 private:
  explicit CmChannelHandle(rdma_event_channel* channel) : channel_(channel) {}
  rdma_event_channel* channel_;
};

// A connection manager's identifier: struct rdma_cm_id. Its `context` is the number that TypeScript knows it by. It
// never has a queue pair of librdmacm's making: those are ours, and TypeScript takes them through their states, so
// librdmacm never changes one from within rdma_get_cm_event().
class CmIdHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<CmIdHandle>> Create(std::shared_ptr<CmChannelHandle> channel, rdma_port_space ps,
                                                     uint32_t number);
  // One that librdmacm has made: for a connection request.
  static std::shared_ptr<CmIdHandle> Adopt(std::shared_ptr<CmChannelHandle> channel, rdma_cm_id* id, uint32_t number);
  ~CmIdHandle() override { Destroy(); }

  // Would wait for events that were not acknowledged; all are, as soon as they are taken.
  VerbError Destroy() override;

  // Moves it, and its events that were not taken yet, to another channel.
  VerbError Migrate(std::shared_ptr<CmChannelHandle> channel);

  rdma_cm_id* get() const { return id_; }
  uint32_t number() const;

 private:
  CmIdHandle(std::shared_ptr<CmChannelHandle> channel, rdma_cm_id* id) : id_(id) {
    channel_.emplace(std::move(channel));
  }
  std::optional<Parent<CmChannelHandle>> channel_;
  rdma_cm_id* id_;
};

}  // namespace rdma
