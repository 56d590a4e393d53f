/* Default budgets, limits, members that are reserved, scales that leave a format, and gradients
 * that are given by a write. A process with an engine cannot be forked into another with one, so
 * the first test is about a process in which making one failed. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/engine/capi/check.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static sluice_engine* make_engine(const char* folder, uint64_t pinned_bytes,
                                  uint64_t storage_bytes) {
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_engine* engine = NULL;
  options.device_bytes = 64 * MIB;
  options.pinned_bytes = pinned_bytes;
  options.storage_bytes = storage_bytes;
  options.storage_engine = SLUICE_STORAGE_POSIX;
  options.threads = 2;
  options.storage_paths = &folder;
  options.storage_path_count = folder == NULL ? 0 : 1;
  EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
  return engine;
}

/* A child of a process in which no engine could be made may make one. */
static void test_failed_create_then_fork(void) {
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_engine* engine = NULL;
  const char* nowhere = "/nonexistent/sluice";
  pid_t child;
  int status = 0;
  options.device_bytes = options.pinned_bytes = 4 * MIB;
  options.storage_paths = &nowhere;
  options.storage_path_count = 1;
  EXPECT(SLUICE_E_INPUT, sluice_engine_create(&options, &engine));
  child = fork();
  if (child == 0) {
    options.storage_path_count = 0;
    EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
    sluice_engine_destroy(engine);
    _exit(check_result());
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static uint64_t default_cap(const char* const* paths, uint32_t count) {
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_usage usage = SLUICE_USAGE_INIT;
  sluice_engine* engine = NULL;
  options.device_bytes = options.pinned_bytes = 4 * MIB;
  options.storage_paths = paths;
  options.storage_path_count = count;
  EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
  EXPECT(SLUICE_OK, sluice_engine_usage(engine, SLUICE_TIER_STORAGE, &usage));
  sluice_engine_destroy(engine);
  return usage.cap_bytes;
}

/* Two folders of one disk have the bytes of one disk. */
static void test_default_storage(const char* folder) {
  char first[4096], second[4096];
  const char* paths[2];
  double ratio;
  snprintf(first, sizeof(first), "%s/capi_disk_a", folder);
  snprintf(second, sizeof(second), "%s/capi_disk_b", folder);
  (void)mkdir(first, 0700);
  (void)mkdir(second, 0700);
  paths[0] = first;
  paths[1] = second;
  ratio = (double)default_cap(paths, 2) / (double)default_cap(paths, 1);
  CHECK(ratio > 0.8 && ratio < 1.25); /* others use the disk meanwhile */
}

/* The 1,025th stream of an allocator is refused by name, and the others go on. */
static void test_streams(void) {
  enum { MOST = 1024 };
  sluice_allocator_options options = SLUICE_ALLOCATOR_OPTIONS_INIT;
  sluice_engine* engine = make_engine(NULL, 4 * MIB, 0);
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  sluice_allocator* allocator = NULL;
  sluice_stream stream = {SLUICE_DEVICE_CPU, 0, NULL};
  void *data = NULL, *other = NULL;
  uintptr_t i;
  EXPECT(SLUICE_OK, sluice_allocator_create(engine, &options, &allocator));
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, 512, NULL, 0, &data));
  for (i = 1; i <= MOST + 1; ++i) {
    stream.native = (void*)i;
    if (sluice_allocator_record_use(allocator, data, &stream) != SLUICE_OK) break;
  }
  CHECK(i == MOST);
  EXPECT(SLUICE_E_LIMIT, sluice_allocator_record_use(allocator, data, &stream));
  EXPECT(SLUICE_OK, sluice_error(&info));
  CHECK(strstr(info.message, "1024 streams") != NULL);
  /* PyTorch cannot be refused: memory whose use is not recorded is never reused. */
  EXPECT(SLUICE_OK, sluice_torch_attach(allocator));
  other = sluice_torch_alloc(512, 0, NULL);
  sluice_torch_record_stream(other, stream.native);
  sluice_torch_free(other, 512, 0, NULL);
  for (i = 0; i < 64; ++i) CHECK(sluice_torch_alloc(512, 0, NULL) != other);
  stream.native = (void*)(uintptr_t)7;
  EXPECT(SLUICE_OK, sluice_allocator_record_use(allocator, data, &stream));
  EXPECT(SLUICE_OK, sluice_allocator_free(allocator, data));
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
}

