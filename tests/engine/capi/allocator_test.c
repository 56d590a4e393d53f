/* The library, engines and allocators: every function with NULL, in a wrong state, and with each
 * wrong struct_size; handles that go in any order; out of memory and its report. */
#define _POSIX_C_SOURCE 200809L
#include "tests/engine/capi/structs.h"
#include "tests/engine/capi/tested_device.h"

#define MIB ((uint64_t)1 << 20)

static sluice_engine* make_engine(uint64_t device_bytes) {
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_engine* engine = NULL;
  options.device_type = TESTED_DEVICE;
  options.device_bytes = device_bytes;
  options.pinned_bytes = 16 * MIB;
  EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
  return engine;
}

static sluice_allocator* make_allocator(sluice_engine* engine, int32_t planned, uint64_t events) {
  sluice_allocator_options options = SLUICE_ALLOCATOR_OPTIONS_INIT;
  sluice_allocator* allocator = NULL;
  options.planned = planned;
  options.recorded_events = events;
  EXPECT(SLUICE_OK, sluice_allocator_create(engine, &options, &allocator));
  return allocator;
}

static sluice_status create_engine(void* context, void* data) {
  sluice_engine* engine = NULL;
  const sluice_status status = sluice_engine_create(data, &engine);
  (void)context;
  CHECK((engine != NULL) == (status == SLUICE_OK));
  sluice_engine_destroy(engine);
  return status;
}
static sluice_status get_usage(void* context, void* data) {
  return sluice_engine_usage(context, SLUICE_TIER_DEVICE, data);
}
static sluice_status create_allocator(void* context, void* data) {
  sluice_allocator* allocator = NULL;
  const sluice_status status = sluice_allocator_create(context, data, &allocator);
  CHECK((allocator != NULL) == (status == SLUICE_OK));
  sluice_allocator_destroy(allocator);
  return status;
}
static sluice_status get_stats(void* context, void* data) {
  return sluice_allocator_get_stats(context, data);
}
static sluice_status get_error(void* context, void* data) {
  (void)context;
  return sluice_error(data);
}

static void test_structs(void) {
  const sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  const sluice_allocator_options allocator_options = SLUICE_ALLOCATOR_OPTIONS_INIT;
  sluice_engine_options engine_options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_usage usage = SLUICE_USAGE_INIT;
  sluice_allocator_stats stats = SLUICE_ALLOCATOR_STATS_INIT;
  sluice_engine* engine = make_engine(8 * MIB);
  sluice_allocator* allocator = make_allocator(engine, 0, 0);
  engine_options.device_bytes = engine_options.pinned_bytes = 4 * MIB;
  check_struct(create_engine, NULL, &engine_options, sizeof(engine_options), 2);
  check_struct(create_allocator, engine, &allocator_options, sizeof(allocator_options), 2);
  check_struct(get_usage, engine, &usage, sizeof(usage), 0);
  check_struct(get_stats, allocator, &stats, sizeof(stats), 0);
  check_struct(get_error, NULL, &info, sizeof(info), 0);
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
}

static void test_no_padding(void) {
  CHECK(sizeof(sluice_error_info) == 4 * 4 + 2 * 8 + 2 * sizeof(void*));
  CHECK(sizeof(sluice_stream) == 2 * 4 + sizeof(void*));
  CHECK(sizeof(sluice_engine_options) == 4 * 4 + 3 * 8 + sizeof(void*) + 2 * 4 + 2 * 8);
  CHECK(sizeof(sluice_usage) == 2 * 4 + 4 * 8 + SLUICE_CATEGORY_COUNT * 8);
  CHECK(sizeof(sluice_allocator_options) == 2 * 4 + 8);
  CHECK(sizeof(sluice_allocator_stats) == 2 * 4 + 11 * 8);
}

static void test_library(void) {
  sluice_status status;
  CHECK(sluice_version() ==
        (SLUICE_VERSION_MAJOR << 16 | SLUICE_VERSION_MINOR << 8 | SLUICE_VERSION_PATCH));
  for (status = SLUICE_OK; status <= SLUICE_E_LIMIT; ++status) {
    CHECK(strncmp(sluice_status_name(status), "SLUICE_", 7) == 0);
    CHECK(strcmp(sluice_status_name(status), "SLUICE_E_UNKNOWN") != 0);
  }
  CHECK(strcmp(sluice_status_name(SLUICE_E_LIMIT + 1), "SLUICE_E_UNKNOWN") == 0);
  CHECK(strcmp(sluice_status_name(-1), "SLUICE_E_UNKNOWN") == 0);
  EXPECT(SLUICE_OK, sluice_set_log(NULL, NULL));
}

