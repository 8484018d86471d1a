// ibv_create_qp(3), ibv_modify_qp(3), ibv_query_qp(3). Posting is in datapath/.
#include <infiniband/verbs.h>

#include "core/args.h"
#include "core/promise_worker.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

void SetCap(Napi::Object object, const ibv_qp_cap& cap) {
  SetNumber(object, "maxSendWr", cap.max_send_wr);
  SetNumber(object, "maxRecvWr", cap.max_recv_wr);
  SetNumber(object, "maxSendSge", cap.max_send_sge);
  SetNumber(object, "maxRecvSge", cap.max_recv_sge);
  SetNumber(object, "maxInlineData", cap.max_inline_data);
}

Napi::Object CapOf(const Napi::Object& attr) {
  if (!attr.Get("cap").IsObject()) ThrowType(attr.Env(), "cap is not an object");
  return attr.Get("cap").As<Napi::Object>();
}

ibv_qp_cap GetCap(const Napi::Object& object) {
  ibv_qp_cap cap{};
  cap.max_send_wr = Uint32Field(object, "maxSendWr");
  cap.max_recv_wr = Uint32Field(object, "maxRecvWr");
  cap.max_send_sge = Uint32Field(object, "maxSendSge");
  cap.max_recv_sge = Uint32Field(object, "maxRecvSge");
  cap.max_inline_data = Uint32Field(object, "maxInlineData");
  return cap;
}

// The plain attributes of struct ibv_qp_attr: (mask bit, name in JavaScript, field).
#define QP_ATTRIBUTES(X)                                                 \
  X(IBV_QP_STATE, "qpState", qp_state)                                   \
  X(IBV_QP_CUR_STATE, "curQpState", cur_qp_state)                        \
  X(IBV_QP_EN_SQD_ASYNC_NOTIFY, "enSqdAsyncNotify", en_sqd_async_notify) \
  X(IBV_QP_ACCESS_FLAGS, "qpAccessFlags", qp_access_flags)               \
  X(IBV_QP_PKEY_INDEX, "pkeyIndex", pkey_index)                          \
  X(IBV_QP_PORT, "portNum", port_num)                                    \
  X(IBV_QP_QKEY, "qkey", qkey)                                           \
  X(IBV_QP_PATH_MTU, "pathMtu", path_mtu)                                \
  X(IBV_QP_TIMEOUT, "timeout", timeout)                                  \
  X(IBV_QP_RETRY_CNT, "retryCnt", retry_cnt)                             \
  X(IBV_QP_RNR_RETRY, "rnrRetry", rnr_retry)                             \
  X(IBV_QP_RQ_PSN, "rqPsn", rq_psn)                                      \
  X(IBV_QP_MAX_QP_RD_ATOMIC, "maxRdAtomic", max_rd_atomic)               \
  X(IBV_QP_ALT_PATH, "altPkeyIndex", alt_pkey_index)                     \
  X(IBV_QP_ALT_PATH, "altPortNum", alt_port_num)                         \
  X(IBV_QP_ALT_PATH, "altTimeout", alt_timeout)                          \
  X(IBV_QP_MIN_RNR_TIMER, "minRnrTimer", min_rnr_timer)                  \
  X(IBV_QP_SQ_PSN, "sqPsn", sq_psn)                                      \
  X(IBV_QP_MAX_DEST_RD_ATOMIC, "maxDestRdAtomic", max_dest_rd_atomic)    \
  X(IBV_QP_PATH_MIG_STATE, "pathMigState", path_mig_state)               \
  X(IBV_QP_DEST_QPN, "destQpNum", dest_qp_num)                           \
  X(IBV_QP_RATE_LIMIT, "rateLimit", rate_limit)

}  // namespace

Napi::Object QpAttr(Napi::Env env, const ibv_qp_attr& attr) {
  Napi::Object object = Napi::Object::New(env);
#define WRITE(bit, name, field) SetNumber(object, name, attr.field);
  QP_ATTRIBUTES(WRITE)
#undef WRITE
  object.Set("ahAttr", AhAttr(env, attr.ah_attr));
  object.Set("altAhAttr", AhAttr(env, attr.alt_ah_attr));
  return object;
}

