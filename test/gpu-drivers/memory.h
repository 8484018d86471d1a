/* What both stand-ins are made of: memory that can be exported, a log of the calls, and what a test wants to go wrong.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
/* What a library of an older driver has not got. */
#ifdef OLD
#define EXPORT_YOUNGER __attribute__((unused)) static
#else
#define EXPORT_YOUNGER EXPORT
#endif

struct memory {
  uint8_t* data;
  size_t size;
  int fd;
  int device;
  struct memory* next;
};

/* Null where the host has no memory. */
struct memory* memory_new(size_t size, int device);
/* The memory that an address lies in, or null. */
struct memory* memory_of(uint64_t address);
void memory_free(struct memory* memory);
/* To an address, where `from` is not null, or from it; 0 where the range is not in one memory. */
int memory_copy(uint64_t address, const void* from, void* to, size_t size);
/* A DMA-BUF of whole pages; -1 where the kernel has no udmabuf and the range does not begin with the memory. */
int memory_export(const struct memory* memory, uint64_t offset, size_t size);
size_t memory_count(void);

void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
/* What the test has written behind a word: a status that the function shall fail with; else the default. */
long wanted(const char* word, long otherwise);
