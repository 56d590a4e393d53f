/* Trains a small network with passes in plain C and with Sluice's offloaded AdamW.
 *
 *     train_net [DIRECTORY]      DIRECTORY: the optimizer state lies on storage there
 *
 * The network is tanh(x W1 + b1) W2 + b2; it learns sin(3 a) * cos(2 b). The last line has a digest
 * of the weights: it is the same wherever the state lies. */
#include <math.h>
#include <sluice/sluice.h>
#include <stdio.h>
#include <stdlib.h>

enum { INPUTS = 2, HIDDEN = 96, BATCH = 64, STEPS = 400 };

/* Ends the program with the library's own message. */
static void check(sluice_status status) {
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  if (status == SLUICE_OK) return;
  if (sluice_error(&info) == SLUICE_OK) {
    fprintf(stderr, "train_net: %s: %s\n", sluice_status_name(status), info.message);
  }
  exit(1);
}

static float uniform(uint32_t* state) { /* in [-1, 1) */
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

struct parameter {
  sluice_param number;
  float *weight, *grad; /* the session's homes: they never move */
};

static sluice_param add(sluice_session* session, sluice_unit unit, sluice_group group,
                        const char* name, int64_t rows, int64_t cols, const float* data) {
  sluice_param_options options = SLUICE_PARAM_OPTIONS_INIT;
  int64_t shape[2];
  sluice_param number = {0};
  shape[0] = rows;
  shape[1] = cols;
  options.unit = unit;
  options.group = group;
  options.name = name;
  options.ndim = 2;
  options.shape = shape;
  options.data = data;
  check(sluice_session_add_param(session, &options, &number));
  return number;
}

static void find_homes(sluice_session* session, struct parameter* p) {
  sluice_tensor weight = SLUICE_TENSOR_INIT, grad = SLUICE_TENSOR_INIT;
  check(sluice_session_weight(session, p->number, &weight));
  check(sluice_session_grad(session, p->number, &grad));
  p->weight = (float*)weight.data;
  p->grad = (float*)grad.data;
}

/* Forward and backward of one batch. Writes the gradients into their homes; returns the loss. */
static double run_batch(struct parameter p[4], uint32_t* random) {
  const float *w1 = p[0].weight, *b1 = p[1].weight, *w2 = p[2].weight, *b2 = p[3].weight;
  double loss = 0;
  int sample, i, j;
  for (j = 0; j < HIDDEN; ++j) {
    for (i = 0; i < INPUTS; ++i) p[0].grad[i * HIDDEN + j] = 0;
    p[1].grad[j] = p[2].grad[j] = 0;
  }
  p[3].grad[0] = 0;
  for (sample = 0; sample < BATCH; ++sample) {
    float x[INPUTS], hidden[HIDDEN], output = b2[0], slope;
    double error;
    for (i = 0; i < INPUTS; ++i) x[i] = uniform(random);
    for (j = 0; j < HIDDEN; ++j) {
      float sum = b1[j];
      for (i = 0; i < INPUTS; ++i) sum += x[i] * w1[i * HIDDEN + j];
      hidden[j] = tanhf(sum);
      output += hidden[j] * w2[j];
    }
    error = output - sin(3.0 * x[0]) * cos(2.0 * x[1]);
    loss += error * error / (double)BATCH;
    slope = (float)(2.0 * error / (double)BATCH);
    p[3].grad[0] += slope;
    for (j = 0; j < HIDDEN; ++j) {
      const float back = slope * w2[j] * (1.0f - hidden[j] * hidden[j]);
      p[2].grad[j] += slope * hidden[j];
      p[1].grad[j] += back;
      for (i = 0; i < INPUTS; ++i) p[0].grad[i * HIDDEN + j] += back * x[i];
    }
  }
  return loss;
}

static uint64_t add_to_digest(uint64_t digest, const float* data, size_t count) {
  const unsigned char* bytes = (const unsigned char*)data;
  size_t i;
  for (i = 0; i < count * sizeof(float); ++i) digest = (digest ^ bytes[i]) * 1099511628211u;
  return digest; /* FNV-1a */
}

int main(int argc, char** argv) {
  sluice_engine_options engine_options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_session_options session_options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group_options = SLUICE_GROUP_OPTIONS_INIT;
  sluice_session_stats stats = SLUICE_SESSION_STATS_INIT;
  const size_t sizes[4] = {INPUTS * HIDDEN, HIDDEN, HIDDEN, 1};
  const char* paths[1];
  sluice_engine* engine = NULL;
  sluice_session* session = NULL;
  sluice_group group;
  sluice_unit first, second;
  struct parameter p[4];
  float w1[INPUTS * HIDDEN], w2[HIDDEN];
  uint32_t random = 1;
  uint64_t digest = 14695981039346656037u;
  int step, i;

  engine_options.device_bytes = engine_options.pinned_bytes = (uint64_t)16 << 20;
  if (argc > 1) {
    paths[0] = argv[1];
    engine_options.storage_paths = paths;
    engine_options.storage_path_count = 1;
    engine_options.storage_bytes = (uint64_t)16 << 20;
    session_options.state = SLUICE_STATE_STORAGE;
  }
  check(sluice_engine_create(&engine_options, &engine));
  check(sluice_session_create(engine, &session_options, &session));
  group_options.lr = 5e-3;
  group_options.weight_decay = 1e-4;
  check(sluice_session_add_group(session, &group_options, &group));
  check(sluice_session_add_unit(session, "hidden", &first));
  check(sluice_session_add_unit(session, "output", &second));
  for (i = 0; i < INPUTS * HIDDEN; ++i) w1[i] = 1.5f * uniform(&random);
  for (i = 0; i < HIDDEN; ++i) w2[i] = 0.2f * uniform(&random);
  p[0].number = add(session, first, group, "hidden.weight", INPUTS, HIDDEN, w1);
  p[1].number = add(session, first, group, "hidden.bias", 1, HIDDEN, NULL);
  p[2].number = add(session, second, group, "output.weight", HIDDEN, 1, w2);
  p[3].number = add(session, second, group, "output.bias", 1, 1, NULL);
  check(sluice_session_seal(session));
  for (i = 0; i < 4; ++i) find_homes(session, &p[i]);

  for (step = 1; step <= STEPS; ++step) {
    sluice_update_info update = SLUICE_UPDATE_INFO_INIT;
    const double loss = run_batch(p, &random);
    for (i = 0; i < 4; ++i) {
      sluice_tensor grad = SLUICE_TENSOR_INIT;
      check(sluice_session_grad(session, p[i].number, &grad));
      /* It lies in its home already: nothing is copied. */
      check(sluice_session_give_grad(session, p[i].number, &grad));
    }
    update.max_norm = 1.0;
    check(sluice_session_update(session, &update));
    if (step % 100 == 0) printf("step %d  loss %.6f  norm %.4f\n", step, loss, update.grad_norm);
  }
  check(sluice_session_get_stats(session, &stats));
  for (i = 0; i < 4; ++i) digest = add_to_digest(digest, p[i].weight, sizes[i]);
  printf("pinned %lu bytes, storage %lu bytes\n", (unsigned long)stats.planned_pinned_bytes,
         (unsigned long)stats.planned_storage_bytes);
  printf("weights %016lx\n", (unsigned long)digest);
  sluice_session_destroy(session);
  sluice_engine_destroy(engine);
  return 0;
}
