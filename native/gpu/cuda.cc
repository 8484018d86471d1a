// The CUDA driver, opened at first use.
#include <algorithm>
#include <mutex>

#include "gpu/cuda_api.h"
#include "gpu/driver.h"
#include "rdma_core/library.h"

namespace rdma {

namespace cuda {

namespace {

// Whole pages of the GPU, so that none is shared with what nobody meant to export.
constexpr size_t kGpuPage = 65536;

size_t RoundUp(size_t value, size_t to) { return (value + to - 1) / to * to; }

const char* NameOf(int status);
const char* TextOf(int status);
constexpr DriverErrors kErrors{NameOf, TextOf};

VerbError Failure(const char* function, int status) {
  return status == kSuccess ? VerbError{} : VerbError{function, status, &kErrors};
}

class CudaDriver final : public GpuDriver {
 public:
  bool Open() override {
    std::call_once(once_, [this] {
      if (!library_.Open()) return;
      const char* missing = nullptr;
#define FN(name, symbol, parameters)                                      \
  f_.name = reinterpret_cast<decltype(f_.name)>(library_.Symbol(symbol)); \
  if (f_.name == nullptr) missing = symbol;
      RDMA_CUDA_FUNCTIONS(FN)
#undef FN
#define FN(name, symbol, parameters) f_.name = reinterpret_cast<decltype(f_.name)>(library_.Symbol(symbol));
      RDMA_CUDA_YOUNGER_FUNCTIONS(FN)
#undef FN
      missing_ = missing;
      if (missing_ == nullptr) init_ = f_.Init(0);
    });
    return library_.Open() && missing_ == nullptr && init_ == kSuccess;
  }

  std::string Describe() override {
    if (Open()) return library_.path();
    if (!library_.Open()) return library_.error();
    if (missing_ != nullptr) return std::string(library_.path()) + " has no " + missing_;
    return std::string("cuInit: ") + NameOf(init_) + ": " + TextOf(init_);
  }

  Outcome<std::vector<GpuInfo>> List() override {
    std::vector<GpuInfo> gpus;
    if (!Open()) return gpus;
    int count = 0;
    auto error = Failure("cuDeviceGetCount", f_.DeviceGetCount(&count));
    if (error) return error;
    for (int i = 0; i < count; i++) {
      auto gpu = Query(i);
      if (gpu.error) return gpu.error;
      gpus.push_back(std::move(gpu.value));
    }
    return gpus;
  }

  Outcome<GpuRange> Alloc(uint32_t gpu, size_t length, bool virtual_memory) override {
    Current context(f_, gpu);
    if (context.error) return context.error;
    GpuRange range;
    range.gpu = gpu;
    range.length = length;
    auto error = virtual_memory ? MapVirtual(range) : MapPlain(range);
    if (error) {
      context.Release();
      return error;
    }
    // Copies that the driver begins for this process are over when it says so, and not only for its own queue: else a
    // NIC could read what is about to be overwritten. An allocation of virtual memory may not know of it.
    const int on = 1;
    (void)f_.PointerSetAttribute(&on, kPointerSyncMemops, range.address);
    return range;
  }

  Outcome<GpuRange> Adopt(uint64_t address, size_t length) override {
    unsigned type = 0;
    int ordinal = 0;
    Pointer start = 0;
    size_t size = 0;
    const struct {
      void* value;
      int attribute;
    } questions[] = {{&type, kPointerMemoryType},
                     {&ordinal, kPointerDeviceOrdinal},
                     {&start, kPointerRangeStart},
                     {&size, kPointerRangeSize}};
    for (const auto& [value, attribute] : questions) {
      auto error = Failure("cuPointerGetAttribute", f_.PointerGetAttribute(value, attribute, address));
      if (error) return error;
    }
    if (type != kMemoryTypeDevice || address < start || address >= start + size) {
      return VerbError{"cuPointerGetAttribute", EINVAL};
    }
    if (length > start + size - address) return VerbError{"cuPointerGetAttribute", ERANGE};
    Current context(f_, static_cast<uint32_t>(ordinal));
    if (context.error) return context.error;
    GpuRange range;
    range.gpu = static_cast<uint32_t>(ordinal);
    range.address = address;
    range.length = length;
    range.adopted = true;
    const int on = 1;
    (void)f_.PointerSetAttribute(&on, kPointerSyncMemops, address);
    return range;
  }

