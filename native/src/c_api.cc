// The C border, all but NVIDIA's libraries: arguments checked and passed on. No logic of its own.
#include "c_api.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cpu_features.h"
#include "fingerprint_table.h"
#include "program_table.h"
#include "transport/shm/shm_transport.h"

#ifndef RESHARD_VERSION
#error "RESHARD_VERSION comes from the build"
#endif

namespace {

using reshard::as_table;
using reshard::Error;
using reshard::guarded;
using reshard::require;
using reshard::require_struct;
using reshard::StatusCode;
using reshard::text;

static_assert(static_cast<int>(StatusCode::kOk) == RESHARD_STATUS_OK);
static_assert(static_cast<int>(StatusCode::kInvalidArgument) == RESHARD_STATUS_INVALID_ARGUMENT);
static_assert(static_cast<int>(StatusCode::kUnsupported) == RESHARD_STATUS_UNSUPPORTED);
static_assert(static_cast<int>(StatusCode::kOutOfMemory) == RESHARD_STATUS_OUT_OF_MEMORY);
static_assert(static_cast<int>(StatusCode::kSystem) == RESHARD_STATUS_SYSTEM);
static_assert(static_cast<int>(StatusCode::kTimeout) == RESHARD_STATUS_TIMEOUT);
static_assert(static_cast<int>(StatusCode::kPeerLost) == RESHARD_STATUS_PEER_LOST);
static_assert(static_cast<int>(StatusCode::kAborted) == RESHARD_STATUS_ABORTED);
static_assert(static_cast<int>(StatusCode::kProtocol) == RESHARD_STATUS_PROTOCOL);
static_assert(static_cast<int>(StatusCode::kInvalidState) == RESHARD_STATUS_INVALID_STATE);
static_assert(static_cast<int>(StatusCode::kInProgress) == RESHARD_STATUS_IN_PROGRESS);
static_assert(static_cast<int>(StatusCode::kInternal) == RESHARD_STATUS_INTERNAL);

std::vector<int> as_indices(const int32_t* data, uint64_t length, const char* what) {
  if (length > 0) require(data, what);
  return std::vector<int>(data, data + length);
}

reshard::ShmConfig as_config(const reshard_shm_options& options) {
  require(options.session_key, "options.session_key");
  if (options.token_length > 0) require(options.token, "options.token");
  reshard::ShmConfig config;
  config.session_key = options.session_key;
  if (options.token_length > 0) {
    config.token.assign(options.token, static_cast<std::size_t>(options.token_length));
  }
  config.process = options.process;
  config.num_processes = options.num_processes;
  config.rank_to_process =
      as_indices(options.rank_to_process, options.num_ranks, "options.rank_to_process");
  config.send_peers = as_indices(options.send_peers, options.num_send_peers, "options.send_peers");
  config.receive_peers =
      as_indices(options.receive_peers, options.num_receive_peers, "options.receive_peers");
  config.geometry = {options.slot_bytes, options.slots_per_ring};
  return config;
}

reshard::RunOptions as_options(const reshard_run_options& options) {
  if (options.num_streams > 0) require(options.streams, "options.streams");
  const uint64_t* streams = options.streams;
  return {options.run_id,
          options.timeout_ns,
          options.num_threads,
          {streams, streams == nullptr ? nullptr : streams + options.num_streams}};
}

}  // namespace

