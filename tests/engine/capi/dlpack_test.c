/* Tensors to and from DLPack 1.x, with structs of this file's own, written after dlpack.h. */
#include "tests/engine/capi/check.h"

typedef struct {
  uint32_t major, minor;
} dl_version;
typedef struct {
  int32_t type, id;
} dl_device;
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} dl_type;
typedef struct {
  void* data;
  dl_device device;
  int32_t ndim;
  dl_type dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;
struct DLManagedTensorVersioned {
  dl_version version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  dl_tensor tensor;
};
typedef struct DLManagedTensorVersioned managed;

static void test_out(void) {
  static const struct {
    int32_t dtype;
    uint8_t code, bits;
  } formats[] = {{SLUICE_DTYPE_F32, 2, 32},
                 {SLUICE_DTYPE_BF16, 4, 16},
                 {SLUICE_DTYPE_F16, 2, 16},
                 {SLUICE_DTYPE_I16, 0, 16}};
  const int64_t shape[3] = {2, 1, 5};
  const int64_t negative[1] = {-1};
  const int64_t huge[2] = {INT64_MAX, 3};
  float values[10] = {0};
  sluice_tensor tensor = SLUICE_TENSOR_INIT;
  managed* lent = NULL;
  size_t i;
  tensor.ndim = 3;
  tensor.shape = shape;
  tensor.data = values;
  for (i = 0; i < sizeof(formats) / sizeof(formats[0]); ++i) {
    tensor.dtype = formats[i].dtype;
    EXPECT(SLUICE_OK, sluice_to_dlpack(&tensor, &lent));
    CHECK(lent->version.major == 1 && lent->flags == 0);
    CHECK(lent->tensor.data == values && lent->tensor.byte_offset == 0);
    CHECK(lent->tensor.device.type == 1 && lent->tensor.device.id == 0);
    CHECK(lent->tensor.dtype.code == formats[i].code && lent->tensor.dtype.bits == formats[i].bits);
    CHECK(lent->tensor.dtype.lanes == 1 && lent->tensor.ndim == 3);
    CHECK(lent->tensor.shape != shape && lent->tensor.shape[0] == 2 && lent->tensor.shape[2] == 5);
    CHECK(lent->tensor.strides[0] == 5 && lent->tensor.strides[2] == 1);
    lent->deleter(lent);
  }
  tensor.ndim = 0; /* a scalar */
  tensor.shape = NULL;
  EXPECT(SLUICE_OK, sluice_to_dlpack(&tensor, &lent));
  CHECK(lent->tensor.ndim == 0);
  lent->deleter(lent);
  tensor.ndim = 1;
  EXPECT(SLUICE_E_INPUT, sluice_to_dlpack(&tensor, &lent)); /* no shape */
  tensor.shape = negative;
  EXPECT(SLUICE_E_INPUT, sluice_to_dlpack(&tensor, &lent));
  tensor.ndim = 2;
  tensor.shape = huge;
  EXPECT(SLUICE_E_INPUT, sluice_to_dlpack(&tensor, &lent));
  tensor.ndim = 3;
  tensor.shape = shape;
  tensor.dtype = 99;
  EXPECT(SLUICE_E_INPUT, sluice_to_dlpack(&tensor, &lent));
  tensor.dtype = SLUICE_DTYPE_F32;
  tensor.data = NULL;
  EXPECT(SLUICE_E_INPUT, sluice_to_dlpack(&tensor, &lent));
}

static managed dense(float* data, int64_t* shape, int64_t* strides) {
  managed from;
  memset(&from, 0, sizeof(from));
  from.version.major = 1;
  from.version.minor = 7; /* minor versions do not change the layout */
  from.tensor.data = data;
  from.tensor.device.type = 1;
  from.tensor.ndim = 2;
  from.tensor.dtype.code = 2;
  from.tensor.dtype.bits = 32;
  from.tensor.dtype.lanes = 1;
  from.tensor.shape = shape;
  from.tensor.strides = strides;
  return from;
}

static void test_in(void) {
  float values[12] = {0};
  int64_t shape[2] = {1, 6}, strides[2] = {77, 1}, got[8] = {0};
  managed from = dense(values, shape, strides);
  sluice_tensor tensor = SLUICE_TENSOR_INIT;
  from.tensor.byte_offset = 8;
  EXPECT(SLUICE_OK, sluice_from_dlpack(&from, &tensor, got)); /* one row may have any stride */
  CHECK(tensor.data == values + 2 && tensor.dtype == SLUICE_DTYPE_F32 && tensor.ndim == 2);
  CHECK(tensor.shape == got && got[0] == 1 && got[1] == 6);
  from.tensor.strides = NULL;
  from.tensor.device.type = 3; /* pinned by CUDA */
  EXPECT(SLUICE_OK, sluice_from_dlpack(&from, &tensor, got));
  CHECK(tensor.device_type == SLUICE_DEVICE_CPU);
  from.tensor.device.type = 2;
  EXPECT(SLUICE_OK, sluice_from_dlpack(&from, &tensor, got));
  CHECK(tensor.device_type == SLUICE_DEVICE_CUDA);
  from.tensor.strides = strides;
  shape[0] = 2;
  tensor.ndim = 55;
  EXPECT(SLUICE_E_INPUT, sluice_from_dlpack(&from, &tensor, got)); /* not dense */
  strides[0] = 1;
  strides[1] = 2;
  EXPECT(SLUICE_E_INPUT, sluice_from_dlpack(&from, &tensor, got)); /* transposed */
  shape[1] = 0;
  EXPECT(SLUICE_OK, sluice_from_dlpack(&from, &tensor, got)); /* no element, so any stride */
  shape[1] = -6;
  EXPECT(SLUICE_E_INPUT, sluice_from_dlpack(&from, &tensor, got));
  shape[1] = 6;
  strides[0] = 6;
  strides[1] = 1;
  from.tensor.dtype.lanes = 2;
  EXPECT(SLUICE_E_UNSUPPORTED, sluice_from_dlpack(&from, &tensor, got));
  from.tensor.dtype.lanes = 1;
  from.tensor.dtype.bits = 64;
  EXPECT(SLUICE_E_UNSUPPORTED, sluice_from_dlpack(&from, &tensor, got));
  from.tensor.dtype.bits = 32;
  from.tensor.ndim = 9;
  EXPECT(SLUICE_E_INPUT, sluice_from_dlpack(&from, &tensor, got));
  from.tensor.ndim = 2;
  from.version.major = 2;
  EXPECT(SLUICE_E_VERSION, sluice_from_dlpack(&from, &tensor, got));
}

/* A session's weight goes out and comes back as the same tensor; a gradient comes in from
 * DLPack. */
static void test_session(void) {
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_session_options session_options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_param_options param = SLUICE_PARAM_OPTIONS_INIT;
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  sluice_tensor weight = SLUICE_TENSOR_INIT, again = SLUICE_TENSOR_INIT;
  sluice_engine* engine = NULL;
  sluice_session* session = NULL;
  sluice_param number = {0};
  int64_t shape[2] = {3, 4}, got[8];
  float gradient[12] = {0};
  managed from = dense(gradient, shape, NULL);
  managed* lent = NULL;
  options.device_bytes = options.pinned_bytes = 8u << 20;
  EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
  EXPECT(SLUICE_OK, sluice_session_create(engine, &session_options, &session));
  EXPECT(SLUICE_OK, sluice_session_add_group(session, &group, &param.group));
  EXPECT(SLUICE_OK, sluice_session_add_unit(session, "unit", &param.unit));
  param.name = "w";
  param.ndim = 2;
  param.shape = shape;
  EXPECT(SLUICE_OK, sluice_session_add_param(session, &param, &number));
  EXPECT(SLUICE_OK, sluice_session_seal(session));
  EXPECT(SLUICE_OK, sluice_session_weight(session, number, &weight));
  EXPECT(SLUICE_OK, sluice_to_dlpack(&weight, &lent));
  EXPECT(SLUICE_OK, sluice_from_dlpack(lent, &again, got));
  CHECK(again.data == weight.data && again.ndim == 2 && got[0] == 3 && got[1] == 4);
  gradient[5] = 2;
  EXPECT(SLUICE_OK, sluice_from_dlpack(&from, &again, got));
  EXPECT(SLUICE_OK, sluice_session_give_grad(session, number, &again));
  EXPECT(SLUICE_OK, sluice_session_update(session, &info));
  CHECK(info.grad_norm == 2 && ((float*)lent->tensor.data)[5] != 0);
  lent->deleter(lent);
  sluice_session_destroy(session);
  sluice_engine_destroy(engine);
}

int main(void) {
  test_out();
  test_in();
  test_session();
  return check_result();
}
