/* What a test says to the double of the CUDA driver, and asks of it. C, also for ctypes. */
#ifndef RESHARD_TESTS_DOUBLES_CUDA_CUDA_DOUBLE_H_
#define RESHARD_TESTS_DOUBLES_CUDA_CUDA_DOUBLE_H_

#include "cuda/cuda_names.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes memory of the test be memory of a device, or pinned host memory where `device` is -1.
 * Returns 0, or 1 where a part of it is known already; the very same memory can be registered
 * several times, and is known until it was unregistered as often. */
CUDA_DOUBLE_EXPORT int cudaDoubleRegister(void* address, size_t nbytes, int device);
CUDA_DOUBLE_EXPORT int cudaDoubleUnregister(void* address);

/* A number; `device` -1 means all of them. -1 for an unknown name. Names:
 *   allocated_bytes, peak_bytes  device memory by cuMemAlloc (registered memory does not count)
 *   pinned_bytes, peak_pinned_bytes, registered_bytes
 *   allocations                  live ones of both kinds, not registered ones
 *   streams, events, modules     live ones; streams without the default ones
 *   contexts                     how often primary contexts are retained now
 *   threads                      workers of streams that run
 *   launches, copies, memsets    issued since the reset
 *   violations */
CUDA_DOUBLE_EXPORT long long cudaDoubleGet(const char* name, int device);
/* Text of the violations, one a line; returns the number of bytes that all need. */
CUDA_DOUBLE_EXPORT size_t cudaDoubleViolations(char* text, size_t capacity);
/* Forgets violations, counts, peaks and errors that stick to a device. */
CUDA_DOUBLE_EXPORT void cudaDoubleReset(void);
/* Seed and longest delay before a job, for streams that are made from now on. */
CUDA_DOUBLE_EXPORT void cudaDoubleSetDelay(unsigned long long seed, int max_delay_us);
/* Bytes between rows of a copy or a fill at most; for devices that are looked up from now on. */
CUDA_DOUBLE_EXPORT void cudaDoubleSetMaxPitch(int nbytes);
/* Waits until no stream has work; 0, or 1 if that took longer. */
CUDA_DOUBLE_EXPORT int cudaDoubleDrain(int timeout_ms);

/* ---- for the double of NCCL only */

typedef struct {
  const void* address;
  size_t nbytes;
} CudaDoubleRange;

CUDA_DOUBLE_EXPORT int cudaDoubleCurrentDevice(void); /* -1 without a context */
CUDA_DOUBLE_EXPORT int cudaDoublePhysicalDevice(int device);
/* Whether the stream can be used by work of the device: 0 or an error (and a violation). */
CUDA_DOUBLE_EXPORT int cudaDoubleCheckStream(void* stream, int device, const char* who);
/* Queues work on a stream; `ranges` must not be freed before it ran. Returns a number for
 * cudaDoubleForget, or 0 where the stream is none. `run` may block. */
CUDA_DOUBLE_EXPORT unsigned long long cudaDoubleQueue(void* stream, int device,
                                                      void (*run)(void* argument), void* argument,
                                                      const CudaDoubleRange* ranges,
                                                      size_t num_ranges);
/* The work will not touch its ranges (any more). */
CUDA_DOUBLE_EXPORT void cudaDoubleForget(unsigned long long work);
/* Keeps memory from going away: null and a violation where it is not inside one allocation. */
CUDA_DOUBLE_EXPORT void* cudaDoubleHold(const void* address, size_t nbytes, int device,
                                        const char* who);
CUDA_DOUBLE_EXPORT void cudaDoubleLetGo(void* hold);

#ifdef __cplusplus
}
#endif

#endif /* RESHARD_TESTS_DOUBLES_CUDA_CUDA_DOUBLE_H_ */
