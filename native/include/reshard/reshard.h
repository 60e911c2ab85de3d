/* The whole border of libreshard: opaque handles, sized structs, status codes, last-error text.
 *
 * Rules for every function
 *   Errors:    a function that returns reshard_status returns RESHARD_STATUS_OK or a code; the text
 *              is at reshard_last_error() of the calling thread. No exception crosses, nothing is
 *              printed and the process is never ended.
 *   Ownership: a handle belongs to the caller until its _destroy call. Pointers passed in are
 *              borrowed for the call unless a comment says longer.
 *   Threads:   a handle is used by one thread at a time, except where a comment says otherwise.
 *              Different handles are independent.
 *   fork:      a child process must not use handles made by its parent, except to destroy them.
 *   Structs:   the caller sets `size` to sizeof the struct; a smaller struct than this version
 *              knows is refused, the unknown end of a larger one is ignored. */
#ifndef RESHARD_RESHARD_H_
#define RESHARD_RESHARD_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#error "reshard supports POSIX systems only"
#endif
#define RESHARD_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---------------------------------------------------------------------------------- */

typedef int32_t reshard_status;

enum {
  RESHARD_STATUS_OK = 0,
  RESHARD_STATUS_INVALID_ARGUMENT = 1, /* the call is wrong; nothing happened */
  RESHARD_STATUS_UNSUPPORTED = 2,      /* a limit of this version; nothing happened */
  RESHARD_STATUS_OUT_OF_MEMORY = 3,
  RESHARD_STATUS_SYSTEM = 4,        /* a call of the operating system failed */
  RESHARD_STATUS_TIMEOUT = 5,       /* the deadline passed; the text says who was silent */
  RESHARD_STATUS_PEER_LOST = 6,     /* a peer process died or closed */
  RESHARD_STATUS_ABORTED = 7,       /* this process or a peer aborted the communicator */
  RESHARD_STATUS_PROTOCOL = 8,      /* the two ends disagree about what moves */
  RESHARD_STATUS_INVALID_STATE = 9, /* the handle cannot do this now (running, not connected) */
  RESHARD_STATUS_IN_PROGRESS = 10,  /* not an error: call again to go on */
  RESHARD_STATUS_INTERNAL = 11      /* a bug in this library */
};

/* The name of a status code ("timeout"), "unknown" for any other number. Static memory. */
RESHARD_API const char* reshard_status_name(reshard_status status);

/* The text of the last error of the calling thread, empty when there was none. Valid until the next
 * call on this thread that fails. */
RESHARD_API const char* reshard_last_error(void);

/* The local rank that the last error of the calling thread concerns and the rank at the other end;
 * -1 where there is no single one. Either pointer may be NULL. */
RESHARD_API void reshard_last_error_ranks(int64_t* rank, int64_t* peer);

/* ---- version --------------------------------------------------------------------------------- */

/* "0.1.0". Static memory. */
RESHARD_API const char* reshard_version(void);

/* The instruction sets that copies use on this machine: "avx2", "baseline". Static memory. */
RESHARD_API const char* reshard_cpu_features(void);

/* Writes the sizes of the structs of this header, in their order of appearance, to at most `count`
 * places of `sizes` and returns how many structs there are. For checking bindings. */
RESHARD_API size_t reshard_abi_sizes(size_t* sizes, size_t count);

/* ---- libraries of NVIDIA --------------------------------------------------------------------- */

/* One copy of NCCL. All ranks of an NCCL communicator must run the same version, and a process can
 * have several copies open, so it says which one it means. */
typedef struct reshard_nccl reshard_nccl;

/* The CUDA driver of this machine. */
typedef struct reshard_cuda reshard_cuda;

/* Opens a copy of NCCL by the path of its file, or by its name ("libnccl.so.2") what the process
 * has open already or the loader finds. The file stays open until the process ends.
 * Errors: INVALID_ARGUMENT; UNSUPPORTED naming what is missing: file, function, newer version. */
RESHARD_API reshard_status reshard_nccl_open(const char* name, reshard_nccl** nccl);

/* Frees a handle; NULL is allowed. */
RESHARD_API void reshard_nccl_destroy(reshard_nccl* nccl);

/* 23203 for NCCL 2.32.3. Any thread. */
RESHARD_API int32_t reshard_nccl_version(const reshard_nccl* nccl);

