// ibv_get_async_event(3), on the event loop.
#include <fcntl.h>
#include <infiniband/verbs.h>

#include <vector>

#include "core/args.h"
#include "core/fd_poller.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// What an event is about, and the number that TypeScript knows it by. The order is known to lib/verbs/async-event.ts.
enum Kind : uint32_t { kDevice, kPort, kQp, kCq, kSrq, kWq };
struct Element {
  Kind kind;
  uint32_t number;
};

Element ElementOf(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return {kCq, static_cast<CqHandle*>(event.element.cq->cq_context)->id()};
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return {kQp, event.element.qp->qp_num};
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return {kSrq, static_cast<uint32_t>(reinterpret_cast<uintptr_t>(event.element.srq->srq_context))};
    case IBV_EVENT_WQ_FATAL:
      return {kWq, static_cast<uint32_t>(reinterpret_cast<uintptr_t>(event.element.wq->wq_context))};
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      return {kPort, static_cast<uint32_t>(event.element.port_num)};
    default:
      // The device, and what is younger than this.
      return {kDevice, 0};
  }
}

// Takes the asynchronous events of a device, from the beginning; whether that keeps the process alive is another
// matter. Each is copied and acknowledged at once: destroying the object that it is about would wait for that.
class AsyncEvents final : public Owner {
 public:
  AsyncEvents(Napi::Env env, const std::shared_ptr<ContextHandle>& context, Napi::Function callback)
      : env_(env), context_(context), callback_(Napi::Persistent(callback)) {
    const int fd = context->get()->async_fd;
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) Check(env, {"fcntl", errno});
    poller_ = FdPoller::Create(env, fd, [this] { OnReadable(); });
    poller_->Watch();
  }
  ~AsyncEvents() override { Destroy(); }

  VerbError Destroy() override {
    if (poller_ != nullptr) poller_->Close();
    poller_ = nullptr;
    context_.Reset();
    return {};
  }

  FdPoller* poller() const { return poller_; }

 private:
  void OnReadable() {
    std::vector<uint32_t> numbers;
    ibv_async_event event{};
    bool is_over = false;
    while (!is_over && numbers.size() < kMostNumbers) {
      errno = 0;
      is_over = ibv_get_async_event(context_->get(), &event) != 0;
      if (is_over) continue;
      const Element element = ElementOf(event);
      const uint32_t type = event.event_type;
      ibv_ack_async_event(&event);
      numbers.insert(numbers.end(), {type, element.kind, element.number});
    }
    // The descriptor of a device that was removed cannot be read any more, and stays readable.
    if (is_over && !IsTryAgain(errno)) {
      poller_->GiveUp();
      numbers.insert(numbers.end(), {IBV_EVENT_DEVICE_FATAL, kDevice, 0});
    }
    if (!numbers.empty()) CallFromLoop(env_, callback_, numbers);
  }

  Napi::Env env_;
  Parent<ContextHandle> context_;
  Napi::FunctionReference callback_;
  FdPoller* poller_ = nullptr;
};

}  // namespace

RDMA_HANDLE_TYPE(AsyncEvents, "AsyncEvents", 101);

namespace {

// (context, callback: (...numbers: number[]) => void): type, kind and number of each event, one after another.
Napi::Value CreateAsyncEvents(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  if (!info[1].IsFunction()) ThrowType(info.Env(), "callback is not a function");
  return WrapHandle(info.Env(), std::make_shared<AsyncEvents>(info.Env(), context, info[1].As<Napi::Function>()));
}

Napi::Value StartAsyncEvents(const Napi::CallbackInfo& info) {
  HandleArg<AsyncEvents>(info, 0)->poller()->Start();
  return info.Env().Undefined();
}

Napi::Value StopAsyncEvents(const Napi::CallbackInfo& info) {
  HandleArg<AsyncEvents>(info, 0)->poller()->Stop();
  return info.Env().Undefined();
}

}  // namespace

void ExportAsyncEvent(Napi::Object exports) {
  Export(exports, "createAsyncEvents", CreateAsyncEvents);
  Export(exports, "startAsyncEvents", StartAsyncEvents);
  Export(exports, "stopAsyncEvents", StopAsyncEvents);
  Export(exports, "destroyAsyncEvents", CloseHandle<AsyncEvents>);
}

}  // namespace rdma