namespace {

struct Modification {
  std::shared_ptr<QpHandle> qp;
  ibv_qp_attr attr;
  int mask;
};

// (qp, attr, mask): the attributes that the mask names are there.
Modification ModifyArgs(const Napi::CallbackInfo& info) {
  Modification m{HandleArg<QpHandle>(info, 0), {}, static_cast<int>(Uint32Arg(info, 2, "mask"))};
  const Napi::Object attr = ObjectArg(info, 1, "attr");
#define READ(bit, name, field) \
  if ((m.mask & (bit)) != 0) m.attr.field = static_cast<decltype(m.attr.field)>(Uint32Field(attr, name));
  QP_ATTRIBUTES(READ)
#undef READ
  if ((m.mask & IBV_QP_AV) != 0) m.attr.ah_attr = GetAhAttr(attr, "ahAttr");
  if ((m.mask & IBV_QP_ALT_PATH) != 0) m.attr.alt_ah_attr = GetAhAttr(attr, "altAhAttr");
  if ((m.mask & IBV_QP_CAP) != 0) m.attr.cap = GetCap(CapOf(attr));
  return m;
}

// Destroys or resets a queue pair, and counts the receives that it has taken from a shared queue. libmlx5 throws away
// completions of it that nobody has polled for, and has the receives for the queue again, without a word to us; other
// providers leave them in the completion queue, which may be closed before somebody looks. So what is there is taken
// out before, and what came until the end after it. `end` throws when it fails: then nothing is lost.
template <class End>
void EndReceives(const QpHandle& qp, End end) {
  Poller* const poller = qp.shared_poller();
  if (poller == nullptr) return end();
  const uint32_t qp_num = qp.get()->qp_num;
  poller->TakeIn();
  end();
  poller->TakeIn();
  poller->Forget(qp_num);
}

Napi::Value ModifyQpSync(const Napi::CallbackInfo& info) {
  Modification m = ModifyArgs(info);
  const auto modify = [&info, &m] { Check(info.Env(), m.qp->Modify(&m.attr, m.mask)); };
  if ((m.mask & IBV_QP_STATE) != 0 && m.attr.qp_state == IBV_QPS_RESET) {
    EndReceives(*m.qp, modify);
  } else {
    modify();
  }
  return info.Env().Undefined();
}

// (qp)
Napi::Value DestroyQp(const Napi::CallbackInfo& info) {
  Cell& cell = Cell::From(info.Env(), info[0], HandleType<QpHandle>::tag, HandleType<QpHandle>::name);
  const auto qp = std::static_pointer_cast<QpHandle>(cell.owner());
  if (qp == nullptr) return info.Env().Undefined();
  if (qp->shared_poller() != nullptr) qp->Stop();
  EndReceives(*qp, [&info, &cell] { cell.Close(info.Env()); });
  return info.Env().Undefined();
}

Napi::Value ModifyQp(const Napi::CallbackInfo& info) {
  auto m = std::make_shared<Modification>(ModifyArgs(info));
  auto busy = std::make_shared<Parent<QpHandle>>(m->qp);
  return PromiseWorker<bool>::Queue(
      info.Env(), "ibv_modify_qp",
      [m, busy]() -> Outcome<bool> {
        VerbError error = m->qp->Modify(&m->attr, m->mask);
        if (error) return error;
        return true;
      },
      [](Napi::Env env, bool) -> napi_value { return env.Undefined(); });
}

// (qp, mask)
Napi::Value QueryQp(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto qp = HandleArg<QpHandle>(info, 0);
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  Check(env,
        FromRet("ibv_query_qp", ibv_query_qp(qp->get(), &attr, static_cast<int>(Uint32Arg(info, 1, "mask")), &init)));
  Napi::Object object = QpAttr(env, attr);
  object.Set("sqDraining", attr.sq_draining != 0);
  Napi::Object cap = Napi::Object::New(env);
  SetCap(cap, attr.cap);
  object.Set("cap", cap);
  Napi::Object init_attr = Napi::Object::New(env);
  SetNumber(init_attr, "qpType", init.qp_type);
  init_attr.Set("sqSigAll", init.sq_sig_all != 0);
  Napi::Object init_cap = Napi::Object::New(env);
  SetCap(init_cap, init.cap);
  init_attr.Set("cap", init_cap);
  object.Set("initAttr", init_attr);
  return object;
}

Napi::Value QueryEce(const Napi::CallbackInfo& info) {
  auto qp = HandleArg<QpHandle>(info, 0);
  ibv_ece ece{};
  errno = 0;
  Check(info.Env(), FromRet("ibv_query_ece", ibv_query_ece(qp->get(), &ece)));
  Napi::Object object = Napi::Object::New(info.Env());
  SetNumber(object, "vendorId", ece.vendor_id);
  SetNumber(object, "options", ece.options);
  return object;
}

// (qp, vendorId, options)
Napi::Value SetEce(const Napi::CallbackInfo& info) {
  auto qp = HandleArg<QpHandle>(info, 0);
  ibv_ece ece{};
  ece.vendor_id = Uint32Arg(info, 1, "vendorId");
  ece.options = Uint32Arg(info, 2, "options");
  errno = 0;
  Check(info.Env(), FromRet("ibv_set_ece", ibv_set_ece(qp->get(), &ece)));
  return info.Env().Undefined();
}

// (qp, rateLimit, maxBurstSz, typicalPktSz)
Napi::Value ModifyQpRateLimit(const Napi::CallbackInfo& info) {
  auto qp = HandleArg<QpHandle>(info, 0);
  ibv_qp_rate_limit_attr attr{};
  attr.rate_limit = Uint32Arg(info, 1, "rateLimit");
  attr.max_burst_sz = Uint32Arg(info, 2, "maxBurstSz");
  attr.typical_pkt_sz = static_cast<uint16_t>(Uint32Arg(info, 3, "typicalPktSz"));
  errno = 0;
  Check(info.Env(), FromRet("ibv_modify_qp_rate_limit", ibv_modify_qp_rate_limit(qp->get(), &attr)));
  return info.Env().Undefined();
}

// (qp, opcode, flags): a negative answer is an error, which only a library without the function gives.
Napi::Value QueryQpDataInOrder(const Napi::CallbackInfo& info) {
  auto qp = HandleArg<QpHandle>(info, 0);
  const auto opcode = static_cast<ibv_wr_opcode>(Uint32Arg(info, 1, "opcode"));
  const int answer = ibv_query_qp_data_in_order(qp->get(), opcode, Uint32Arg(info, 2, "flags"));
  if (answer < 0) Check(info.Env(), FromRet("ibv_query_qp_data_in_order", answer));
  return Napi::Number::New(info.Env(), answer);
}

// The optional attributes of struct ibv_qp_init_attr_ex: (mask bit, name in JavaScript, field). A field without a bit
// of its own goes with another one.
#define QP_INIT_ATTRIBUTES(X)                                        \
  X(IBV_QP_INIT_ATTR_CREATE_FLAGS, "createFlags", create_flags)      \
  X(IBV_QP_INIT_ATTR_CREATE_FLAGS, "sourceQpn", source_qpn)          \
  X(IBV_QP_INIT_ATTR_MAX_TSO_HEADER, "maxTsoHeader", max_tso_header) \
  X(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, "sendOpsFlags", send_ops_flags)

Napi::Object NewQp(Napi::Env env, std::shared_ptr<QpHandle> qp) {
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "qpNum", qp->get()->qp_num);
  object.Set("handle", WrapHandle(env, std::move(qp)));
  return object;
}

}  // namespace

