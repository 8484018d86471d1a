// ibv_reg_mr(3) on the caller's memory and on our own, ibv_reg_dmabuf_mr(3), ibv_rereg_mr(3), ibv_alloc_null_mr(3),
// ibv_advise_mr(3), ibv_import_mr(3).
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <vector>

#include "core/args.h"
#include "core/promise_worker.h"
#include "gpu/gpu.h"
#include "handles/page_memory.h"
#include "verbs/verbs.h"

namespace rdma {

void SetKeys(Napi::Object object, const MrHandle& mr) {
  SetBigInt(object, "addr", mr.iova());
  SetNumber(object, "lkey", mr.get()->lkey);
  SetNumber(object, "rkey", mr.get()->rkey);
  SetNumber(object, "nativeHandle", mr.get()->handle);
}

Napi::Object DescribeMr(Napi::Env env, std::shared_ptr<MrHandle> mr) {
  Napi::Object object = Napi::Object::New(env);
  SetKeys(object, *mr);
  object.Set("handle", WrapHandle(env, std::move(mr)));
  return object;
}

namespace {

// Keeps an ArrayBuffer from being collected. Its last share goes on the environment's thread: pool threads only lend
// what the loop holds.
std::shared_ptr<void> Pin(Napi::ArrayBuffer buffer) {
  auto reference = std::make_shared<Napi::Reference<Napi::ArrayBuffer>>();
  *reference = Napi::Persistent(buffer);
  return reference;
}

}  // namespace

Memory MemoryArgs(const Napi::CallbackInfo& info, size_t index) {
  Napi::Env env = info.Env();
  if (!info[index].IsArrayBuffer()) ThrowType(env, "memory is not an ArrayBuffer");
  auto buffer = info[index].As<Napi::ArrayBuffer>();
  const size_t offset = SizeArg(info, index + 1, "byteOffset");
  const size_t length = SizeArg(info, index + 2, "byteLength");
  if (buffer.IsDetached() || offset > buffer.ByteLength() || length > buffer.ByteLength() - offset) {
    ThrowType(env, "memory does not have that range");
  }
  return {static_cast<uint8_t*>(buffer.Data()) + offset, length, Pin(buffer)};
}

namespace {

std::optional<uint64_t> IovaArg(const Napi::CallbackInfo& info, size_t index) {
  if (info[index].IsUndefined()) return std::nullopt;
  return Uint64Arg(info, index, "iova");
}

// The memory of a GPU that the region must hold; none where it is not given.
std::shared_ptr<void> GpuMemoryArg(const Napi::CallbackInfo& info, size_t index) {
  if (info[index].IsUndefined()) return nullptr;
  return std::make_shared<Parent<GpuMemoryHandle>>(HandleArg<GpuMemoryHandle>(info, index));
}

// Memory to be registered. `memory` keeps it where it is; null for an address whose owner is somebody else.
struct Range {
  std::shared_ptr<PdHandle> pd;
  void* addr;
  size_t length;
  uint32_t access;
  std::optional<uint64_t> iova;
  std::shared_ptr<void> memory;

  Outcome<std::shared_ptr<MrHandle>> Register() const {
    return MrHandle::Register(pd, addr, length, iova ? &*iova : nullptr, access, memory);
  }
};

// (pd, arrayBuffer, byteOffset, byteLength, access, iova or undefined)
Range RangeArgs(const Napi::CallbackInfo& info) {
  auto pd = HandleArg<PdHandle>(info, 0);
  Memory memory = MemoryArgs(info, 1);
  return {std::move(pd),    memory.addr,          memory.length, Uint32Arg(info, 4, "access"),
          IovaArg(info, 5), std::move(memory.pin)};
}

// (pd, address, length, access, iova or undefined, GPU memory or undefined)
Range AddressArgs(const Napi::CallbackInfo& info) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the caller has nothing else, and vouches for it
  auto* addr = reinterpret_cast<void*>(uintptr_t{Uint64Arg(info, 1, "address")});
  // 2^53 - 1 and more cannot be told apart in JavaScript: all of memory, for implicit on-demand paging.
  const bool all = info[2].IsNull();
  return {HandleArg<PdHandle>(info, 0),
          addr,
          all ? SIZE_MAX : SizeArg(info, 2, "length"),
          Uint32Arg(info, 3, "access"),
          IovaArg(info, 4),
          GpuMemoryArg(info, 5)};
}

Napi::Value RegisterSync(Napi::Env env, const Range& range) { return DescribeMr(env, Unwrap(env, range.Register())); }

Napi::Value Register(Napi::Env env, Range given) {
  auto range = std::make_shared<Range>(std::move(given));
  auto busy = std::make_shared<Parent<PdHandle>>(range->pd);
  return PromiseWorker<std::shared_ptr<MrHandle>>::Queue(
      env, "ibv_reg_mr", [range, busy] { return range->Register(); }, DescribeMr);
}

Napi::Value RegMrSync(const Napi::CallbackInfo& info) { return RegisterSync(info.Env(), RangeArgs(info)); }
Napi::Value RegMr(const Napi::CallbackInfo& info) { return Register(info.Env(), RangeArgs(info)); }
Napi::Value RegMrAddressSync(const Napi::CallbackInfo& info) { return RegisterSync(info.Env(), AddressArgs(info)); }
Napi::Value RegMrAddress(const Napi::CallbackInfo& info) { return Register(info.Env(), AddressArgs(info)); }

// (arrayBuffer, byteOffset): for memory that is covered by a region of all memory, and not registered itself.
Napi::Value AddressOf(const Napi::CallbackInfo& info) {
  return Napi::BigInt::New(info.Env(), reinterpret_cast<uintptr_t>(MemoryArgs(info, 0).addr));
}

struct Change {
  std::shared_ptr<MrHandle> mr;
  int flags = 0;
  std::shared_ptr<PdHandle> pd;
  Memory memory;
  uint32_t access = 0;

