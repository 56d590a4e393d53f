/* Trains weights that are larger than the device's budget, a unit at a time, with Sluice's pager.
 *
 *     page_weights [DIRECTORY]   DIRECTORY: weights and state rest on storage there, not in memory
 *
 * Eight layers of y = x + w * x learn to double their input, element by element. The device holds
 * windows of three of them. The last line has a digest of the weights: it is the same wherever they
 * rest. */
#include <sluice/sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 8, ELEMS = 1 << 18, STEPS = 6 };

/* Ends the program with the library's own message. */
static void check(sluice_status status) {
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  if (status == SLUICE_OK) return;
  if (sluice_error(&info) == SLUICE_OK) {
    fprintf(stderr, "page_weights: %s: %s\n", sluice_status_name(status), info.message);
  }
  exit(1);
}

struct layer {
  sluice_unit unit;
  sluice_paged weight, momentum;
  float* window; /* on the device; has the weights between acquire and release */
  float* input;  /* kept for the backward pass */
  float* grad;
};

/* x becomes x + w * x; the input is kept. */
static void run_forward(sluice_pager* pager, struct layer* layer, float* x) {
  int i;
  check(sluice_pager_acquire(pager, layer->unit, NULL));
  memcpy(layer->input, x, ELEMS * sizeof(float));
  for (i = 0; i < ELEMS; ++i) x[i] += layer->window[i] * x[i];
  check(sluice_pager_release(pager, layer->unit, NULL));
}

/* dx becomes the gradient of the layer's input. */
static void run_backward(sluice_pager* pager, struct layer* layer, float* dx) {
  int i;
  check(sluice_pager_acquire(pager, layer->unit, NULL));
  for (i = 0; i < ELEMS; ++i) {
    layer->grad[i] = dx[i] * layer->input[i];
    dx[i] += layer->window[i] * dx[i];
  }
  check(sluice_pager_release(pager, layer->unit, NULL));
}

/* SGD with momentum, in pinned memory; the unit that follows is read meanwhile. */
static void update(sluice_pager* pager, const struct layer* layer, sluice_unit next) {
  void *weight = NULL, *momentum = NULL;
  int i;
  check(sluice_pager_stage(pager, layer->unit, next));
  check(sluice_pager_staged(pager, layer->weight, &weight));
  check(sluice_pager_staged(pager, layer->momentum, &momentum));
  for (i = 0; i < ELEMS; ++i) {
    float* const m = (float*)momentum + i;
    *m = 0.5f * *m + layer->grad[i];
    ((float*)weight)[i] -= 0.02f * *m;
  }
  check(sluice_pager_unstage(pager, layer->unit));
}

static double run_step(sluice_pager* pager, struct layer layers[LAYERS], float* x) {
  double loss = 0;
  int at, i;
  for (i = 0; i < ELEMS; ++i) x[i] = 0.5f + (float)(i % 1000) / 1000.0f;
  check(sluice_pager_begin_pass(pager));
  for (at = 0; at < LAYERS; ++at) run_forward(pager, &layers[at], x);
  for (i = 0; i < ELEMS; ++i) {
    const float error = x[i] - 2.0f * (0.5f + (float)(i % 1000) / 1000.0f);
    loss += 0.5 * error * error / (double)ELEMS;
    x[i] = error;
  }
  for (at = LAYERS - 1; at >= 0; --at) run_backward(pager, &layers[at], x);
  for (at = 0; at < LAYERS; ++at) {
    update(pager, &layers[at], at + 1 < LAYERS ? layers[at + 1].unit : SLUICE_NO_UNIT);
  }
  check(sluice_pager_settle(pager));
  return loss;
}

static uint64_t digest_of(sluice_pager* pager, const struct layer layers[LAYERS], float* buffer) {
  uint64_t digest = 14695981039346656037u;
  int at, i;
  for (at = 0; at < LAYERS; ++at) {
    const unsigned char* bytes = (const unsigned char*)buffer;
    check(sluice_pager_read(pager, layers[at].weight, 0, buffer, ELEMS * sizeof(float)));
    for (i = 0; i < (int)(ELEMS * sizeof(float)); ++i) {
      digest = (digest ^ bytes[i]) * 1099511628211u; /* FNV-1a */
    }
  }
  return digest;
}

int main(int argc, char** argv) {
  sluice_engine_options engine_options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_pager_options pager_options = SLUICE_PAGER_OPTIONS_INIT;
  sluice_pager_stats stats = SLUICE_PAGER_STATS_INIT;
  const uint64_t bytes = ELEMS * sizeof(float);
  const char* paths[1];
  sluice_engine* engine = NULL;
  sluice_pager* pager = NULL;
  struct layer layers[LAYERS];
  float* x = (float*)malloc(ELEMS * sizeof(float));
  int step, at;

  engine_options.device_bytes = (uint64_t)6 << 20;
  engine_options.pinned_bytes = (uint64_t)32 << 20;
  if (argc > 1) {
    paths[0] = argv[1];
    engine_options.storage_paths = paths;
    engine_options.storage_path_count = 1;
    engine_options.storage_bytes = (uint64_t)64 << 20;
    pager_options.weights = pager_options.state = SLUICE_STATE_STORAGE;
  }
  check(sluice_engine_create(&engine_options, &engine));
  check(sluice_pager_create(engine, &pager_options, &pager));
  for (at = 0; at < LAYERS; ++at) {
    struct layer* const layer = &layers[at];
    char name[24];
    sprintf(name, "layer.%d", at);
    check(sluice_pager_add_unit(pager, name, &layer->unit));
    check(sluice_pager_add(pager, layer->unit, SLUICE_PART_WEIGHT, bytes, NULL, &layer->weight));
    check(sluice_pager_add(pager, layer->unit, SLUICE_PART_STATE, bytes, NULL, &layer->momentum));
    layer->input = (float*)malloc(ELEMS * sizeof(float));
    layer->grad = (float*)malloc(ELEMS * sizeof(float));
    if (x == NULL || layer->input == NULL || layer->grad == NULL) return 1;
  }
  check(sluice_pager_seal(pager));
  for (at = 0; at < LAYERS; ++at) {
    void* window = NULL;
    check(sluice_pager_window(pager, layers[at].weight, &window));
    layers[at].window = (float*)window;
  }
  for (step = 1; step <= STEPS; ++step) {
    printf("step %d  loss %.6f\n", step, run_step(pager, layers, x));
  }
  check(sluice_pager_get_stats(pager, &stats));
  printf("windows %lu bytes, pinned %lu bytes, storage %lu bytes\n",
         (unsigned long)stats.window_bytes, (unsigned long)stats.pinned_bytes,
         (unsigned long)stats.storage_bytes);
  printf("weights %016lx\n", (unsigned long)digest_of(pager, layers, x));
  for (at = 0; at < LAYERS; ++at) {
    free(layers[at].input);
    free(layers[at].grad);
  }
  free(x);
  sluice_pager_destroy(pager);
  sluice_engine_destroy(engine);
  return 0;
}