/* The file that is open; lives as long as the handle. Any thread. */
RESHARD_API const char* reshard_nccl_path(const reshard_nccl* nccl);

/* Opens the CUDA driver by path or name ("libcuda.so.1") and initialises it; makes no context.
 * Errors: INVALID_ARGUMENT; UNSUPPORTED saying what is missing or what the driver says. */
RESHARD_API reshard_status reshard_cuda_open(const char* name, reshard_cuda** cuda);

/* Frees a handle; NULL is allowed. */
RESHARD_API void reshard_cuda_destroy(reshard_cuda* cuda);

/* The newest CUDA that the driver supports: 12080 for 12.8. Any thread. */
RESHARD_API int32_t reshard_cuda_version(const reshard_cuda* cuda);

/* GPUs that this process may use. Any thread. */
RESHARD_API int32_t reshard_cuda_num_devices(const reshard_cuda* cuda);

/* As reshard_nccl_path. */
RESHARD_API const char* reshard_cuda_path(const reshard_cuda* cuda);

/* ---- kernels -------------------------------------------------------------------------------- */

/* The kernels that pack, unpack and fingerprint on a GPU, compiled for one architecture. */
typedef struct reshard_kernels reshard_kernels;

/* The whole text that is compiled: it includes no header. Static memory. */
RESHARD_API const char* reshard_kernels_source(void);

/* Opens NVRTC, CUDA's run-time compiler, by path or name ("libnvrtc.so.12") and says its version:
 * 12090 for 12.9. The file stays open until the process ends; no GPU is needed.
 * Errors: INVALID_ARGUMENT; UNSUPPORTED saying what is missing. */
RESHARD_API reshard_status reshard_nvrtc_version(const char* nvrtc, int32_t* version);

/* Compiles the kernels for an architecture such as "sm_90" with the NVRTC of that path or name.
 * Takes seconds. Errors: INVALID_ARGUMENT; UNSUPPORTED saying what is missing, or that this NVRTC
 * does not know the architecture; INTERNAL with what the compiler says. */
RESHARD_API reshard_status reshard_kernels_compile(const char* nvrtc, const char* arch,
                                                   reshard_kernels** kernels);

/* Frees a handle; NULL is allowed. */
RESHARD_API void reshard_kernels_destroy(reshard_kernels* kernels);

/* The machine code (a cubin); lives as long as the handle. Any thread. */
RESHARD_API const void* reshard_kernels_image(const reshard_kernels* kernels);

/* Its bytes. Any thread. */
RESHARD_API uint64_t reshard_kernels_image_size(const reshard_kernels* kernels);

/* What the compiler says of each kernel: registers, spills, shared memory. As
 * reshard_kernels_image. */
RESHARD_API const char* reshard_kernels_log(const reshard_kernels* kernels);

/* ---- program --------------------------------------------------------------------------------- */

/* What one process sends, receives and zero-fills in a run. Immutable after creation, except that
 * it holds the state of its one current run. */
typedef struct reshard_program reshard_program;

/* Where and how bytes travel between processes. */
typedef struct reshard_communicator reshard_communicator;

/* Flat tables of int64, and one of float64; lengths count values.
 *
 * streams:    rows of 3: direction (0 send, 1 receive), src_rank, dst_rank. A stream is all that
 *             one rank sends to another in one run. When both ranks belong to this process the
 *             stream has two rows and never meets a communicator.
 * operations: rows of 6 + 2 * ndim: stream (row of the streams table), buffer, offset_bytes,
 *             memory dtype code, wire dtype code, ndim, sizes (outermost first), strides in bytes.
 *             The operations of a stream are in the same order, with the same sizes and wire
 *             dtypes, on both ends; buffer, offset, strides and memory dtype are each end's own.
 *             Sizes may be 0. Strides may be negative; 0 (repeat) only on the sending end.
 * zeros:      rows of 4 + 2 * ndim: buffer, offset_bytes, element_size, ndim, sizes, strides in
 *             bytes. Zero-filled in every run.
 * rules:      rows of 6: scale, divisor, offset of the source, then of the destination, all finite,
 *             scales and divisors not 0. An element becomes element * scale / divisor + offset,
 * less the destination's offset, times its divisor, over its scale; in float64, each step rounded,
 * what is 1 or an offset of 0 left out. Then it is cast: to float32 first, unless what is written
 * is float64. changes:    empty, or one value per operation: the row of rules for elements that are
 * read, or -1. extents:    rows of 2, one per buffer: low, high. Operations and zeros of that
 * buffer touch only bytes [low, high) from its pointer; anything else is refused at creation.
 *
 * A program moves either in chunks (num_rounds 0, over a communicator of shared memory or none) or
 * in rounds (over one of NCCL). With rounds:
 * hops:       one value per stream: 0 where it is read from what a source holds, else how many
 *             transfers must have brought it to the sending rank. Streams of one pair of ranks and
 *             different hops are different streams. Hop h of round k is in slot k + h.
 * spans:      rows of 3, one per operation: start, stop, total: it moves evenly from start / total
 *             to stop / total of all rounds. The same on both ends. */