  Outcome<MrHandle::Reregistered> Run() const {
    return mr->Rereg(flags, pd, memory.addr, memory.length, access, memory.pin);
  }
};

// (mr, pd or null, access or null, arrayBuffer or null, byteOffset, byteLength)
std::shared_ptr<Change> ChangeArgs(const Napi::CallbackInfo& info) {
  auto change = std::make_shared<Change>();
  change->mr = HandleArg<MrHandle>(info, 0);
  if (!info[1].IsNull()) {
    change->pd = HandleArg<PdHandle>(info, 1);
    change->flags |= IBV_REREG_MR_CHANGE_PD;
  }
  if (!info[2].IsNull()) {
    change->access = Uint32Arg(info, 2, "access");
    change->flags |= IBV_REREG_MR_CHANGE_ACCESS;
  }
  if (!info[3].IsNull()) {
    change->memory = MemoryArgs(info, 3);
    change->flags |= IBV_REREG_MR_CHANGE_TRANSLATION;
  }
  if (change->flags == 0) ThrowType(info.Env(), "nothing is to be changed");
  return change;
}

// The keys and address that it has now, and the errno where it failed: then the region is kept, or lost.
Napi::Object DescribeChange(Napi::Env env, const MrHandle& mr, MrHandle::Reregistered result) {
  Napi::Object object = Napi::Object::New(env);
  SetKeys(object, mr);
  SetNumber(object, "errno", result.err);
  object.Set("isKept", Napi::Boolean::New(env, result.kept));
  return object;
}

Napi::Value ReregMrSync(const Napi::CallbackInfo& info) {
  auto change = ChangeArgs(info);
  return DescribeChange(info.Env(), *change->mr, Unwrap(info.Env(), change->Run()));
}

Napi::Value ReregMr(const Napi::CallbackInfo& info) {
  auto change = ChangeArgs(info);
  auto busy = std::make_shared<Parent<MrHandle>>(change->mr);
  return PromiseWorker<MrHandle::Reregistered>::Queue(
      info.Env(), "ibv_rereg_mr", [change, busy] { return change->Run(); },
      [change](Napi::Env env, MrHandle::Reregistered result) { return DescribeChange(env, *change->mr, result); });
}

// (pd)
Napi::Value AllocNullMr(const Napi::CallbackInfo& info) {
  return DescribeMr(info.Env(), Unwrap(info.Env(), MrHandle::AllocNull(HandleArg<PdHandle>(info, 0))));
}

// (pd, handle, iova)
Napi::Value ImportMr(const Napi::CallbackInfo& info) {
  auto pd = HandleArg<PdHandle>(info, 0);
  auto mr =
      Unwrap(info.Env(), MrHandle::Import(std::move(pd), Uint32Arg(info, 1, "handle"), Uint64Arg(info, 2, "iova")));
  const size_t length = mr->get()->length;
  Napi::Object object = DescribeMr(info.Env(), std::move(mr));
  SetNumber(object, "length", static_cast<double>(length));
  return object;
}

struct Dmabuf {
  std::shared_ptr<PdHandle> pd;
  int fd;
  uint64_t offset;
  size_t length;
  uint64_t iova;
  uint32_t access;
  std::shared_ptr<void> memory;

