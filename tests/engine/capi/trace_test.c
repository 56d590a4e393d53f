/* The trace of two updates with the program's own events. check_trace reads the files. */
#include <math.h>

#include "tests/engine/capi/check.h"

static void open_session(sluice_engine* engine, sluice_session** session, sluice_param* number) {
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_param_options param = SLUICE_PARAM_OPTIONS_INIT;
  const int64_t shape[1] = {50000};
  options.state = SLUICE_STATE_STORAGE;
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, session));
  EXPECT(SLUICE_OK, sluice_session_add_group(*session, &group, &param.group));
  EXPECT(SLUICE_OK, sluice_session_add_unit(*session, "unit", &param.unit));
  param.name = "w";
  param.ndim = 1;
  param.shape = shape;
  EXPECT(SLUICE_OK, sluice_session_add_param(*session, &param, number));
  EXPECT(SLUICE_OK, sluice_session_seal(*session));
}

static void update(sluice_session* session, sluice_param number) {
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  sluice_tensor grad = SLUICE_TENSOR_INIT;
  EXPECT(SLUICE_OK, sluice_session_grad(session, number, &grad));
  EXPECT(SLUICE_OK, sluice_session_give_grad(session, number, &grad));
  EXPECT(SLUICE_OK, sluice_session_update(session, &info));
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_engine* engine = NULL;
  sluice_session* session = NULL;
  sluice_param number = {0};
  char path[4096], name[64];
  int i;
  options.device_bytes = 1u << 20;
  options.pinned_bytes = 32u << 20;
  options.storage_bytes = 32u << 20;
  options.storage_paths = &folder;
  options.storage_path_count = 1;
  options.storage_engine = SLUICE_STORAGE_POSIX;
  EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
  open_session(engine, &session, &number);
  update(session, number); /* not recorded */
  EXPECT(SLUICE_OK, sluice_trace_mark(engine, "lost"));
  EXPECT(SLUICE_E_INPUT, sluice_trace_start(engine, 10000001));
  EXPECT(SLUICE_OK, sluice_trace_start(engine, 10000));
  EXPECT(SLUICE_OK, sluice_trace_mark(engine, "step 2"));
  update(session, number);
  EXPECT(SLUICE_OK, sluice_trace_span(engine, "host", "forward \"a\" \xff\xc3\xa9", 100, 250));
  EXPECT(SLUICE_OK, sluice_trace_counter(engine, "loss", 260, 0.5));
  EXPECT(SLUICE_OK, sluice_trace_counter(engine, "loss", 270, NAN));
  EXPECT(SLUICE_E_INPUT, sluice_trace_span(engine, "host", "backward", 250, 100));
  EXPECT(SLUICE_E_INPUT, sluice_trace_span(engine, "host", "x", -1, 100));
  EXPECT(SLUICE_E_INPUT, sluice_trace_span(engine, "host", "x", 0, INT64_MAX));
  EXPECT(SLUICE_E_INPUT, sluice_trace_counter(engine, "x", INT64_MIN, 1));
  snprintf(path, sizeof(path), "%s/capi_trace.json", folder);
  EXPECT(SLUICE_E_INPUT, sluice_trace_write(engine, path, SLUICE_FORMAT_CSV));
  EXPECT(SLUICE_E_IO, sluice_trace_write(engine, "/nonexistent/trace", SLUICE_FORMAT_JSON));
  EXPECT(SLUICE_OK, sluice_trace_write(engine, path, SLUICE_FORMAT_JSON));
  /* The oldest events go first, whatever their names. */
  EXPECT(SLUICE_OK, sluice_trace_start(engine, 7));
  for (i = 0; i < 1000; ++i) {
    snprintf(name, sizeof(name), "step %d", i);
    EXPECT(SLUICE_OK, sluice_trace_mark(engine, name));
  }
  snprintf(path, sizeof(path), "%s/capi_trace_last.json", folder);
  EXPECT(SLUICE_OK, sluice_trace_write(engine, path, SLUICE_FORMAT_JSON));
  EXPECT(SLUICE_OK, sluice_trace_start(engine, 0));
  EXPECT(SLUICE_OK, sluice_trace_mark(engine, "lost"));
  sluice_session_destroy(session);
  sluice_engine_destroy(engine);
  return check_result();
}