typedef struct reshard_program_tables {
  uint64_t size;
  const int64_t* streams;
  uint64_t streams_length;
  const int64_t* operations;
  uint64_t operations_length;
  const int64_t* zeros;
  uint64_t zeros_length;
  const int64_t* extents;
  uint64_t extents_length;
  int64_t num_buffers;
  int64_t chunk_bytes; /* largest message, 16..2^30; the same on both ends of every stream */
  const int64_t* hops;
  uint64_t hops_length;
  const int64_t* spans;
  uint64_t spans_length;
  int64_t num_rounds; /* 0..2^20; above 0 for GPUs; the same on all processes */
  int64_t num_groups; /* with rounds 1..2^20: of messages in a slot, by pairs of ranks; likewise */
  int64_t messages_per_pair; /* with rounds 1..2^20: of a pair in one group at most; likewise */
  const double* rules;
  uint64_t rules_length;
  const int64_t* changes;
  uint64_t changes_length;
} reshard_program_tables;

/* What a program moves per run. Bytes are wire bytes. */
typedef struct reshard_program_info {
  uint64_t size;
  int64_t num_streams;
  int64_t num_local_streams;
  int64_t num_operations; /* with at least one element */
  int64_t num_chunks;     /* messages sent + received + local */
  int64_t bytes_to_send;
  int64_t bytes_to_receive;
  int64_t bytes_local;
} reshard_program_info;

/* With rounds, the caller names the stream that its work on each local rank's GPU is on, ascending
 * by rank: the run begins after what is queued there by then, and later work there waits for the
 * run. */
typedef struct reshard_run_options {
  uint64_t size;
  uint64_t run_id;         /* the same on all processes of a run, new for each run */
  int64_t timeout_ns;      /* from reshard_program_begin to the end of the run; > 0 */
  int32_t num_threads;     /* threads that may copy, 1..256; kept until the program is destroyed */
  int32_t reserved;        /* 0 */
  const uint64_t* streams; /* CUDA streams, see above; NULL: the default stream of each GPU */
  uint64_t num_streams;    /* as many as local ranks, or 0 */
} reshard_run_options;

/* What the local ranks of a process do in rounds. */
typedef struct reshard_rounds_info {
  uint64_t size;
  int64_t staging_bytes; /* of the rank that needs most */
  int64_t num_slots;     /* in which this process has something to do */
  int64_t num_messages;  /* sent and received */
  int64_t largest_group; /* messages that one rank posts together */
} reshard_rounds_info;

typedef struct reshard_run_stats {
  uint64_t size;
  int64_t bytes_sent; /* to other processes */
  int64_t bytes_received;
  int64_t bytes_local; /* between ranks of this process */
  int64_t chunks;      /* messages sent + received + local */
  int64_t ns_pack;
  int64_t ns_unpack;
  int64_t ns_wait;
  int64_t ns_total;
  int64_t peak_staging_bytes; /* ring slots and bounce buffer that this process holds */
} reshard_run_stats;

/* Checks the tables and builds a program; tables are not used afterwards.
 * Errors: INVALID_ARGUMENT naming table, row and values; UNSUPPORTED for a cast or a change. */
RESHARD_API reshard_status reshard_program_create(const reshard_program_tables* tables,
                                                  reshard_program** program);

/* Frees what failed runs left to GPUs that are idle, and counts the runs whose rest may still read
 * and write their buffers. Any thread. */
RESHARD_API reshard_status reshard_gpu_count_leftovers(int64_t* count);

