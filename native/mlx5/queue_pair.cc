// mlx5dv_create_qp(3), mlx5dv_modify_qp_udp_sport(3), mlx5dv_modify_qp_lag_port(3), mlx5dv_query_qp_lag_port(3),
// mlx5dv_dci_stream_id_reset(3). All else of these queue pairs is as of others.
#include "core/args.h"
#include "mlx5/mlx5.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

uint64_t BigIntField(const Napi::Object& object, const char* name) {
  bool lossless = false;
  const Napi::Value value = object.Get(name);
  if (!value.IsBigInt()) ThrowType(object.Env(), std::string(name) + " is not a bigint");
  return value.As<Napi::BigInt>().Uint64Value(&lossless);
}

// What is there of {createFlags, dcType, dctAccessKey, dciStreams: {logNumConcurent, logNumErrored}}.
mlx5dv_qp_init_attr GetQpInitAttr(const Napi::Object& given) {
  mlx5dv_qp_init_attr attr{};
  if (given.Has("createFlags")) {
    attr.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
    attr.create_flags = Uint32Field(given, "createFlags");
  }
  if (given.Has("dcType")) {
    attr.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_DC;
    attr.dc_init_attr.dc_type = static_cast<mlx5dv_dc_type>(Uint32Field(given, "dcType"));
  }
  if (given.Has("dctAccessKey")) attr.dc_init_attr.dct_access_key = BigIntField(given, "dctAccessKey");
  if (given.Has("dciStreams")) {
    const auto streams = given.Get("dciStreams").As<Napi::Object>();
    attr.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS;
    attr.dc_init_attr.dci_streams.log_num_concurent = static_cast<uint8_t>(Uint32Field(streams, "logNumConcurent"));
    attr.dc_init_attr.dci_streams.log_num_errored = static_cast<uint8_t>(Uint32Field(streams, "logNumErrored"));
  }
  return attr;
}

// (pd, sendCq, recvCq, srq | null, attr, mlx5Attr): as createQp().
Napi::Value CreateQp(const Napi::CallbackInfo& info) {
  mlx5dv_qp_init_attr attr = GetQpInitAttr(ObjectArg(info, 5, "mlx5Attr"));
  RequireMlx5(info.Env(), HandleArg<PdHandle>(info, 0)->get()->context, "mlx5dv_create_qp");
  return CreateQueuePair(info, &attr);
}

// (qp): its number now. A DC target has none before it is RTR.
Napi::Value QpNum(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), HandleArg<QpHandle>(info, 0)->get()->qp_num);
}

// (qp, udpSport)
Napi::Value ModifyQpUdpSport(const Napi::CallbackInfo& info) {
  auto qp = HandleArg<QpHandle>(info, 0);
  const auto port = static_cast<uint16_t>(Uint32Arg(info, 1, "udpSport"));
  RequireMlx5(info.Env(), qp->get()->context, "mlx5dv_modify_qp_udp_sport");
  errno = 0;
  Check(info.Env(), FromRet("mlx5dv_modify_qp_udp_sport", mlx5dv_modify_qp_udp_sport(qp->get(), port)));
  return info.Env().Undefined();
}

// (qp, portNum)
Napi::Value ModifyQpLagPort(const Napi::CallbackInfo& info) {
  auto qp = HandleArg<QpHandle>(info, 0);
  const auto port = static_cast<uint8_t>(Uint32Arg(info, 1, "portNum"));
  RequireMlx5(info.Env(), qp->get()->context, "mlx5dv_modify_qp_lag_port");
  errno = 0;
  Check(info.Env(), FromRet("mlx5dv_modify_qp_lag_port", mlx5dv_modify_qp_lag_port(qp->get(), port)));
  return info.Env().Undefined();
}

Napi::Value QueryQpLagPort(const Napi::CallbackInfo& info) {
  auto qp = HandleArg<QpHandle>(info, 0);
  uint8_t port = 0;
  uint8_t active = 0;
  RequireMlx5(info.Env(), qp->get()->context, "mlx5dv_query_qp_lag_port");
  errno = 0;
  Check(info.Env(), FromRet("mlx5dv_query_qp_lag_port", mlx5dv_query_qp_lag_port(qp->get(), &port, &active)));
  Napi::Object object = Napi::Object::New(info.Env());
  SetNumber(object, "portNum", port);
  SetNumber(object, "activePortNum", active);
  return object;
}

// (qp, streamId)
Napi::Value DciStreamIdReset(const Napi::CallbackInfo& info) {
  auto qp = HandleArg<QpHandle>(info, 0);
  const auto stream = static_cast<uint16_t>(Uint32Arg(info, 1, "streamId"));
  RequireMlx5(info.Env(), qp->get()->context, "mlx5dv_dci_stream_id_reset");
  errno = 0;
  Check(info.Env(), FromRet("mlx5dv_dci_stream_id_reset", mlx5dv_dci_stream_id_reset(qp->get(), stream)));
  return info.Env().Undefined();
}

}  // namespace

void ExportMlx5QueuePair(Napi::Object exports) {
  Export(exports, "mlx5CreateQp", CreateQp);
  Export(exports, "mlx5QpNum", QpNum);
  Export(exports, "mlx5ModifyQpUdpSport", ModifyQpUdpSport);
  Export(exports, "mlx5ModifyQpLagPort", ModifyQpLagPort);
  Export(exports, "mlx5QueryQpLagPort", QueryQpLagPort);
  Export(exports, "mlx5DciStreamIdReset", DciStreamIdReset);
}

}  // namespace rdma
