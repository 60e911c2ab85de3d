// The part of the C border that is about GPUs: NVIDIA's libraries and what moves over NCCL.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_api.h"
#include "gpu_device.h"
#include "gpu_leftovers.h"
#include "round_schedule.h"
#include "transport/nccl/nccl_transport.h"

namespace {

using reshard::Error;
using reshard::guarded;
using reshard::require;
using reshard::require_struct;
using reshard::StatusCode;
using reshard::text;

static_assert(sizeof(reshard::NcclUniqueId) == RESHARD_NCCL_ID_BYTES);

std::vector<std::int64_t> as_domains(const int64_t* domains, uint64_t count) {
  if (domains == nullptr) return {};
  for (uint64_t i = 0; i < count; ++i) {
    if (domains[i] >= 0 && domains[i] <= INT32_MAX) continue;
    throw Error(StatusCode::kInvalidArgument,
                text("domains: ", domains[i], " of rank ", i, " is not in 0..", INT32_MAX, "."));
  }
  return {domains, domains + count};
}

std::vector<std::int64_t> as_ranks(const int64_t* ranks, uint64_t count, const char* what) {
  if (count > 0) require(ranks, what);
  for (uint64_t i = 0; i < count; ++i) {
    if (ranks[i] >= 0 && (i == 0 || ranks[i] > ranks[i - 1])) continue;
    throw Error(StatusCode::kInvalidArgument,
                text(what, ": number ", i, " is ", ranks[i], "; they ascend from 0 on."));
  }
  return {ranks, ranks + count};
}

reshard::NcclSetup as_setup(const reshard_nccl_options& options) {
  require(options.nccl, "options.nccl");
  require(options.cuda, "options.cuda");
  require(options.id, "options.id");
  require(options.devices, "options.devices");
  if (options.num_ranks > INT32_MAX || options.num_local_ranks < 1) {
    throw Error(StatusCode::kInvalidArgument,
                text("options: num_ranks ", options.num_ranks, " is above ", INT32_MAX,
                     " or num_local_ranks ", options.num_local_ranks, " is 0."));
  }
  reshard::NcclSetup setup{};
  setup.api = options.nccl->api;
  std::memcpy(&setup.id, options.id, sizeof(setup.id));
  setup.members = as_ranks(options.ranks, options.num_ranks, "options.ranks");
  setup.domains = as_domains(options.domains, options.num_ranks);
  const std::vector<std::int64_t> ranks =
      as_ranks(options.local_ranks, options.num_local_ranks, "options.local_ranks");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!std::binary_search(setup.members.begin(), setup.members.end(), ranks[i])) {
      throw Error(StatusCode::kInvalidArgument,
                  text("options: local rank ", ranks[i], " is none of options.ranks."));
    }
    reshard::GpuRank rank{
        ranks[i],
        std::make_shared<const reshard::GpuDevice>(options.cuda->driver, options.devices[i]),
        {}};
    if (options.images != nullptr && options.images[i] != nullptr) {
      require(options.image_sizes, "options.image_sizes");
      rank.kernels.assign(static_cast<const char*>(options.images[i]),
                          static_cast<std::size_t>(options.image_sizes[i]));
    }
    setup.ranks.push_back(std::move(rank));
  }
  return setup;
}

}  // namespace

