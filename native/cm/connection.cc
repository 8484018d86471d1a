// rdma_listen(3), rdma_connect(3), rdma_accept(3) and what ends a connection.
#include <rdma/rdma_cma.h>

#include "cm/cm.h"
#include "core/args.h"

namespace rdma {

namespace {

// The bytes of a Uint8Array, or none for null. JavaScript keeps them for as long as the call lasts.
struct PrivateData {
  const void* data = nullptr;
  uint8_t length = 0;
};

PrivateData GetPrivateData(Napi::Env env, Napi::Value value) {
  if (value.IsNull()) return {};
  auto bytes = value.As<Napi::Uint8Array>();
  if (!value.IsTypedArray() || bytes.ByteLength() > UINT8_MAX) ThrowType(env, "privateData is not up to 255 bytes");
  return {bytes.Data(), static_cast<uint8_t>(bytes.ByteLength())};
}

// A complete struct rdma_conn_param: TypeScript has filled in the defaults.
rdma_conn_param ParamArg(const Napi::CallbackInfo& info, size_t index) {
  const Napi::Object object = ObjectArg(info, index, "param");
  const PrivateData data = GetPrivateData(info.Env(), object.Get("privateData"));
  rdma_conn_param param{};
  param.private_data = data.data;
  param.private_data_len = data.length;
  param.responder_resources = static_cast<uint8_t>(Uint32Field(object, "responderResources"));
  param.initiator_depth = static_cast<uint8_t>(Uint32Field(object, "initiatorDepth"));
  param.flow_control = object.Get("flowControl").ToBoolean() ? 1 : 0;
  param.retry_count = static_cast<uint8_t>(Uint32Field(object, "retryCount"));
  param.rnr_retry_count = static_cast<uint8_t>(Uint32Field(object, "rnrRetryCount"));
  param.srq = object.Get("srq").ToBoolean() ? 1 : 0;
  param.qp_num = Uint32Field(object, "qpNum");
  return param;
}

// An id that is bound to a device: without one librdmacm follows a null pointer.
std::shared_ptr<CmIdHandle> BoundIdArg(const Napi::CallbackInfo& info, const char* verb) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  if (id->get()->verbs == nullptr) Check(info.Env(), {verb, EINVAL});
  return id;
}

// (id, backlog)
Napi::Value ListenCmId(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  const auto backlog = static_cast<int>(Uint32Arg(info, 1, "backlog"));
  errno = 0;
  Check(info.Env(), FromErrno("rdma_listen", rdma_listen(id->get(), backlog)));
  return info.Env().Undefined();
}

// (id, param)
Napi::Value ConnectCmId(const Napi::CallbackInfo& info) {
  auto id = BoundIdArg(info, "rdma_connect");
  rdma_conn_param param = ParamArg(info, 1);
  errno = 0;
  Check(info.Env(), FromErrno("rdma_connect", rdma_connect(id->get(), &param)));
  return info.Env().Undefined();
}

// (id, param)
Napi::Value AcceptCmId(const Napi::CallbackInfo& info) {
  auto id = BoundIdArg(info, "rdma_accept");
  rdma_conn_param param = ParamArg(info, 1);
  errno = 0;
  Check(info.Env(), FromErrno("rdma_accept", rdma_accept(id->get(), &param)));
  return info.Env().Undefined();
}

// (id, privateData | null)
Napi::Value RejectCmId(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  const PrivateData data = GetPrivateData(info.Env(), info[1]);
  errno = 0;
  Check(info.Env(), FromErrno("rdma_reject", rdma_reject(id->get(), data.data, data.length)));
  return info.Env().Undefined();
}

Napi::Value EstablishCmId(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  errno = 0;
  Check(info.Env(), FromErrno("rdma_establish", rdma_establish(id->get())));
  return info.Env().Undefined();
}

// (id, eventType)
Napi::Value NotifyCmId(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  const auto type = static_cast<ibv_event_type>(Uint32Arg(info, 1, "eventType"));
  errno = 0;
  Check(info.Env(), FromErrno("rdma_notify", rdma_notify(id->get(), type)));
  return info.Env().Undefined();
}

Napi::Value DisconnectCmId(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  errno = 0;
  Check(info.Env(), FromErrno("rdma_disconnect", rdma_disconnect(id->get())));
  return info.Env().Undefined();
}

// (id, qpState): the attributes that take a queue pair of this connection to that state, and their mask.
Napi::Value InitQpAttr(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  ibv_qp_attr attr{};
  int mask = 0;
  attr.qp_state = static_cast<ibv_qp_state>(Uint32Arg(info, 1, "qpState"));
  errno = 0;
  Check(info.Env(), FromErrno("rdma_init_qp_attr", rdma_init_qp_attr(id->get(), &attr, &mask)));
  Napi::Object object = Napi::Object::New(info.Env());
  SetNumber(object, "mask", static_cast<uint32_t>(mask));
  object.Set("attr", QpAttr(info.Env(), attr));
  return object;
}

}  // namespace

void ExportConnection(Napi::Object exports) {
  Export(exports, "listenCmId", ListenCmId);
  Export(exports, "connectCmId", ConnectCmId);
  Export(exports, "acceptCmId", AcceptCmId);
  Export(exports, "rejectCmId", RejectCmId);
  Export(exports, "establishCmId", EstablishCmId);
  Export(exports, "notifyCmId", NotifyCmId);
  Export(exports, "disconnectCmId", DisconnectCmId);
  Export(exports, "initQpAttr", InitQpAttr);
}

}  // namespace rdma
