// Memory of GPUs, by their drivers.
#include <fcntl.h>

#include "core/args.h"
#include "core/promise_worker.h"
#include "gpu/gpu.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

GpuDriver& DriverArg(const Napi::CallbackInfo& info) {
  const std::string vendor = StringArg(info, 0, "vendor");
  if (vendor == "nvidia") return Cuda();
  if (vendor != "amd") ThrowType(info.Env(), "vendor is neither nvidia nor amd");
  return Hsa();
}

// What needs the library must not be called without it.
GpuDriver& OpenDriverArg(const Napi::CallbackInfo& info) {
  GpuDriver& driver = DriverArg(info);
  if (!driver.Open()) ThrowType(info.Env(), "the library of the driver is not there");
  return driver;
}

// (vendor)
Napi::Value GpuDriverState(const Napi::CallbackInfo& info) {
  GpuDriver& driver = DriverArg(info);
  Napi::Object object = Napi::Object::New(info.Env());
  object.Set("available", Napi::Boolean::New(info.Env(), driver.Open()));
  object.Set("detail", driver.Describe());
  return object;
}

// (vendor)
Napi::Value ListGpus(const Napi::CallbackInfo& info) {
  Napi::Array list = Napi::Array::New(info.Env());
  for (const GpuInfo& gpu : Unwrap(info.Env(), DriverArg(info).List())) {
    Napi::Object object = Napi::Object::New(info.Env());
    object.Set("name", gpu.name);
    object.Set("pciAddress", gpu.pci_address);
    SetNumber(object, "totalMemory", static_cast<double>(gpu.memory));
    object.Set("dmabuf", Napi::Boolean::New(info.Env(), gpu.dmabuf));
    object.Set("virtualMemory", Napi::Boolean::New(info.Env(), gpu.virtual_memory));
    object.Set("missing", gpu.missing);
    list.Set(list.Length(), object);
  }
  return list;
}

Napi::Value Describe(Napi::Env env, std::shared_ptr<GpuMemoryHandle> memory) {
  Napi::Object object = Napi::Object::New(env);
  SetBigInt(object, "address", memory->range().address);
  SetNumber(object, "gpu", memory->range().gpu);
  object.Set("handle", WrapHandle(env, std::move(memory)));
  return object;
}

using Made = PromiseWorker<std::shared_ptr<GpuMemoryHandle>>;

// (vendor, gpu, length, virtualMemory). The first call for a GPU makes its context, which takes some tenths of a
// second.
Napi::Value AllocGpuMemory(const Napi::CallbackInfo& info) {
  GpuDriver* driver = &OpenDriverArg(info);
  const uint32_t gpu = Uint32Arg(info, 1, "gpu");
  const size_t length = SizeArg(info, 2, "length");
  const bool virtual_memory = info[3].ToBoolean();
  return Made::Queue(
      info.Env(), "gpu_alloc", [=] { return GpuMemoryHandle::Alloc(*driver, gpu, length, virtual_memory); }, Describe);
}

// (vendor, address, length)
Napi::Value AdoptGpuMemory(const Napi::CallbackInfo& info) {
  GpuDriver* driver = &OpenDriverArg(info);
  const uint64_t address = Uint64Arg(info, 1, "address");
  const size_t length = SizeArg(info, 2, "length");
  return Made::Queue(
      info.Env(), "gpu_adopt", [=] { return GpuMemoryHandle::Adopt(*driver, address, length); }, Describe);
}

// (memory): a DMA-BUF of all of it, and where it begins there.
Napi::Value ExportGpuMemory(const Napi::CallbackInfo& info) {
  const GpuExport exported = Unwrap(info.Env(), HandleArg<GpuMemoryHandle>(info, 0)->Export());
  // Not every driver sees to that.
  (void)fcntl(exported.fd, F_SETFD, FD_CLOEXEC);
  Napi::Object object = DescribeDmabuf(info.Env(), DmabufHandle::Own(exported.fd));
  SetNumber(object, "offset", static_cast<double>(exported.offset));
  return object;
}

struct Copy {
  std::shared_ptr<GpuMemoryHandle> gpu;
  size_t offset;
  Memory host;
};

// (memory, offset, arrayBuffer, byteOffset, byteLength)
std::shared_ptr<Copy> CopyArgs(const Napi::CallbackInfo& info) {
  auto copy = std::make_shared<Copy>(
      Copy{HandleArg<GpuMemoryHandle>(info, 0), SizeArg(info, 1, "offset"), MemoryArgs(info, 2)});
  const size_t length = copy->gpu->range().length;
  if (copy->offset > length || copy->host.length > length - copy->offset) {
    ThrowType(info.Env(), "the memory does not have that range");
  }
  return copy;
}

Napi::Value Run(Napi::Env env, const char* name, const std::shared_ptr<Copy>& copy,
                VerbError (*work)(const Copy& copy)) {
  auto busy = std::make_shared<Parent<GpuMemoryHandle>>(copy->gpu);
  return PromiseWorker<bool>::Queue(
      env, name,
      [copy, busy, work]() -> Outcome<bool> {
        const VerbError error = work(*copy);
        if (error) return error;
        return true;
      },
      [](Napi::Env env, bool) { return env.Undefined(); });
}

Napi::Value CopyToGpu(const Napi::CallbackInfo& info) {
  return Run(info.Env(), "gpu_copy_to", CopyArgs(info),
             [](const Copy& copy) { return copy.gpu->CopyTo(copy.offset, copy.host.addr, copy.host.length); });
}

Napi::Value CopyFromGpu(const Napi::CallbackInfo& info) {
  return Run(info.Env(), "gpu_copy_from", CopyArgs(info),
             [](const Copy& copy) { return copy.gpu->CopyFrom(copy.offset, copy.host.addr, copy.host.length); });
}

}  // namespace

void ExportGpuMemory(Napi::Object exports) {
  Export(exports, "gpuDriverState", GpuDriverState);
  Export(exports, "listGpus", ListGpus);
  Export(exports, "allocGpuMemory", AllocGpuMemory);
  Export(exports, "adoptGpuMemory", AdoptGpuMemory);
  Export(exports, "exportGpuMemory", ExportGpuMemory);
  Export(exports, "copyToGpu", CopyToGpu);
  Export(exports, "copyFromGpu", CopyFromGpu);
  Export(exports, "freeGpuMemory", CloseHandle<GpuMemoryHandle>);
}

}  // namespace rdma