static void test_null(void) {
  const sluice_allocator_options allocator_options = SLUICE_ALLOCATOR_OPTIONS_INIT;
  sluice_engine_options engine_options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_usage usage = SLUICE_USAGE_INIT;
  sluice_allocator_stats stats = SLUICE_ALLOCATOR_STATS_INIT;
  sluice_engine* engine = make_engine(8 * MIB);
  sluice_allocator* allocator = make_allocator(engine, 0, 0);
  sluice_allocator* made = NULL;
  const char* text = "untouched";
  void* data = NULL;
  uint32_t site = 7;
  engine_options.device_bytes = engine_options.pinned_bytes = 4 * MIB;

  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&engine_options, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_engine_usage(NULL, 0, &usage));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_create(NULL, &allocator_options, &made));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_create(engine, &allocator_options, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_alloc(NULL, 512, NULL, 0, &data));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_alloc(allocator, 512, NULL, 0, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_free(NULL, &data));
  EXPECT(SLUICE_OK, sluice_allocator_free(allocator, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_record_use(NULL, &data, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_record_use(allocator, NULL, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_step(NULL));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_pin_stream(NULL, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_site(NULL, "x", &site));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_site(allocator, NULL, &site));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_site(allocator, "x", NULL));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_on_pressure(NULL, NULL, NULL));
  EXPECT(SLUICE_OK, sluice_allocator_on_pressure(allocator, NULL, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_trim(NULL));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_get_stats(NULL, &stats));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_snapshot(NULL, "x", SLUICE_FORMAT_CSV));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_snapshot(allocator, NULL, SLUICE_FORMAT_CSV));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_report(NULL, 0, &text));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_report(allocator, 0, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_torch_attach(NULL));
  CHECK(made == NULL && data == NULL && site == 7 && strcmp(text, "untouched") == 0);
  sluice_engine_destroy(NULL);
  sluice_allocator_destroy(NULL);
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
}

static void test_wrong_options(void) {
  const char* nowhere[] = {"/nonexistent/sluice", NULL};
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_engine* engine = NULL;
  options.device_bytes = options.pinned_bytes = 4 * MIB;
  options.device_type = 77;
  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&options, &engine));
  options.device_type = SLUICE_DEVICE_CUDA;
  options.device_id = 999;
  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&options, &engine));
  options.device_id = -1;
  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&options, &engine));
  options.device_type = 0;
  options.device_id = 0;
  options.storage_engine = 9;
  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&options, &engine));
  options.storage_engine = 0;
  options.deadline_s = -1;
  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&options, &engine));
  options.deadline_s = 0;
  options.threads = -1;
  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&options, &engine));
  options.threads = 0;
  options.storage_path_count = 1;
  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&options, &engine));
  options.storage_paths = nowhere;
  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&options, &engine));
  options.storage_path_count = 2;
  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&options, &engine));
  CHECK(engine == NULL);
}

static void test_wrong_use(const char* folder) {
  const sluice_stream elsewhere = {TESTED_DEVICE, 3, NULL};
  const sluice_stream queue = make_stream();
  sluice_engine* engine = make_engine(64 * MIB);
  sluice_allocator* allocator = make_allocator(engine, 0, 100);
  sluice_usage usage = SLUICE_USAGE_INIT;
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  char local[600] = {0};
  void* data = NULL;
  EXPECT(SLUICE_E_INPUT, sluice_engine_usage(engine, 3, &usage));
  EXPECT(SLUICE_E_INPUT, sluice_engine_usage(engine, -1, &usage));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_alloc(allocator, 512, &elsewhere, 0, &data));
  EXPECT(SLUICE_OK, sluice_allocator_pin_stream(allocator, &queue));
  EXPECT(SLUICE_E_STATE, sluice_allocator_pin_stream(allocator, &queue));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_free(allocator, local + 64));
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, 512, &queue, 0, &data));
  CHECK((uintptr_t)data % 512 == 0);
  memset(data, 0x5a, 512);
  EXPECT(SLUICE_OK, sluice_allocator_record_use(allocator, data, NULL));
  EXPECT(SLUICE_OK, sluice_allocator_free(allocator, data));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_free(allocator, data));
  EXPECT(SLUICE_E_INPUT, sluice_allocator_snapshot(allocator, folder, 77));
  EXPECT(SLUICE_E_IO, sluice_allocator_snapshot(allocator, "/nonexistent/x", SLUICE_FORMAT_CSV));
  EXPECT(SLUICE_OK, sluice_error(&info));
  CHECK(info.status == SLUICE_E_IO && info.system_errno != 0);
  CHECK(strstr(info.subject, "/nonexistent/x") != NULL);
  CHECK(strncmp(info.message, "sluice_allocator_snapshot: ", 27) == 0);
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
  destroy_stream(queue);
}