/* Frees a program; NULL is allowed. A current run is cancelled first. */
RESHARD_API void reshard_program_destroy(reshard_program* program);

/* Fills `info`. Any thread may call it at any time. */
RESHARD_API reshard_status reshard_program_describe(const reshard_program* program,
                                                    reshard_program_info* info);

/* Fills `info` for a program with rounds. Any thread.
 *   ranks:   of this process, ascending.
 *   domains: of every rank from 0 on, or NULL: ranks of one domain have a channel of their own. */
RESHARD_API reshard_status reshard_program_describe_rounds(const reshard_program* program,
                                                           const int64_t* ranks, uint64_t num_ranks,
                                                           const int64_t* domains,
                                                           uint64_t num_domains,
                                                           reshard_rounds_info* info);

/* Starts a run: from here until the run is over the program, the communicator, the buffers and the
 * memory behind them are in use. Returns at once; reshard_program_progress moves the bytes.
 *   communicator: may be NULL when all streams are local; used by one run at a time.
 *   buffers:      num_buffers pointers, copied; a pointer may be NULL only when nothing with
 *                 elements refers to it. Buffers received into must not overlap others.
 * Errors: INVALID_ARGUMENT, INVALID_STATE (a run goes on, not connected), ABORTED, PEER_LOST. */
RESHARD_API reshard_status reshard_program_begin(reshard_program* program,
                                                 reshard_communicator* communicator,
                                                 void* const* buffers, uint64_t num_buffers,
                                                 const reshard_run_options* options);

/* Goes on with the current run for about `slice_ns` (0: as far as possible without waiting).
 * Returns OK when the run is over: all bytes for this process are in its buffers and all that it
 * sent has been taken by the receivers. Bytes that were passed on (hops) are right if the runs of
 * all processes ended so. Returns IN_PROGRESS when the slice is used up. On any error the run is
 * over, the communicator is aborted (its peers are told) and what was received is incomplete.
 * `stats` may be NULL; it is filled on OK only. */
RESHARD_API reshard_status reshard_program_progress(reshard_program* program, int64_t slice_ns,
                                                    reshard_run_stats* stats);

/* Gives up the current run and aborts the communicator with `reason` (may be NULL); does nothing
 * when there is no run. */
RESHARD_API reshard_status reshard_program_cancel(reshard_program* program, const char* reason);

/* ---- communicator ---------------------------------------------------------------------------- */

/* A communicator over shared memory: processes of one machine. Everything but `process` and the
 * peers is the same on all processes. */
typedef struct reshard_shm_options {
  uint64_t size;
  const char* session_key; /* 1..64 of [A-Za-z0-9._-]; new for every communicator of the machine */
  const char* token;       /* at most 64 bytes that all processes know; NULL: none */
  uint64_t token_length;
  int32_t process; /* index of this process */
  int32_t num_processes;
  const int32_t* rank_to_process; /* num_ranks process indices */
  uint64_t num_ranks;
  const int32_t* send_peers; /* processes that this one sends to */
  uint64_t num_send_peers;
  const int32_t* receive_peers; /* processes that this one receives from */
  uint64_t num_receive_peers;
  int64_t slot_bytes;     /* largest message, 16..2^30; usual: 262144 */
  int32_t slots_per_ring; /* 1..32; usual: 4 */
  int32_t reserved;       /* 0 */
} reshard_shm_options;

/* Makes this process's shared memory, life sign thread and name; does not wait for anybody.
 * Errors: INVALID_ARGUMENT; INVALID_STATE when a live process has this key and index; SYSTEM. */
RESHARD_API reshard_status reshard_communicator_create_shm(const reshard_shm_options* options,
                                                           reshard_communicator** communicator);

enum { RESHARD_NCCL_ID_BYTES = 128 };

/* Writes what names a new NCCL communicator, RESHARD_NCCL_ID_BYTES bytes, for one process to give
 * to all. Errors: SYSTEM with NCCL's words. */
RESHARD_API reshard_status reshard_nccl_make_id(const reshard_nccl* nccl, void* id);

/* A communicator over NCCL: ranks with a GPU each. All but the fields of local ranks is the same on
 * all processes, and NCCL's version as well. Where `images` or an entry of it is NULL, the driver
 * alone copies: it cannot cast or add up fingerprints. */
