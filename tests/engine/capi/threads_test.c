/* Eight threads make [any] calls on one allocator at once; then a child of fork() is refused. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/engine/capi/check.h"

#define MIB ((uint64_t)1 << 20)

/* The beginning of dlpack.h's DLManagedTensorVersioned. */
struct lent_head {
  uint32_t major, minor;
  void* context;
  void (*deleter)(struct lent_head* self);
};
static void delete_lent(struct DLManagedTensorVersioned* lent) {
  struct lent_head* head = (struct lent_head*)lent;
  head->deleter(head);
}
enum { THREADS = 8, ROUNDS = 2000, BLOCKS = 16 };

struct task {
  sluice_engine* engine;
  sluice_allocator* allocator;
  unsigned number;
};

/* The other [any] calls, which meet in the trace, the log and each thread's own texts. */
static void call_others(const struct task* task, const float* data) {
  const char* answer = NULL;
  const int64_t shape[1] = {4};
  int64_t got[8];
  sluice_tensor tensor = SLUICE_TENSOR_INIT, again = SLUICE_TENSOR_INIT;
  struct DLManagedTensorVersioned* lent = NULL;
  EXPECT(SLUICE_OK, sluice_trace_mark(task->engine, "phase"));
  EXPECT(SLUICE_OK, sluice_trace_span(task->engine, "threads", "span", 1, 2));
  EXPECT(SLUICE_OK, sluice_trace_counter(task->engine, "counter", 1, task->number));
  EXPECT(SLUICE_OK, sluice_set_log(NULL, NULL));
  CHECK(strcmp(sluice_status_name(SLUICE_E_IO), "SLUICE_E_IO") == 0);
  tensor.ndim = 1;
  tensor.shape = shape;
  tensor.data = (void*)data;
  EXPECT(SLUICE_OK, sluice_to_dlpack(&tensor, &lent));
  EXPECT(SLUICE_OK, sluice_from_dlpack(lent, &again, got));
  CHECK(again.data == data && got[0] == 4);
  delete_lent(lent);
  EXPECT(SLUICE_E_INPUT, sluice_plan("{\"config\":{\"no\":1}}", &answer));
  EXPECT(SLUICE_OK, sluice_allocator_report(task->allocator, 0, &answer));
  CHECK(answer != NULL && answer[0] == '\0');
}

static void exercise(const struct task* task, unsigned* random) {
  sluice_stream stream = {SLUICE_DEVICE_CPU, 0, NULL};
  sluice_usage usage = SLUICE_USAGE_INIT;
  sluice_allocator_stats stats = SLUICE_ALLOCATOR_STATS_INIT;
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  unsigned char* blocks[BLOCKS] = {NULL};
  uint32_t site = 0;
  int round, at;
  stream.native = (void*)(uintptr_t)(task->number % 3);
  for (round = 0; round < ROUNDS; ++round) {
    *random = *random * 1664525u + 1013904223u;
    at = (int)(*random >> 16) % BLOCKS;
    if (blocks[at] != NULL) {
      CHECK(blocks[at][0] == (unsigned char)task->number && blocks[at][511] == (unsigned char)at);
      EXPECT(SLUICE_OK, sluice_allocator_record_use(task->allocator, blocks[at], NULL));
      EXPECT(SLUICE_OK, sluice_allocator_free(task->allocator, blocks[at]));
      blocks[at] = NULL;
      continue;
    }
    EXPECT(SLUICE_OK, sluice_allocator_alloc(task->allocator, 512 + *random % 100000, &stream, site,
                                             (void**)&blocks[at]));
    blocks[at][0] = (unsigned char)task->number;
    blocks[at][511] = (unsigned char)at;
    if (round % 64 != 0) continue;
    call_others(task, (const float*)(void*)blocks[at]);
    EXPECT(SLUICE_OK, sluice_allocator_site(task->allocator, "a site", &site));
    EXPECT(SLUICE_OK, sluice_engine_usage(task->engine, SLUICE_TIER_DEVICE, &usage));
    EXPECT(SLUICE_OK, sluice_allocator_get_stats(task->allocator, &stats));
    /* Each thread has an error of its own. */
    EXPECT(SLUICE_E_INPUT, sluice_engine_usage(task->engine, (int32_t)task->number + 10, &usage));
    EXPECT(SLUICE_OK, sluice_error(&info));
    CHECK(strtol(strstr(info.message, "tier is ") + 8, NULL, 10) == (long)task->number + 10);
    if (round % 512 == 0) EXPECT(SLUICE_OK, sluice_allocator_step(task->allocator));
  }
  for (at = 0; at < BLOCKS; ++at)
    EXPECT(SLUICE_OK, sluice_allocator_free(task->allocator, blocks[at]));
}

static void* run(void* argument) {
  const struct task* task = argument;
  unsigned random = task->number;
  exercise(task, &random);
  return NULL;
}

enum { SHARED_ELEMS = 65536, SHARED_ROUNDS = 200 };

static sluice_session* make_session(sluice_engine* engine) {
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group_options = SLUICE_GROUP_OPTIONS_INIT;
  sluice_param_options param_options = SLUICE_PARAM_OPTIONS_INIT;
  const int64_t shape[1] = {SHARED_ELEMS};
  sluice_session* session = NULL;
  sluice_param param;
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &session));
  EXPECT(SLUICE_OK, sluice_session_add_group(session, &group_options, &param_options.group));
  EXPECT(SLUICE_OK, sluice_session_add_unit(session, "unit", &param_options.unit));
  param_options.name = "weight";
  param_options.ndim = 1;
  param_options.shape = shape;
  EXPECT(SLUICE_OK, sluice_session_add_param(session, &param_options, &param));
  EXPECT(SLUICE_OK, sluice_session_seal(session));
  return session;
}