// (pd, sendCq, recvCq | null, srq | null, attr): `cap` of attr is overwritten with what was granted. An attribute that
// is there and needs ibv_create_qp_ex() selects it.
Napi::Value CreateQueuePair(const Napi::CallbackInfo& info, mlx5dv_qp_init_attr* mlx5) {
  const Napi::Object given = ObjectArg(info, 4, "attr");
  Napi::Object cap = CapOf(given);
  ibv_qp_init_attr_ex attr{};
  attr.qp_type = static_cast<ibv_qp_type>(Uint32Field(given, "qpType"));
  attr.sq_sig_all = given.Get("sqSigAll").ToBoolean() ? 1 : 0;
  attr.cap = GetCap(cap);
#define READ(bit, name, field)                                                \
  if (given.Has(name)) {                                                      \
    attr.field = static_cast<decltype(attr.field)>(Uint32Field(given, name)); \
    attr.comp_mask |= (bit);                                                  \
  }
  QP_INIT_ATTRIBUTES(READ)
#undef READ
  QpParents parents;
  parents.pd = HandleArg<PdHandle>(info, 0);
  parents.send_cq = HandleArg<CqHandle>(info, 1);
  if (!info[2].IsNull()) parents.recv_cq = HandleArg<CqHandle>(info, 2);
  if (!info[3].IsNull()) parents.srq = HandleArg<SrqHandle>(info, 3);
  auto qp = Unwrap(info.Env(), QpHandle::Create(std::move(parents), &attr, mlx5));
  SetCap(cap, attr.cap);
  return NewQp(info.Env(), std::move(qp));
}

