// rdma_create_event_channel(3) and rdma_get_cm_event(3), on the event loop.
#include <rdma/rdma_cma.h>

#include <map>
#include <vector>

#include "cm/cm.h"
#include "core/args.h"
#include "core/fd_poller.h"
#include "rdma_core/library.h"

namespace rdma {

namespace {

// How the parameters of an event are to be read. The order is known to lib/cm/cm-event.ts.
enum Kind : uint32_t { kNone, kConn, kUd, kMulticast };

Kind KindOf(const rdma_cm_event& event) {
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return kNone;
    case RDMA_CM_EVENT_MULTICAST_JOIN:
    case RDMA_CM_EVENT_MULTICAST_ERROR:
      return kMulticast;
    default:
      return event.id->qp_type == IBV_QPT_UD ? kUd : kConn;
  }
}

void PushBytes(std::vector<uint32_t>* numbers, const void* data, size_t length) {
  const size_t at = numbers->size();
  numbers->resize(at + (length + 3) / 4);
  if (length != 0) memcpy(numbers->data() + at, data, length);
}

void PushConn(std::vector<uint32_t>* numbers, const rdma_conn_param& conn) {
  const size_t length = conn.private_data == nullptr ? 0 : conn.private_data_len;
  numbers->insert(numbers->end(), {conn.responder_resources, conn.initiator_depth, conn.flow_control, conn.retry_count,
                                   conn.rnr_retry_count, conn.srq, conn.qp_num, static_cast<uint32_t>(length)});
  PushBytes(numbers, conn.private_data, length);
}

void PushUd(std::vector<uint32_t>* numbers, const rdma_ud_param& ud, const void* data) {
  const ibv_ah_attr& ah = ud.ah_attr;
  const size_t length = data == nullptr ? 0 : ud.private_data_len;
  numbers->insert(numbers->end(),
                  {ud.qp_num, ud.qkey, ah.is_global, ah.grh.flow_label, ah.grh.sgid_index, ah.grh.hop_limit,
                   ah.grh.traffic_class, ah.dlid, ah.sl, ah.src_path_bits, ah.static_rate, ah.port_num});
  PushBytes(numbers, ah.grh.dgid.raw, sizeof ah.grh.dgid.raw);
  numbers->push_back(static_cast<uint32_t>(length));
  PushBytes(numbers, data, length);
}

// Takes the events of a channel. Each is copied and acknowledged at once: destroying the id that it is about would
// wait for that.
class CmEvents final : public Owner {
 public:
  CmEvents(Napi::Env env, const std::shared_ptr<CmChannelHandle>& channel, Napi::Function callback)
      : env_(env), environment_(Environment::Of(env)), channel_(channel), callback_(Napi::Persistent(callback)) {
    poller_ = FdPoller::Create(env, channel->get()->fd, [this] { OnReadable(); });
  }
  ~CmEvents() override { Destroy(); }

  VerbError Destroy() override {
    if (poller_ != nullptr) poller_->Close();
    poller_ = nullptr;
    arrived_.clear();
    channel_.Reset();
    return {};
  }

  FdPoller* poller() const { return poller_; }

  // An id that came with a connection request; null when there is none of that number.
  std::shared_ptr<CmIdHandle> Take(uint32_t number) {
    const auto found = arrived_.find(number);
    if (found == arrived_.end()) return nullptr;
    std::shared_ptr<CmIdHandle> id = std::move(found->second);
    arrived_.erase(found);
    return id;
  }

 private:
  // The callback may close this object, so nothing of it is touched after the call.
  void OnReadable() {
    std::vector<uint32_t> numbers;
    rdma_cm_event* event = nullptr;
    bool is_over = false;
    while (!is_over && numbers.size() < kMostNumbers) {
      is_over = rdma_get_cm_event(channel_->get(), &event) != 0;
      if (is_over) continue;
      Copy(*event, &numbers);
      rdma_ack_cm_event(event);
    }
    if (is_over && !IsTryAgain(errno)) poller_->GiveUp();
    if (!numbers.empty()) CallFromLoop(env_, callback_, numbers);
  }

