/* What a test says to the double of NCCL, and asks of it. C, also for ctypes. */
#ifndef RESHARD_TESTS_DOUBLES_NCCL_NCCL_DOUBLE_H_
#define RESHARD_TESTS_DOUBLES_NCCL_NCCL_DOUBLE_H_

#include "nccl/nccl_names.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes something happen in this process; 0, or 1 for an unknown name. Groups count from 1: the
 * next one that has operations is group 1. A value of 0 takes the injection back. Names:
 *   async_error_group  the communicators of that group have an asynchronous error, and it hangs
 *   async_error_code   which one (2 if not said)
 *   hang_group         that group never ends
 *   kill_group         this process ends by SIGKILL while that group moves bytes
 *   hang_init          initialisation does not come to an end, while it is not 0
 *   hang_split         likewise for splits alone; hang_finalize for what is finalized
 *   abort_ms           an abort takes so long, though all has ended by then; destroy_ms likewise
 *   fail_init          initialisation ends with this code, while it is not 0
 *   delay_us           each group starts so much later
 *   polls              how often a communicator is asked, at most, before a group is launched
 * The environment variable NCCL_DOUBLE_INJECT="name=value,..." says the same at the start. */
NCCL_DOUBLE_EXPORT int ncclDoubleInject(const char* name, long value);

/* A number; -1 for an unknown name. Names:
 *   groups, operations, largest_group   issued since the reset; operations outside of a group are
 *                                       groups of one
 *   bytes_sent                          by sends that ended
 *   communicators                       live ones
 *   destroyed                           after they were finalized
 *   meetings                            shared memory that is mapped, files that are open
 *   violations */
NCCL_DOUBLE_EXPORT long long ncclDoubleGet(const char* name);
/* Operations of each group since the reset, the oldest first; returns the number of groups. */
NCCL_DOUBLE_EXPORT size_t ncclDoubleGroups(long* sizes, size_t capacity);
/* Text of the violations, one a line; returns the number of bytes that all need. */
NCCL_DOUBLE_EXPORT size_t ncclDoubleViolations(char* text, size_t capacity);
/* Forgets violations, counts and injections. */
NCCL_DOUBLE_EXPORT void ncclDoubleReset(void);

#ifdef __cplusplus
}
#endif

#endif /* RESHARD_TESTS_DOUBLES_NCCL_NCCL_DOUBLE_H_ */
