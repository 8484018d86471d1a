#include "handles/cq_handle.h"

#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <unistd.h>

namespace rdma {

namespace {

// What libmlx5 makes is an extended queue, which can be polled as any other.
Outcome<ibv_cq*> CreateMlx5(ibv_context* device, int cqe, void* cq_context, ibv_comp_channel* channel, int comp_vector,
                            mlx5dv_cq_init_attr* mlx5) {
  ibv_cq_init_attr_ex attr{};
  attr.cqe = static_cast<uint32_t>(cqe);
  attr.cq_context = cq_context;
  attr.channel = channel;
  attr.comp_vector = static_cast<uint32_t>(comp_vector);
  attr.wc_flags = IBV_WC_STANDARD_FLAGS;
  errno = 0;
  auto cq = FromPtr("mlx5dv_create_cq", mlx5dv_create_cq(device, &attr, mlx5));
  if (cq.error) return cq.error;
  return ibv_cq_ex_to_cq(cq.value);
}

}  // namespace

Outcome<std::shared_ptr<ChannelHandle>> ChannelHandle::Create(std::shared_ptr<ContextHandle> context) {
  errno = 0;
  auto channel = FromPtr("ibv_create_comp_channel", ibv_create_comp_channel(context->get()));
  if (channel.error) return channel.error;
  std::shared_ptr<ChannelHandle> handle(new ChannelHandle(std::move(context), channel.value));
  const int flags = fcntl(channel.value->fd, F_GETFL);
  if (flags < 0 || fcntl(channel.value->fd, F_SETFL, flags | O_NONBLOCK) < 0) return VerbError{"fcntl", errno};
  return handle;
}

VerbError ChannelHandle::Destroy() {
  if (channel_ == nullptr) return {};
  const int fd = channel_->fd;
  VerbError error = FromDestroy(FromRet("ibv_destroy_comp_channel", ibv_destroy_comp_channel(channel_)));
  // The library counts a queue as long as its destruction was no success. All there is to a channel is its descriptor.
  if (error.err == EBUSY && has_lost_queues_ && close(fd) == 0) error = {};
  if (error) return error;
  channel_ = nullptr;
  context_.Reset();
  return {};
}

Outcome<std::shared_ptr<CqHandle>> CqHandle::Create(std::shared_ptr<ContextHandle> context, int cqe,
                                                    std::shared_ptr<ChannelHandle> channel, int comp_vector,
                                                    uint32_t id, mlx5dv_cq_init_attr* mlx5) {
  ibv_context* device = context->get();
  ibv_comp_channel* events = channel ? channel->get() : nullptr;
  std::shared_ptr<CqHandle> handle(new CqHandle(std::move(context), std::move(channel), id));
  errno = 0;
  auto cq = mlx5 != nullptr ? CreateMlx5(device, cqe, handle.get(), events, comp_vector, mlx5)
                            : FromPtr("ibv_create_cq", ibv_create_cq(device, cqe, handle.get(), events, comp_vector));
  if (cq.error) return cq.error;
  handle->cq_ = cq.value;
  return handle;
}

Outcome<std::shared_ptr<CqHandle>> CqHandle::CreateEx(std::shared_ptr<ContextHandle> context, ibv_cq_init_attr_ex* attr,
                                                      std::shared_ptr<ChannelHandle> channel, uint32_t id,
                                                      std::shared_ptr<PdHandle> parent_domain) {
  ibv_context* device = context->get();
  attr->channel = channel ? channel->get() : nullptr;
  std::shared_ptr<CqHandle> handle(new CqHandle(std::move(context), std::move(channel), id));
  attr->cq_context = handle.get();
  if (parent_domain) {
    attr->comp_mask |= IBV_CQ_INIT_ATTR_MASK_PD;
    attr->parent_domain = parent_domain->get();
  }
  handle->wc_flags_ = attr->wc_flags;
  // For who asks whose a completion is: see CompletionRing.
  attr->wc_flags |= IBV_WC_EX_WITH_QP_NUM;
  errno = 0;
  auto cq = FromPtr("ibv_create_cq_ex", ibv_create_cq_ex(device, attr));
  if (cq.error) return cq.error;
  handle->ex_ = cq.value;
  handle->cq_ = ibv_cq_ex_to_cq(cq.value);
  handle->parent_domain_.Replace(std::move(parent_domain));
  return handle;
}

VerbError CqHandle::Resize(int cqe) {
  if (cq_ == nullptr) return {"ibv_resize_cq", EBADF};
  errno = 0;
  return FromRet("ibv_resize_cq", ibv_resize_cq(cq_, cqe));
}

void CqHandle::CountEvent() {
  constexpr unsigned int kBatch = 128;
  if (++unacknowledged_ >= kBatch) Acknowledge();
}

void CqHandle::Acknowledge() {
  if (unacknowledged_ != 0) ibv_ack_cq_events(cq_, unacknowledged_);
  unacknowledged_ = 0;
}

VerbError CqHandle::Destroy() {
  if (cq_ == nullptr) return {};
  Acknowledge();
  const VerbError error = FromRet("ibv_destroy_cq", ibv_destroy_cq(cq_));
  if (FromDestroy(error)) return error;
  if (error && channel_) channel_->LoseQueue();
  cq_ = nullptr;
  ex_ = nullptr;
  context_.Reset();
  channel_.Reset();
  parent_domain_.Reset();
  return {};
}

}  // namespace rdma
