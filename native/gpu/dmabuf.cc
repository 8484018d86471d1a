// DMA-BUFs of exporters that need no GPU, and of other processes.
#include "core/args.h"
#include "gpu/gpu.h"
#include "verbs/verbs.h"

namespace rdma {

Napi::Object DescribeDmabuf(Napi::Env env, std::shared_ptr<DmabufHandle> dmabuf) {
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "fd", dmabuf->fd());
  object.Set("handle", WrapHandle(env, std::move(dmabuf)));
  return object;
}

namespace {

int FdArg(const Napi::CallbackInfo& info, size_t index) { return static_cast<int>(Uint32Arg(info, index, "fd")); }

// (memfd or null, offset, length)
Napi::Value CreateUdmabuf(const Napi::CallbackInfo& info) {
  const int memfd = info[0].IsNull() ? -1 : FdArg(info, 0);
  return DescribeDmabuf(info.Env(), Unwrap(info.Env(), DmabufHandle::CreateUdmabuf(memfd, SizeArg(info, 1, "offset"),
                                                                                   SizeArg(info, 2, "length"))));
}

// (path of the heap, length)
Napi::Value AllocDmaHeap(const Napi::CallbackInfo& info) {
  const std::string path = StringArg(info, 0, "heap");
  return DescribeDmabuf(info.Env(), Unwrap(info.Env(), DmabufHandle::AllocHeap(path, SizeArg(info, 1, "length"))));
}

// (fd)
Napi::Value DuplicateDmabuf(const Napi::CallbackInfo& info) {
  return DescribeDmabuf(info.Env(), Unwrap(info.Env(), DmabufHandle::Duplicate(FdArg(info, 0))));
}

// (pid, fd)
Napi::Value DmabufOfProcess(const Napi::CallbackInfo& info) {
  const auto pid = static_cast<pid_t>(Uint32Arg(info, 0, "pid"));
  return DescribeDmabuf(info.Env(), Unwrap(info.Env(), DmabufHandle::OfProcess(pid, FdArg(info, 1))));
}

// (dmabuf, length, writable): an ArrayBuffer that keeps the mapping.
Napi::Value MapDmabuf(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto dmabuf = HandleArg<DmabufHandle>(info, 0);
  const size_t length = SizeArg(info, 1, "length");
  auto mapping = Unwrap(env, DmabufMapping::Map(dmabuf->fd(), length, info[2].ToBoolean()));
  void* data = mapping->data();
  auto* share = new std::shared_ptr<DmabufMapping>(std::move(mapping));
  napi_value buffer = nullptr;
  const napi_status status = napi_create_external_arraybuffer(
      env, data, length, [](napi_env, void*, void* hint) { delete static_cast<std::shared_ptr<DmabufMapping>*>(hint); },
      share, &buffer);
  if (status != napi_ok) {
    delete share;
    throw Napi::Error::New(env);
  }
  return Napi::Value(env, buffer);
}

// (dmabuf, read, write, end)
Napi::Value SyncDmabuf(const Napi::CallbackInfo& info) {
  auto dmabuf = HandleArg<DmabufHandle>(info, 0);
  Check(info.Env(), dmabuf->Sync(info[1].ToBoolean(), info[2].ToBoolean(), info[3].ToBoolean()));
  return info.Env().Undefined();
}

}  // namespace

void ExportDmabuf(Napi::Object exports) {
  Export(exports, "createUdmabuf", CreateUdmabuf);
  Export(exports, "allocDmaHeap", AllocDmaHeap);
  Export(exports, "duplicateDmabuf", DuplicateDmabuf);
  Export(exports, "dmabufOfProcess", DmabufOfProcess);
  Export(exports, "mapDmabuf", MapDmabuf);
  Export(exports, "syncDmabuf", SyncDmabuf);
  Export(exports, "closeDmabuf", CloseHandle<DmabufHandle>);
}

}  // namespace rdma
