// ibv_reg_mr(3), on the caller's memory and on our own.
#include <infiniband/verbs.h>

#include "core/args.h"
#include "core/promise_worker.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

Napi::Object Describe(Napi::Env env, std::shared_ptr<MrHandle> mr) {
  Napi::Object object = Napi::Object::New(env);
  SetBigInt(object, "addr", reinterpret_cast<uintptr_t>(mr->get()->addr));
  SetNumber(object, "lkey", mr->get()->lkey);
  SetNumber(object, "rkey", mr->get()->rkey);
  object.Set("handle", WrapHandle(env, std::move(mr)));
  return object;
}

// Keeps an ArrayBuffer from being collected. Its last share goes on the environment's thread: pool threads only lend
// what the loop holds.
std::shared_ptr<void> Pin(Napi::ArrayBuffer buffer) {
  auto reference = std::make_shared<Napi::Reference<Napi::ArrayBuffer>>();
  *reference = Napi::Persistent(buffer);
  return reference;
}

struct Range {
  std::shared_ptr<PdHandle> pd;
  void* addr;
  size_t length;
  uint32_t access;
  std::shared_ptr<void> memory;
};

// (pd, arrayBuffer, byteOffset, byteLength, access)
Range RangeArgs(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto pd = HandleArg<PdHandle>(info, 0);
  if (!info[1].IsArrayBuffer()) ThrowType(env, "memory is not an ArrayBuffer");
  auto buffer = info[1].As<Napi::ArrayBuffer>();
  const size_t offset = SizeArg(info, 2, "byteOffset");
  const size_t length = SizeArg(info, 3, "byteLength");
  if (buffer.IsDetached() || offset > buffer.ByteLength() || length > buffer.ByteLength() - offset) {
    ThrowType(env, "memory does not have that range");
  }
  return {std::move(pd), static_cast<uint8_t*>(buffer.Data()) + offset, length, Uint32Arg(info, 4, "access"),
          Pin(buffer)};
}

Napi::Value RegMrSync(const Napi::CallbackInfo& info) {
  Range range = RangeArgs(info);
  return Describe(info.Env(), Unwrap(info.Env(), MrHandle::Register(std::move(range.pd), range.addr, range.length,
                                                                    range.access, std::move(range.memory))));
}

Napi::Value RegMr(const Napi::CallbackInfo& info) {
  auto range = std::make_shared<Range>(RangeArgs(info));
  auto busy = std::make_shared<Parent<PdHandle>>(range->pd);
  return PromiseWorker<std::shared_ptr<MrHandle>>::Queue(
      info.Env(), "ibv_reg_mr",
      [range, busy] { return MrHandle::Register(range->pd, range->addr, range->length, range->access, range->memory); },
      Describe);
}

struct Allocated {
  std::shared_ptr<MrHandle> mr;
  std::shared_ptr<PageMemory> memory;
  size_t length = 0;
};

Outcome<Allocated> Allocate(const std::shared_ptr<PdHandle>& pd, size_t length, uint32_t access, bool huge_pages) {
  auto memory = PageMemory::Map(length, huge_pages);
  if (memory.error) return memory.error;
  auto mr = MrHandle::Register(pd, memory.value->data(), length, access, memory.value);
  if (mr.error) return mr.error;
  return Allocated{std::move(mr.value), std::move(memory.value), length};
}

// Runtimes whose V8 forbids memory of others (Electron) refuse here with "External buffers are not allowed".
Napi::Object DescribeAllocated(Napi::Env env, Allocated allocated) {
  auto* share = new std::shared_ptr<PageMemory>(allocated.memory);
  napi_value buffer = nullptr;
  const napi_status status = napi_create_external_arraybuffer(
      env, allocated.memory->data(), allocated.length,
      [](napi_env, void*, void* hint) { delete static_cast<std::shared_ptr<PageMemory>*>(hint); }, share, &buffer);
  if (status != napi_ok) {
    delete share;
    throw Napi::Error::New(env);
  }
  Napi::Object object = Describe(env, std::move(allocated.mr));
  object.Set("buffer", Napi::Value(env, buffer));
  return object;
}

// (pd, length, access, hugePages)
Napi::Value AllocMrSync(const Napi::CallbackInfo& info) {
  return DescribeAllocated(info.Env(),
                           Unwrap(info.Env(), Allocate(HandleArg<PdHandle>(info, 0), SizeArg(info, 1, "length"),
                                                       Uint32Arg(info, 2, "access"), info[3].ToBoolean())));
}

Napi::Value AllocMr(const Napi::CallbackInfo& info) {
  auto pd = HandleArg<PdHandle>(info, 0);
  auto busy = std::make_shared<Parent<PdHandle>>(pd);
  const size_t length = SizeArg(info, 1, "length");
  const uint32_t access = Uint32Arg(info, 2, "access");
  const bool huge_pages = info[3].ToBoolean();
  return PromiseWorker<Allocated>::Queue(
      info.Env(), "ibv_reg_mr",
      [pd, busy, length, access, huge_pages] { return Allocate(pd, length, access, huge_pages); }, DescribeAllocated);
}

// Takes the memory away from JavaScript, once the NIC cannot reach it any more.
Napi::Value Detach(const Napi::CallbackInfo& info) {
  if (!info[0].IsArrayBuffer()) ThrowType(info.Env(), "buffer is not an ArrayBuffer");
  info[0].As<Napi::ArrayBuffer>().Detach();
  return info.Env().Undefined();
}

}  // namespace

void ExportMemoryRegion(Napi::Object exports) {
  Export(exports, "regMr", RegMr);
  Export(exports, "deregMr", CloseHandle<MrHandle>);
  Export(exports, "regMrSync", RegMrSync);
  Export(exports, "allocMr", AllocMr);
  Export(exports, "allocMrSync", AllocMrSync);
  Export(exports, "detach", Detach);
}

}  // namespace rdma
