// Descriptors over Unix sockets, on the event loop.
#include "core/args.h"
#include "core/fd_poller.h"
#include "gpu/gpu.h"
#include "handles/fd_socket_handle.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// Tells JavaScript, while it waits, that there is something to take.
class FdSocketEvents final : public Owner {
 public:
  FdSocketEvents(Napi::Env env, const std::shared_ptr<FdSocketHandle>& socket, Napi::Function callback)
      : env_(env), socket_(socket), callback_(Napi::Persistent(callback)) {
    // The callback may close this object, so nothing of it is touched after the call.
    poller_ = FdPoller::Create(env, socket->fd(), [this] {
      poller_->Stop();
      poller_->Pause();
      CallFromLoop(env_, callback_, {});
    });
  }
  ~FdSocketEvents() override { Destroy(); }

  VerbError Destroy() override {
    if (poller_ != nullptr) poller_->Close();
    poller_ = nullptr;
    socket_.Reset();
    return {};
  }

  FdPoller* poller() const { return poller_; }

 private:
  Napi::Env env_;
  Parent<FdSocketHandle> socket_;
  Napi::FunctionReference callback_;
  FdPoller* poller_ = nullptr;
};

}  // namespace

RDMA_HANDLE_TYPE(FdSocketHandle, "FdSocket", 61);
RDMA_HANDLE_TYPE(FdSocketEvents, "FdSocketEvents", 62);

namespace {

// (path)
Napi::Value ConnectFdSocket(const Napi::CallbackInfo& info) {
  return WrapHandle(info.Env(), Unwrap(info.Env(), FdSocketHandle::Connect(StringArg(info, 0, "path"))));
}

// (path)
Napi::Value ListenFdSocket(const Napi::CallbackInfo& info) {
  return WrapHandle(info.Env(), Unwrap(info.Env(), FdSocketHandle::Listen(StringArg(info, 0, "path"))));
}

// (fd)
Napi::Value DuplicateFdSocket(const Napi::CallbackInfo& info) {
  const auto fd = static_cast<int>(Uint32Arg(info, 0, "fd"));
  return WrapHandle(info.Env(), Unwrap(info.Env(), FdSocketHandle::Duplicate(fd)));
}

// (socket): null when nobody is there.
Napi::Value AcceptFdSocket(const Napi::CallbackInfo& info) {
  auto accepted = HandleArg<FdSocketHandle>(info, 0)->Accept();
  // One that has gone again is nobody.
  if (IsTryAgain(accepted.error.err) || accepted.error.err == ECONNABORTED) return info.Env().Null();
  return WrapHandle(info.Env(), Unwrap(info.Env(), std::move(accepted)));
}

// (socket, fds, bytes)
Napi::Value SendFds(const Napi::CallbackInfo& info) {
  auto socket = HandleArg<FdSocketHandle>(info, 0);
  if (!info[1].IsArray()) ThrowType(info.Env(), "fds is not an array");
  auto array = info[1].As<Napi::Array>();
  std::vector<int> fds;
  for (uint32_t i = 0; i < array.Length(); i++) {
    fds.push_back(static_cast<int>(ToUint32(info.Env(), array.Get(i), "fd")));
  }
  if (!info[2].IsTypedArray()) ThrowType(info.Env(), "bytes is not a Uint8Array");
  auto bytes = info[2].As<Napi::Uint8Array>();
  Check(info.Env(), socket->Send(fds, bytes.Data(), bytes.ByteLength()));
  return info.Env().Undefined();
}

// (socket): null when nothing is there.
Napi::Value ReceiveFds(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto received = HandleArg<FdSocketHandle>(info, 0)->Receive();
  if (IsTryAgain(received.error.err)) return env.Null();
  auto message = Unwrap(env, std::move(received));
  Napi::Array dmabufs = Napi::Array::New(env);
  for (auto& fd : message.fds) dmabufs.Set(dmabufs.Length(), DescribeDmabuf(env, std::move(fd)));
  Napi::Object object = Napi::Object::New(env);
  object.Set("dmabufs", dmabufs);
  object.Set("bytes", Napi::Buffer<uint8_t>::Copy(env, message.bytes.data(), message.bytes.size()));
  return object;
}

// (socket, callback: () => void)
Napi::Value CreateFdSocketEvents(const Napi::CallbackInfo& info) {
  auto socket = HandleArg<FdSocketHandle>(info, 0);
  if (!info[1].IsFunction()) ThrowType(info.Env(), "callback is not a function");
  return WrapHandle(info.Env(), std::make_shared<FdSocketEvents>(info.Env(), socket, info[1].As<Napi::Function>()));
}

// (events): one call of the callback.
Napi::Value StartFdSocketEvents(const Napi::CallbackInfo& info) {
  HandleArg<FdSocketEvents>(info, 0)->poller()->Start();
  return info.Env().Undefined();
}

Napi::Value StopFdSocketEvents(const Napi::CallbackInfo& info) {
  FdPoller* poller = HandleArg<FdSocketEvents>(info, 0)->poller();
  poller->Stop();
  poller->Pause();
  return info.Env().Undefined();
}

}  // namespace

void ExportFdSocket(Napi::Object exports) {
  Export(exports, "connectFdSocket", ConnectFdSocket);
  Export(exports, "listenFdSocket", ListenFdSocket);
  Export(exports, "duplicateFdSocket", DuplicateFdSocket);
  Export(exports, "acceptFdSocket", AcceptFdSocket);
  Export(exports, "sendFds", SendFds);
  Export(exports, "receiveFds", ReceiveFds);
  Export(exports, "closeFdSocket", CloseHandle<FdSocketHandle>);
  Export(exports, "createFdSocketEvents", CreateFdSocketEvents);
  Export(exports, "startFdSocketEvents", StartFdSocketEvents);
  Export(exports, "stopFdSocketEvents", StopFdSocketEvents);
  Export(exports, "closeFdSocketEvents", CloseHandle<FdSocketEvents>);
}

}  // namespace rdma
