// The addon's entry: exports what each file of verbs/ and datapath/ offers, and keeps what belongs to one environment.
#include "cm/cm.h"
#include "core/args.h"
#include "core/environment.h"
#include "gpu/gpu.h"
#include "mlx5/mlx5.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

Napi::Value SetErrorClass(const Napi::CallbackInfo& info) {
  if (!info[0].IsFunction() || !info[1].IsFunction()) ThrowType(info.Env(), "an error class is not a function");
  Environment::Of(info.Env()).rdma_error = Napi::Persistent(info[0].As<Napi::Function>());
  Environment::Of(info.Env()).gpu_error = Napi::Persistent(info[1].As<Napi::Function>());
  return info.Env().Undefined();
}

// Objects that are open now, and those that were collected open.
Napi::Value Census(const Napi::CallbackInfo& info) {
  const Environment& environment = Environment::Of(info.Env());
  Napi::Object census = Napi::Object::New(info.Env());
  SetNumber(census, "open", static_cast<double>(environment.cells.size()));
  SetNumber(census, "leaked", environment.leaks);
  return census;
}

Napi::Object InitAddon(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new Environment(env));
  Export(exports, "setErrorClass", SetErrorClass);
  Export(exports, "census", Census);
  ExportDevice(exports);
  ExportContext(exports);
  ExportDeviceAttributes(exports);
  ExportProtectionDomain(exports);
  ExportMemoryRegion(exports);
  ExportDeviceMemory(exports);
  ExportCompletionChannel(exports);
  ExportCompletionQueue(exports);
  ExportQueuePair(exports);
  ExportAddressHandle(exports);
  ExportAsyncEvent(exports);
  ExportSharedReceiveQueue(exports);
  ExportMemoryWindow(exports);
  ExportFlow(exports);
  ExportReceiveWorkQueue(exports);
  ExportMlx5Device(exports);
  ExportMlx5CompletionQueue(exports);
  ExportMlx5QueuePair(exports);
  ExportXrcDomain(exports);
  ExportEventChannel(exports);
  ExportCmId(exports);
  ExportConnection(exports);
  ExportAddrInfo(exports);
  ExportDmabuf(exports);
  ExportFdSocket(exports);
  ExportGpuMemory(exports);
  ExportDatapath(exports);
  ExportWcRingEx(exports);
  ExportConstants(exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(node_rdma, InitAddon)

}  // namespace rdma
