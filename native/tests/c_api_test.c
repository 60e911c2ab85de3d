/* The C border used from C, through the shared library: a run, and every kind of refusal. */
#include <reshard/reshard.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      ++failures;                                                                               \
      fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              reshard_last_error());                                                            \
    }                                                                                           \
  } while (0)

/* Rank 0 sends 6 bytes to rank 1 of the same process, transposed 2 x 3 -> 3 x 2. */
static const int64_t kStreams[] = {0, 0, 1, 1, 0, 1};
static const int64_t kOperations[] = {0, 0, 0, 1, 1, 2, 2, 3, 3, 1, 1, 1, 0, 1, 1, 2, 2, 3, 1, 2};
static const int64_t kExtents[] = {0, 6, 0, 6};

static reshard_program_tables make_tables(void) {
  reshard_program_tables tables;
  memset(&tables, 0, sizeof(tables));
  tables.size = sizeof(tables);
  tables.streams = kStreams;
  tables.streams_length = 6;
  tables.operations = kOperations;
  tables.operations_length = sizeof(kOperations) / sizeof(kOperations[0]);
  tables.extents = kExtents;
  tables.extents_length = 4;
  tables.num_buffers = 2;
  tables.chunk_bytes = 16;
  return tables;
}

static reshard_run_options make_options(void) {
  reshard_run_options options = {sizeof(reshard_run_options), 1, 1000000000, 1, 0, NULL, 0};
  return options;
}

static void test_run(void) {
  const reshard_program_tables tables = make_tables();
  const reshard_run_options options = make_options();
  reshard_program* program = NULL;
  unsigned char source[6] = {1, 2, 3, 4, 5, 6};
  unsigned char destination[6] = {0};
  const unsigned char expected[6] = {1, 4, 2, 5, 3, 6};
  void* buffers[2] = {source, destination};
  reshard_program_info info = {sizeof(info), 0, 0, 0, 0, 0, 0, 0};
  reshard_run_stats stats;
  CHECK(reshard_program_create(&tables, &program) == RESHARD_STATUS_OK);
  CHECK(reshard_program_describe(program, &info) == RESHARD_STATUS_OK);
  CHECK(info.num_streams == 2 && info.num_local_streams == 1 && info.bytes_local == 6);
  CHECK(reshard_program_begin(program, NULL, buffers, 2, &options) == RESHARD_STATUS_OK);
  CHECK(reshard_program_begin(program, NULL, buffers, 2, &options) == RESHARD_STATUS_INVALID_STATE);
  memset(&stats, 0, sizeof(stats));
  stats.size = sizeof(stats);
  CHECK(reshard_program_progress(program, 1000000000, &stats) == RESHARD_STATUS_OK);
  CHECK(memcmp(destination, expected, 6) == 0);
  CHECK(stats.size == sizeof(stats) && stats.bytes_local == 6 && stats.chunks == 1);
  CHECK(reshard_program_progress(program, 0, NULL) == RESHARD_STATUS_INVALID_STATE);
  CHECK(reshard_program_cancel(program, NULL) == RESHARD_STATUS_OK);
  CHECK(reshard_program_begin(program, NULL, buffers, 2, &options) == RESHARD_STATUS_OK);
  reshard_program_destroy(program); /* during a run */
  reshard_program_destroy(NULL);
}