extern "C" {

reshard_status reshard_nccl_open(const char* name, reshard_nccl** nccl) {
  return guarded([&] {
    require(name, "name");
    require(nccl, "nccl");
    *nccl = nullptr;
    *nccl = new reshard_nccl{std::make_shared<const reshard::NcclApi>(name)};
    return RESHARD_STATUS_OK;
  });
}

void reshard_nccl_destroy(reshard_nccl* nccl) { delete nccl; }

int32_t reshard_nccl_version(const reshard_nccl* nccl) { return nccl->api->version(); }

const char* reshard_nccl_path(const reshard_nccl* nccl) { return nccl->api->path().c_str(); }

reshard_status reshard_cuda_open(const char* name, reshard_cuda** cuda) {
  return guarded([&] {
    require(name, "name");
    require(cuda, "cuda");
    *cuda = nullptr;
    *cuda = new reshard_cuda{std::make_shared<const reshard::CudaDriver>(name)};
    return RESHARD_STATUS_OK;
  });
}

void reshard_cuda_destroy(reshard_cuda* cuda) { delete cuda; }

int32_t reshard_cuda_version(const reshard_cuda* cuda) { return cuda->driver->version(); }

int32_t reshard_cuda_num_devices(const reshard_cuda* cuda) { return cuda->driver->num_devices(); }

const char* reshard_cuda_path(const reshard_cuda* cuda) { return cuda->driver->path().c_str(); }

reshard_status reshard_cuda_architecture(const reshard_cuda* cuda, int32_t device, char name[16]) {
  return guarded([&] {
    require(cuda, "cuda");
    require(name, "name");
    const std::string found = reshard::GpuDevice(cuda->driver, device).architecture();
    if (found.size() >= 16) throw Error(StatusCode::kInternal, text(found, " is too long."));
    std::memcpy(name, found.c_str(), found.size() + 1);
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_nccl_make_id(const reshard_nccl* nccl, void* id) {
  return guarded([&] {
    require(nccl, "nccl");
    require(id, "id");
    const reshard::NcclUniqueId made = nccl->api->make_id();
    std::memcpy(id, &made, sizeof(made));
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_communicator_create_nccl(const reshard_nccl_options* options,
                                                reshard_communicator** communicator) {
  return guarded([&] {
    require_struct(options, "options");
    require(communicator, "communicator");
    *communicator = nullptr;
    *communicator =
        new reshard_communicator(std::make_shared<reshard::NcclTransport>(as_setup(*options)));
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_communicator_fingerprint(reshard_communicator* communicator,
                                                const int64_t* regions, uint64_t regions_length,
                                                const double* rules, uint64_t rules_length,
                                                void* const* buffers, uint64_t num_buffers,
                                                uint64_t* sums, uint64_t num_slots,
                                                int64_t timeout_ns) {
  return guarded([&] {
    require(communicator, "communicator");
    if (num_buffers > 0) require(buffers, "buffers");
    if (num_slots > 0) require(sums, "sums");
    const auto transport =
        std::dynamic_pointer_cast<reshard::GroupTransport>(communicator->communicator.transport());
    if (transport == nullptr) {
      throw Error(StatusCode::kInvalidArgument,
                  "communicator: it is none over NCCL, so its ranks have no GPUs.");
    }
    if (communicator->fingerprints == nullptr) {
      communicator->fingerprints =
          std::make_unique<reshard::GpuFingerprints>(transport->local_ranks());
    }
    const auto slots = static_cast<std::size_t>(num_slots);
    communicator->fingerprints->add(
        reshard::read_fingerprint_rows(reshard::as_table(regions, regions_length, "regions"),
                                       reshard::as_rules(rules, rules_length, "rules"), buffers,
                                       static_cast<std::size_t>(num_buffers), slots),
        buffers, sums, timeout_ns);
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_gpu_count_leftovers(int64_t* count) {
  return guarded([&] {
    require(count, "count");
    *count = static_cast<int64_t>(reshard::free_leftovers());
    return RESHARD_STATUS_OK;
  });
}

reshard_status reshard_program_describe_rounds(const reshard_program* program, const int64_t* ranks,
                                               uint64_t num_ranks, const int64_t* domains,
                                               uint64_t num_domains, reshard_rounds_info* info) {
  return guarded([&] {
    require(program, "program");
    require_struct(info, "info");
    const std::vector<std::int64_t> places = as_domains(domains, num_domains);
    const auto shares_domain = [&](std::int64_t a, std::int64_t b) {
      const auto limit = static_cast<std::int64_t>(places.size());
      return a < limit && b < limit &&
             places[static_cast<std::size_t>(a)] == places[static_cast<std::size_t>(b)];
    };
    const reshard::RoundSchedule schedule = reshard::make_round_schedule(
        program->program, as_ranks(ranks, num_ranks, "ranks"), shares_domain);
    reshard_rounds_info result{};
    result.size = info->size;
    for (const reshard::RankRounds& rank : schedule.ranks) {
      result.staging_bytes = std::max(result.staging_bytes, rank.staging_bytes);
    }
    result.num_slots = static_cast<int64_t>(schedule.slots.size());
    result.num_messages = schedule.num_messages;
    result.largest_group = schedule.largest_group;
    *info = result;
    return RESHARD_STATUS_OK;
  });
}

}  // extern "C"