static void update(sluice_session* session) {
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  sluice_tensor grad = SLUICE_TENSOR_INIT;
  EXPECT(SLUICE_OK, sluice_session_grad(session, (sluice_param){0}, &grad));
  EXPECT(SLUICE_OK, sluice_session_give_grad(session, (sluice_param){0}, &grad));
  EXPECT(SLUICE_OK, sluice_session_update(session, &info));
}

static void test_threads(sluice_engine* engine, int32_t planned) {
  sluice_session* session = NULL;
  sluice_allocator_options options = SLUICE_ALLOCATOR_OPTIONS_INIT;
  sluice_allocator* allocator = NULL;
  struct task tasks[THREADS];
  pthread_t threads[THREADS];
  unsigned i;
  options.planned = planned;
  options.recorded_events = 1000;
  EXPECT(SLUICE_OK, sluice_allocator_create(engine, &options, &allocator));
  for (i = 0; i < THREADS; ++i) {
    tasks[i].engine = engine;
    tasks[i].allocator = allocator;
    tasks[i].number = i;
    CHECK(pthread_create(&threads[i], NULL, run, &tasks[i]) == 0);
  }
  /* Updates record into the same trace meanwhile. */
  session = make_session(engine);
  for (i = 0; i < 20; ++i) update(session);
  sluice_session_destroy(session);
  for (i = 0; i < THREADS; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  sluice_allocator_destroy(allocator);
}

static sluice_session* shared_session;
static int shared_served[THREADS];

/* One thread at a time is let in; the others are told so. So nobody sees half of a write. */
static void* call_shared(void* argument) {
  int* served = argument;
  float* values = malloc(SHARED_ELEMS * sizeof(float));
  int round, i, torn = 0;
  for (round = 0; round < SHARED_ROUNDS; ++round) {
    const int writes = round % 2;
    sluice_status status;
    for (i = 0; writes && i < SHARED_ELEMS; ++i) values[i] = (float)(served - shared_served);
    status = writes ? sluice_session_write(shared_session, (sluice_param){0}, SLUICE_KIND_WEIGHT, 0,
                                           SHARED_ELEMS, values, SHARED_ELEMS * sizeof(float))
                    : sluice_session_read(shared_session, (sluice_param){0}, SLUICE_KIND_WEIGHT, 0,
                                          SHARED_ELEMS, values, SHARED_ELEMS * sizeof(float));
    *served += status == SLUICE_OK;
    if (status != SLUICE_OK) EXPECT(SLUICE_E_BUSY, status);
    for (i = 1; status == SLUICE_OK && i < SHARED_ELEMS; ++i) torn += values[i] != values[0];
  }
  CHECK(torn == 0);
  free(values);
  return NULL;
}

static void test_busy(sluice_engine* engine) {
  pthread_t threads[THREADS];
  int total = 0, i;
  shared_session = make_session(engine);
  for (i = 0; i < THREADS; ++i) {
    CHECK(pthread_create(&threads[i], NULL, call_shared, &shared_served[i]) == 0);
  }
  for (i = 0; i < THREADS; ++i) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    total += shared_served[i];
  }
  CHECK(total > 0);
  sluice_session_destroy(shared_session);
}

/* The child's calls are refused, its destroys do nothing, and the parent goes on. */
static void test_fork(sluice_engine* engine) {
  sluice_allocator_options options = SLUICE_ALLOCATOR_OPTIONS_INIT;
  sluice_engine_options engine_options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_allocator* allocator = NULL;
  void* data = NULL;
  pid_t child;
  int status = 0;
  EXPECT(SLUICE_OK, sluice_allocator_create(engine, &options, &allocator));
  child = fork();
  if (child == 0) {
    sluice_error_info info = SLUICE_ERROR_INFO_INIT;
    sluice_engine* other = NULL;
    EXPECT(SLUICE_E_FORKED, sluice_allocator_alloc(allocator, 512, NULL, 0, &data));
    EXPECT(SLUICE_E_FORKED, sluice_allocator_step(allocator));
    EXPECT(SLUICE_E_FORKED, sluice_engine_create(&engine_options, &other));
    EXPECT(SLUICE_OK, sluice_error(&info));
    CHECK(info.status == SLUICE_E_FORKED && strstr(info.message, "forked") != NULL);
    CHECK(sluice_torch_alloc(512, 0, NULL) == NULL);
    sluice_allocator_destroy(allocator);
    sluice_engine_destroy(engine);
    _exit(check_result());
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, 512, NULL, 0, &data));
  EXPECT(SLUICE_OK, sluice_allocator_free(allocator, data));
  sluice_allocator_destroy(allocator);
}

int main(void) {
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_engine* engine = NULL;
  options.device_bytes = 512 * MIB;
  options.pinned_bytes = 8 * MIB;
  EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
  EXPECT(SLUICE_OK, sluice_trace_start(engine, 500));
  test_threads(engine, 0);
  test_threads(engine, 1);
  test_busy(engine);
  test_fork(engine);
  sluice_engine_destroy(engine);
  return check_result();
}