  Outcome<std::shared_ptr<MrHandle>> Register() const {
    return MrHandle::RegisterDmabuf(pd, fd, offset, length, iova, access, memory);
  }
};

// (pd, fd, offset, length, iova, access, GPU memory or undefined)
Dmabuf DmabufArgs(const Napi::CallbackInfo& info) {
  return {HandleArg<PdHandle>(info, 0), static_cast<int>(Uint32Arg(info, 1, "fd")),
          SizeArg(info, 2, "offset"),   SizeArg(info, 3, "length"),
          Uint64Arg(info, 4, "iova"),   Uint32Arg(info, 5, "access"),
          GpuMemoryArg(info, 6)};
}

Napi::Value RegDmabufMrSync(const Napi::CallbackInfo& info) {
  return DescribeMr(info.Env(), Unwrap(info.Env(), DmabufArgs(info).Register()));
}

// The descriptor is a duplicate that the pool's thread closes, so that the caller may close the other one at once.
Napi::Value RegDmabufMr(const Napi::CallbackInfo& info) {
  auto dmabuf = std::make_shared<Dmabuf>(DmabufArgs(info));
  auto busy = std::make_shared<Parent<PdHandle>>(dmabuf->pd);
  const int fd = fcntl(dmabuf->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) Check(info.Env(), {"ibv_reg_dmabuf_mr", errno});
  dmabuf->fd = fd;
  const std::shared_ptr<void> open(nullptr, [fd](void*) { close(fd); });
  return PromiseWorker<std::shared_ptr<MrHandle>>::Queue(
      info.Env(), "ibv_reg_dmabuf_mr", [dmabuf, busy, open] { return dmabuf->Register(); }, DescribeMr);
}

// (pd, advice, flags, array of struct ibv_sge)
Napi::Value AdviseMr(const Napi::CallbackInfo& info) {
  auto pd = HandleArg<PdHandle>(info, 0);
  auto busy = std::make_shared<Parent<PdHandle>>(pd);
  const auto advice = static_cast<ibv_advise_mr_advice>(Uint32Arg(info, 1, "advice"));
  const uint32_t flags = Uint32Arg(info, 2, "flags");
  if (!info[3].IsArrayBuffer()) ThrowType(info.Env(), "slices is not an ArrayBuffer");
  auto list = info[3].As<Napi::ArrayBuffer>();
  std::vector<ibv_sge> sges(list.ByteLength() / sizeof(ibv_sge));
  std::memcpy(sges.data(), list.Data(), sges.size() * sizeof(ibv_sge));
  return PromiseWorker<bool>::Queue(
      info.Env(), "ibv_advise_mr",
      [pd, busy, advice, flags, sges]() mutable -> Outcome<bool> {
        errno = 0;
        auto error = FromRet("ibv_advise_mr",
                             ibv_advise_mr(pd->get(), advice, flags, sges.data(), static_cast<uint32_t>(sges.size())));
        if (error) return error;
        return true;
      },
      [](Napi::Env env, bool) { return env.Undefined(); });
}

struct Allocated {
  std::shared_ptr<MrHandle> mr;
  std::shared_ptr<PageMemory> memory;
  size_t length = 0;
};

struct Allocation {
  std::shared_ptr<PdHandle> pd;
  size_t length;
  uint32_t access;
  bool huge_pages;
  std::optional<uint64_t> iova;

  Outcome<Allocated> Run() const {
    auto memory = PageMemory::Map(length, huge_pages);
    if (memory.error) return memory.error;
    auto mr = Range{pd, memory.value->data(), length, access, iova, memory.value}.Register();
    if (mr.error) return mr.error;
    return Allocated{std::move(mr.value), std::move(memory.value), length};
  }
};

// (pd, length, access, hugePages, iova or undefined)
Allocation AllocationArgs(const Napi::CallbackInfo& info) {
  return {HandleArg<PdHandle>(info, 0), SizeArg(info, 1, "length"), Uint32Arg(info, 2, "access"), info[3].ToBoolean(),
          IovaArg(info, 4)};
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
  Napi::Object object = DescribeMr(env, std::move(allocated.mr));
  object.Set("buffer", Napi::Value(env, buffer));
  return object;
}

Napi::Value AllocMrSync(const Napi::CallbackInfo& info) {
  return DescribeAllocated(info.Env(), Unwrap(info.Env(), AllocationArgs(info).Run()));
}

Napi::Value AllocMr(const Napi::CallbackInfo& info) {
  auto allocation = std::make_shared<Allocation>(AllocationArgs(info));
  auto busy = std::make_shared<Parent<PdHandle>>(allocation->pd);
  return PromiseWorker<Allocated>::Queue(
      info.Env(), "ibv_reg_mr", [allocation, busy] { return allocation->Run(); }, DescribeAllocated);
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
  Export(exports, "regMrAddress", RegMrAddress);
  Export(exports, "regMrAddressSync", RegMrAddressSync);
  Export(exports, "addressOf", AddressOf);
  Export(exports, "reregMr", ReregMr);
  Export(exports, "reregMrSync", ReregMrSync);
  Export(exports, "allocNullMr", AllocNullMr);
  Export(exports, "adviseMr", AdviseMr);
  Export(exports, "regDmabufMr", RegDmabufMr);
  Export(exports, "regDmabufMrSync", RegDmabufMrSync);
  Export(exports, "importMr", ImportMr);
}

}  // namespace rdma
