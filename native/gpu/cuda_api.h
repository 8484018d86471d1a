// What we use of the CUDA driver's binary interface, which is the same in every release since 11.7. The names of the
// library are those behind the macros of cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdma::cuda {

using Device = int;
using Context = void*;
using Pointer = unsigned long long;
using Handle = unsigned long long;

constexpr int kSuccess = 0;
constexpr int kDeinitialized = 4;
constexpr int kNoDevice = 100;

constexpr int kAttributePciBusId = 33;
constexpr int kAttributePciDeviceId = 34;
constexpr int kAttributePciDomainId = 50;
constexpr int kAttributeVirtualMemory = 102;
constexpr int kAttributeRdmaWithVirtualMemory = 110;
constexpr int kAttributeRdma = 116;
constexpr int kAttributeDmabuf = 124;

constexpr int kPointerMemoryType = 2;
constexpr int kPointerSyncMemops = 6;
constexpr int kPointerDeviceOrdinal = 9;
constexpr int kPointerRangeStart = 11;
constexpr int kPointerRangeSize = 12;
constexpr unsigned kMemoryTypeDevice = 2;

constexpr int kLocationDevice = 1;
constexpr int kAllocationPinned = 1;
constexpr int kGranularityRecommended = 1;
constexpr int kAccessReadWrite = 3;
constexpr int kHandleDmabufFd = 1;

struct Location {
  int type;
  int id;
};

struct AllocationProp {
  int type;
  int requested_handle_types;
  Location location;
  void* win32_meta_data;
  unsigned char compression_type;
  unsigned char rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};

struct AccessDesc {
  Location location;
  int flags;
};

// FN(name, name in the library, parameters)
#define RDMA_CUDA_FUNCTIONS(FN)                                              \
  FN(Init, "cuInit", (unsigned))                                             \
  FN(GetErrorName, "cuGetErrorName", (int, const char**))                    \
  FN(GetErrorString, "cuGetErrorString", (int, const char**))                \
  FN(DeviceGetCount, "cuDeviceGetCount", (int*))                             \
  FN(DeviceGet, "cuDeviceGet", (Device*, int))                               \
  FN(DeviceGetName, "cuDeviceGetName", (char*, int, Device))                 \
  FN(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t*, Device))               \
  FN(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))        \
  FN(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (Context*, Device)) \
  FN(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (Device))      \
  FN(CtxPushCurrent, "cuCtxPushCurrent_v2", (Context))                       \
  FN(CtxPopCurrent, "cuCtxPopCurrent_v2", (Context*))                        \
  FN(MemAlloc, "cuMemAlloc_v2", (Pointer*, size_t))                          \
  FN(MemFree, "cuMemFree_v2", (Pointer))                                     \
  FN(MemcpyHtoD, "cuMemcpyHtoD_v2", (Pointer, const void*, size_t))          \
  FN(MemcpyDtoH, "cuMemcpyDtoH_v2", (void*, Pointer, size_t))                \
  FN(PointerGetAttribute, "cuPointerGetAttribute", (void*, int, Pointer))    \
  FN(PointerSetAttribute, "cuPointerSetAttribute", (const void*, int, Pointer))

// Younger: those of virtual memory came with 10.2, the export with 11.7.
#define RDMA_CUDA_YOUNGER_FUNCTIONS(FN)                                                                   \
  FN(MemGetAllocationGranularity, "cuMemGetAllocationGranularity", (size_t*, const AllocationProp*, int)) \
  FN(MemCreate, "cuMemCreate", (Handle*, size_t, const AllocationProp*, unsigned long long))              \
  FN(MemRelease, "cuMemRelease", (Handle))                                                                \
  FN(MemAddressReserve, "cuMemAddressReserve", (Pointer*, size_t, size_t, Pointer, unsigned long long))   \
  FN(MemAddressFree, "cuMemAddressFree", (Pointer, size_t))                                               \
  FN(MemMap, "cuMemMap", (Pointer, size_t, size_t, Handle, unsigned long long))                           \
  FN(MemUnmap, "cuMemUnmap", (Pointer, size_t))                                                           \
  FN(MemSetAccess, "cuMemSetAccess", (Pointer, size_t, const AccessDesc*, size_t))                        \
  FN(MemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", (void*, Pointer, size_t, int, unsigned long long))

struct Functions {
#define FN(name, symbol, parameters) int(*name) parameters;
  RDMA_CUDA_FUNCTIONS(FN)
  RDMA_CUDA_YOUNGER_FUNCTIONS(FN)
#undef FN
};

}  // namespace rdma::cuda