  VerbError Free(GpuRange& range) override {
    // The share that the allocation took of the context goes last.
    Current context(f_, range.gpu);
    if (context.error) return Forgiven(context.error);
    auto error = range.adopted         ? VerbError{}
                 : range.physical != 0 ? UnmapVirtual(range)
                                       : Failure("cuMemFree", f_.MemFree(range.address));
    context.Release();
    if (Forgiven(error)) return error;
    (void)f_.DevicePrimaryCtxRelease(DeviceOf(range.gpu));
    return {};
  }

  Outcome<GpuExport> Export(const GpuRange& range) override {
    const char* function = "cuMemGetHandleForAddressRange";
    if (f_.MemGetHandleForAddressRange == nullptr) return VerbError{function, EOPNOTSUPP};
    Current context(f_, range.gpu);
    if (context.error) return context.error;
    context.Release();
    const HostPages pages(range);
    int fd = -1;
    auto error = Failure(function, f_.MemGetHandleForAddressRange(&fd, pages.first, pages.length, kHandleDmabufFd, 0));
    if (error) return error;
    return GpuExport{fd, pages.offset};
  }

  VerbError CopyTo(const GpuRange& range, size_t offset, const void* host, size_t length) override {
    Current context(f_, range.gpu);
    if (context.error) return context.error;
    context.Release();
    return Failure("cuMemcpyHtoD", f_.MemcpyHtoD(range.address + offset, host, length));
  }

  VerbError CopyFrom(const GpuRange& range, size_t offset, void* host, size_t length) override {
    Current context(f_, range.gpu);
    if (context.error) return context.error;
    context.Release();
    return Failure("cuMemcpyDtoH", f_.MemcpyDtoH(host, range.address + offset, length));
  }

  const char* Text(int (*ask)(int, const char**), int status) {
    const char* text = nullptr;
    return ask != nullptr && ask(status, &text) == kSuccess && text != nullptr ? text : "CUDA_ERROR_UNKNOWN";
  }
  const Functions& functions() const { return f_; }

 private:
  // Makes the primary context of a GPU current on this thread, as the runtime does, and takes a share of it. The share
  // stays unless Release() is called.
  class Current {
   public:
    Current(const Functions& f, uint32_t gpu) : f_(f) {
      error = Failure("cuDeviceGet", f.DeviceGet(&device_, static_cast<int>(gpu)));
      if (error) return;
      Context context = nullptr;
      error = Failure("cuDevicePrimaryCtxRetain", f.DevicePrimaryCtxRetain(&context, device_));
      if (error) return;
      error = Failure("cuCtxPushCurrent", f.CtxPushCurrent(context));
      pushed_ = !error;
      if (error) (void)f.DevicePrimaryCtxRelease(device_);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current() {
      if (!pushed_) return;
      Context context = nullptr;
      (void)f_.CtxPopCurrent(&context);
      if (release_) (void)f_.DevicePrimaryCtxRelease(device_);
    }
    void Release() { release_ = true; }
    VerbError error;

   private:
    const Functions& f_;
    Device device_ = 0;
    bool pushed_ = false;
    bool release_ = false;
  };

  Device DeviceOf(uint32_t gpu) const {
    Device device = 0;
    (void)f_.DeviceGet(&device, static_cast<int>(gpu));
    return device;
  }

  // At the end of the process the driver may be gone before us, with all its memory.
  static VerbError Forgiven(VerbError error) { return error.err == kDeinitialized ? VerbError{} : error; }

  bool HasVirtualMemory() const {
    return f_.MemGetAllocationGranularity != nullptr && f_.MemCreate != nullptr && f_.MemRelease != nullptr &&
           f_.MemAddressReserve != nullptr && f_.MemAddressFree != nullptr && f_.MemMap != nullptr &&
           f_.MemUnmap != nullptr && f_.MemSetAccess != nullptr;
  }

  int Attribute(int attribute, Device device) const {
    int value = 0;
    // A driver that does not know one has not got it.
    return f_.DeviceGetAttribute(&value, attribute, device) == kSuccess ? value : 0;
  }