/* The calls that PyTorch makes for a tensor, and those of a program with a handle. */
static void* lend(sluice_allocator* allocator, uint64_t bytes, const sluice_stream* stream,
                  int for_torch) {
  void* data = NULL;
  if (for_torch) return sluice_torch_alloc((ptrdiff_t)bytes, 0, stream->native);
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, bytes, stream, 0, &data));
  return data;
}
static void record_use(sluice_allocator* allocator, void* data, const sluice_stream* stream,
                       int for_torch) {
  if (for_torch) {
    sluice_torch_record_stream(data, stream->native);
  } else {
    EXPECT(SLUICE_OK, sluice_allocator_record_use(allocator, data, stream));
  }
}

/* A block that another stream of the program still reads is not overwritten: the next request has
 * no other memory, so work on it waits for that stream, though the block is freed and belongs to
 * the stream that asks. */
static void test_streams(int for_torch) {
  enum { BYTES = 3 << 20, ROUNDS = 8 };
  const sluice_stream first = make_stream(), second = make_stream();
  sluice_engine* engine = make_engine(4 * MIB);
  sluice_allocator* allocator = make_allocator(engine, 0, 0);
  unsigned char* seen = make_results(BYTES);
  int round, i;
  if (for_torch) EXPECT(SLUICE_OK, sluice_torch_attach(allocator));
  for (round = 0; round < ROUNDS; ++round) {
    void* data = lend(allocator, BYTES, &first, for_torch);
    int wrong = 0;
    CHECK(data != NULL);
    queue_fill(data, round + 1, BYTES, first);
    finish_stream(first);
    queue_read(seen, data, BYTES, second);
    record_use(allocator, data, &second, for_torch);
    EXPECT(SLUICE_OK, sluice_allocator_free(allocator, data));
    data = lend(allocator, BYTES, &first, for_torch);
    CHECK(data != NULL);
    queue_fill(data, 0xee, BYTES, first);
    finish_stream(second);
    for (i = 0; i < BYTES; ++i) wrong += seen[i] != round + 1;
    CHECK(wrong == 0);
    EXPECT(SLUICE_OK, sluice_allocator_free(allocator, data));
  }
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
  destroy_results(seen);
  destroy_stream(first);
  destroy_stream(second);
}

/* Destroying in the wrong order leaks nothing and leaves nothing dangling. */
static void test_order(void) {
  sluice_engine* engine = make_engine(8 * MIB);
  sluice_allocator* allocator = make_allocator(engine, 1, 0);
  void* data = NULL;
  sluice_engine_destroy(engine);
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, 4096, NULL, 0, &data));
  memset(data, 1, 4096);
  sluice_allocator_destroy(allocator); /* with a block out */
}

struct pressure {
  sluice_allocator* allocator;
  void* spare;
  int calls;
};
static int32_t free_spare(void* user, uint64_t wanted_bytes) {
  struct pressure* state = user;
  CHECK(wanted_bytes == 6 * MIB);
  ++state->calls;
  if (state->spare == NULL) return 0;
  EXPECT(SLUICE_OK, sluice_allocator_free(state->allocator, state->spare));
  state->spare = NULL;
  return 1;
}

