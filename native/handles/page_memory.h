#pragma once

#include <cstddef>
#include <memory>

#include "handles/outcome.h"

namespace rdma {

// Page-aligned memory of our own, for pd.alloc().
class PageMemory {
 public:
  // Maps zeroed memory of at least `length` bytes; huge pages of the system's default size when asked for.
  static Outcome<std::shared_ptr<PageMemory>> Map(size_t length, bool huge_pages);
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  // Large memory is unmapped soon, on a thread of its own: it takes 60 ms per GiB, and the last share goes in a
  // finalizer.
  ~PageMemory();
  void* data() const { return data_; }

 private:
  PageMemory(char* data, size_t mapped, bool huge_pages) : data_(data), mapped_(mapped), huge_pages_(huge_pages) {}
  char* data_;
  size_t mapped_;
  bool huge_pages_;
};

}  // namespace rdma