extern "C" {

const char* reshard_status_name(reshard_status status) { return reshard::status_name(status); }

const char* reshard_last_error(void) { return reshard::last_error().message.c_str(); }

void reshard_last_error_ranks(int64_t* rank, int64_t* peer) {
  if (rank != nullptr) *rank = reshard::last_error().rank;
  if (peer != nullptr) *peer = reshard::last_error().peer;
}

const char* reshard_version(void) { return RESHARD_VERSION; }

const char* reshard_cpu_features(void) {
  static const std::string features = reshard::describe_cpu_features();
  return features.c_str();
}

size_t reshard_abi_sizes(size_t* sizes, size_t count) {
  constexpr size_t kSizes[] = {sizeof(reshard_program_tables), sizeof(reshard_program_info),
                               sizeof(reshard_run_options),    sizeof(reshard_rounds_info),
                               sizeof(reshard_run_stats),      sizeof(reshard_shm_options),
                               sizeof(reshard_nccl_options)};
  constexpr size_t kCount = sizeof(kSizes) / sizeof(kSizes[0]);
  if (sizes != nullptr) std::copy_n(kSizes, std::min(count, kCount), sizes);
  return kCount;
}

reshard_status reshard_program_create(const reshard_program_tables* tables,
                                      reshard_program** program) {
  return guarded([&] {
    require_struct(tables, "tables");
    require(program, "program");
    *program = nullptr;
    const reshard::ProgramTables parsed{
        as_table(tables->streams, tables->streams_length, "tables.streams"),
        as_table(tables->operations, tables->operations_length, "tables.operations"),
        as_table(tables->zeros, tables->zeros_length, "tables.zeros"),
        as_table(tables->extents, tables->extents_length, "tables.extents"),
        tables->num_buffers,
        tables->chunk_bytes,
        as_table(tables->hops, tables->hops_length, "tables.hops"),
        as_table(tables->spans, tables->spans_length, "tables.spans"),
        tables->num_rounds,
        tables->num_groups,
        tables->messages_per_pair,
        reshard::as_rules(tables->rules, tables->rules_length, "tables.rules"),
        as_table(tables->changes, tables->changes_length, "tables.changes")};
    *program = new reshard_program(reshard::read_program(parsed));
    return RESHARD_STATUS_OK;
  });
}

void reshard_program_destroy(reshard_program* program) {
  if (program == nullptr) return;
  reshard_program_cancel(program, "the program was destroyed during a run");
  delete program;
}

reshard_status reshard_program_describe(const reshard_program* program,
                                        reshard_program_info* info) {
  return guarded([&] {
    require(program, "program");
    require_struct(info, "info");
    const reshard::Program& built = program->program;
    reshard_program_info result{};
    result.size = info->size;
    result.num_streams = static_cast<int64_t>(built.streams.size());
    result.num_local_streams = static_cast<int64_t>(built.local_streams.size());
    result.num_operations = static_cast<int64_t>(built.operations.size());
    for (const std::uint32_t s : built.remote_streams) {
      const reshard::Stream& stream = built.streams[s];
      result.num_chunks += stream.num_chunks;
      const bool is_send = stream.direction == reshard::Direction::kSend;
      (is_send ? result.bytes_to_send : result.bytes_to_receive) += stream.nbytes;
    }
    for (const reshard::LocalStream& pair : built.local_streams) {
      result.num_chunks += built.streams[pair.send].num_chunks;
      result.bytes_local += built.streams[pair.send].nbytes;
    }
    *info = result;
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_program_begin(reshard_program* program, reshard_communicator* communicator,
                                     void* const* buffers, uint64_t num_buffers,
                                     const reshard_run_options* options) {
  return guarded([&] {
    require(program, "program");
    if (num_buffers > 0) require(buffers, "buffers");
    require_struct(options, "options");
    std::shared_ptr<reshard::Transport> transport;
    if (communicator != nullptr) transport = communicator->communicator.transport();
    program->executor->begin(std::move(transport), buffers, static_cast<std::size_t>(num_buffers),
                             as_options(*options));
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_program_progress(reshard_program* program, int64_t slice_ns,
                                        reshard_run_stats* stats) {
  return guarded([&]() -> reshard_status {
    require(program, "program");
    if (stats != nullptr) require_struct(stats, "stats");
    if (slice_ns < 0) {
      throw Error(StatusCode::kInvalidArgument, text("slice_ns is ", slice_ns, ", below 0."));
    }
    if (!program->executor->progress(slice_ns)) return RESHARD_STATUS_IN_PROGRESS;
    if (stats == nullptr) return RESHARD_STATUS_OK;
    const reshard::RunStats& done = program->executor->stats();
    *stats = {stats->size,   done.bytes_sent,        done.bytes_received, done.bytes_local,
              done.chunks,   done.ns_pack,           done.ns_unpack,      done.ns_wait,
              done.ns_total, done.peak_staging_bytes};
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_program_cancel(reshard_program* program, const char* reason) {
  return guarded([&] {
    require(program, "program");
    program->executor->cancel(reason == nullptr ? "the run was cancelled" : reason);
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_communicator_create_shm(const reshard_shm_options* options,
                                               reshard_communicator** communicator) {
  return guarded([&] {
    require_struct(options, "options");
    require(communicator, "communicator");
    *communicator = nullptr;
    *communicator =
        new reshard_communicator(std::make_shared<reshard::ShmTransport>(as_config(*options)));
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_communicator_connect(reshard_communicator* communicator, int64_t timeout_ns,
                                            int64_t slice_ns) {
  return guarded([&]() -> reshard_status {
    require(communicator, "communicator");
    if (timeout_ns <= 0 || slice_ns < 0) {
      throw Error(StatusCode::kInvalidArgument,
                  text("timeout_ns ", timeout_ns, " or slice_ns ", slice_ns, " is out of range."));
    }
    const bool is_complete = communicator->communicator.transport()->connect(timeout_ns, slice_ns);
    return is_complete ? RESHARD_STATUS_OK : RESHARD_STATUS_IN_PROGRESS;
  });
}

reshard_status reshard_communicator_check_peers(reshard_communicator* communicator) {
  return guarded([&] {
    require(communicator, "communicator");
    communicator->communicator.transport()->check_peers();
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_communicator_abort(reshard_communicator* communicator, const char* reason) {
  return guarded([&] {
    require(communicator, "communicator");
    const char* why = reason == nullptr ? "the caller asked for it." : reason;
    communicator->communicator.transport()->abort(Error(StatusCode::kAborted, why));
    return RESHARD_STATUS_OK;
  });
}

void reshard_communicator_destroy(reshard_communicator* communicator) { delete communicator; }

reshard_status reshard_fingerprint(const int64_t* regions, uint64_t regions_length,
                                   const double* rules, uint64_t rules_length, void* const* buffers,
                                   uint64_t num_buffers, uint64_t* sums, uint64_t num_slots) {
  return guarded([&] {
    if (num_buffers > 0) require(buffers, "buffers");
    if (num_slots > 0) require(sums, "sums");
    reshard::add_fingerprints(as_table(regions, regions_length, "regions"),
                              reshard::as_rules(rules, rules_length, "rules"), buffers,
                              static_cast<std::size_t>(num_buffers), sums,
                              static_cast<std::size_t>(num_slots));
    return RESHARD_STATUS_OK;
  });
}

}  // extern "C"
