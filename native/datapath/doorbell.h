// The data path's one crossing. TypeScript writes C structs in place, in memory shared with the addon, at the offsets
// of lib/native/layout.gen.ts; then it says which list is meant in the words of the doorbell, and rings.
//
// One function serves all lists, with neither arguments nor a result: V8 can then compile the call inline, which it
// cannot for a function per list, and nothing is unwrapped or converted. Measured on Node 20: 12 ns a call, against 26
// for a function per list and 80 for a method of a wrapped object.
#pragma once

#include <napi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "datapath/work_queue.h"

namespace rdma {

// Words of the doorbell: what is asked for, and what came of it.
enum DoorbellWord { kList = 0, kCount = 1, kResult = 2, kIndex = 3, kDoorbellWords = 4 };

// What came of a post that took all: the numbers of the queue's requests have entered a new era (WorkQueue::Push).
constexpr int32_t kNewEra = -1;

// An array of structs shared with TypeScript. It lives as long as its ArrayBuffer, which is V8's own memory: that works
// too where V8 forbids memory of others, and V8 does not move it.
class SharedList {
 public:
  SharedList() = default;
  SharedList(const SharedList&) = delete;
  SharedList& operator=(const SharedList&) = delete;
  virtual ~SharedList() = default;

  // Posts or polls, as the words say. The count is checked here: it decides how much memory is touched.
  virtual void Ring(int32_t* words) = 0;
};

class Doorbell {
 public:
  explicit Doorbell(Napi::Env env);

  // The {memory, list} that TypeScript gets: the structs, and the number to ring with.
  static Napi::Object Publish(Napi::ArrayBuffer memory, std::unique_ptr<SharedList> list);

  void Export(Napi::Object exports);

  WorkQueues queues;

 private:
  static napi_value Ring(napi_env env, napi_callback_info info);

  Napi::Reference<Napi::ArrayBuffer> memory_;
  int32_t* words_;
  // By number; null where one was freed.
  std::vector<std::unique_ptr<SharedList>> lists_;
  std::vector<uint32_t> free_;
};

}  // namespace rdma
