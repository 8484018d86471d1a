// The tags of the handles and the exports of each object's file.
#pragma once

#include <napi.h>

#include "core/cell.h"
#include "handles/ah_handle.h"
#include "handles/context_handle.h"
#include "handles/cq_handle.h"
#include "handles/dm_handle.h"
#include "handles/flow_handle.h"
#include "handles/mr_handle.h"
#include "handles/mw_handle.h"
#include "handles/pd_handle.h"
#include "handles/qp_handle.h"
#include "handles/srq_handle.h"
#include "handles/td_handle.h"
#include "handles/wq_handle.h"
#include "handles/xrcd_handle.h"

namespace rdma {

RDMA_HANDLE_TYPE(ContextHandle, "Context", 1);
RDMA_HANDLE_TYPE(PdHandle, "ProtectionDomain", 2);
RDMA_HANDLE_TYPE(MrHandle, "MemoryRegion", 3);
RDMA_HANDLE_TYPE(ChannelHandle, "CompletionChannel", 4);
RDMA_HANDLE_TYPE(CqHandle, "CompletionQueue", 5);
RDMA_HANDLE_TYPE(QpHandle, "QueuePair", 6);
RDMA_HANDLE_TYPE(AhHandle, "AddressHandle", 7);
RDMA_HANDLE_TYPE(SrqHandle, "SharedReceiveQueue", 8);
RDMA_HANDLE_TYPE(MwHandle, "MemoryWindow", 9);
RDMA_HANDLE_TYPE(FlowHandle, "Flow", 20);
RDMA_HANDLE_TYPE(CountersHandle, "Counters", 21);
RDMA_HANDLE_TYPE(WqHandle, "ReceiveWorkQueue", 22);
RDMA_HANDLE_TYPE(RwqIndTableHandle, "RwqIndTable", 23);
RDMA_HANDLE_TYPE(XrcdHandle, "XrcDomain", 40);
RDMA_HANDLE_TYPE(DmHandle, "DeviceMemory", 42);
RDMA_HANDLE_TYPE(TdHandle, "ThreadDomain", 43);

// Bytes of an ArrayBuffer, which `pin` keeps from being collected. Its last share goes on the environment's thread.
struct Memory {
  void* addr = nullptr;
  size_t length = 0;
  std::shared_ptr<void> pin;
};
// (..., arrayBuffer, byteOffset, byteLength, ...), the first of them at `index`.
Memory MemoryArgs(const Napi::CallbackInfo& info, size_t index);

using Method = Napi::Value (*)(const Napi::CallbackInfo&);
inline void Export(Napi::Object exports, const char* name, Method method) {
  exports.Set(name, Napi::Function::New(exports.Env(), method, name));
}

inline void SetNumber(Napi::Object object, const char* name, double value) {
  object.Set(name, Napi::Number::New(object.Env(), value));
}
// (handle): the destroy verb of whatever the handle is, through its owner.
template <class T>
Napi::Value CloseHandle(const Napi::CallbackInfo& info) {
  Cell::From(info.Env(), info[0], HandleType<T>::tag, HandleType<T>::name).Close(info.Env());
  return info.Env().Undefined();
}

inline void SetBigInt(Napi::Object object, const char* name, uint64_t value) {
  object.Set(name, Napi::BigInt::New(object.Env(), value));
}

// A complete struct ibv_ah_attr from the object of that name in `parent`: TypeScript has filled in the defaults.
ibv_ah_attr GetAhAttr(const Napi::Object& parent, const char* name);
Napi::Object AhAttr(Napi::Env env, const ibv_ah_attr& attr);
// All attributes of a queue pair, whether they mean something or not.
Napi::Object QpAttr(Napi::Env env, const ibv_qp_attr& attr);

// Makes a queue pair from the arguments of createQp(); with `mlx5` by libmlx5.
Napi::Value CreateQueuePair(const Napi::CallbackInfo& info, mlx5dv_qp_init_attr* mlx5);
// Makes a completion queue from the arguments of createCq(), likewise.
Napi::Value CreateCompletionQueue(const Napi::CallbackInfo& info, mlx5dv_cq_init_attr* mlx5);
// A new handle of a region, with its keys and address; and those alone, into an object.
Napi::Object DescribeMr(Napi::Env env, std::shared_ptr<MrHandle> mr);
void SetKeys(Napi::Object object, const MrHandle& mr);

void ExportDevice(Napi::Object exports);
void ExportContext(Napi::Object exports);
void ExportDeviceAttributes(Napi::Object exports);
void ExportProtectionDomain(Napi::Object exports);
void ExportMemoryRegion(Napi::Object exports);
void ExportDeviceMemory(Napi::Object exports);
void ExportCompletionChannel(Napi::Object exports);
void ExportCompletionQueue(Napi::Object exports);
void ExportQueuePair(Napi::Object exports);
void ExportAddressHandle(Napi::Object exports);
void ExportAsyncEvent(Napi::Object exports);
void ExportSharedReceiveQueue(Napi::Object exports);
void ExportXrcDomain(Napi::Object exports);
void ExportMemoryWindow(Napi::Object exports);
void ExportFlow(Napi::Object exports);
void ExportReceiveWorkQueue(Napi::Object exports);
void ExportDatapath(Napi::Object exports);
void ExportWcRingEx(Napi::Object exports);
void ExportConstants(Napi::Object exports);

}  // namespace rdma