struct trial {
  sluice_engine* engine;
  sluice_session* session;
  sluice_param params[64];
  int count;
};

static void open_trial(struct trial* t, int32_t state, const sluice_group_options* group,
                       int32_t dtype, int64_t elems) {
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_param_options param = SLUICE_PARAM_OPTIONS_INIT;
  char name[16];
  int i;
  options.state = state;
  EXPECT(SLUICE_OK, sluice_session_create(t->engine, &options, &t->session));
  EXPECT(SLUICE_OK, sluice_session_add_group(t->session, group, &param.group));
  for (i = 0; i < t->count; ++i) {
    snprintf(name, sizeof(name), "p%d", i);
    EXPECT(SLUICE_OK, sluice_session_add_unit(t->session, name, &param.unit));
    param.name = name;
    param.dtype = dtype;
    param.ndim = 1;
    param.shape = &elems;
    EXPECT(SLUICE_OK, sluice_session_add_param(t->session, &param, &t->params[i]));
  }
}

static sluice_status update(struct trial* t, sluice_update_info* info) {
  int i;
  for (i = 0; i < t->count; ++i) {
    sluice_tensor grad = SLUICE_TENSOR_INIT;
    sluice_status status = sluice_session_grad(t->session, t->params[i], &grad);
    if (status == SLUICE_OK) status = sluice_session_give_grad(t->session, t->params[i], &grad);
    if (status != SLUICE_OK) return status;
  }
  return sluice_session_update(t->session, info);
}

/* A gradient that is finite, and is not after its scale: no weight becomes infinite. */
static void test_scale_overflow(void) {
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  sluice_tensor grad = SLUICE_TENSOR_INIT, weight = SLUICE_TENSOR_INIT;
  sluice_error_info error = SLUICE_ERROR_INFO_INIT;
  struct trial t;
  t.engine = make_engine(NULL, 8 * MIB, 0);
  t.count = 1;
  group.rule = SLUICE_RULE_SGD;
  group.momentum = 0;
  open_trial(&t, SLUICE_STATE_PINNED, &group, SLUICE_DTYPE_F32, 100);
  EXPECT(SLUICE_OK, sluice_session_seal(t.session));
  EXPECT(SLUICE_OK, sluice_session_grad(t.session, t.params[0], &grad));
  EXPECT(SLUICE_OK, sluice_session_weight(t.session, t.params[0], &weight));
  ((float*)grad.data)[9] = 1e30f;
  info.grad_scale = 1e20;
  EXPECT(SLUICE_E_NOT_FINITE, update(&t, &info));
  EXPECT(SLUICE_OK, sluice_error(&error));
  CHECK(strstr(error.message, "grad_scale") != NULL);
  CHECK(((float*)weight.data)[9] == 0);
  /* Clipping brings it back. */
  info.max_norm = 4;
  EXPECT(SLUICE_OK, update(&t, &info));
  CHECK(fabs(((float*)weight.data)[9] + 4e-3) < 1e-6);
  sluice_session_destroy(t.session);
  sluice_engine_destroy(t.engine);
}