  // For a connection request the event's id is a new one, and the one that listens is beside it. It is owned from here
  // on, whether somebody asks for it or not.
  void Copy(const rdma_cm_event& event, std::vector<uint32_t>* numbers) {
    const Kind kind = KindOf(event);
    uint32_t about = NumberOf(event.id);
    uint32_t other = 0;
    if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      about = NumberOf(event.listen_id);
      other = environment_.NextCmNumber();
      arrived_[other] = CmIdHandle::Adopt(channel_.share(), event.id, other);
    } else if (kind == kMulticast) {
      // librdmacm puts there what the join was told.
      other = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(event.param.ud.private_data));
    }
    numbers->insert(numbers->end(),
                    {event.event, static_cast<uint32_t>(event.status), about, other, static_cast<uint32_t>(kind)});
    if (kind == kConn) PushConn(numbers, event.param.conn);
    if (kind == kUd) PushUd(numbers, event.param.ud, event.param.ud.private_data);
    if (kind == kMulticast) PushUd(numbers, event.param.ud, nullptr);
  }

  static uint32_t NumberOf(const rdma_cm_id* id) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(id->context));
  }

  Napi::Env env_;
  Environment& environment_;
  Parent<CmChannelHandle> channel_;
  Napi::FunctionReference callback_;
  FdPoller* poller_ = nullptr;
  std::map<uint32_t, std::shared_ptr<CmIdHandle>> arrived_;
};

}  // namespace

RDMA_HANDLE_TYPE(CmEvents, "CmEvents", 102);

namespace {

// Whether librdmacm is there, and what the loader said.
Napi::Value CmLoadState(const Napi::CallbackInfo& info) {
  Library& library = Librdmacm();
  Napi::Object state = Napi::Object::New(info.Env());
  state.Set("available", library.Open());
  state.Set("path", library.path());
  state.Set("error", library.error());
  return state;
}

Napi::Value CreateEventChannel(const Napi::CallbackInfo& info) {
  return WrapHandle(info.Env(), Unwrap(info.Env(), CmChannelHandle::Create()));
}

// (channel, callback: (...numbers: number[]) => void): the events, one after another, as Copy() lays them out.
Napi::Value CreateCmEvents(const Napi::CallbackInfo& info) {
  auto channel = HandleArg<CmChannelHandle>(info, 0);
  if (!info[1].IsFunction()) ThrowType(info.Env(), "callback is not a function");
  return WrapHandle(info.Env(), std::make_shared<CmEvents>(info.Env(), channel, info[1].As<Napi::Function>()));
}

// (events, keepsAlive)
Napi::Value StartCmEvents(const Napi::CallbackInfo& info) {
  FdPoller* poller = HandleArg<CmEvents>(info, 0)->poller();
  poller->Start();
  if (!info[1].ToBoolean()) poller->Stop();
  return info.Env().Undefined();
}

Napi::Value StopCmEvents(const Napi::CallbackInfo& info) {
  HandleArg<CmEvents>(info, 0)->poller()->Pause();
  return info.Env().Undefined();
}

// (events, number): the id that came with a connection request.
Napi::Value TakeCmId(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmEvents>(info, 0)->Take(Uint32Arg(info, 1, "number"));
  if (!id) ThrowType(info.Env(), "number is of no id that has arrived");
  return WrapHandle(info.Env(), std::move(id));
}

}  // namespace

void ExportEventChannel(Napi::Object exports) {
  Export(exports, "cmLoadState", CmLoadState);
  Export(exports, "createEventChannel", CreateEventChannel);
  Export(exports, "destroyEventChannel", CloseHandle<CmChannelHandle>);
  Export(exports, "createCmEvents", CreateCmEvents);
  Export(exports, "startCmEvents", StartCmEvents);
  Export(exports, "stopCmEvents", StopCmEvents);
  Export(exports, "destroyCmEvents", CloseHandle<CmEvents>);
  Export(exports, "takeCmId", TakeCmId);
}

}  // namespace rdma