namespace {

// (xrcd)
Napi::Value CreateXrcRecvQp(const Napi::CallbackInfo& info) {
  ibv_qp_init_attr_ex attr{};
  attr.qp_type = IBV_QPT_XRC_RECV;
  QpParents parents;
  parents.xrcd = HandleArg<XrcdHandle>(info, 0);
  return NewQp(info.Env(), Unwrap(info.Env(), QpHandle::Create(std::move(parents), &attr)));
}

// (pd, table, qpType, rxHashFunction, rxHashKey, rxHashFieldsMask)
Napi::Value CreateRssQp(const Napi::CallbackInfo& info) {
  QpParents parents;
  parents.pd = HandleArg<PdHandle>(info, 0);
  parents.table = HandleArg<RwqIndTableHandle>(info, 1);
  ibv_qp_init_attr_ex attr{};
  attr.qp_type = static_cast<ibv_qp_type>(Uint32Arg(info, 2, "qpType"));
  attr.comp_mask = IBV_QP_INIT_ATTR_RX_HASH;
  attr.rx_hash_conf.rx_hash_function = static_cast<uint8_t>(Uint32Arg(info, 3, "rxHashFunction"));
  if (!info[4].IsTypedArray()) ThrowType(info.Env(), "rxHashKey is not a Uint8Array");
  auto key = info[4].As<Napi::Uint8Array>();
  if (key.TypedArrayType() != napi_uint8_array || key.ByteLength() > UINT8_MAX) {
    ThrowType(info.Env(), "rxHashKey is not a Uint8Array of at most 255 bytes");
  }
  attr.rx_hash_conf.rx_hash_key = key.Data();
  attr.rx_hash_conf.rx_hash_key_len = static_cast<uint8_t>(key.ByteLength());
  attr.rx_hash_conf.rx_hash_fields_mask = Uint32Arg(info, 5, "rxHashFieldsMask");
  return NewQp(info.Env(), Unwrap(info.Env(), QpHandle::Create(std::move(parents), &attr)));
}

// (xrcd, qpNum)
Napi::Value OpenQp(const Napi::CallbackInfo& info) {
  auto xrcd = HandleArg<XrcdHandle>(info, 0);
  const uint32_t qp_num = Uint32Arg(info, 1, "qpNum");
  return NewQp(info.Env(), Unwrap(info.Env(), QpHandle::Open(std::move(xrcd), qp_num)));
}

Napi::Value CreateQp(const Napi::CallbackInfo& info) { return CreateQueuePair(info, nullptr); }

ibv_gid GidArg(const Napi::CallbackInfo& info, size_t index) {
  auto bytes = info[index].As<Napi::Uint8Array>();
  ibv_gid gid{};
  if (!info[index].IsTypedArray() || bytes.ByteLength() != sizeof gid.raw) ThrowType(info.Env(), "gid is not 16 bytes");
  memcpy(gid.raw, bytes.Data(), sizeof gid.raw);
  return gid;
}

// (qp, gid, lid)
Napi::Value AttachMcast(const Napi::CallbackInfo& info) {
  auto qp = HandleArg<QpHandle>(info, 0);
  const ibv_gid gid = GidArg(info, 1);
  const auto lid = static_cast<uint16_t>(Uint32Arg(info, 2, "lid"));
  Check(info.Env(), qp->AttachMcast(gid, lid));
  return info.Env().Undefined();
}

// (qp, gid, lid)
Napi::Value DetachMcast(const Napi::CallbackInfo& info) {
  auto qp = HandleArg<QpHandle>(info, 0);
  const ibv_gid gid = GidArg(info, 1);
  const auto lid = static_cast<uint16_t>(Uint32Arg(info, 2, "lid"));
  Check(info.Env(), qp->DetachMcast(gid, lid));
  return info.Env().Undefined();
}

}  // namespace

void ExportQueuePair(Napi::Object exports) {
  Export(exports, "createQp", CreateQp);
  Export(exports, "createXrcRecvQp", CreateXrcRecvQp);
  Export(exports, "createRssQp", CreateRssQp);
  Export(exports, "openQp", OpenQp);
  Export(exports, "modifyQp", ModifyQp);
  Export(exports, "modifyQpSync", ModifyQpSync);
  Export(exports, "queryQp", QueryQp);
  Export(exports, "queryEce", QueryEce);
  Export(exports, "setEce", SetEce);
  Export(exports, "modifyQpRateLimit", ModifyQpRateLimit);
  Export(exports, "queryQpDataInOrder", QueryQpDataInOrder);
  Export(exports, "destroyQp", DestroyQp);
  Export(exports, "attachMcast", AttachMcast);
  Export(exports, "detachMcast", DetachMcast);
}

}  // namespace rdma
