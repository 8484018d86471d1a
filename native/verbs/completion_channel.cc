// ibv_create_comp_channel(3) and ibv_get_cq_event(3), on the event loop.
#include <infiniband/verbs.h>

#include <algorithm>
#include <vector>

#include "core/args.h"
#include "core/fd_poller.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// Tells JavaScript which queues of a channel have an event.
class ChannelEvents final : public Owner {
 public:
  ChannelEvents(Napi::Env env, const std::shared_ptr<ChannelHandle>& channel, Napi::Function callback)
      : env_(env), channel_(channel), callback_(Napi::Persistent(callback)) {
    poller_ = FdPoller::Create(env, channel->get()->fd, [this] { OnReadable(); });
  }
  ~ChannelEvents() override { Destroy(); }

  VerbError Destroy() override {
    if (poller_ != nullptr) poller_->Close();
    poller_ = nullptr;
    channel_.Reset();
    return {};
  }

  FdPoller* poller() const { return poller_; }

 private:
  // Takes the events there are; a queue counts each of its own. An armed queue has one event, so when each has had its
  // own no more are looked for: if there is one yet, the descriptor is still readable. The callback may close this
  // object, so nothing of it is touched after the call.
  void OnReadable() {
    std::vector<uint32_t> ids;
    ibv_cq* cq = nullptr;
    void* owner = nullptr;
    const auto queues = static_cast<size_t>(channel_->get()->refcnt);
    bool is_gone = false;
    do {
      errno = 0;
      if (ibv_get_cq_event(channel_->get(), &cq, &owner) != 0) {
        // No queue is named when the device is gone: the descriptor cannot be read any more, and stays readable.
        is_gone = !IsTryAgain(errno);
        break;
      }
      auto* handle = static_cast<CqHandle*>(owner);
      handle->CountEvent();
      if (std::find(ids.begin(), ids.end(), handle->id()) == ids.end()) ids.push_back(handle->id());
    } while (ids.size() < std::min(queues, kMostNumbers));
    if (is_gone) {
      poller_->GiveUp();
      ids.clear();
    }
    if (is_gone || !ids.empty()) CallFromLoop(env_, callback_, ids);
  }

  Napi::Env env_;
  Parent<ChannelHandle> channel_;
  Napi::FunctionReference callback_;
  FdPoller* poller_ = nullptr;
};

}  // namespace

RDMA_HANDLE_TYPE(ChannelEvents, "ChannelEvents", 100);

namespace {

Napi::Value CreateCompChannel(const Napi::CallbackInfo& info) {
  return WrapHandle(info.Env(), Unwrap(info.Env(), ChannelHandle::Create(HandleArg<ContextHandle>(info, 0))));
}

// (channel, callback: (...cqIds: number[]) => void)
Napi::Value CreateChannelEvents(const Napi::CallbackInfo& info) {
  auto channel = HandleArg<ChannelHandle>(info, 0);
  if (!info[1].IsFunction()) ThrowType(info.Env(), "callback is not a function");
  return WrapHandle(info.Env(), std::make_shared<ChannelEvents>(info.Env(), channel, info[1].As<Napi::Function>()));
}

Napi::Value StartChannelEvents(const Napi::CallbackInfo& info) {
  HandleArg<ChannelEvents>(info, 0)->poller()->Start();
  return info.Env().Undefined();
}

Napi::Value StopChannelEvents(const Napi::CallbackInfo& info) {
  HandleArg<ChannelEvents>(info, 0)->poller()->Stop();
  return info.Env().Undefined();
}

}  // namespace

void ExportCompletionChannel(Napi::Object exports) {
  Export(exports, "createCompChannel", CreateCompChannel);
  Export(exports, "destroyCompChannel", CloseHandle<ChannelHandle>);
  Export(exports, "createChannelEvents", CreateChannelEvents);
  Export(exports, "startChannelEvents", StartChannelEvents);
  Export(exports, "stopChannelEvents", StopChannelEvents);
  Export(exports, "destroyChannelEvents", CloseHandle<ChannelEvents>);
}

}  // namespace rdma