typedef struct reshard_nccl_options {
  uint64_t size;
  const reshard_nccl* nccl; /* may be destroyed after the call, and so may `cuda` */
  const reshard_cuda* cuda;
  const void* id;       /* from reshard_nccl_make_id of one process */
  const int64_t* ranks; /* of all processes, ascending; they may leave out numbers */
  uint64_t num_ranks;
  const int64_t* local_ranks; /* of this process, ascending */
  const int32_t* devices;     /* GPU of each */
  const void* const* images;  /* compiled kernels of each, see above */
  const uint64_t* image_sizes;
  uint64_t num_local_ranks;
  const int64_t* domains; /* of each of `ranks`; NULL: no exchange inside domains */
} reshard_nccl_options;

/* Makes this process's end; does not wait for anybody.
 * Errors: INVALID_ARGUMENT; SYSTEM with CUDA's words. */
RESHARD_API reshard_status reshard_communicator_create_nccl(const reshard_nccl_options* options,
                                                            reshard_communicator** communicator);

/* "sm_90" for a GPU of this machine, at most 15 characters and a zero.
 * Errors: INVALID_ARGUMENT for a device that there is not; SYSTEM. */
RESHARD_API reshard_status reshard_cuda_architecture(const reshard_cuda* cuda, int32_t device,
                                                     char name[16]);

/* Pairs up with all peers. Goes on for about `slice_ns`; IN_PROGRESS: call again. `timeout_ns`
 * counts from the first call. Errors: TIMEOUT naming who is missing, PROTOCOL when a peer is set up
 * differently, PEER_LOST, ABORTED. After an error only destroy is useful. */
RESHARD_API reshard_status reshard_communicator_connect(reshard_communicator* communicator,
                                                        int64_t timeout_ns, int64_t slice_ns);

/* Whether all peers live and nobody has aborted; takes about a microsecond. A peer that closed in
 * an orderly way is no error. Any thread may call it at any time between create and destroy.
 * Errors: PEER_LOST, ABORTED. */
RESHARD_API reshard_status reshard_communicator_check_peers(reshard_communicator* communicator);

/* Makes the current run of this process and of all processes connected to it fail with ABORTED and
 * `reason` (may be NULL), and refuses later runs. The first reason stays. Any thread may call it at
 * any time between create and destroy. */
RESHARD_API reshard_status reshard_communicator_abort(reshard_communicator* communicator,
                                                      const char* reason);

/* Tells the peers that nothing more comes and frees everything; NULL is allowed. A run that is
 * under way on it fails at its next progress call. In a child made by fork it frees nothing that
 * belongs to the parent. */
RESHARD_API void reshard_communicator_destroy(reshard_communicator* communicator);

/* ---- fingerprint ----------------------------------------------------------------------------- */

/* Adds to sums[slot] the layout-independent fingerprint of every region of a table, modulo 2^64.
 *   regions: rows of 9 + 3 * ndim: slot, buffer, offset_bytes, memory dtype code, stored dtype code
 *            (elements are cast to it first), row of rules or -1 (and changed before), seed (64
 *            bits), ndim, sizes, strides in bytes, index strides, index base. Element (i, j, ..)
 * has the canonical index base + i * its index stride + j * its index stride + .. rules:   as those
 * of a program. buffers: num_buffers pointers; the caller answers for what the regions touch. Any
 * thread. Errors: INVALID_ARGUMENT, UNSUPPORTED, naming the row; the sums are unchanged. */
RESHARD_API reshard_status reshard_fingerprint(const int64_t* regions, uint64_t regions_length,
                                               const double* rules, uint64_t rules_length,
                                               void* const* buffers, uint64_t num_buffers,
                                               uint64_t* sums, uint64_t num_slots);

/* The same for regions in the memory of the GPUs of this process's ranks, which a communicator over
 * NCCL knows; waits for them. The memory must be complete as seen from the host.
 * Errors: as reshard_fingerprint; UNSUPPORTED without compiled kernels; TIMEOUT; SYSTEM. */
RESHARD_API reshard_status reshard_communicator_fingerprint(
    reshard_communicator* communicator, const int64_t* regions, uint64_t regions_length,
    const double* rules, uint64_t rules_length, void* const* buffers, uint64_t num_buffers,
    uint64_t* sums, uint64_t num_slots, int64_t timeout_ns);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* RESHARD_RESHARD_H_ */
