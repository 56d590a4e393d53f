/* Faults of storage under a session: a status, a poisoned session, and a process that goes on. */
#define _POSIX_C_SOURCE 200809L
#include "tests/engine/capi/check.h"
#include "tests/engine/capi/corrupt.h"

#define MIB ((uint64_t)1 << 20)
enum { ELEMS = 50000, LARGE_ELEMS = 200000 };

static sluice_session* make_session(sluice_engine* engine, int64_t elems, sluice_param* param) {
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group_options = SLUICE_GROUP_OPTIONS_INIT;
  sluice_param_options param_options = SLUICE_PARAM_OPTIONS_INIT;
  sluice_session* session = NULL;
  options.state = SLUICE_STATE_STORAGE;
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &session));
  EXPECT(SLUICE_OK, sluice_session_add_group(session, &group_options, &param_options.group));
  EXPECT(SLUICE_OK, sluice_session_add_unit(session, "unit", &param_options.unit));
  param_options.name = "weight";
  param_options.ndim = 1;
  param_options.shape = &elems;
  EXPECT(SLUICE_OK, sluice_session_add_param(session, &param_options, param));
  EXPECT(SLUICE_OK, sluice_session_seal(session));
  return session;
}

static sluice_status update(sluice_session* session, sluice_param param) {
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  sluice_tensor grad = SLUICE_TENSOR_INIT;
  sluice_status status = sluice_session_grad(session, param, &grad);
  if (status != SLUICE_OK) return status;
  ((float*)grad.data)[7] = 1;
  status = sluice_session_give_grad(session, param, &grad);
  return status == SLUICE_OK ? sluice_session_update(session, &info) : status;
}

/* A write that fails before anything has changed does no harm; one that fails halfway poisons. */
static void test_write(sluice_engine* engine, const char* folder) {
  enum { WINDOW = 65536 };
  static float values[LARGE_ELEMS];
  sluice_param param = {0};
  sluice_session* session = make_session(engine, LARGE_ELEMS, &param);
  /* After the first window of the first moment. */
  CHECK(corrupt_files(folder, (off_t)(2 * WINDOW * sizeof(float))) > 0);
  EXPECT(SLUICE_E_INTEGRITY, sluice_session_write(session, param, SLUICE_KIND_MOMENT1, 2 * WINDOW,
                                                  10, values, 10 * sizeof(float)));
  EXPECT(SLUICE_OK, sluice_session_write(session, param, SLUICE_KIND_MOMENT1, 0, 10, values,
                                         10 * sizeof(float)));
  EXPECT(SLUICE_E_INTEGRITY, sluice_session_write(session, param, SLUICE_KIND_MOMENT1, 0,
                                                  LARGE_ELEMS, values, sizeof(values)));
  EXPECT(SLUICE_E_POISONED, sluice_session_read(session, param, SLUICE_KIND_WEIGHT, 0, 10, values,
                                                10 * sizeof(float)));
  sluice_session_destroy(session);
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_engine* engine = NULL;
  sluice_session *session, *next;
  sluice_param param = {0}, other = {0};
  sluice_session_stats stats = SLUICE_SESSION_STATS_INIT;
  float values[4];
  options.device_bytes = MIB;
  options.pinned_bytes = 32 * MIB;
  options.storage_bytes = 32 * MIB;
  options.storage_paths = &folder;
  options.storage_path_count = 1;
  options.storage_engine = SLUICE_STORAGE_POSIX;
  EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
  session = make_session(engine, ELEMS, &param);
  EXPECT(SLUICE_OK, update(session, param));
  EXPECT(SLUICE_OK, update(session, param));
  CHECK(corrupt_files(folder, 8192) > 0);
  EXPECT(SLUICE_E_INTEGRITY, update(session, param));
  EXPECT(SLUICE_E_POISONED, update(session, param));
  EXPECT(SLUICE_E_POISONED, sluice_session_read(session, param, 0, 0, 4, values, sizeof(values)));
  EXPECT(SLUICE_E_POISONED, sluice_session_save(session, "nothing"));
  EXPECT(SLUICE_OK, sluice_session_get_stats(session, &stats));
  CHECK(stats.updates == 2);
  next = make_session(engine, ELEMS, &other);
  EXPECT(SLUICE_OK, update(next, other));
  sluice_session_destroy(session);
  EXPECT(SLUICE_OK, update(next, other));
  sluice_session_destroy(next);
  test_write(engine, folder);
  sluice_engine_destroy(engine);
  return check_result();
}