static void test_out_of_memory(void) {
  sluice_engine* engine = make_engine(8 * MIB);
  sluice_allocator* allocator = make_allocator(engine, 0, 1000);
  struct pressure state = {NULL, NULL, 0};
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  const char* report = NULL;
  uint32_t site = 0, again = 0;
  void *first = NULL, *second = NULL;
  state.allocator = allocator;
  EXPECT(SLUICE_OK, sluice_allocator_report(allocator, 0, &report));
  CHECK(strcmp(report, "") == 0);
  EXPECT(SLUICE_OK, sluice_allocator_site(allocator, "weights of layer 3", &site));
  EXPECT(SLUICE_OK, sluice_allocator_site(allocator, "weights of layer 3", &again));
  CHECK(site != 0 && site == again);
  EXPECT(SLUICE_E_INPUT, sluice_allocator_alloc(allocator, MIB, NULL, site + 1, &first));
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, 5 * MIB, NULL, site, &first));
  EXPECT(SLUICE_E_MEMORY, sluice_allocator_alloc(allocator, 6 * MIB, NULL, 0, &second));
  CHECK(second == NULL);
  EXPECT(SLUICE_OK, sluice_error(&info));
  CHECK(info.status == SLUICE_E_MEMORY && info.tier == SLUICE_TIER_DEVICE);
  CHECK(info.requested_bytes == 6 * MIB && info.available_bytes < 6 * MIB);
  EXPECT(SLUICE_OK, sluice_allocator_report(allocator, 1, &report));
  CHECK(strstr(report, "weights of layer 3") != NULL && strstr(report, "\"cause\"") != NULL);
  EXPECT(SLUICE_E_MEMORY, sluice_allocator_alloc(allocator, UINT64_MAX, NULL, 0, &second));

  state.spare = first;
  EXPECT(SLUICE_OK, sluice_allocator_on_pressure(allocator, free_spare, &state));
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, 6 * MIB, NULL, 0, &second));
  CHECK(state.calls == 1 && second != NULL);
  EXPECT(SLUICE_E_MEMORY, sluice_allocator_alloc(allocator, 6 * MIB, NULL, 0, &first));
  CHECK(state.calls == 2);
  EXPECT(SLUICE_OK, sluice_allocator_free(allocator, second));
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
}

/* The budget is the ledger's, charged before the device is asked; trimming gives it back. */
static void test_usage(void) {
  sluice_engine* engine = make_engine(64 * MIB);
  sluice_allocator* allocator = make_allocator(engine, 0, 0);
  sluice_usage usage = SLUICE_USAGE_INIT;
  sluice_allocator_stats stats = SLUICE_ALLOCATOR_STATS_INIT;
  void* data = NULL;
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, 5 * MIB, NULL, 0, &data));
  EXPECT(SLUICE_OK, sluice_engine_usage(engine, SLUICE_TIER_DEVICE, &usage));
  CHECK(usage.cap_bytes == 64 * MIB && usage.live_bytes == 6 * MIB);
  CHECK(usage.measured_peak_bytes == 6 * MIB);
  CHECK(usage.live_by_category[SLUICE_CATEGORY_EXTERNAL] == 6 * MIB);
  EXPECT(SLUICE_OK, sluice_allocator_get_stats(allocator, &stats));
  CHECK(stats.live_bytes == 5 * MIB && stats.reserved_bytes == 6 * MIB && stats.allocations == 1);
  EXPECT(SLUICE_OK, sluice_allocator_free(allocator, data));
  EXPECT(SLUICE_OK, sluice_allocator_trim(allocator));
  EXPECT(SLUICE_OK, sluice_engine_usage(engine, SLUICE_TIER_DEVICE, &usage));
  CHECK(usage.live_bytes == 0 && usage.peak_bytes == 6 * MIB);
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
}

/* All steps make the same calls: after a few steps they are answered from the packed arena. */
static void test_planned(void) {
  sluice_engine* engine = make_engine(256 * MIB);
  sluice_allocator* allocator = make_allocator(engine, 1, 0);
  sluice_allocator_stats stats = SLUICE_ALLOCATOR_STATS_INIT;
  int step, i;
  uint64_t requested = 0;
  for (step = 0; step < 400; ++step) {
    void* blocks[8] = {NULL};
    requested = 0;
    EXPECT(SLUICE_OK, sluice_allocator_step(allocator));
    for (i = 0; i < 8; ++i) {
      EXPECT(SLUICE_OK,
             sluice_allocator_alloc(allocator, (uint64_t)(i + 1) * 300000, NULL, 0, &blocks[i]));
      memset(blocks[i], step, 300000);
      requested += (uint64_t)(i + 1) * 300000;
    }
    EXPECT(SLUICE_OK, sluice_allocator_get_stats(allocator, &stats));
    CHECK(stats.live_bytes == requested);
    for (i = 0; i < 8; ++i) {
      CHECK(((unsigned char*)blocks[i])[299999] == (unsigned char)step);
      EXPECT(SLUICE_OK, sluice_allocator_free(allocator, blocks[i]));
    }
  }
  EXPECT(SLUICE_OK, sluice_allocator_get_stats(allocator, &stats));
  CHECK(stats.planned_allocations > 0 && stats.planned_allocations < stats.allocations);
  CHECK(stats.arena_bytes > 0 && stats.arena_bytes <= stats.reserved_bytes);
  CHECK(stats.planned_allocations + stats.fallback_allocations <= stats.allocations);
  CHECK(stats.allocations == 400 * 8 && stats.frees == stats.allocations);
  CHECK(stats.live_bytes == 0 && stats.peak_live_bytes >= requested);
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
}