/* A gradient of which nothing, or a part, was written is not there. */
static void test_written_gradient(void) {
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  float values[100] = {0};
  struct trial t;
  t.engine = make_engine(NULL, 8 * MIB, 0);
  t.count = 1;
  open_trial(&t, SLUICE_STATE_PINNED, &group, SLUICE_DTYPE_F32, 100);
  EXPECT(SLUICE_OK, sluice_session_seal(t.session));
  EXPECT(SLUICE_OK,
         sluice_session_write(t.session, t.params[0], SLUICE_KIND_GRADIENT, 0, 0, values, 0));
  EXPECT(SLUICE_E_STATE, sluice_session_update(t.session, &info));
  EXPECT(SLUICE_OK, sluice_session_write(t.session, t.params[0], SLUICE_KIND_GRADIENT, 50, 50,
                                         values, sizeof(values) / 2));
  EXPECT(SLUICE_E_STATE, sluice_session_update(t.session, &info));
  EXPECT(SLUICE_OK, sluice_session_write(t.session, t.params[0], SLUICE_KIND_GRADIENT, 0, 100,
                                         values, sizeof(values)));
  EXPECT(SLUICE_OK, sluice_session_update(t.session, &info));
  sluice_session_destroy(t.session);
  sluice_engine_destroy(t.engine);
}

/* A newer program's wish in a reserved member is refused. */
static void test_reserved(void) {
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_param_options param = SLUICE_PARAM_OPTIONS_INIT;
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  sluice_tensor grad = SLUICE_TENSOR_INIT;
  sluice_session* session = NULL;
  sluice_engine* engine = make_engine(NULL, 8 * MIB, 0);
  sluice_param number = {0};
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &session));
  EXPECT(SLUICE_OK, sluice_session_add_group(session, &group, &param.group));
  EXPECT(SLUICE_OK, sluice_session_add_unit(session, "unit", &param.unit));
  param.name = "p";
  param.reserved = 1;
  EXPECT(SLUICE_E_VERSION, sluice_session_add_param(session, &param, &number));
  param.reserved = 0;
  EXPECT(SLUICE_OK, sluice_session_add_param(session, &param, &number));
  EXPECT(SLUICE_OK, sluice_session_seal(session));
  EXPECT(SLUICE_OK, sluice_session_grad(session, number, &grad));
  grad.reserved = 1;
  EXPECT(SLUICE_E_VERSION, sluice_session_give_grad(session, number, &grad));
  grad.reserved = 0;
  EXPECT(SLUICE_OK, sluice_session_give_grad(session, number, &grad));
  info.reserved = 1;
  EXPECT(SLUICE_E_VERSION, sluice_session_update(session, &info));
  EXPECT(SLUICE_E_VERSION, sluice_session_update_begin(session, &info));
  info.reserved = 0;
  EXPECT(SLUICE_OK, sluice_session_update(session, &info));
  sluice_session_destroy(session);
  sluice_engine_destroy(engine);
}

/* The storage's bytes that a plan needs with `pinned_bytes`, if it fits; 0: refused. */
static uint64_t planned_storage(const char* folder, uint64_t pinned_bytes, uint64_t storage_bytes) {
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_session_stats stats = SLUICE_SESSION_STATS_INIT;
  struct trial t;
  sluice_status status;
  t.engine = make_engine(folder, pinned_bytes, storage_bytes);
  t.count = 64;
  open_trial(&t, SLUICE_STATE_AUTO, &group, SLUICE_DTYPE_F32, 65536);
  status = sluice_session_seal(t.session);
  CHECK(status == SLUICE_OK || status == SLUICE_E_REFUSED);
  if (status == SLUICE_OK) EXPECT(SLUICE_OK, sluice_session_get_stats(t.session, &stats));
  sluice_session_destroy(t.session);
  sluice_engine_destroy(t.engine);
  return stats.planned_storage_bytes;
}

/* Large pieces leave less pinned memory to state, so more state is stored. Where the storage has no
 * room for that, smaller pieces are tried before the session is refused. */
static void test_small_pieces(const char* folder) {
  const uint64_t pinned = 52 * MIB;
  const uint64_t ample = planned_storage(folder, pinned, 256 * MIB);
  const uint64_t tight = planned_storage(folder, pinned, ample - 256 * KIB);
  CHECK(ample > 0 && tight > 0 && tight < ample);
  CHECK(planned_storage(folder, pinned, MIB) == 0);
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  test_failed_create_then_fork();
  test_default_storage(folder);
  test_streams();
  test_scale_overflow();
  test_written_gradient();
  test_reserved();
  test_small_pieces(folder);
  return check_result();
}