static void test_null_and_small_structs(void) {
  reshard_program_tables tables = make_tables();
  reshard_program* program = NULL;
  reshard_communicator* communicator = NULL;
  reshard_shm_options shm;
  CHECK(reshard_program_create(NULL, &program) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(reshard_program_create(&tables, NULL) == RESHARD_STATUS_INVALID_ARGUMENT);
  tables.size -= 1;
  CHECK(reshard_program_create(&tables, &program) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(strstr(reshard_last_error(), "tables.size") != NULL);
  tables = make_tables();
  tables.operations = NULL;
  CHECK(reshard_program_create(&tables, &program) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(strcmp(reshard_last_error(), "tables.operations is NULL.") == 0);
  CHECK(reshard_program_begin(NULL, NULL, NULL, 0, NULL) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(reshard_program_progress(NULL, 0, NULL) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(reshard_program_cancel(NULL, NULL) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(reshard_program_describe(NULL, NULL) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(reshard_communicator_create_shm(NULL, &communicator) == RESHARD_STATUS_INVALID_ARGUMENT);
  memset(&shm, 0, sizeof(shm));
  shm.size = sizeof(shm);
  CHECK(reshard_communicator_create_shm(&shm, &communicator) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(strcmp(reshard_last_error(), "options.session_key is NULL.") == 0);
  CHECK(reshard_communicator_connect(NULL, 1, 1) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(reshard_communicator_check_peers(NULL) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(reshard_communicator_abort(NULL, NULL) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(reshard_fingerprint(NULL, 3, NULL, 0, NULL, 0, NULL, 0) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(reshard_fingerprint(NULL, 0, NULL, 0, NULL, 0, NULL, 0) == RESHARD_STATUS_OK);
  reshard_communicator_destroy(NULL);
}

static void test_communicator_of_one(void) {
  const int32_t ranks[] = {0, 0};
  const int64_t bad_state = RESHARD_STATUS_ABORTED;
  const reshard_program_tables tables = make_tables();
  const reshard_run_options options = make_options();
  unsigned char bytes[12] = {0};
  void* buffers[2] = {bytes, bytes + 6};
  reshard_communicator* communicator = NULL;
  reshard_program* program = NULL;
  reshard_shm_options shm;
  int64_t rank = 7, peer = 7;
  memset(&shm, 0, sizeof(shm));
  shm.size = sizeof(shm);
  shm.session_key = "c-api-test";
  shm.num_processes = 1;
  shm.rank_to_process = ranks;
  shm.num_ranks = 2;
  shm.slot_bytes = 4096;
  shm.slots_per_ring = 4;
  CHECK(reshard_communicator_create_shm(&shm, &communicator) == RESHARD_STATUS_OK);
  CHECK(reshard_communicator_connect(communicator, 0, 0) == RESHARD_STATUS_INVALID_ARGUMENT);
  CHECK(reshard_communicator_connect(communicator, 1000000, 0) == RESHARD_STATUS_OK);
  CHECK(reshard_communicator_check_peers(communicator) == RESHARD_STATUS_OK);
  CHECK(reshard_program_create(&tables, &program) == RESHARD_STATUS_OK);
  CHECK(reshard_program_begin(program, communicator, buffers, 2, &options) == RESHARD_STATUS_OK);
  CHECK(reshard_program_progress(program, 1000000000, NULL) == RESHARD_STATUS_OK);
  CHECK(reshard_program_begin(program, communicator, buffers, 2, &options) == RESHARD_STATUS_OK);
  CHECK(reshard_communicator_abort(communicator, "because.") == RESHARD_STATUS_OK);
  CHECK(reshard_program_cancel(program, "later.") == RESHARD_STATUS_OK);
  CHECK(reshard_program_begin(program, communicator, buffers, 2, &options) == bad_state);
  CHECK(strstr(reshard_last_error(), "because.") != NULL);
  reshard_last_error_ranks(&rank, &peer);
  CHECK(rank == -1 && peer == -1);
  reshard_last_error_ranks(NULL, NULL);
  reshard_communicator_destroy(communicator);
  reshard_program_destroy(program);
}

static void test_names(void) {
  size_t sizes[16];
  CHECK(strcmp(reshard_status_name(RESHARD_STATUS_TIMEOUT), "timeout") == 0);
  CHECK(strcmp(reshard_status_name(-1), "unknown") == 0);
  CHECK(strcmp(reshard_status_name(12), "unknown") == 0);
  CHECK(reshard_version()[0] != '\0' && reshard_cpu_features()[0] != '\0');
  CHECK(reshard_abi_sizes(NULL, 0) == 7);
  CHECK(reshard_abi_sizes(sizes, 16) == 7);
  CHECK(sizes[0] == sizeof(reshard_program_tables) && sizes[5] == sizeof(reshard_shm_options));
}

int main(void) {
  test_run();
  test_null_and_small_structs();
  test_communicator_of_one();
  test_names();
  printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