static void test_torch(void) {
  sluice_engine* engine = make_engine(8 * MIB);
  sluice_allocator* allocator = make_allocator(engine, 0, 0);
  sluice_allocator* other = make_allocator(engine, 0, 0);
  sluice_allocator_stats stats = SLUICE_ALLOCATOR_STATS_INIT;
  void* data;
  CHECK(sluice_torch_alloc(1024, 0, NULL) == NULL);
  EXPECT(SLUICE_OK, sluice_torch_attach(allocator));
  EXPECT(SLUICE_OK, sluice_torch_attach(allocator));
  EXPECT(SLUICE_E_STATE, sluice_torch_attach(other));
  data = sluice_torch_alloc(1024, 0, NULL);
  CHECK(data != NULL);
  if (data != NULL) memset(data, 1, 1024);
  CHECK(sluice_torch_alloc(1024, 1, NULL) == NULL);
  CHECK(sluice_torch_alloc(1024, -1, NULL) == NULL);
  CHECK(sluice_torch_alloc(-1, 0, NULL) == NULL);
  CHECK(sluice_torch_alloc(1 << 30, 0, NULL) == NULL);
  sluice_torch_record_stream(data, NULL);
  sluice_torch_record_stream(&stats, NULL); /* memory of another library */
  sluice_torch_record_stream(NULL, NULL);
  EXPECT(SLUICE_OK, sluice_allocator_get_stats(allocator, &stats));
  CHECK(stats.allocations == 1);
  sluice_torch_free(data, 1024, 0, NULL);
  sluice_torch_free(data, 1024, 0, NULL); /* a warning */
  EXPECT(SLUICE_OK, sluice_allocator_get_stats(allocator, &stats));
  CHECK(stats.frees == 1);
  data = sluice_torch_alloc(1024, 0, NULL);
  sluice_allocator_destroy(allocator);
  sluice_torch_free(data, 1024, 0, NULL); /* PyTorch may free a tensor this late */
  EXPECT(SLUICE_OK, sluice_torch_attach(other));
  sluice_allocator_destroy(other);
  sluice_engine_destroy(engine);
}

static void test_snapshots(const char* folder) {
  sluice_engine* engine = make_engine(8 * MIB);
  sluice_allocator* allocator = make_allocator(engine, 0, 100);
  char path[4096];
  char start[64] = {0};
  FILE* file;
  void* data = NULL;
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, 4096, NULL, 0, &data));
  snprintf(path, sizeof(path), "%s/capi_snapshot.csv", folder);
  EXPECT(SLUICE_OK, sluice_allocator_snapshot(allocator, path, SLUICE_FORMAT_CSV));
  file = fopen(path, "rb");
  CHECK(file != NULL);
  if (file != NULL) {
    CHECK(fread(start, 1, sizeof(start) - 1, file) > 0 && strncmp(start, "time_ns,", 8) == 0);
    fclose(file);
  }
  snprintf(path, sizeof(path), "%s/capi_snapshot.pickle", folder);
  EXPECT(SLUICE_OK, sluice_allocator_snapshot(allocator, path, SLUICE_FORMAT_TORCH));
  file = fopen(path, "rb");
  CHECK(file != NULL);
  if (file != NULL) {
    CHECK(fgetc(file) == 0x80 && fgetc(file) == 4); /* a pickle of protocol 4 */
    fclose(file);
  }
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  if (!open_device()) return check_result();
  test_library();
  test_no_padding();
  test_structs();
  test_null();
  test_wrong_options();
  test_wrong_use(folder);
  test_streams(0);
  test_streams(1);
  test_order();
  test_out_of_memory();
  test_usage();
  test_planned();
  test_torch();
  test_snapshots(folder);
  close_device();
  return check_result();
}