  Outcome<GpuInfo> Query(int index) const {
    Device device = 0;
    char name[128] = "";
    size_t memory = 0;
    VerbError error = Failure("cuDeviceGet", f_.DeviceGet(&device, index));
    if (!error) error = Failure("cuDeviceGetName", f_.DeviceGetName(name, sizeof name, device));
    if (!error) error = Failure("cuDeviceTotalMem", f_.DeviceTotalMem(&memory, device));
    if (error) return error;
    GpuInfo gpu;
    gpu.name = name;
    gpu.memory = memory;
    gpu.pci_address = PciAddress(static_cast<uint32_t>(Attribute(kAttributePciDomainId, device)),
                                 static_cast<uint32_t>(Attribute(kAttributePciBusId, device)),
                                 static_cast<uint32_t>(Attribute(kAttributePciDeviceId, device)), 0);
    gpu.virtual_memory = HasVirtualMemory() && Attribute(kAttributeVirtualMemory, device) != 0 &&
                         Attribute(kAttributeRdmaWithVirtualMemory, device) != 0;
    if (Attribute(kAttributeRdma, device) == 0) {
      gpu.missing = "the GPU has no GPUDirect RDMA, which takes a data-center or workstation model";
    } else if (f_.MemGetHandleForAddressRange == nullptr) {
      gpu.missing = "the driver is older than CUDA 11.7 and has no cuMemGetHandleForAddressRange";
    } else if (Attribute(kAttributeDmabuf, device) == 0) {
      gpu.missing =
          "the driver exports no DMA-BUF: that takes NVIDIA's open kernel modules (515 or later) and Linux 5.12";
    } else {
      gpu.dmabuf = true;
    }
    return gpu;
  }

  VerbError MapPlain(GpuRange& range) const {
    Pointer address = 0;
    auto error = Failure("cuMemAlloc", f_.MemAlloc(&address, RoundUp(range.length, kGpuPage)));
    range.address = address;
    return error;
  }

  // What has been taken when a step fails is given back in the opposite order.
  VerbError MapVirtual(GpuRange& range) const {
    if (!HasVirtualMemory()) return {"cuMemCreate", EOPNOTSUPP};
    const Location location{kLocationDevice, DeviceOf(range.gpu)};
    AllocationProp prop{};
    prop.type = kAllocationPinned;
    prop.location = location;
    prop.rdma_capable = 1;
    size_t granularity = 0;
    auto error = Failure("cuMemGetAllocationGranularity",
                         f_.MemGetAllocationGranularity(&granularity, &prop, kGranularityRecommended));
    if (error) return error;
    granularity = std::max(granularity, kGpuPage);
    const size_t size = RoundUp(range.length, granularity);
    Handle physical = 0;
    error = Failure("cuMemCreate", f_.MemCreate(&physical, size, &prop, 0));
    if (error) return error;
    Pointer address = 0;
    error = Failure("cuMemAddressReserve", f_.MemAddressReserve(&address, size, granularity, 0, 0));
    if (!error) {
      error = Failure("cuMemMap", f_.MemMap(address, size, 0, physical, 0));
      if (!error) {
        const AccessDesc access{location, kAccessReadWrite};
        error = Failure("cuMemSetAccess", f_.MemSetAccess(address, size, &access, 1));
        if (error) (void)f_.MemUnmap(address, size);
      }
      if (error) (void)f_.MemAddressFree(address, size);
    }
    if (error) {
      (void)f_.MemRelease(physical);
      return error;
    }
    range.address = address;
    range.length = size;
    range.physical = physical;
    return {};
  }

  VerbError UnmapVirtual(GpuRange& range) const {
    if (range.freed == 0) {
      auto error = Failure("cuMemUnmap", f_.MemUnmap(range.address, range.length));
      if (error) return error;
      range.freed = 1;
    }
    if (range.freed == 1) {
      auto error = Failure("cuMemAddressFree", f_.MemAddressFree(range.address, range.length));
      if (error) return error;
      range.freed = 2;
    }
    return Failure("cuMemRelease", f_.MemRelease(range.physical));
  }

  Library library_{"libcuda.so.1", "NODE_RDMA_LIBCUDA"};
  std::once_flag once_;
  Functions f_{};
  const char* missing_ = nullptr;
  int init_ = kSuccess;
};

CudaDriver& Driver() {
  static CudaDriver driver;
  return driver;
}

const char* NameOf(int status) { return Driver().Text(Driver().functions().GetErrorName, status); }
const char* TextOf(int status) { return Driver().Text(Driver().functions().GetErrorString, status); }

}  // namespace

}  // namespace cuda

GpuDriver& Cuda() { return cuda::Driver(); }

}  // namespace rdma
